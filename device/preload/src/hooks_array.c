// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Arrays, whose layout is the driver's secret: what they take is reckoned from their format.

#include "preload.h"

#include <string.h>

// Bytes of one channel. Formats not listed (compressed, video) are taken for four, which is no
// less than any of them needs.
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

static void remember(CUarray a, struct claim *c)
{
	CUcontext ctx = NULL;
	eb.cu.cuCtxGetCurrent(&ctx);
	eb_keep(c, c->bytes);
	eb_table_put(K_ARRAY, (uint64_t)(uintptr_t)a, &(struct entry){ .size = (uint64_t)c->bytes, .owner = (uint64_t)(uintptr_t)ctx, .device = c->device, .refs = 1 });
}

#define CREATE(name, handle, params, args, bytes) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		struct device *dev; \
		struct claim c; \
		CUresult r; \
		if (!eb_active() || !d || !(dev = eb_device_here())) \
			return real args; \
		TAKE(dev, bytes, &c, r, real args); \
		remember((CUarray)*a, &c); \
		return r; \
	}
#define SPARSE 0x40 // no memory of its own
CREATE(cuArrayCreate_v2, CUarray, (CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d), (a, d),
	bytes_of(d->Width, d->Height, 1, d->Format, d->NumChannels))
CREATE(cuArrayCreate, CUarray, (CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *d), (a, d),
	bytes_of(d->Width, d->Height, 1, d->Format, d->NumChannels))
CREATE(cuArray3DCreate_v2, CUarray, (CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d), (a, d),
	d->Flags & SPARSE ? 0 : bytes_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels))
CREATE(cuArray3DCreate, CUarray, (CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d), (a, d),
	bytes_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels))
// All levels together are at most a third more than the first, for planes (1 + 1/4 + 1/16 + …),
// and twice the first for lines.
CREATE(cuMipmappedArrayCreate, CUmipmappedArray, (CUmipmappedArray *a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels), (a, d, levels),
	d->Flags & SPARSE ? 0 : levels < 2 ? bytes_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels) :
	d->Height > 1 ? bytes_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels) / 3 * 4 :
	bytes_of(d->Width, d->Height, d->Depth, d->Format, d->NumChannels) * 2)

#define DESTROY(name, handle) \
	EXPORT CUresult name(handle a) \
	{ \
		NEED(name, real); \
		struct entry e; \
		bool ours = eb_active() && eb_table_take(K_ARRAY, (uint64_t)(uintptr_t)a, &e); \
		CUresult r = real(a); \
		if (ours && r == CUDA_SUCCESS) \
			eb_give(e.device, (int64_t)e.size); \
		else if (ours) \
			eb_table_put(K_ARRAY, (uint64_t)(uintptr_t)a, &e); \
		return r; \
	}
DESTROY(cuArrayDestroy, CUarray)
DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray)
