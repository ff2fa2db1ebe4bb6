// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Memory in the order of a stream. It comes from pools, which take memory from the card in larger
// pieces and keep what is freed: what a pool has reserved is what it holds.

#include "preload.h"

static int64_t attribute(CUmemoryPool pool, int which)
{
	uint64_t n = 0;
	if (!eb.cu.cuMemPoolGetAttribute || eb.cu.cuMemPoolGetAttribute(pool, which, &n) != CUDA_SUCCESS)
		return -1;
	return (int64_t)n;
}

static struct pool *find(CUmemoryPool pool, struct device *d)
{
	struct pool *p = NULL, *empty = NULL;
	pthread_mutex_lock(&eb.world.mutex);
	for (int i = 0; i < eb.world.pools && !p; i++) {
		if (eb.world.pool[i].pool == pool)
			p = &eb.world.pool[i];
		else if (!eb.world.pool[i].pool && !empty)
			empty = &eb.world.pool[i];
	}
	if (!p && d) {
		if (!empty && eb.world.pools < MAX_POOLS)
			empty = &eb.world.pool[eb.world.pools++];
		if ((p = empty))
			*p = (struct pool){ pool, d, 0 };
	}
	pthread_mutex_unlock(&eb.world.mutex);
	return p;
}

// delta is by how much a pool has grown since it was last looked at; each byte is seen once.
static int64_t delta(struct pool *p)
{
	int64_t by = 0;
	pthread_mutex_lock(&eb.world.mutex);
	int64_t now = p->pool ? attribute(p->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) : -1;
	if (now >= 0) {
		by = now - p->charged;
		p->charged = now;
	}
	pthread_mutex_unlock(&eb.world.mutex);
	return by;
}

static void settle(struct pool *p)
{
	struct device *d = p->device;
	int64_t by = delta(p);
	if (by < 0)
		eb_give(d, -by);
	else if (by > 0) {
		atomic_fetch_add(&d->used, by);
		atomic_fetch_sub(&d->avail, by);
	}
}

// NULL: those of all devices.
void eb_pools_settle(struct device *d)
{
	for (int i = 0; i < eb.world.pools; i++)
		if (eb.world.pool[i].pool && (!d || eb.world.pool[i].device == d))
			settle(&eb.world.pool[i]);
	if (d)
		eb_graph_settle(d, NULL);
}

// What the driver does when a card is full, done when a limit is reached: what pools keep
// without use goes back.
void eb_pools_trim(struct device *d)
{
	CUresult cuMemPoolTrimTo(CUmemoryPool, size_t);
	CUresult cuDeviceGraphMemTrim(CUdevice);
	__typeof__(&cuMemPoolTrimTo) trim = REAL(cuMemPoolTrimTo);
	__typeof__(&cuDeviceGraphMemTrim) graphs = REAL(cuDeviceGraphMemTrim);
	for (int i = 0; i < eb.world.pools; i++)
		if (trim && eb.world.pool[i].pool && eb.world.pool[i].device == d)
			trim(eb.world.pool[i].pool, 0);
	if (graphs && d->graphs && d->ordinal >= 0)
		graphs(d->ordinal);
	eb_pools_settle(d);
}

// With the last context of a device go its pools.
void eb_pools_gone(struct device *d)
{
	int64_t bytes = 0;
	pthread_mutex_lock(&eb.world.mutex);
	for (int i = 0; i < eb.world.pools; i++)
		if (eb.world.pool[i].pool && eb.world.pool[i].device == d) {
			bytes += eb.world.pool[i].charged;
			eb.world.pool[i] = (struct pool){ 0 };
		}
	pthread_mutex_unlock(&eb.world.mutex);
	bytes += atomic_exchange(&d->graph_bytes, 0);
	if (bytes)
		eb_give(d, bytes);
}

static int64_t bytes_of(size_t n)
{
	return n > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)n;
}

// begin sets aside what the pool may have to grow by; false: the call is not counted here.
static CUresult begin(CUmemoryPool pool, size_t n, CUstream s, struct claim *c, struct pool **p)
{
	struct device *d;
	*p = NULL;
	if (!eb_active() || !(d = eb_device_of(s)))
		return CUDA_SUCCESS;
	if (!pool && (!eb.cu.cuDeviceGetMemPool || d->ordinal < 0 || eb.cu.cuDeviceGetMemPool(&pool, d->ordinal) != CUDA_SUCCESS))
		return CUDA_SUCCESS;
	if (!(*p = find(pool, d)))
		return CUDA_SUCCESS;
	int64_t bytes = bytes_of(n);
	int64_t room = attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) - attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	return eb_claim((*p)->device, room >= bytes ? 0 : bytes, c);
}

// end settles what the pool has grown by. A pool grows in pieces of its own, of which the driver
// does not tell the size. If one of them was more than could be had, the allocation is undone, and
// the size of the piece returned: so much is to be asked for before it is tried again.
static int64_t end(CUresult r, struct claim *c, struct pool *p, CUdeviceptr *a)
{
	CUresult cuMemFree_v2(CUdeviceptr);
	__typeof__(&cuMemFree_v2) undo = REAL(cuMemFree_v2);
	struct device *d = c->device;
	eb_leave();
	if (r != CUDA_SUCCESS) {
		eb_drop(c);
		return 0;
	}
	int64_t by = delta(p);
	eb_keep(c, by);
	if (d->avail >= 0 || eb.mode != BOUND || !d->handle || by <= c->bytes || !undo || undo(*a) != CUDA_SUCCESS)
		return 0;
	eb_pools_trim(d);
	return by;
}

#define ALLOC(name, STREAM, params, args, from) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		struct claim c; \
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
			else if (!eb_again(p->device, r, &refused)) \
				return r; \
			if ((r = eb_claim(p->device, more ? more : c.bytes ? c.bytes : bytes_of(n), &c)) != CUDA_SUCCESS) \
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
		if (ours && r == CUDA_SUCCESS) \
			eb_give(e.device, (int64_t)e.size); \
		else if (ours) \
			eb_table_put(K_MEMORY, a, &e); \
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
		find(*pool, d);
	return r;
}

// A destroyed pool keeps what is still allocated from it until that is freed, and cannot be
// asked any more. It is counted as empty: a program that frees a pool first is rare, and what it
// leaves is seen by the watchdog.
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	NEED(cuMemPoolDestroy, real);
	struct pool *p = eb_active() ? find(pool, NULL) : NULL, was = { 0 };
	CUresult r = real(pool);
	if (p && r == CUDA_SUCCESS) {
		pthread_mutex_lock(&eb.world.mutex);
		if (p->pool == pool) {
			was = *p;
			*p = (struct pool){ 0 };
		}
		pthread_mutex_unlock(&eb.world.mutex);
		if (was.charged)
			eb_give(was.device, was.charged);
	}
	return r;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	NEED(cuMemPoolTrimTo, real);
	CUresult r = real(pool, keep);
	struct pool *p;
	if (eb_active() && (p = find(pool, NULL)))
		settle(p);
	return r;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attr, void *value)
{
	NEED(cuMemPoolSetAttribute, real);
	CUresult r = real(pool, attr, value);
	struct pool *p;
	if (eb_active() && (p = find(pool, NULL)))
		settle(p);
	return r;
}
