// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Linear memory.

#include "hooks.h"

// The driver gives no less than this. How it rounds large blocks is not documented: the gate
// measures the excess.
enum { GRANULE = 512, PITCH = 512 };

static int64_t rounded(size_t n)
{
	if (n > INT64_MAX / 4)
		return INT64_MAX / 4;
	return (int64_t)((n + GRANULE - 1) / GRANULE * GRANULE);
}

// Commits a reservation and records what the pointer holds.
void eb_hold(enum kind kind, uint64_t key, struct reservation *r, int64_t actual)
{
	CUcontext ctx = NULL;
	eb.cu.cuCtxGetCurrent(&ctx);
	eb_commit(r, actual);
	eb_table_put(kind, key, &(struct entry){ .size = (uint64_t)actual, .owner = (uint64_t)(uintptr_t)ctx, .device = r->device, .refs = 1 });
}

// Ends a free. The entry was removed before the driver's free, because another thread may get the
// same address at once; if the driver refused, it is put back.
void eb_freed(enum kind kind, uint64_t key, const struct entry *e, CUresult result)
{
	if (result == CUDA_SUCCESS)
		eb_release(e->device, (int64_t)e->size);
	else
		eb_table_put(kind, key, e);
}

// The driver chooses the pitch: a guess is reserved, and what it took is committed.
static int64_t pitched(size_t width, size_t height)
{
	size_t w = (width + PITCH - 1) / PITCH * PITCH;
	return height && w > INT64_MAX / 4 / height ? INT64_MAX / 4 : rounded(w * height);
}

// pinned: the memory cannot be parked, and must be within the share.
#define ALLOC(name, params, args, asked, actual, pinned) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		struct device *d; \
		struct reservation c; \
		CUresult r; \
		if (!eb_active() || !(d = eb_device_here())) \
			return real args; \
		if (pinned && !eb_within(d, asked)) \
			return CUDA_ERROR_OUT_OF_MEMORY; \
		TAKE(d, asked, &c, r, real args); \
		if (pinned) \
			eb_pin(PIN_MANAGED); \
		eb_hold(K_MEMORY, *p, &c, actual); \
		return r; \
	}
ALLOC(cuMemAlloc_v2, (CUdeviceptr *p, size_t n), (p, n), rounded(n), c.bytes, false)
ALLOC(cuMemAlloc, (CUdeviceptr_v1 *p, unsigned n), (p, n), rounded(n), c.bytes, false)
ALLOC(cuMemAllocManaged, (CUdeviceptr *p, size_t n, unsigned flags), (p, n, flags), rounded(n), c.bytes, true)
ALLOC(cuMemAllocPitch_v2, (CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element), (p, pitch, width, height, element),
	pitched(width, height), rounded(*pitch * height), false)
ALLOC(cuMemAllocPitch, (CUdeviceptr_v1 *p, unsigned *pitch, unsigned width, unsigned height, unsigned element), (p, pitch, width, height, element),
	pitched(width, height), rounded((size_t)*pitch * height), false)

#define FREE(name, pointer) \
	EXPORT CUresult name(pointer p) \
	{ \
		NEED(name, real); \
		struct entry e; \
		if (!eb_active()) \
			return real(p); \
		bool ours = p && eb_table_take(K_MEMORY, p, &e); \
		CUresult r = real(p); \
		if (ours) \
			eb_freed(K_MEMORY, p, &e, r); \
		else if (eb_world.pools) \
			eb_pools_settle(NULL); /* memory of a pool may be freed so, too */ \
		return r; \
	}
FREE(cuMemFree_v2, CUdeviceptr)
FREE(cuMemFree, CUdeviceptr_v1)
