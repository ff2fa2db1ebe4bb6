// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Which device and which context a call is about.

#include "preload.h"

#include <string.h>

bool eb_active(void)
{
	if (UNLIKELY(atomic_load_explicit(&eb.ready, memory_order_acquire) != 2))
		eb_init();
	return eb.mode != OFF && !eb_thread.depth;
}

static void attach(struct device *d)
{
	struct message m = { .type = T_ATTACH };
	memcpy(&m.id, d->uuid, 8);
	memcpy(&m.arg, d->uuid + 8, 8);
	if (eb_gate_call(&m, 0, NULL) == 0 && m.type == T_ATTACHED) {
		// What was taken before there was an answer is said before anybody can ask for more.
		if (d->used > 0)
			eb_lease_held(d, m.device);
		d->handle = m.device;
		struct message i = { .type = T_INFO, .device = m.device };
		if (!d->limit && eb_gate_call(&i, 0, NULL) == 0 && i.type == T_INFO_IS)
			d->limit = i.bytes;
	} else if (eb.mode == BOUND) {
		LOG(1, "the gate does not know this GPU: not limited");
	}
}

struct device *eb_device_uuid(const uint8_t *uuid, CUdevice ordinal)
{
	struct device *d = NULL;
	bool fresh = false;
	eb_gate_start();
	pthread_mutex_lock(&eb.world.mutex);
	int n = eb.world.devices;
	for (int i = 0; i < n && !d; i++)
		if (memcmp(eb.world.device[i].uuid, uuid, 16) == 0)
			d = &eb.world.device[i];
	if (!d && n < MAX_DEVICES) {
		d = &eb.world.device[n];
		memcpy(d->uuid, uuid, 16);
		d->ordinal = -1;
		fresh = true;
		atomic_store(&eb.world.devices, n + 1);
	}
	if (d && ordinal >= 0)
		d->ordinal = ordinal;
	pthread_mutex_unlock(&eb.world.mutex);
	if (fresh)
		attach(d);
	return d;
}

struct device *eb_device(CUdevice dev)
{
	if (dev < 0 || dev >= MAX_DEVICES)
		return NULL;
	struct device *d = atomic_load_explicit(&eb.world.by_ordinal[dev], memory_order_acquire);
	if (d || !eb_resolve_cuda())
		return d;
	CUuuid uuid;
	CUresult (*get)(CUuuid *, CUdevice) = eb.cu.cuDeviceGetUuid_v2 ? eb.cu.cuDeviceGetUuid_v2 : eb.cu.cuDeviceGetUuid;
	if (!get || get(&uuid, dev) != CUDA_SUCCESS)
		return NULL;
	d = eb_device_uuid((const uint8_t *)uuid.bytes, dev);
	int mps = 0;
	if (d && eb.cu.cuDeviceGetAttribute &&
	    eb.cu.cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, dev) == CUDA_SUCCESS && mps)
		eb_pin(PIN_MPS);
	if (d && !eb_all_hooked())
		eb_pin(PIN_UNHOOKED);
	atomic_store_explicit(&eb.world.by_ordinal[dev], d, memory_order_release);
	return d;
}

// A thread without a context has no device; the driver answers such a call with an error, and
// nothing is counted.
struct device *eb_device_here(void)
{
	CUcontext ctx = NULL;
	CUdevice dev;
	struct thread *t = &eb_thread;
	if (!eb_resolve_cuda() || !eb.cu.cuCtxGetCurrent || eb.cu.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
		return NULL;
	if (t->ctx == ctx && t->epoch == eb.world.epoch && t->device)
		return t->device;
	unsigned epoch = eb.world.epoch;
	if (eb.cu.cuCtxGetDevice(&dev) != CUDA_SUCCESS)
		return NULL;
	t->device = eb_device(dev);
	t->ctx = ctx;
	t->epoch = epoch;
	return t->device;
}

struct device *eb_device_of(CUstream s)
{
	CUcontext ctx;
	struct device *d = NULL;
	// 0, 1 and 2 are the default streams of the current context.
	if ((uintptr_t)s > 2 && eb_resolve_cuda() && eb.cu.cuStreamGetCtx && eb.cu.cuStreamGetCtx(s, &ctx) == CUDA_SUCCESS) {
		pthread_mutex_lock(&eb.world.mutex);
		for (int i = 0; i < eb.world.contexts && !d; i++)
			if (eb.world.context[i].ctx == ctx)
				d = eb.world.context[i].device;
		pthread_mutex_unlock(&eb.world.mutex);
	}
	return d ? d : eb_device_here();
}
