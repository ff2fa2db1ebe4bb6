// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The device of a call. Its first use connects to the gate, whose messages about devices are
// handled here.

#include "gate.h"

#include <string.h>

bool eb_active(void)
{
	if (UNLIKELY(atomic_load_explicit(&eb.ready, memory_order_acquire) != 2))
		eb_init();
	return eb.mode != OFF && !eb_thread.depth;
}

static void on_connect(void)
{
	for (int i = 0; i < eb_world.devices; i++)
		if (eb_world.device[i].handle)
			eb_credit_held(&eb_world.device[i], eb_world.device[i].handle);
}

static struct device *of_handle(uint64_t handle)
{
	for (int i = 0; i < eb_world.devices; i++)
		if (eb_world.device[i].handle == handle)
			return &eb_world.device[i];
	return NULL;
}

static bool on_message(const struct message *m)
{
	struct device *d;
	switch (m->type) {
	case T_SHARE:
		if ((d = of_handle(m->device)))
			eb_credit_share(d, m->bytes);
		return true;
	case T_RECALL:
		if ((d = of_handle(m->device)))
			eb_credit_recall(d);
		return true;
	case T_PAUSE:
		eb_pause_begin();
		return true;
	case T_RESUME:
		eb_pause_end();
		return true;
	}
	return false;
}

static void attach(struct device *d)
{
	struct message m = { .type = T_ATTACH };
	memcpy(&m.id, d->uuid, 8);
	memcpy(&m.arg, d->uuid + 8, 8);
	if (eb_gate_call(&m, 0, NULL) == 0 && m.type == T_ATTACHED) {
		// What was taken before is reported first.
		if (d->used > 0)
			eb_credit_held(d, m.device);
		d->handle = m.device;
		struct message i = { .type = T_INFO, .device = m.device };
		if (!d->share && eb_gate_call(&i, 0, NULL) == 0 && i.type == T_INFO_IS)
			d->share = i.bytes;
	} else if (eb.mode == BOUND) {
		LOG(1, "the gate does not know this GPU: not limited");
	}
}

struct device *eb_device_uuid(const uint8_t *uuid, CUdevice ordinal)
{
	// A pause ends with the connection: a gate that is gone cannot end it.
	static const struct listener listener = { on_connect, on_message, eb_pause_end, eb_submitted };
	bool fresh;
	eb_gate_start(&listener);
	struct device *d = eb_world_device(uuid, ordinal, &fresh);
	if (fresh)
		attach(d);
	return d;
}

struct device *eb_device(CUdevice dev)
{
	if (dev < 0 || dev >= MAX_DEVICES)
		return NULL;
	struct device *d = atomic_load_explicit(&eb_world.by_ordinal[dev], memory_order_acquire);
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
	atomic_store_explicit(&eb_world.by_ordinal[dev], d, memory_order_release);
	return d;
}

// A thread without a context has no device: the driver's call fails, and nothing is counted.
struct device *eb_device_here(void)
{
	CUcontext ctx = NULL;
	CUdevice dev;
	struct thread *t = &eb_thread;
	if (!eb_resolve_cuda() || !eb.cu.cuCtxGetCurrent || eb.cu.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
		return NULL;
	if (t->ctx == ctx && t->epoch == eb_world.epoch && t->device)
		return t->device;
	unsigned epoch = eb_world.epoch;
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
	if ((uintptr_t)s > 2 && eb_resolve_cuda() && eb.cu.cuStreamGetCtx && eb.cu.cuStreamGetCtx(s, &ctx) == CUDA_SUCCESS)
		d = eb_world_of(ctx);
	return d ? d : eb_device_here();
}
