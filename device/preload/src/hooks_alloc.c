// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Linear memory: cuMemAlloc and its kin.

#include "preload.h"

// The driver hands out no less than this. What it rounds large blocks to is its own affair; it
// shows as the difference between NVML's figure for the process and the gate's, and the
// watchdog sees it.
enum { GRANULE = 512, PITCH = 512 };

static int64_t rounded(size_t n)
{
	if (n > INT64_MAX / 4)
		return INT64_MAX / 4;
	return (int64_t)((n + GRANULE - 1) / GRANULE * GRANULE);
}

static void remember(struct device *d, CUdeviceptr p, int64_t bytes)
{
	CUcontext ctx = NULL;
	eb.cu.cuCtxGetCurrent(&ctx);
	eb_table_put(K_MEMORY, p, &(struct entry){ .size = (uint64_t)bytes, .owner = (uint64_t)(uintptr_t)ctx, .device = d, .refs = 1 });
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	NEED(cuMemAlloc_v2, real);
	struct device *d;
	struct claim c;
	CUresult r;
	if (!eb_active() || !(d = eb_device_here()))
		return real(p, n);
	TAKE(d, rounded(n), &c, r, real(p, n));
	eb_keep(&c, c.bytes);
	remember(d, *p, c.bytes);
	return r;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *p, unsigned n)
{
	NEED(cuMemAlloc, real);
	struct device *d;
	struct claim c;
	CUresult r;
	if (!eb_active() || !(d = eb_device_here()))
		return real(p, n);
	TAKE(d, rounded(n), &c, r, real(p, n));
	eb_keep(&c, c.bytes);
	remember(d, *p, c.bytes);
	return r;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	NEED(cuMemAllocManaged, real);
	struct device *d;
	struct claim c;
	CUresult r;
	if (!eb_active() || !(d = eb_device_here()))
		return real(p, n, flags);
	if (!eb_within(d, rounded(n)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	TAKE(d, rounded(n), &c, r, real(p, n, flags));
	eb_pin(PIN_MANAGED);
	eb_keep(&c, c.bytes);
	remember(d, *p, c.bytes);
	return r;
}

// The pitch is the driver's choice: a guess is set aside, and what it was is settled after.
static int64_t pitched(size_t width, size_t height)
{
	size_t w = (width + PITCH - 1) / PITCH * PITCH;
	return height && w > INT64_MAX / 4 / height ? INT64_MAX / 4 : rounded(w * height);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element)
{
	NEED(cuMemAllocPitch_v2, real);
	struct device *d;
	struct claim c;
	CUresult r;
	if (!eb_active() || !(d = eb_device_here()))
		return real(p, pitch, width, height, element);
	TAKE(d, pitched(width, height), &c, r, real(p, pitch, width, height, element));
	int64_t actual = rounded(*pitch * height);
	eb_keep(&c, actual);
	remember(d, *p, actual);
	return r;
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *p, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	NEED(cuMemAllocPitch, real);
	struct device *d;
	struct claim c;
	CUresult r;
	if (!eb_active() || !(d = eb_device_here()))
		return real(p, pitch, width, height, element);
	TAKE(d, pitched(width, height), &c, r, real(p, pitch, width, height, element));
	int64_t actual = rounded((size_t)*pitch * height);
	eb_keep(&c, actual);
	remember(d, *p, actual);
	return r;
}

// A free is counted before the driver does it: after, another thread may have the same address
// again. Where the driver refuses, it is put back.
static bool forget(CUdeviceptr p, struct entry *e)
{
	return p && eb_table_take(K_MEMORY, p, e);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p)
{
	NEED(cuMemFree_v2, real);
	struct entry e;
	if (!eb_active())
		return real(p);
	bool ours = forget(p, &e);
	CUresult r = real(p);
	if (ours && r == CUDA_SUCCESS)
		eb_give(e.device, (int64_t)e.size);
	else if (ours)
		eb_table_put(K_MEMORY, p, &e);
	else if (eb.world.pools)
		eb_pools_settle(NULL); // memory of a pool may be freed so, too
	return r;
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 p)
{
	NEED(cuMemFree, real);
	struct entry e;
	if (!eb_active())
		return real(p);
	bool ours = forget(p, &e);
	CUresult r = real(p);
	if (ours && r == CUDA_SUCCESS)
		eb_give(e.device, (int64_t)e.size);
	else if (ours)
		eb_table_put(K_MEMORY, p, &e);
	return r;
}
