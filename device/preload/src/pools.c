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

// How much a pool has grown since the last call; each byte counts once.
int64_t eb_pool_growth(struct pool *p)
{
	int64_t by = 0;
	pthread_mutex_lock(&eb_world.mutex);
	int64_t now = p->pool ? eb_pool_attribute(p->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) : -1;
	if (now >= 0) {
		by = now - p->charged;
		p->charged = now;
	}
	pthread_mutex_unlock(&eb_world.mutex);
	return by;
}

// The same for what the driver keeps for graphs on a device.
int64_t eb_graph_growth(struct device *d)
{
	uint64_t now = 0;
	int64_t by = 0;
	if (!d->graphs || d->ordinal < 0 || !eb.cu.cuDeviceGetGraphMemAttribute)
		return 0;
	pthread_mutex_lock(&eb_world.mutex);
	if (eb.cu.cuDeviceGetGraphMemAttribute(d->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) == CUDA_SUCCESS)
		by = (int64_t)now - atomic_exchange(&d->graph_bytes, (int64_t)now);
	pthread_mutex_unlock(&eb_world.mutex);
	return by;
}

// Counts what all pools of a device hold now; NULL: of all devices.
void eb_pools_settle(struct device *d)
{
	for (int i = 0; i < eb_world.pools; i++) {
		struct pool *p = &eb_world.pool[i];
		if (p->pool && (!d || p->device == d))
			eb_charge(p->device, eb_pool_growth(p));
	}
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
	for (int i = 0; i < eb_world.pools; i++)
		if (trim && eb_world.pool[i].pool && eb_world.pool[i].device == d)
			trim(eb_world.pool[i].pool, 0);
	if (graphs && d->graphs && d->ordinal >= 0)
		graphs(d->ordinal);
	eb_pools_settle(d);
}

// With its last context a device loses its pools.
void eb_pools_gone(struct device *d)
{
	int64_t bytes = 0;
	pthread_mutex_lock(&eb_world.mutex);
	for (int i = 0; i < eb_world.pools; i++)
		if (eb_world.pool[i].pool && eb_world.pool[i].device == d) {
			bytes += eb_world.pool[i].charged;
			eb_world.pool[i] = (struct pool){ 0 };
		}
	pthread_mutex_unlock(&eb_world.mutex);
	bytes += atomic_exchange(&d->graph_bytes, 0);
	if (bytes)
		eb_release(d, bytes);
}
