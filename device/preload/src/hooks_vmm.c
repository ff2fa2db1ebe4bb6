// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Virtual memory management. Memory of cuMemCreate is free when its last handle is released and
// its last mapping undone, in either order.

#include "hooks.h"

#include <stdlib.h>

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

// Takes a reference from a handle, before the driver does: after its call another thread may have
// that handle for other memory.
static bool unrefer(CUmemGenericAllocationHandle h, struct entry *left)
{
	return eb_table_refer(K_HANDLE, h, -1, 0, left);
}

// Ends it: without references the memory is free; if the driver refused, the reference is put back.
static void unreferred(CUmemGenericAllocationHandle h, const struct entry *left, CUresult result)
{
	struct entry e = *left;
	if (result == CUDA_SUCCESS) {
		if (!e.refs)
			eb_release(e.device, (int64_t)e.size);
	} else if (!eb_table_refer(K_HANDLE, h, 1, 0, &e)) {
		e.refs = 1;
		eb_table_put(K_HANDLE, h, &e);
	}
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
	NEED(cuMemRelease, real);
	struct entry left;
	bool ours = eb_active() && unrefer(h, &left);
	CUresult r = real(h);
	if (ours)
		unreferred(h, &left, r);
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
	struct entry e, left;
	bool ours = eb_active() && eb_table_refer(K_HANDLE, h, 1, 0, &e);
	CUresult r = real(p, n, offset, h, flags);
	if (ours && r == CUDA_SUCCESS)
		eb_table_put(K_MAPPING, p, &(struct entry){ .size = n, .owner = h, .device = e.device, .refs = 1 });
	else if (ours && unrefer(h, &left))
		unreferred(h, &left, CUDA_SUCCESS);
	return r;
}

// One call may undo several adjacent mappings.
EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t n)
{
	NEED(cuMemUnmap, real);
	struct undone { struct entry mapping, left; bool held; } *all = NULL, *more;
	struct entry m = { .size = 1 };
	size_t count = 0;
	// Without memory for the list the rest counts until the process ends.
	for (CUdeviceptr at = p; eb_active() && at < p + n && m.size && (more = realloc(all, (count + 1) * sizeof *all)); at += m.size) {
		all = more;
		if (!eb_table_take(K_MAPPING, at, &m))
			break;
		all[count] = (struct undone){ .mapping = m };
		all[count].held = unrefer(m.owner, &all[count].left);
		count++;
	}
	CUresult r = real(p, n);
	for (size_t i = 0; i < count; i++) {
		if (all[i].held)
			unreferred(all[i].mapping.owner, &all[i].left, r);
		if (r != CUDA_SUCCESS)
			eb_table_put(K_MAPPING, all[i].mapping.key, &all[i].mapping);
	}
	free(all);
	return r;
}
