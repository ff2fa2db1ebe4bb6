// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Graphs that allocate. Their nodes take memory at launch, from a pool of the device. The nodes'
// sizes tell how much it may need.

#include "hooks.h"

static uint64_t key(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

static void add(enum kind kind, uint64_t key, uint64_t bytes, struct device *d)
{
	struct entry e;
	if (!eb_table_refer(kind, key, 0, bytes, &e))
		eb_table_put(kind, key, &(struct entry){ .size = bytes, .device = d, .refs = 1 });
	if (d)
		d->graphs = true;
}

// Counts an allocation in a captured stream.
void eb_graph_note(uint64_t capture, CUstream s, size_t n)
{
	add(K_CAPTURE, capture, n, eb_device_of(s));
}

// No capture begins during a pause. The default streams are not destroyed: they are not kept.
static void begun(CUstream s)
{
	atomic_fetch_add(&eb_pause.captures, 1);
	if ((uintptr_t)s > 2)
		eb_table_put(K_ORIGIN, key(s), &(struct entry){ .refs = 1 });
}

#define BEGIN(name, params, args) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		if (!eb_active()) \
			return real args; \
		eb_enter(); \
		CUresult r = real args; \
		if (r == CUDA_SUCCESS) \
			begun(s); \
		eb_leave(); \
		return r; \
	}
BEGIN(cuStreamBeginCapture, (CUstream s), (s))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream s), (s))
BEGIN(cuStreamBeginCapture_v2, (CUstream s, int mode), (s, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream s, int mode), (s, mode))
BEGIN(cuStreamBeginCaptureToGraph, (CUstream s, CUgraph g, const CUgraphNode *n, const void *e, size_t k, int mode), (s, g, n, e, k, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, (CUstream s, CUgraph g, const CUgraphNode *n, const void *e, size_t k, int mode), (s, g, n, e, k, mode))

// A broken capture ends with an error and a NULL graph.
#define END(name, STREAM) \
	EXPORT CUresult name(CUstream s, CUgraph *g) \
	{ \
		NEED(name, real); \
		if (!eb_active()) \
			return real(s, g); \
		struct entry e, origin; \
		uint64_t capture = eb_capture(STREAM(s)); \
		bool noted = capture && eb_table_take(K_CAPTURE, capture, &e); \
		CUresult r = real(s, g); \
		if (eb_pause.captures > 0 && (r == CUDA_SUCCESS || capture || (g && !*g))) { \
			eb_table_take(K_ORIGIN, key(s), &origin); \
			atomic_fetch_sub(&eb_pause.captures, 1); \
		} \
		if (r == CUDA_SUCCESS && noted && g) \
			add(K_GRAPH, key(*g), e.size, e.device); \
		return r; \
	}
END(cuStreamEndCapture, ANY)
END(cuStreamEndCapture_ptsz, OWN)

// A stream that is destroyed ends the capture that began on it.
#define DESTROY(name) \
	EXPORT CUresult name(CUstream s) \
	{ \
		NEED(name, real); \
		struct entry e, origin; \
		if (!eb_active() || !eb_table_take(K_ORIGIN, key(s), &origin)) \
			return real(s); \
		uint64_t capture = eb_capture(s); \
		CUresult r = real(s); \
		if (r == CUDA_SUCCESS) { \
			eb_table_take(K_CAPTURE, capture, &e); \
			atomic_fetch_sub(&eb_pause.captures, 1); \
		} else { \
			eb_table_put(K_ORIGIN, key(s), &origin); \
		} \
		return r; \
	}
DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *n, CUgraph g, const CUgraphNode *deps, size_t k, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	NEED(cuGraphAddMemAllocNode, real);
	CUresult r = real(n, g, deps, k, p);
	if (r == CUDA_SUCCESS && eb_active())
		add(K_GRAPH, key(g), p->bytesize, eb_device(p->poolProps.location.id));
	return r;
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *n, CUgraph g, const CUgraphNode *deps, size_t k, CUgraphNodeParams *p)
{
	NEED(cuGraphAddNode, real);
	CUresult r = real(n, g, deps, k, p);
	if (r == CUDA_SUCCESS && p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && eb_active())
		add(K_GRAPH, key(g), p->alloc.bytesize, eb_device(p->alloc.poolProps.location.id));
	return r;
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *n, CUgraph g, const CUgraphNode *deps, const void *edges, size_t k, CUgraphNodeParams *p)
{
	NEED(cuGraphAddNode_v2, real);
	CUresult r = real(n, g, deps, edges, k, p);
	if (r == CUDA_SUCCESS && p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && eb_active())
		add(K_GRAPH, key(g), p->alloc.bytesize, eb_device(p->alloc.poolProps.location.id));
	return r;
}

static void copy(enum kind kind, const void *to, CUgraph from)
{
	struct entry e;
	if (eb_active() && eb_table_get(K_GRAPH, key(from), &e))
		add(kind, key(to), e.size, e.device);
}

EXPORT CUresult cuGraphClone(CUgraph *to, CUgraph from)
{
	NEED(cuGraphClone, real);
	CUresult r = real(to, from);
	if (r == CUDA_SUCCESS)
		copy(K_GRAPH, *to, from);
	return r;
}

EXPORT CUresult cuGraphDestroy(CUgraph g)
{
	NEED(cuGraphDestroy, real);
	struct entry e;
	if (eb_active())
		eb_table_take(K_GRAPH, key(g), &e);
	return real(g);
}

#define INSTANTIATE(name, params, args) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		CUresult r = real args; \
		if (r == CUDA_SUCCESS) \
			copy(K_EXEC, *x, g); \
		return r; \
	}
INSTANTIATE(cuGraphInstantiate, (CUgraphExec *x, CUgraph g, CUgraphNode *n, char *log, size_t k), (x, g, n, log, k))
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec *x, CUgraph g, CUgraphNode *n, char *log, size_t k), (x, g, n, log, k))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *x, CUgraph g, unsigned long long flags), (x, g, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *x, CUgraph g, void *p), (x, g, p))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *x, CUgraph g, void *p), (x, g, p))

EXPORT CUresult cuGraphExecDestroy(CUgraphExec x)
{
	NEED(cuGraphExecDestroy, real);
	struct entry e;
	bool ours = eb_active() && eb_table_take(K_EXEC, key(x), &e);
	CUresult r = real(x);
	if (ours && e.device)
		eb_charge(e.device, eb_graph_growth(e.device));
	return r;
}

#define LAUNCH(name, STREAM) \
	EXPORT CUresult name(CUgraphExec x, CUstream s) \
	{ \
		NEED(name, real); \
		struct entry e; \
		struct reservation c; \
		CUresult r; \
		if (!eb_active()) \
			return real(x, s); \
		bool ours = !eb_capture(STREAM(s)) && eb_table_get(K_EXEC, key(x), &e) && e.device; \
		if (ours) { \
			int64_t need = (int64_t)e.size - e.device->graph_bytes; \
			if ((r = eb_reserve(e.device, need > 0 ? need : 0, &c)) != CUDA_SUCCESS) \
				return r; \
		} \
		eb_enter(); \
		r = real(x, s); \
		eb_leave(); \
		if (ours && r == CUDA_SUCCESS) \
			eb_commit(&c, eb_graph_growth(e.device)); \
		else if (ours) \
			eb_cancel(&c); \
		return r; \
	}
LAUNCH(cuGraphLaunch, ANY)
LAUNCH(cuGraphLaunch_ptsz, OWN)

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	NEED(cuDeviceGraphMemTrim, real);
	CUresult r = real(dev);
	struct device *d;
	if (r == CUDA_SUCCESS && eb_active() && (d = eb_device(dev)))
		eb_charge(d, eb_graph_growth(d));
	return r;
}
