// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Contexts: hundreds of MiB that no call of the program names. A share is set aside before one is
// made, and what it took is settled after.

#include "preload.h"

// share is what is set aside for a context that is still to be made. Of a small limit it is a
// quarter: what the context takes beyond is asked for when it is known.
static int64_t share(struct device *d)
{
	uint64_t n = eb.context;
	return (int64_t)(d->limit && n > d->limit / 4 ? d->limit / 4 : n);
}

// measured is what the new context has taken: NVML's figure for this process where it knows the
// process by our pid, else by how much the card's has grown, if that can be true. Else what was
// set aside stands; the gate sees the process from outside and knows better.
static int64_t measured(struct claim *c, int64_t own, int64_t card)
{
	if (!eb.context) // the gate measures them
		return 0;
	int64_t now = eb_info_driver(c->device, true);
	if (now >= 0)
		return now - (own > 0 ? own : 0) >= 0 ? now - (own > 0 ? own : 0) : 0;
	now = eb_info_driver(c->device, false);
	return card >= 0 && now >= card && now - card <= (int64_t)eb.context ? now - card : c->bytes;
}

static void add(CUcontext ctx, struct claim *c, int64_t bytes, bool primary)
{
	bool known = false;
	pthread_mutex_lock(&eb.world.mutex);
	for (int i = 0; i < eb.world.contexts; i++)
		known |= eb.world.context[i].ctx == ctx; // another thread was first
	if (!known && eb.world.contexts < MAX_CONTEXTS)
		eb.world.context[eb.world.contexts++] = (struct context){ ctx, c->device, bytes, primary };
	else if (!known)
		bytes = 0;
	pthread_mutex_unlock(&eb.world.mutex);
	if (known)
		eb_drop(c);
	else
		eb_keep(c, bytes);
}

static void each(const struct entry *e)
{
	eb_give(e->device, (int64_t)e->size);
}

static void gone(CUcontext ctx, struct device *primary)
{
	struct context was = { 0 };
	bool others = false;
	pthread_mutex_lock(&eb.world.mutex);
	for (int i = 0; i < eb.world.contexts; i++) {
		struct context *c = &eb.world.context[i];
		if (!was.ctx && (primary ? c->primary && c->device == primary : c->ctx == ctx)) {
			was = *c;
			*c = eb.world.context[--eb.world.contexts];
		}
	}
	for (int i = 0; i < eb.world.contexts; i++)
		others |= eb.world.context[i].device == was.device;
	eb.world.epoch++;
	pthread_mutex_unlock(&eb.world.mutex);
	if (!was.ctx)
		return;
	eb_table_sweep((uint64_t)(uintptr_t)was.ctx, each);
	if (!others)
		eb_pools_gone(was.device);
	eb_give(was.device, was.bytes);
	if (!others)
		eb_lease_return(was.device, 0);
}

#define CREATE(name, params, args) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		struct device *d; \
		struct claim c; \
		CUresult r; \
		if (!eb_active() || !(d = eb_device(dev))) \
			return real args; \
		int64_t own = eb_info_driver(d, true), card = eb_info_driver(d, false); \
		TAKE(d, share(d), &c, r, real args); \
		add(*ctx, &c, measured(&c, own, card), false); \
		return r; \
	}
CREATE(cuCtxCreate, (CUcontext *ctx, unsigned flags, CUdevice dev), (ctx, flags, dev))
CREATE(cuCtxCreate_v2, (CUcontext *ctx, unsigned flags, CUdevice dev), (ctx, flags, dev))
CREATE(cuCtxCreate_v3, (CUcontext *ctx, void *affinity, int n, unsigned flags, CUdevice dev), (ctx, affinity, n, flags, dev))
CREATE(cuCtxCreate_v4, (CUcontext *ctx, void *params, unsigned flags, CUdevice dev), (ctx, params, flags, dev))

#define DESTROY(name) \
	EXPORT CUresult name(CUcontext ctx) \
	{ \
		NEED(name, real); \
		CUresult r = real(ctx); \
		if (r == CUDA_SUCCESS && eb_active()) \
			gone(ctx, NULL); \
		return r; \
	}
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

static bool has_primary(struct device *d)
{
	bool has = false;
	pthread_mutex_lock(&eb.world.mutex);
	for (int i = 0; i < eb.world.contexts; i++)
		has |= eb.world.context[i].primary && eb.world.context[i].device == d;
	pthread_mutex_unlock(&eb.world.mutex);
	return has;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	NEED(cuDevicePrimaryCtxRetain, real);
	struct device *d;
	struct claim c;
	CUresult r;
	if (!eb_active() || !(d = eb_device(dev)) || has_primary(d))
		return real(ctx, dev);
	int64_t own = eb_info_driver(d, true), card = eb_info_driver(d, false);
	TAKE(d, share(d), &c, r, real(ctx, dev));
	add(*ctx, &c, measured(&c, own, card), true);
	return r;
}

#define RELEASE(name) \
	EXPORT CUresult name(CUdevice dev) \
	{ \
		NEED(name, real); \
		struct device *d; \
		unsigned flags; \
		int active = 0; \
		CUresult r = real(dev); \
		if (r == CUDA_SUCCESS && eb_active() && (d = eb_device(dev)) && eb.cu.cuDevicePrimaryCtxGetState && \
		    eb.cu.cuDevicePrimaryCtxGetState(dev, &flags, &active) == CUDA_SUCCESS && !active) \
			gone(NULL, d); \
		return r; \
	}
RELEASE(cuDevicePrimaryCtxRelease)
RELEASE(cuDevicePrimaryCtxRelease_v2)
RELEASE(cuDevicePrimaryCtxReset)
RELEASE(cuDevicePrimaryCtxReset_v2)
