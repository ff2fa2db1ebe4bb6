// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// A CUDA driver without a card: memory, contexts, streams, captures, graphs and checkpoints, over
// the state in state.c. Device memory is host memory. Each variant of a call (_v2, _ptsz) is a
// separate function and answers a NULL with its own error code, to tell them apart.
//
// Work is done when it is submitted; only its time passes later: each launch adds to the time
// until which the process has work, and synchronising sleeps until then.

#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { CODE = 7000 };
enum { DRIVER = 12080 }; // the newest version of CUDA that it knows

struct CUctx_st { int gpu, primary, refs; _Atomic bool destroyed; };
struct CUmemPoolHandle_st { int gpu; int64_t reserved, used, threshold; _Atomic bool destroyed; };
struct CUgraph_st { int64_t bytes; };
struct CUgraphExec_st { int64_t bytes; };
struct CUarray_st { int gpu; int64_t bytes; };
struct CUstream_st { uint64_t capturing; int64_t bytes; int gpu; struct CUctx_st *ctx; };

struct block { // what a pointer points to
	uint64_t at, size;
	int gpu, kind; // 1 malloc, 2 mmap, 3 pool, 4 mapping, 5 handle
	void *of;
	int refs, fd;
	struct CUctx_st *ctx;
	struct block *next;
};

enum { BUCKETS = 1 << 16, CHUNK = 2 << 20 };

static struct {
	struct fake_state *s;
	int slot, inited; // inited: the pid that called cuInit
	pthread_mutex_t mutex;
	struct block *block[BUCKETS];
	struct CUctx_st primary[FAKE_GPUS];
	struct CUmemPoolHandle_st pool[FAKE_GPUS];
	struct CUstream_st legacy;
	int64_t graph[FAKE_GPUS]; // bytes kept for graphs
	_Atomic int captures;
	_Atomic uint64_t captured; // captures so far
	_Atomic int64_t until; // when all work is done, µs
} my = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static __thread struct { struct CUctx_st *ctx[16]; int top; } tls;

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static struct CUctx_st *here(void)
{
	return tls.top ? tls.ctx[tls.top - 1] : NULL;
}

static struct fake_process *me(void)
{
	return &my.s->process[my.slot];
}

// Counts the thread in; waits while the process is locked for a checkpoint.
static CUresult enter(void)
{
	if (!my.s || my.inited != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	for (;;) {
		int state = me()->state;
		if (state == CU_PROCESS_STATE_FAILED)
			return CUDA_ERROR_UNKNOWN; // forever
		if (state == CU_PROCESS_STATE_RUNNING) {
			me()->busy++;
			if (me()->state == CU_PROCESS_STATE_RUNNING)
				return CUDA_SUCCESS;
			me()->busy--;
		}
		usleep(500);
	}
}

static CUresult leave(CUresult r)
{
	me()->busy--;
	return r;
}
#define ENTER() do { CUresult entered = enter(); if (entered) return entered; } while (0)
#define HERE(c) struct CUctx_st *c = here(); if (!c) return CUDA_ERROR_INVALID_CONTEXT; ENTER()

static struct block **bucket(uint64_t at, int kind)
{
	return &my.block[((at ^ (uint64_t)(kind == 5) << 40) * 0x9e3779b97f4a7c15u) >> 48];
}

static void put(struct block b)
{
	struct block *n = malloc(sizeof *n), **p = bucket(b.at, b.kind);
	*n = b;
	pthread_mutex_lock(&my.mutex);
	n->next = *p;
	*p = n;
	pthread_mutex_unlock(&my.mutex);
}

static int same(const struct block *b, uint64_t at, int kind)
{
	return b->at == at && (kind ? b->kind == kind : b->kind < 4);
}

// The next two are called with the mutex held.
static struct block *cut(uint64_t at, int kind)
{
	struct block **p = bucket(at, kind), *b;
	while ((b = *p) && !same(b, at, kind))
		p = &b->next;
	if (b)
		*p = b->next;
	return b;
}

static struct block *peek(uint64_t at, int kind)
{
	struct block *b = *bucket(at, kind);
	while (b && !same(b, at, kind))
		b = b->next;
	return b;
}

static struct block *take(uint64_t at, int kind)
{
	pthread_mutex_lock(&my.mutex);
	struct block *b = cut(at, kind);
	pthread_mutex_unlock(&my.mutex);
	return b;
}

static void *memory(int64_t n, int *kind)
{
	*kind = n >= 1 << 20 ? 2 : 1; // as many mappings as allocations would be too many
	if (*kind == 2) {
		void *p = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		return p == MAP_FAILED ? NULL : p;
	}
	return aligned_alloc(512, (size_t)n);
}

static void release(void *p, int64_t n, int kind)
{
	if (kind == 2)
		munmap(p, (size_t)n);
	else
		free(p);
}

static int64_t whole(uint64_t n, int64_t unit)
{
	return n > 1ull << 50 ? 1ll << 50 : ((int64_t)n + unit - 1) / unit * unit;
}

static CUresult allocate(CUdeviceptr *out, uint64_t size, struct CUctx_st *c)
{
	int64_t n = whole(size, (int64_t)size > my.s->block / 2 ? my.s->block : 512);
	int kind;
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	if (my.s->latency_us)
		usleep((useconds_t)my.s->latency_us);
	if (!fake_take(c->gpu, n, my.slot))
		return CUDA_ERROR_OUT_OF_MEMORY;
	void *p = memory(n, &kind);
	if (!p) {
		fake_give(c->gpu, n, my.slot);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = (uintptr_t)p;
	put((struct block){ .at = *out, .size = (uint64_t)n, .gpu = c->gpu, .kind = kind, .ctx = c });
	return CUDA_SUCCESS;
}

// The slot of this process, for libnvidia-ml in it: a process does not see its own locks, and
// would count as dead.
API int ebbtide_fake_slot(void) { return fake_mine(); }

// Start, devices, contexts.

API CUresult cuInit(unsigned flags)
{
	(void)flags;
	if (!(my.s = fake_open()))
		return CUDA_ERROR_NO_DEVICE;
	if (my.inited && my.inited != getpid()) {
		// The real driver stays unusable in a forked child. A test of the preload library needs
		// it there.
		if (!getenv("EBBTIDE_FAKE_FORK"))
			return CUDA_ERROR_NOT_INITIALIZED;
		memset(my.primary, 0, sizeof my.primary);
		memset(my.pool, 0, sizeof my.pool);
		memset(my.block, 0, sizeof my.block);
		tls.top = 0;
	}
	if ((my.slot = fake_join()) < 0)
		return CUDA_ERROR_UNKNOWN;
	for (int i = 0; i < my.s->gpus; i++) {
		my.primary[i].gpu = my.pool[i].gpu = i;
		my.primary[i].primary = 1;
	}
	my.inited = getpid();
	return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int *v) { *v = DRIVER; return CUDA_SUCCESS; }

API CUresult cuDeviceGetCount(int *n)
{
	if (!my.s)
		return CUDA_ERROR_NOT_INITIALIZED;
	*n = my.s->gpus;
	return CUDA_SUCCESS;
}

#define GPU(dev) if (!my.s) return CUDA_ERROR_NOT_INITIALIZED; if (dev < 0 || dev >= my.s->gpus) return CUDA_ERROR_INVALID_DEVICE

API CUresult cuDeviceGet(CUdevice *dev, int i) { GPU(i); *dev = i; return CUDA_SUCCESS; }

API CUresult cuDeviceGetName(char *s, int n, CUdevice dev)
{
	GPU(dev);
	strncpy(s, my.s->gpu[dev].name, (size_t)n);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *u, CUdevice dev) { GPU(dev); memcpy(u, my.s->gpu[dev].uuid, 16); return CUDA_SUCCESS; }
API CUresult cuDeviceGetUuid_v2(CUuuid *u, CUdevice dev) { return cuDeviceGetUuid(u, dev); }

API CUresult cuDeviceGetAttribute(int *v, int attr, CUdevice dev)
{
	GPU(dev);
	*v = attr == 75 ? 9 : 0; // the compute capability's first part
	return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice dev)
{
	if (!n)
		return CODE + 1;
	GPU(dev);
	*n = (size_t)my.s->gpu[dev].total;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem(unsigned *n, CUdevice dev)
{
	if (!n)
		return CODE;
	GPU(dev);
	*n = my.s->gpu[dev].total > UINT32_MAX ? UINT32_MAX : (unsigned)my.s->gpu[dev].total;
	return CUDA_SUCCESS;
}

static CUresult context_make(int gpu)
{
	return fake_take(gpu, my.s->context, my.slot) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void context_free(struct CUctx_st *c)
{
	for (int i = 0; i < BUCKETS; i++)
		for (struct block **p = &my.block[i], *b; (b = *p);) {
			if (b->ctx != c) {
				p = &b->next;
				continue;
			}
			*p = b->next;
			if (b->kind < 3) {
				fake_give(b->gpu, (int64_t)b->size, my.slot);
				release((void *)(uintptr_t)b->at, (int64_t)b->size, b->kind);
			}
			free(b);
		}
	if (c->primary) {
		fake_give(c->gpu, my.pool[c->gpu].reserved + my.graph[c->gpu], my.slot);
		my.pool[c->gpu].reserved = my.pool[c->gpu].used = my.graph[c->gpu] = 0;
	}
	fake_give(c->gpu, my.s->context, my.slot);
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	GPU(dev);
	ENTER();
	CUresult r = CUDA_SUCCESS;
	pthread_mutex_lock(&my.mutex);
	struct CUctx_st *c = &my.primary[dev];
	if (!c->refs)
		r = context_make(dev);
	if (!r) {
		c->refs++;
		*ctx = c;
	}
	pthread_mutex_unlock(&my.mutex);
	return leave(r);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	GPU(dev);
	struct CUctx_st *c = &my.primary[dev];
	if (!c->refs)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!--c->refs)
		context_free(c);
	return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	GPU(dev);
	struct CUctx_st *c = &my.primary[dev];
	if (c->refs)
		context_free(c);
	c->refs = 0;
	return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
	GPU(dev);
	*flags = 0;
	*active = my.primary[dev].refs > 0;
	return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
	(void)flags;
	if (!ctx)
		return CODE + 2;
	GPU(dev);
	ENTER();
	CUresult r = context_make(dev);
	if (!r) {
		*ctx = calloc(1, sizeof **ctx);
		(*ctx)->gpu = dev;
		tls.ctx[tls.top++ & 15] = *ctx;
	}
	return leave(r);
}
API CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev) { return ctx ? cuCtxCreate_v2(ctx, flags, dev) : CODE + 3; }
API CUresult cuCtxCreate_v3(CUcontext *ctx, void *a, int n, unsigned flags, CUdevice dev) { (void)a; (void)n; return ctx ? cuCtxCreate_v2(ctx, flags, dev) : CODE + 4; }
API CUresult cuCtxCreate_v4(CUcontext *ctx, void *a, unsigned flags, CUdevice dev) { (void)a; return ctx ? cuCtxCreate_v2(ctx, flags, dev) : CODE + 5; }

// Kept, to notice a use after it.
API CUresult cuCtxDestroy_v2(CUcontext c)
{
	if (!c || c->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	context_free(c);
	if (here() == c)
		tls.top--;
	c->destroyed = true;
	return CUDA_SUCCESS;
}
API CUresult cuCtxDestroy(CUcontext c) { return cuCtxDestroy_v2(c); }

API CUresult cuCtxSetCurrent(CUcontext c)
{
	if (tls.top)
		tls.top--;
	if (c)
		tls.ctx[tls.top++] = c;
	return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *c) { *c = here(); return CUDA_SUCCESS; }
API CUresult cuCtxPushCurrent_v2(CUcontext c) { tls.ctx[tls.top++ & 15] = c; return CUDA_SUCCESS; }
API CUresult cuCtxPopCurrent_v2(CUcontext *c) { *c = here(); tls.top--; return CUDA_SUCCESS; }

API CUresult cuCtxGetDevice(CUdevice *dev)
{
	struct CUctx_st *c = here();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	*dev = c->gpu;
	return CUDA_SUCCESS;
}

static void drain(void)
{
	for (int64_t left; (left = my.until - now_us()) > 0;)
		usleep((useconds_t)(left < 100000 ? left : 100000));
}

API CUresult cuCtxSynchronize(void)
{
	struct CUctx_st *c = here();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (my.captures)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	drain();
	if (c->destroyed)
		abort();
	return CUDA_SUCCESS;
}

// Linear memory.

API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	if (!p)
		return CODE + 11;
	HERE(c);
	return leave(allocate(p, n, c));
}

// Host memory has no 32-bit addresses: the old call exists, and refuses.
API CUresult cuMemAlloc(CUdeviceptr_v1 *p, unsigned n)
{
	(void)n;
	return p ? CUDA_ERROR_NOT_SUPPORTED : CODE + 10;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned e)
{
	(void)e;
	if (!p || !pitch)
		return CODE + 13;
	HERE(c);
	*pitch = (size_t)whole(w, 512);
	return leave(allocate(p, *pitch * h, c));
}
API CUresult cuMemAllocPitch(CUdeviceptr_v1 *p, unsigned *pitch, unsigned w, unsigned h, unsigned e)
{
	(void)pitch; (void)w; (void)h; (void)e;
	return p ? CUDA_ERROR_NOT_SUPPORTED : CODE + 12;
}

API CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	(void)flags;
	if (!p)
		return CODE + 14;
	HERE(c);
	me()->managed++;
	return leave(allocate(p, n, c));
}

static CUresult pool_free(struct block *b);

API CUresult cuMemFree_v2(CUdeviceptr p)
{
	if (!p)
		return CUDA_SUCCESS;
	ENTER();
	struct block *b = take(p, 0);
	if (!b)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (b->kind == 3)
		return leave(pool_free(b));
	fake_give(b->gpu, (int64_t)b->size, my.slot);
	release((void *)(uintptr_t)p, (int64_t)b->size, b->kind);
	free(b);
	return leave(CUDA_SUCCESS);
}
API CUresult cuMemFree(CUdeviceptr_v1 p) { return p ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

API CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	if (!available || !total)
		return CODE + 16;
	HERE(c);
	fake_reap();
	*total = (size_t)my.s->gpu[c->gpu].total;
	*available = (size_t)(my.s->gpu[c->gpu].total - my.s->gpu[c->gpu].used);
	return leave(CUDA_SUCCESS);
}
API CUresult cuMemGetInfo(unsigned *available, unsigned *total)
{
	size_t a, t;
	if (!available || !total)
		return CODE + 15;
	CUresult r = cuMemGetInfo_v2(&a, &t);
	*available = a > UINT32_MAX ? UINT32_MAX : (unsigned)a;
	*total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	return r;
}

// Streams, captures, graphs.

// 0 and 1 are the process's default stream, 2 is the thread's, as is 0 in functions with _ptsz.
#define OWN(s) ((s) ? (s) : CU_STREAM_PER_THREAD)
static struct CUstream_st *stream(CUstream s)
{
	static __thread struct CUstream_st own;
	return (uintptr_t)s > 2 ? s : s == CU_STREAM_PER_THREAD ? &own : &my.legacy;
}

API CUresult cuStreamCreate(CUstream *s, unsigned flags)
{
	(void)flags;
	HERE(c);
	*s = calloc(1, sizeof **s);
	(*s)->gpu = c->gpu;
	(*s)->ctx = c;
	return leave(CUDA_SUCCESS);
}
API CUresult cuStreamDestroy_v2(CUstream s)
{
	my.captures -= s->capturing != 0;
	free(s);
	return CUDA_SUCCESS;
}
API CUresult cuStreamDestroy(CUstream s) { return cuStreamDestroy_v2(s); }
API CUresult cuStreamGetCtx(CUstream s, CUcontext *c) { *c = stream(s)->ctx ? stream(s)->ctx : here(); return CUDA_SUCCESS; }
API CUresult cuStreamSynchronize(CUstream s)
{
	if (stream(s)->capturing)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	drain();
	return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream s, int *status) { *status = stream(s)->capturing != 0; return CUDA_SUCCESS; }
API CUresult cuStreamGetCaptureInfo(CUstream s, int *status, uint64_t *id)
{
	*id = stream(s)->capturing;
	return cuStreamIsCapturing(s, status);
}
API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static __thread int mine;
	int was = mine;
	mine = *mode;
	*mode = was;
	return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture_v2(CUstream s, int mode)
{
	(void)mode;
	ENTER();
	stream(s)->capturing = ++my.captured;
	stream(s)->bytes = 0;
	my.captures++;
	return leave(CUDA_SUCCESS);
}
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { return cuStreamBeginCapture_v2(OWN(s), mode); }
API CUresult cuStreamBeginCapture(CUstream s) { return cuStreamBeginCapture_v2(s, 0); }
API CUresult cuStreamEndCapture(CUstream s, CUgraph *g)
{
	if (!g || !stream(s)->capturing)
		return CODE + 20;
	*g = calloc(1, sizeof **g);
	(*g)->bytes = stream(s)->bytes;
	stream(s)->capturing = 0;
	my.captures--;
	return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *g) { return g ? cuStreamEndCapture(OWN(s), g) : CODE + 21; }

API CUresult cuGraphCreate(CUgraph *g, unsigned flags) { (void)flags; *g = calloc(1, sizeof **g); return CUDA_SUCCESS; }
API CUresult cuGraphDestroy(CUgraph g) { free(g); return CUDA_SUCCESS; }
API CUresult cuGraphClone(CUgraph *to, CUgraph from) { *to = malloc(sizeof **to); **to = *from; return CUDA_SUCCESS; }
API CUresult cuGraphAddMemAllocNode(CUgraphNode *n, CUgraph g, const CUgraphNode *d, size_t k, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	(void)d; (void)k;
	g->bytes += (int64_t)p->bytesize;
	*n = (CUgraphNode)g;
	return CUDA_SUCCESS;
}
API CUresult cuGraphAddNode(CUgraphNode *n, CUgraph g, const CUgraphNode *d, size_t k, CUgraphNodeParams *p)
{
	return p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? cuGraphAddMemAllocNode(n, g, d, k, &p->alloc) : CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuGraphAddNode_v2(CUgraphNode *n, CUgraph g, const CUgraphNode *d, const void *e, size_t k, CUgraphNodeParams *p) { (void)e; return cuGraphAddNode(n, g, d, k, p); }
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *x, CUgraph g, unsigned long long flags)
{
	(void)flags;
	*x = calloc(1, sizeof **x);
	(*x)->bytes = g->bytes;
	return CUDA_SUCCESS;
}
API CUresult cuGraphInstantiate(CUgraphExec *x, CUgraph g, CUgraphNode *n, char *l, size_t k) { (void)n; (void)l; (void)k; return cuGraphInstantiateWithFlags(x, g, 0); }
API CUresult cuGraphInstantiate_v2(CUgraphExec *x, CUgraph g, CUgraphNode *n, char *l, size_t k) { (void)n; (void)l; (void)k; return cuGraphInstantiateWithFlags(x, g, 1); }
API CUresult cuGraphExecDestroy(CUgraphExec x) { free(x); return CUDA_SUCCESS; }

static void work(void)
{
	int64_t now = now_us(), until, next;
	_Atomic int64_t *queue = my.s->serial ? &my.s->until : &my.until;
	struct CUctx_st *c = here();
	if (!my.s->kernel_us)
		return;
	if (c)
		me()->done_us[c->gpu] += my.s->kernel_us;
	until = *queue;
	do
		next = (until > now ? until : now) + my.s->kernel_us;
	while (!atomic_compare_exchange_weak(queue, &until, next));
	for (until = my.until; until < next && !atomic_compare_exchange_weak(&my.until, &until, next);)
		;
}

API CUresult cuGraphLaunch(CUgraphExec x, CUstream s)
{
	(void)s;
	HERE(c);
	int64_t more = whole((uint64_t)x->bytes, CHUNK) - my.graph[c->gpu];
	if (more > 0) {
		if (!fake_take(c->gpu, more, my.slot))
			return leave(CUDA_ERROR_OUT_OF_MEMORY);
		my.graph[c->gpu] += more;
	}
	work();
	return leave(CUDA_SUCCESS);
}
API CUresult cuGraphLaunch_ptsz(CUgraphExec x, CUstream s) { return cuGraphLaunch(x, OWN(s)); }
API CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	GPU(dev);
	fake_give(dev, my.graph[dev], my.slot);
	my.graph[dev] = 0;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attr, void *v)
{
	GPU(dev);
	*(uint64_t *)v = attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? (uint64_t)my.graph[dev] : 0;
	return CUDA_SUCCESS;
}

// Pools.

static CUresult pool_alloc(CUdeviceptr *out, uint64_t size, struct CUmemPoolHandle_st *p, CUstream s)
{
	int kind;
	int64_t n = whole(size, 512);
	if (stream(s)->capturing) {
		stream(s)->bytes += n;
		*out = 0x1000; // memory only when it runs
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&my.mutex);
	int64_t more = whole((uint64_t)(p->used + n), CHUNK) - p->reserved;
	bool ok = more <= 0 || fake_take(p->gpu, more, my.slot);
	if (ok) {
		p->used += n;
		p->reserved += more > 0 ? more : 0;
	}
	pthread_mutex_unlock(&my.mutex);
	if (!ok)
		return CUDA_ERROR_OUT_OF_MEMORY;
	void *a = memory(n, &kind);
	*out = (uintptr_t)a;
	put((struct block){ .at = *out, .size = (uint64_t)n, .gpu = p->gpu, .kind = 3, .of = p, .refs = kind });
	return CUDA_SUCCESS;
}

static void trim(struct CUmemPoolHandle_st *p, int64_t keep)
{
	pthread_mutex_lock(&my.mutex);
	int64_t want = whole((uint64_t)p->used, CHUNK);
	want = want > keep ? want : keep;
	if (p->reserved > want) {
		fake_give(p->gpu, p->reserved - want, my.slot);
		p->reserved = want;
	}
	pthread_mutex_unlock(&my.mutex);
}

static CUresult pool_free(struct block *b)
{
	struct CUmemPoolHandle_st *p = b->of;
	pthread_mutex_lock(&my.mutex);
	p->used -= (int64_t)b->size;
	pthread_mutex_unlock(&my.mutex);
	trim(p, p->threshold);
	release((void *)(uintptr_t)b->at, (int64_t)b->size, b->refs);
	free(b);
	return CUDA_SUCCESS;
}

#define POOLED(suffix, code, stream_of) \
	API CUresult cuMemAllocAsync##suffix(CUdeviceptr *p, size_t n, CUstream s) \
	{ \
		if (!p) \
			return CODE + code; \
		HERE(c); \
		return leave(pool_alloc(p, n, &my.pool[c->gpu], stream_of(s))); \
	} \
	API CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream s) \
	{ \
		if (!p) \
			return CODE + code + 1; \
		ENTER(); \
		return leave(pool_alloc(p, n, pool, stream_of(s))); \
	} \
	API CUresult cuMemFreeAsync##suffix(CUdeviceptr p, CUstream s) \
	{ \
		if (!p) \
			return CODE + code + 2; \
		return stream(stream_of(s))->capturing ? CUDA_SUCCESS : cuMemFree_v2(p); \
	}
POOLED(, 30, )
POOLED(_ptsz, 34, OWN)

API CUresult cuDeviceGetMemPool(CUmemoryPool *p, CUdevice dev) { GPU(dev); *p = &my.pool[dev]; return CUDA_SUCCESS; }
API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *p, CUdevice dev) { return cuDeviceGetMemPool(p, dev); }
API CUresult cuMemPoolCreate(CUmemoryPool *p, const CUmemPoolProps *props)
{
	*p = calloc(1, sizeof **p);
	(*p)->gpu = props->location.id;
	return CUDA_SUCCESS;
}
// Kept, to notice a use after it.
API CUresult cuMemPoolDestroy(CUmemoryPool p)
{
	p->destroyed = true;
	fake_give(p->gpu, p->reserved, my.slot);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep)
{
	if (p->destroyed)
		abort();
	trim(p, (int64_t)keep);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool p, int attr, void *v)
{
	if (p->destroyed)
		abort();
	*(uint64_t *)v = (uint64_t)(attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? p->reserved : attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? p->used : p->threshold);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolSetAttribute(CUmemoryPool p, int attr, void *v)
{
	if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		p->threshold = (int64_t)(*(uint64_t *)v >> 1);
	return CUDA_SUCCESS;
}

// Virtual memory management, over files in memory.

API CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *p, int o) { (void)p; (void)o; *n = CHUNK; return CUDA_SUCCESS; }
API CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t align, CUdeviceptr at, unsigned long long flags)
{
	(void)align; (void)flags;
	void *a = mmap((void *)(uintptr_t)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	*p = (uintptr_t)a;
	return a == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t n) { munmap((void *)(uintptr_t)p, n); return CUDA_SUCCESS; }

API CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)flags;
	if (!h || !prop)
		return CODE + 40;
	GPU(prop->location.id);
	ENTER();
	if (!n || n % CHUNK)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!fake_take(prop->location.id, (int64_t)n, my.slot))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	int fd = memfd_create("ebbtide-fake", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)n))
		return leave(CUDA_ERROR_UNKNOWN);
	*h = (CUmemGenericAllocationHandle)fd; // used again at once, as the driver's
	put((struct block){ .at = *h, .size = n, .gpu = prop->location.id, .kind = 5, .refs = 1, .fd = fd });
	return leave(CUDA_SUCCESS);
}

// Adds a reference; -1: there is no such handle.
static int refer(CUmemGenericAllocationHandle h)
{
	pthread_mutex_lock(&my.mutex);
	struct block *b = peek(h, 5);
	if (b)
		b->refs++;
	int fd = b ? b->fd : -1;
	pthread_mutex_unlock(&my.mutex);
	return fd;
}

static CUresult unrefer(CUmemGenericAllocationHandle h)
{
	pthread_mutex_lock(&my.mutex);
	struct block *b = peek(h, 5);
	CUresult r = b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (b && --b->refs == 0)
		cut(h, 5);
	else
		b = NULL;
	pthread_mutex_unlock(&my.mutex);
	if (b) {
		fake_give(b->gpu, (int64_t)b->size, my.slot);
		close(b->fd);
		free(b);
	}
	return r;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle h) { return unrefer(h); }
API CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	(void)flags;
	int fd = refer(h);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (mmap((void *)(uintptr_t)p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) {
		unrefer(h);
		return CUDA_ERROR_INVALID_VALUE;
	}
	put((struct block){ .at = p, .size = n, .kind = 4, .of = (void *)(uintptr_t)h });
	return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr p, size_t n)
{
	for (struct block *b; n && (b = take(p, 4));) {
		mmap((void *)(uintptr_t)p, b->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		unrefer((uintptr_t)b->of);
		n -= b->size < n ? b->size : n;
		p += b->size;
		free(b);
	}
	return n ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const void *d, size_t k) { (void)p; (void)n; (void)d; (void)k; return CUDA_SUCCESS; }
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *at)
{
	pthread_mutex_lock(&my.mutex);
	struct block *m = peek((uintptr_t)at, 4);
	*h = m ? (uintptr_t)m->of : 0;
	pthread_mutex_unlock(&my.mutex);
	return m && refer(*h) >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, int type, unsigned long long flags)
{
	(void)type; (void)flags;
	int fd = refer(h);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)out = dup(fd);
	return unrefer(h);
}

// Arrays.

static CUresult array(CUarray *a, uint64_t n)
{
	HERE(c);
	int64_t bytes = whole(n, 512);
	if (!fake_take(c->gpu, bytes, my.slot))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	*a = malloc(sizeof **a);
	**a = (struct CUarray_st){ c->gpu, bytes };
	return leave(CUDA_SUCCESS);
}
static uint64_t texel(int format, unsigned channels)
{
	return (format == 1 || format == 8 ? 1 : format == 2 || format == 9 || format == 0x10 ? 2 : 4) * (uint64_t)channels;
}
API CUresult cuArrayCreate_v2(CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d) { return a && d ? array(a, texel(d->Format, d->NumChannels) * d->Width * (d->Height ? d->Height : 1)) : CODE + 51; }
API CUresult cuArrayCreate(CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *d) { return a && d ? array(a, texel(d->Format, d->NumChannels) * d->Width * (d->Height ? d->Height : 1)) : CODE + 50; }
API CUresult cuArray3DCreate_v2(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d) { return a && d ? array(a, texel(d->Format, d->NumChannels) * d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1)) : CODE + 53; }
API CUresult cuArray3DCreate(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) { return a && d ? array(a, texel(d->Format, d->NumChannels) * d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1)) : CODE + 52; }
API CUresult cuMipmappedArrayCreate(CUmipmappedArray *a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned n)
{
	(void)n;
	return a && d ? array((CUarray *)a, texel(d->Format, d->NumChannels) * d->Width * (d->Height ? d->Height : 1) * 4 / 3) : CODE + 54;
}
API CUresult cuArrayDestroy(CUarray a)
{
	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	fake_give(a->gpu, a->bytes, my.slot);
	free(a);
	return CUDA_SUCCESS;
}
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray a) { return cuArrayDestroy((CUarray)a); }

// Sharing. Nothing is shared: only the calls matter.

API CUresult cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p) { memset(h, 0, sizeof *h); memcpy(h, &p, sizeof p); return CUDA_SUCCESS; }
API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned flags) { (void)flags; memcpy(p, &h, sizeof *p); return CUDA_SUCCESS; }
API CUresult cuIpcCloseMemHandle(CUdeviceptr p) { (void)p; return CUDA_SUCCESS; }
API CUresult cuImportExternalMemory(CUexternalMemory *m, const void *d) { *m = (CUexternalMemory)d; return CUDA_SUCCESS; }

API CUresult cuMemGetHandleForAddressRange(void *h, CUdeviceptr p, size_t n, int type, unsigned long long flags) { (void)p; (void)n; (void)type; (void)flags; *(int *)h = -1; return CUDA_SUCCESS; }
API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *m, const void *prop) { *m = (uintptr_t)prop; return CUDA_SUCCESS; }

// Work. A "function" is one of two built in: ebb_mix (pointer, count, seed) and ebb_nop.

API CUresult cuModuleLoadData(CUmodule *m, const void *image) { (void)image; *m = (CUmodule)&my; return CUDA_SUCCESS; }
API CUresult cuModuleUnload(CUmodule m) { (void)m; return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	(void)m;
	*f = (CUfunction)(uintptr_t)(strcmp(name, "ebb_mix") == 0 ? 1 : 2);
	return CUDA_SUCCESS;
}
// The driver loads modules at the first launch, without a call for their memory.
static CUresult lazy(void)
{
	static _Atomic int loaded; // the pid
	struct CUctx_st *c = here();
	if (!my.s->lazy || !c || atomic_exchange(&loaded, getpid()) == getpid())
		return CUDA_SUCCESS;
	return fake_take(c->gpu, my.s->lazy, my.slot) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sm, CUstream s, void **kp, void **ex)
{
	(void)gx; (void)gy; (void)gz; (void)bx; (void)by; (void)bz; (void)sm; (void)ex;
	if (!f)
		return CODE + 60;
	ENTER();
	if (stream(s)->capturing)
		return leave(CUDA_SUCCESS);
	CUresult r = lazy();
	if (r)
		return leave(r);
	if ((uintptr_t)f == 1) {
		uint64_t *p = *(uint64_t **)kp[0], n = *(uint64_t *)kp[1], x = *(uint64_t *)kp[2];
		for (uint64_t i = 0; i < n; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			p[i] += x >> 11;
		}
	}
	work();
	return leave(CUDA_SUCCESS);
}
API CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sm, CUstream s, void **kp, void **ex)
{
	return f ? cuLaunchKernel(f, gx, gy, gz, bx, by, bz, sm, OWN(s), kp, ex) : CODE + 61;
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **kp, void **ex) { return c ? cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, c->hStream, kp, ex) : CODE + 62; }
API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **kp, void **ex) { return c ? cuLaunchKernelEx(c, f, kp, ex) : CODE + 63; }

static CUresult copy(void *d, const void *f, size_t n)
{
	ENTER();
	memmove(d, f, n);
	return leave(CUDA_SUCCESS);
}
#define P(x) ((void *)(uintptr_t)(x))
API CUresult cuMemcpy(CUdeviceptr d, CUdeviceptr f, size_t n) { return copy(P(d), P(f), n); }
API CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *f, size_t n) { return d ? copy(P(d), f, n) : CODE + 70; }
API CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr d, const void *f, size_t n) { return d ? copy(P(d), f, n) : CODE + 71; }
API CUresult cuMemcpyDtoH_v2(void *d, CUdeviceptr f, size_t n) { drain(); return d ? copy(d, P(f), n) : CODE + 72; }
API CUresult cuMemcpyDtoH_v2_ptds(void *d, CUdeviceptr f, size_t n) { drain(); return d ? copy(d, P(f), n) : CODE + 73; }
API CUresult cuMemcpyDtoD_v2(CUdeviceptr d, CUdeviceptr f, size_t n) { return d ? copy(P(d), P(f), n) : CODE + 74; }
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void *f, size_t n, CUstream s) { (void)s; return d ? copy(P(d), f, n) : CODE + 75; }
API CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr d, const void *f, size_t n, CUstream s) { (void)s; return d ? copy(P(d), f, n) : CODE + 76; }
API CUresult cuMemcpyDtoHAsync_v2(void *d, CUdeviceptr f, size_t n, CUstream s) { (void)s; return d ? copy(d, P(f), n) : CODE + 77; }
API CUresult cuMemsetD8_v2(CUdeviceptr d, unsigned char v, size_t n)
{
	if (!d)
		return CODE + 78;
	ENTER();
	memset(P(d), v, n);
	return leave(CUDA_SUCCESS);
}
API CUresult cuMemsetD8_v2_ptds(CUdeviceptr d, unsigned char v, size_t n) { return d ? cuMemsetD8_v2(d, v, n) : CODE + 79; }

// Checkpoints, of any process by any other.

static CUresult target(int pid, struct fake_process **p, int *slot)
{
	if (!my.s && !(my.s = fake_open()))
		return CUDA_ERROR_NOT_INITIALIZED;
	*slot = fake_find(pid);
	if (*slot < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*p = &my.s->process[*slot];
	return CUDA_SUCCESS;
}
#define TARGET(pid) struct fake_process *p; int slot; { CUresult found = target(pid, &p, &slot); if (found) return found; }

API CUresult cuCheckpointProcessGetState(int pid, int *state) { TARGET(pid); *state = p->state; return CUDA_SUCCESS; }
API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) { *tid = pid; return CUDA_SUCCESS; }

API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	TARGET(pid);
	int64_t until = args && args->timeoutMs ? now_us() + (int64_t)args->timeoutMs * 1000 : INT64_MAX;
	if (p->state != CU_PROCESS_STATE_RUNNING)
		return CUDA_ERROR_ILLEGAL_STATE;
	p->state = CU_PROCESS_STATE_LOCKED;
	while (p->busy > 0 || fake_fails("lock")) {
		if (now_us() > until) { // the process continues to run
			p->state = CU_PROCESS_STATE_RUNNING;
			return CUDA_ERROR_NOT_READY;
		}
		usleep(500);
	}
	return CUDA_SUCCESS;
}

static void move(int64_t bytes)
{
	if (my.s->copy_us)
		usleep((useconds_t)((bytes >> 20) * my.s->copy_us));
}

API CUresult cuCheckpointProcessCheckpoint(int pid, void *args)
{
	(void)args;
	TARGET(pid);
	if (p->state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (p->managed)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (fake_fails("checkpoint"))
		return CUDA_ERROR_UNKNOWN;
	for (int g = 0; g < my.s->gpus; g++) {
		p->parked[g] = p->used[g];
		move(p->parked[g]);
		fake_give(g, p->parked[g], slot);
	}
	p->state = CU_PROCESS_STATE_CHECKPOINTED;
	return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessRestore(int pid, void *args)
{
	(void)args;
	TARGET(pid);
	if (p->state != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	for (int g = 0; g < my.s->gpus; g++) {
		move(p->parked[g]);
		if (!fake_fails("restore") && fake_take(g, p->parked[g], slot)) {
			p->parked[g] = 0;
			continue;
		}
		// As the real one: a full card breaks the process forever (NVIDIA/cuda-checkpoint#44).
		p->state = CU_PROCESS_STATE_FAILED;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->state = CU_PROCESS_STATE_LOCKED;
	return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessUnlock(int pid, void *args)
{
	(void)args;
	TARGET(pid);
	if (p->state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	p->state = CU_PROCESS_STATE_RUNNING;
	return CUDA_SUCCESS;
}

// Resolves a name for a program, by the CUDA version that it was built for.

struct version { const char *name; int since; int ptsz; void *f; };
static CUresult proc(const char *name, void **pfn, int version, uint64_t flags, int *status);
API CUresult cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
	return name && pfn ? proc(name, pfn, version, flags, status) : CODE + 91;
}
API CUresult cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags)
{
	int status;
	return name && pfn ? proc(name, pfn, version, flags, &status) : CODE + 90;
}

#define F(n) { #n, 2000, 0, (void *)n }
#define V(n, suffix, since) { #n, since, 0, (void *)n##suffix }
#define Z(n, f) { #n, 7000, 1, (void *)f }
static const struct version versions[] = {
	F(cuInit), F(cuDriverGetVersion), F(cuDeviceGetCount), F(cuDeviceGet), F(cuDeviceGetName), F(cuDeviceGetUuid), V(cuDeviceGetUuid, _v2, 11040),
	F(cuDeviceTotalMem), V(cuDeviceTotalMem, _v2, 3020), F(cuDeviceGetAttribute), F(cuDevicePrimaryCtxRetain), V(cuDevicePrimaryCtxRelease, _v2, 11000),
	F(cuDevicePrimaryCtxRelease), F(cuDevicePrimaryCtxGetState), F(cuCtxCreate), V(cuCtxCreate, _v2, 3020), V(cuCtxCreate, _v3, 11040), V(cuCtxCreate, _v4, 12050),
	F(cuCtxDestroy), V(cuCtxDestroy, _v2, 4000), F(cuCtxSetCurrent), F(cuCtxGetCurrent), F(cuCtxGetDevice), F(cuCtxSynchronize),
	F(cuMemAlloc), V(cuMemAlloc, _v2, 3020), F(cuMemAllocPitch), V(cuMemAllocPitch, _v2, 3020), F(cuMemAllocManaged), F(cuMemFree), V(cuMemFree, _v2, 3020),
	F(cuMemGetInfo), V(cuMemGetInfo, _v2, 3020), F(cuMemAllocAsync), Z(cuMemAllocAsync, cuMemAllocAsync_ptsz), F(cuMemAllocFromPoolAsync),
	Z(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz), F(cuMemFreeAsync), Z(cuMemFreeAsync, cuMemFreeAsync_ptsz), F(cuDeviceGetMemPool),
	F(cuDeviceGetDefaultMemPool), F(cuMemPoolCreate), F(cuMemPoolDestroy), F(cuMemPoolTrimTo), F(cuMemPoolGetAttribute), F(cuMemPoolSetAttribute),
	F(cuMemCreate), F(cuMemRelease), F(cuMemMap), F(cuMemUnmap), F(cuMemSetAccess), F(cuMemAddressReserve), F(cuMemAddressFree), F(cuMemRetainAllocationHandle), F(cuMemGetAllocationGranularity),
	F(cuArrayCreate), V(cuArrayCreate, _v2, 3020), F(cuArrayDestroy), F(cuStreamCreate), F(cuStreamDestroy), V(cuStreamDestroy, _v2, 4000), F(cuStreamSynchronize),
	F(cuStreamBeginCapture), V(cuStreamBeginCapture, _v2, 10010), Z(cuStreamBeginCapture, cuStreamBeginCapture_v2_ptsz), F(cuStreamEndCapture),
	Z(cuStreamEndCapture, cuStreamEndCapture_ptsz), F(cuStreamIsCapturing), F(cuGraphDestroy), F(cuGraphInstantiateWithFlags), F(cuGraphExecDestroy),
	F(cuGraphLaunch), Z(cuGraphLaunch, cuGraphLaunch_ptsz), F(cuModuleLoadData), F(cuModuleGetFunction), F(cuLaunchKernel), Z(cuLaunchKernel, cuLaunchKernel_ptsz),
	V(cuMemcpyHtoD, _v2, 3020), Z(cuMemcpyHtoD, cuMemcpyHtoD_v2_ptds), V(cuMemcpyDtoH, _v2, 3020), Z(cuMemcpyDtoH, cuMemcpyDtoH_v2_ptds), V(cuMemsetD8, _v2, 3020),
	Z(cuMemsetD8, cuMemsetD8_v2_ptds), F(cuIpcGetMemHandle), F(cuMulticastCreate), F(cuGetProcAddress), V(cuGetProcAddress, _v2, 12000),
};


// A version of a function that the preload library does not know.
static CUresult newer(void) { return CUDA_ERROR_NOT_SUPPORTED; }

// Does EBBTIDE_FAKE_NEWER name this function?
static bool is_newer(const char *name, int version, uint64_t flags)
{
	const char *want = getenv("EBBTIDE_FAKE_NEWER");
	size_t n = strlen(name);
	if (!want || version < DRIVER || strncmp(want, name, n) != 0)
		return false;
	return !want[n] || (strcmp(want + n, "_ptsz") == 0 && flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
}

static CUresult proc(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
	int known = 0, best = -1;
	*pfn = NULL;
	for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
		const struct version *v = &versions[i];
		if (strcmp(v->name, name) != 0)
			continue;
		known = 1;
		if (v->since <= version && (!v->ptsz || flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) && v->since + v->ptsz * 100000 > best) {
			best = v->since + v->ptsz * 100000;
			*pfn = v->f;
		}
	}
	if (is_newer(name, version, flags))
		*pfn = (void *)newer;
	if (status)
		*status = *pfn ? 0 : known ? 2 : 1;
	return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
