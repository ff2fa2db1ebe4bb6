// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Arrays. Their layout is not documented: their size is computed from the format.

#include "hooks.h"

// Bytes of one channel. Formats not listed (compressed, video) count as four, the largest.
static uint64_t channel(int format)
{
	switch (format) {
	case 0x01: case 0x08: return 1;
	case 0x02: case 0x09: case 0x10: return 2;
	}
	return 4;
}

static int64_t bytes_of(uint64_t w, uint64_t h, uint64_t d, int format, uint64_t channels)
{
	uint64_t n = channel(format) * (channels ? channels : 1);
	uint64_t of[] = { w, h, d };
	for (int i = 0; i < 3; i++) {
		uint64_t k = of[i] ? of[i] : 1;
		if (n > INT64_MAX / 8 / k)
			return INT64_MAX / 8;
		n *= k;
	}
	return (int64_t)((n + 511) / 512 * 512);
}

#define CREATE(name, params, args, size) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		struct device *dev; \
		struct reservation c; \
		CUresult r; \
		if (!eb_active() || !d || !(dev = eb_device_here())) \
			return real args; \
		TAKE(dev, size, &c, r, real args); \
		eb_hold(K_ARRAY, (uint64_t)(uintptr_t)*a, &c, c.bytes); \
		return r; \
	}
#define OF(depth) bytes_of(d->Width, d->Height, depth, d->Format, d->NumChannels)
#define SPARSE 0x40 // no memory of its own
CREATE(cuArrayCreate_v2, (CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d), (a, d), OF(1))
CREATE(cuArrayCreate, (CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *d), (a, d), OF(1))
CREATE(cuArray3DCreate_v2, (CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d), (a, d), d->Flags & SPARSE ? 0 : OF(d->Depth))
CREATE(cuArray3DCreate, (CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d), (a, d), OF(d->Depth))
// All levels together are at most a third more than the first for planes (1 + 1/4 + 1/16 + …),
// and twice the first for lines.
CREATE(cuMipmappedArrayCreate, (CUmipmappedArray *a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels), (a, d, levels),
	d->Flags & SPARSE ? 0 : levels < 2 ? OF(d->Depth) : d->Height > 1 ? OF(d->Depth) / 3 * 4 : OF(d->Depth) * 2)

#define DESTROY(name, handle) \
	EXPORT CUresult name(handle a) \
	{ \
		NEED(name, real); \
		struct entry e; \
		bool ours = eb_active() && eb_table_take(K_ARRAY, (uint64_t)(uintptr_t)a, &e); \
		CUresult r = real(a); \
		if (ours) \
			eb_freed(K_ARRAY, (uint64_t)(uintptr_t)a, &e, r); \
		return r; \
	}
DESTROY(cuArrayDestroy, CUarray)
DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray)
