// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Is the driver newer than this library? It may have a version of a function that hooks.def does
// not list (a _v3), by which a program would bypass the gate.

#include "resolve.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {
#define CUDA(n) #n,
#define NVML(n)
#define SUBMIT(n, P, A) #n,
#include "hooks.def"
#include "submit.def"
};

CUresult cuGetProcAddress(const char *, void **, int, uint64_t);
CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

// Does a program that asks for the newest version of a name get a hook? Names that the driver
// lacks need none.
static bool hooked(const char *name, int version, uint64_t flags)
{
	__typeof__(&cuGetProcAddress_v2) get = REAL(cuGetProcAddress_v2);
	__typeof__(&cuGetProcAddress) old = REAL(cuGetProcAddress); // drivers before 12.0 have only this one
	void *found = NULL;
	int status;
	CUresult r = get ? get(name, &found, version, flags, &status) : old ? old(name, &found, version, flags) : CUDA_ERROR_NOT_FOUND;
	return r != CUDA_SUCCESS || !found || eb_map(found) != found;
}

// Asks the driver for the newest version of every hooked function, once.
bool eb_all_hooked(void)
{
	enum { UNKNOWN, YES, NO };
	static _Atomic int known;
	int version;
	if (known != UNKNOWN || !eb.cu.cuDriverGetVersion || eb.cu.cuDriverGetVersion(&version) != CUDA_SUCCESS)
		return known != NO;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char base[64];
		snprintf(base, sizeof base, "%.*s", (int)strcspn(names[i], "_"), names[i]); // without _v2 or _ptsz
		if (!hooked(base, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM) || !hooked(base, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) {
			LOG(1, "the driver has a newer %s than this library: the process is not parked", base);
			known = NO;
			return false;
		}
	}
	known = YES;
	return true;
}
