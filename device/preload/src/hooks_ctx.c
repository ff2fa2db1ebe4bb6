// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Contexts: hundreds of MiB that the program does not request. Some is reserved before one is
// made, and what it took is committed.

#include "hooks.h"

// The reservation for a context: at most a quarter of the share.
static int64_t expected(struct device *d)
{
	uint64_t n = eb.context;
	return (int64_t)(d->share && n > d->share / 4 ? d->share / 4 : n);
}

// The new context's memory: NVML's figure for this process, if its pid here is NVML's; else
// the growth of the card's use, if plausible; else what was reserved.
static int64_t measured(struct reservation *c, int64_t own, int64_t card)
{
	if (!eb.context) // the gate measures them
		return 0;
	int64_t now = eb_nvml_used(c->device, true);
	if (now >= 0)
		return now - (own > 0 ? own : 0) >= 0 ? now - (own > 0 ? own : 0) : 0;
	now = eb_nvml_used(c->device, false);
	return card >= 0 && now >= card && now - card <= (int64_t)eb.context ? now - card : c->bytes;
}

static void add(CUcontext ctx, struct reservation *r, int64_t bytes, bool primary)
{
	struct context c = { .ctx = ctx, .device = r->device, .bytes = bytes, .primary = primary };
	if (eb_world_add(&c))
		eb_commit(r, c.bytes);
	else
		eb_cancel(r);
}

static void each(const struct entry *e)
{
	eb_release(e->device, (int64_t)e->size);
}

static void gone(CUcontext ctx, struct device *primary)
{
	struct context was;
	bool others;
	if (!eb_world_remove(ctx, primary, &was, &others))
		return;
	eb_table_sweep((uint64_t)(uintptr_t)was.ctx, each);
	if (!others)
		eb_pools_gone(was.device);
	eb_release(was.device, was.bytes);
	if (!others)
		eb_credit_return(was.device, 0);
}

#define CREATE(name, primary, params, args) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		struct device *d; \
		struct reservation c; \
		CUresult r; \
		if (!eb_active() || !(d = eb_device(dev)) || (primary && eb_world_primary(d))) \
			return real args; \
		int64_t own = eb_nvml_used(d, true), card = eb_nvml_used(d, false); \
		TAKE(d, expected(d), &c, r, real args); \
		add(*ctx, &c, measured(&c, own, card), primary); \
		return r; \
	}
CREATE(cuCtxCreate, false, (CUcontext *ctx, unsigned flags, CUdevice dev), (ctx, flags, dev))
CREATE(cuCtxCreate_v2, false, (CUcontext *ctx, unsigned flags, CUdevice dev), (ctx, flags, dev))
CREATE(cuCtxCreate_v3, false, (CUcontext *ctx, void *affinity, int n, unsigned flags, CUdevice dev), (ctx, affinity, n, flags, dev))
CREATE(cuCtxCreate_v4, false, (CUcontext *ctx, void *params, unsigned flags, CUdevice dev), (ctx, params, flags, dev))
CREATE(cuDevicePrimaryCtxRetain, true, (CUcontext *ctx, CUdevice dev), (ctx, dev))

#define DESTROY(name) \
	EXPORT CUresult name(CUcontext ctx) \
	{ \
		NEED(name, real); \
		if (!eb_active()) \
			return real(ctx); \
		eb_world_dying(ctx, true); \
		CUresult r = real(ctx); \
		if (r == CUDA_SUCCESS) \
			gone(ctx, NULL); \
		else \
			eb_world_dying(ctx, false); \
		return r; \
	}
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

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
