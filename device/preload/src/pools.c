// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Memory that the driver keeps in pools and for graphs. The driver takes and returns that memory by
// itself, so it is asked for the size.

#include "gate.h"

int64_t eb_pool_attribute(CUmemoryPool pool, int which)
{
	uint64_t n = 0;
	if (!eb.cu.cuMemPoolGetAttribute || eb.cu.cuMemPoolGetAttribute(pool, which, &n) != CUDA_SUCCESS)
		return -1;
	return (int64_t)n;
}

static struct pool *find(CUmemoryPool pool)
{
	for (int i = 0; i < eb_world.pools; i++)
		if (eb_world.pool[i].pool == pool)
			return &eb_world.pool[i];
	return NULL;
}

// Returns a pool, and adds it to the device, if given. NULL: unknown, or too many.
struct pool *eb_pool(CUmemoryPool pool, struct device *d)
{
	pthread_mutex_lock(&eb_world.pooled);
	struct pool *p = find(pool);
	if (!p && d) {
		if (!(p = find(NULL)) && eb_world.pools < MAX_POOLS)
			p = &eb_world.pool[eb_world.pools++];
		if (p)
			*p = (struct pool){ pool, d, 0 };
	}
	pthread_mutex_unlock(&eb_world.pooled);
	return p;
}

// Destroys a pool by the driver's function. What is still allocated from it stays, and cannot be
// queried: it counts as empty, and the gate measures the rest.
CUresult eb_pool_destroy(CUmemoryPool pool, CUresult (*real)(CUmemoryPool))
{
	struct pool was = { 0 };
	pthread_mutex_lock(&eb_world.pooled);
	struct pool *p = find(pool);
	CUresult r = real(pool);
	if (p && r == CUDA_SUCCESS) {
		was = *p;
		*p = (struct pool){ 0 };
	}
	pthread_mutex_unlock(&eb_world.pooled);
	if (was.charged)
		eb_release(was.device, was.charged);
	return r;
}

// How much a pool, of that device unless NULL, has grown since the last call; each byte counts once.
static int64_t growth(struct pool *p, struct device *d, struct device **of)
{
	int64_t by = 0;
	pthread_mutex_lock(&eb_world.pooled);
	*of = p->device;
	int64_t now = p->pool && (!d || p->device == d) ? eb_pool_attribute(p->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) : -1;
	if (now >= 0) {
		by = now - p->charged;
		p->charged = now;
	}
	pthread_mutex_unlock(&eb_world.pooled);
	return by;
}

int64_t eb_pool_growth(struct pool *p)
{
	struct device *of;
	return growth(p, NULL, &of);
}

// Counts what a pool, of that device unless NULL, holds now.
void eb_pool_settle(struct pool *p, struct device *d)
{
	struct device *of;
	int64_t by = growth(p, d, &of);
	if (by)
		eb_charge(of, by);
}

// How much what the driver keeps for graphs on a device has grown since the last call.
int64_t eb_graph_growth(struct device *d)
{
	uint64_t now = 0;
	int64_t by = 0;
	if (!d->graphs || d->ordinal < 0 || !eb.cu.cuDeviceGetGraphMemAttribute)
		return 0;
	pthread_mutex_lock(&eb_world.pooled);
	if (eb.cu.cuDeviceGetGraphMemAttribute(d->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) == CUDA_SUCCESS)
		by = (int64_t)now - atomic_exchange(&d->graph_bytes, (int64_t)now);
	pthread_mutex_unlock(&eb_world.pooled);
	return by;
}

// Counts what all pools of a device hold now; NULL: of all devices.
void eb_pools_settle(struct device *d)
{
	for (int i = 0; i < eb_world.pools; i++)
		eb_pool_settle(&eb_world.pool[i], d);
	if (d)
		eb_charge(d, eb_graph_growth(d));
}

// Frees what pools keep unused. The driver does so when a card is full; here a limit is reached.
void eb_pools_trim(struct device *d)
{
	CUresult cuMemPoolTrimTo(CUmemoryPool, size_t);
	CUresult cuDeviceGraphMemTrim(CUdevice);
	__typeof__(&cuMemPoolTrimTo) trim = REAL(cuMemPoolTrimTo);
	__typeof__(&cuDeviceGraphMemTrim) graphs = REAL(cuDeviceGraphMemTrim);
	for (int i = 0; i < eb_world.pools && trim; i++) {
		struct pool *p = &eb_world.pool[i];
		pthread_mutex_lock(&eb_world.pooled);
		if (p->pool && p->device == d)
			trim(p->pool, 0);
		pthread_mutex_unlock(&eb_world.pooled);
	}
	if (graphs && d->graphs && d->ordinal >= 0)
		graphs(d->ordinal);
	eb_pools_settle(d);
}

// With its last context a device loses its pools.
void eb_pools_gone(struct device *d)
{
	int64_t bytes = 0;
	pthread_mutex_lock(&eb_world.pooled);
	for (int i = 0; i < eb_world.pools; i++)
		if (eb_world.pool[i].pool && eb_world.pool[i].device == d) {
			bytes += eb_world.pool[i].charged;
			eb_world.pool[i] = (struct pool){ 0 };
		}
	pthread_mutex_unlock(&eb_world.pooled);
	bytes += atomic_exchange(&d->graph_bytes, 0);
	if (bytes)
		eb_release(d, bytes);
}
