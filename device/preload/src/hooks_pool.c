// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Stream-ordered memory comes from pools, which take memory from the card in larger pieces and
// keep what is freed: a pool holds what it has reserved.

#include "hooks.h"

static int64_t bytes_of(size_t n)
{
	return n > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)n;
}

// Reserves what the pool may grow by. Without a pool the call is not counted.
static CUresult begin(CUmemoryPool pool, size_t n, CUstream s, struct reservation *c, struct pool **p)
{
	struct device *d;
	*p = NULL;
	if (!eb_active() || !(d = eb_device_of(s)))
		return CUDA_SUCCESS;
	if (!pool && (!eb.cu.cuDeviceGetMemPool || d->ordinal < 0 || eb.cu.cuDeviceGetMemPool(&pool, d->ordinal) != CUDA_SUCCESS))
		return CUDA_SUCCESS;
	if (!(*p = eb_pool(pool, d)))
		return CUDA_SUCCESS;
	int64_t bytes = bytes_of(n);
	int64_t room = eb_pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) - eb_pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	return eb_reserve((*p)->device, room >= bytes ? 0 : bytes, c);
}

// Commits what the pool has grown by, in pieces of unknown size. If one exceeds what the gate
// grants, the allocation is undone and the piece's size returned, to be reserved before the next
// attempt.
static int64_t end(CUresult r, struct reservation *c, struct pool *p, CUdeviceptr *a)
{
	CUresult cuMemFree_v2(CUdeviceptr);
	__typeof__(&cuMemFree_v2) undo = REAL(cuMemFree_v2);
	struct device *d = c->device;
	eb_leave();
	if (r != CUDA_SUCCESS) {
		eb_cancel(c);
		return 0;
	}
	int64_t by = eb_pool_growth(p);
	eb_commit(c, by);
	if (d->avail >= 0 || eb.mode != BOUND || !d->handle || by <= c->bytes || !undo || undo(*a) != CUDA_SUCCESS)
		return 0;
	eb_pools_trim(d);
	return by;
}

#define ALLOC(name, STREAM, params, args, from) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		struct reservation c; \
		struct pool *p; \
		uint64_t capture = eb_capture(STREAM(s)); \
		if (capture) { /* a node of a graph: it takes memory when it is launched */ \
			CUresult done = real args; \
			if (done == CUDA_SUCCESS) \
				eb_graph_note(capture, STREAM(s), n); \
			return done; \
		} \
		CUresult r = begin(from, n, s, &c, &p); \
		if (r != CUDA_SUCCESS) \
			return r; \
		if (!p) \
			return real args; \
		bool grown = false; \
		for (int refused = 0;;) { \
			eb_enter(); \
			r = real args; \
			int64_t more = end(r, &c, p, a); \
			if (r == CUDA_SUCCESS && more == 0) \
				return r; \
			if (r == CUDA_SUCCESS && grown) \
				return CUDA_ERROR_OUT_OF_MEMORY; \
			if (r == CUDA_SUCCESS) \
				grown = true; \
			else if (!eb_retry(p->device, r, &refused)) \
				return r; \
			if ((r = eb_reserve(p->device, more ? more : c.bytes ? c.bytes : bytes_of(n), &c)) != CUDA_SUCCESS) \
				return r; \
		} \
	}
ALLOC(cuMemAllocAsync, ANY, (CUdeviceptr *a, size_t n, CUstream s), (a, n, s), NULL)
ALLOC(cuMemAllocAsync_ptsz, OWN, (CUdeviceptr *a, size_t n, CUstream s), (a, n, s), NULL)
ALLOC(cuMemAllocFromPoolAsync, ANY, (CUdeviceptr *a, size_t n, CUmemoryPool pool, CUstream s), (a, n, pool, s), pool)
ALLOC(cuMemAllocFromPoolAsync_ptsz, OWN, (CUdeviceptr *a, size_t n, CUmemoryPool pool, CUstream s), (a, n, pool, s), pool)

#define FREE(name, STREAM) \
	EXPORT CUresult name(CUdeviceptr a, CUstream s) \
	{ \
		NEED(name, real); \
		struct entry e; \
		if (!eb_active() || eb_capture(STREAM(s))) \
			return real(a, s); \
		bool ours = a && eb_table_take(K_MEMORY, a, &e); /* of cuMemAlloc: allowed, too */ \
		eb_enter(); \
		CUresult r = real(a, s); \
		eb_leave(); \
		if (ours) \
			eb_freed(K_MEMORY, a, &e, r); \
		else \
			eb_pools_settle(NULL); \
		return r; \
	}
FREE(cuMemFreeAsync, ANY)
FREE(cuMemFreeAsync_ptsz, OWN)

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	NEED(cuMemPoolCreate, real);
	CUresult r = real(pool, props);
	struct device *d;
	if (r == CUDA_SUCCESS && eb_active() && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && (d = eb_device(props->location.id)))
		eb_pool(*pool, d);
	return r;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	NEED(cuMemPoolDestroy, real);
	return eb_active() ? eb_pool_destroy(pool, real) : real(pool);
}

#define SETTLE(name, params, args) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		CUresult r = real args; \
		struct pool *p; \
		if (eb_active() && (p = eb_pool(pool, NULL))) \
			eb_pool_settle(p, NULL); \
		return r; \
	}
SETTLE(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep))
SETTLE(cuMemPoolSetAttribute, (CUmemoryPool pool, int attr, void *value), (pool, attr, value))
