// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// cuGetProcAddress. The real one chooses the version; the address that it returns is looked up
// among the hooked functions'. So no suffix is guessed.

#include "hooks.h"

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	NEED(cuGetProcAddress_v2, real);
	CUresult r = real(symbol, pfn, version, flags, status);
	if (r == CUDA_SUCCESS && pfn)
		*pfn = eb_map(*pfn);
	return r;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	NEED(cuGetProcAddress, real);
	CUresult r = real(symbol, pfn, version, flags);
	if (r == CUDA_SUCCESS && pfn)
		*pfn = eb_map(*pfn);
	return r;
}
