// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Virtual memory management. Memory of cuMemCreate is free when its last handle is released and
// its last mapping undone, in either order.

#include "hooks.h"

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
	NEED(cuMemCreate, real);
	struct device *d;
	struct reservation c;
	CUresult r;
	if (!eb_active() || !prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !(d = eb_device(prop->location.id)))
		return real(h, n, prop, flags);
	TAKE(d, n > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)n, &c, r, real(h, n, prop, flags));
	eb_commit(&c, c.bytes);
	eb_table_put(K_HANDLE, *h, &(struct entry){ .size = (uint64_t)c.bytes, .device = d, .refs = 1 });
	return r;
}

static void unrefer(CUmemGenericAllocationHandle h)
{
	struct entry e;
	if (eb_table_refer(K_HANDLE, h, -1, 0, &e) && !e.refs)
		eb_release(e.device, (int64_t)e.size);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
	NEED(cuMemRelease, real);
	CUresult r = real(h);
	if (r == CUDA_SUCCESS && eb_active())
		unrefer(h);
	return r;
}

// Returns one more handle, to be released as well.
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *address)
{
	NEED(cuMemRetainAllocationHandle, real);
	struct entry e;
	CUresult r = real(h, address);
	if (r == CUDA_SUCCESS && eb_active())
		eb_table_refer(K_HANDLE, *h, 1, 0, &e);
	return r;
}

EXPORT CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	NEED(cuMemMap, real);
	struct entry e;
	CUresult r = real(p, n, offset, h, flags);
	if (r == CUDA_SUCCESS && eb_active() && eb_table_refer(K_HANDLE, h, 1, 0, &e))
		eb_table_put(K_MAPPING, p, &(struct entry){ .size = n, .owner = h, .device = e.device, .refs = 1 });
	return r;
}

// One call may undo several adjacent mappings.
EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t n)
{
	NEED(cuMemUnmap, real);
	struct entry e;
	CUresult r = real(p, n);
	if (r == CUDA_SUCCESS && eb_active())
		for (CUdeviceptr at = p; at < p + n && eb_table_take(K_MAPPING, at, &e); at += e.size) {
			unrefer(e.owner);
			if (!e.size)
				break;
		}
	return r;
}
