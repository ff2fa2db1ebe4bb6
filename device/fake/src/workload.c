// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// A program that uses a card as a training job does: it makes a context, allocates in steps,
// computes, needs most at the end, checks its memory, frees it, and prints a JSON line per step.
//
// Each case that the preload library must handle is a mode. It runs on the fake driver and on a
// real one: the kernels are in PTX, which the fake does not read.

#include "../../preload/src/cuda.h"

#include <dlfcn.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ALL(X) \
	X(cuInit, 2000, (unsigned)) \
	X(cuDeviceGet, 2000, (CUdevice *, int)) \
	X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice)) \
	X(cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice)) \
	X(cuCtxSetCurrent, 4000, (CUcontext)) \
	X(cuCtxSynchronize, 2000, (void)) \
	X(cuCtxCreate_v2, 3020, (CUcontext *, unsigned, CUdevice)) \
	X(cuCtxDestroy_v2, 4000, (CUcontext)) \
	X(cuMemAlloc_v2, 3020, (CUdeviceptr *, size_t)) \
	X(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned)) \
	X(cuMemFree_v2, 3020, (CUdeviceptr)) \
	X(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream)) \
	X(cuMemFreeAsync, 11020, (CUdeviceptr, CUstream)) \
	X(cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice)) \
	X(cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t)) \
	X(cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *)) \
	X(cuMemPoolDestroy, 11020, (CUmemoryPool)) \
	X(cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
	X(cuMemCreate, 10020, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
	X(cuMemGetAllocationGranularity, 10020, (size_t *, const CUmemAllocationProp *, int)) \
	X(cuMemRelease, 10020, (CUmemGenericAllocationHandle)) \
	X(cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
	X(cuMemUnmap, 10020, (CUdeviceptr, size_t)) \
	X(cuMemSetAccess, 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
	X(cuArrayCreate_v2, 3020, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *)) \
	X(cuArrayDestroy, 2000, (CUarray)) \
	X(cuMemAddressReserve, 10020, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, 10020, (CUdeviceptr, size_t)) \
	X(cuMemGetInfo_v2, 3020, (size_t *, size_t *)) \
	X(cuDeviceTotalMem_v2, 3020, (size_t *, CUdevice)) \
	X(cuModuleLoadData, 2000, (CUmodule *, const void *)) \
	X(cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *)) \
	X(cuLaunchKernel, 4000, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(cuMemcpyDtoH_v2, 3020, (void *, CUdeviceptr, size_t)) \
	X(cuMemsetD8_v2, 3020, (CUdeviceptr, unsigned char, size_t)) \
	X(cuStreamCreate, 2000, (CUstream *, unsigned)) \
	X(cuStreamDestroy_v2, 4000, (CUstream)) \
	X(cuStreamBeginCapture_v2, 10010, (CUstream, int)) \
	X(cuStreamEndCapture, 10000, (CUstream, CUgraph *)) \
	X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec *, CUgraph, unsigned long long)) \
	X(cuGraphLaunch, 10000, (CUgraphExec, CUstream)) \
	X(cuGraphExecDestroy, 10000, (CUgraphExec)) \
	X(cuGraphDestroy, 10000, (CUgraph)) \
	X(cuIpcGetMemHandle, 4010, (CUipcMemHandle *, CUdeviceptr))

typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

// ebb_mix(p, n, seed) adds the next n numbers of a generator to n words at p, in one thread: it
// tests memory, not speed.
static const char image[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry ebb_mix(.param .u64 ebb_p, .param .u64 ebb_n, .param .u64 ebb_seed)\n"
	"{\n"
	"	.reg .pred %p<2>;\n"
	"	.reg .b64 %rd<8>;\n"
	"	ld.param.u64 %rd1, [ebb_p];\n"
	"	ld.param.u64 %rd2, [ebb_n];\n"
	"	ld.param.u64 %rd3, [ebb_seed];\n"
	"	cvta.to.global.u64 %rd1, %rd1;\n"
	"	setp.eq.u64 %p1, %rd2, 0;\n"
	"	@%p1 bra DONE;\n"
	"	mov.u64 %rd4, 6364136223846793005;\n"
	"	mov.u64 %rd5, 1442695040888963407;\n"
	"NEXT:\n"
	"	mad.lo.u64 %rd3, %rd3, %rd4, %rd5;\n"
	"	shr.u64 %rd6, %rd3, 11;\n"
	"	ld.global.u64 %rd7, [%rd1];\n"
	"	add.u64 %rd7, %rd7, %rd6;\n"
	"	st.global.u64 [%rd1], %rd7;\n"
	"	add.u64 %rd1, %rd1, 8;\n"
	"	sub.u64 %rd2, %rd2, 1;\n"
	"	setp.ne.u64 %p1, %rd2, 0;\n"
	"	@%p1 bra NEXT;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n"
	".visible .entry ebb_nop()\n"
	"{\n"
	"	ret;\n"
	"}\n";

#ifdef LINKED // against libcuda; without it, the program runs on machines that have none
#define X(n, v, P) extern CUresult n P;
ALL(X)
#undef X
#endif

static struct {
#define X(n, v, P) CUresult(*n) P;
	ALL(X)
#undef X
} cu;

static struct {
	const char *resolve, *alloc, *mode, *until, *after, *library;
	long long bytes, least, leave, work;
	int steps, threads, pause_ms, hold_ms, count, windows, ask, own;
	unsigned long long seed;
} opt = { .resolve = "dlsym", .alloc = "sync", .mode = "train", .bytes = 16 << 20, .steps = 8, .threads = 1, .windows = 1, .seed = 1 };

static CUcontext ctx;
static CUfunction mix, nop;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void) // of this process
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// Keeps the memory for --hold-ms, or, for -1, until stdin is closed.
static void hold(void)
{
	char c;
	if (opt.hold_ms > 0)
		usleep((useconds_t)opt.hold_ms * 1000);
	while (opt.hold_ms < 0 && read(0, &c, 1) > 0)
		;
}

static void say(const char *format, ...)
{
	char line[512];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line - 1, format, args);
	va_end(args);
	line[n++] = '\n';
	if (write(1, line, (size_t)n) != n)
		exit(3);
}

static void check(CUresult r, const char *what)
{
	if (r == CUDA_SUCCESS)
		return;
	say("{\"error\": %d, \"call\": \"%s\"}", r, what);
	exit(r == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 1);
}
#define DO(call) check(cu.call, #call)

// Four ways to find the driver, as programs use them.
static void resolve(void)
{
	const char *how = opt.resolve;
	void *handle = NULL;
#ifdef LINKED
	if (strcmp(how, "linked") == 0) {
#define X(n, v, P) cu.n = n;
		ALL(X)
#undef X
		return;
	}
#endif
	if (strcmp(how, "next") == 0)
		handle = RTLD_NEXT; // with the driver in the global scope, as profilers do
	if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) {
		say("{\"error\": \"%s\"}", dlerror());
		exit(4);
	}
	if (!handle)
		handle = dlopen("libcuda.so.1", RTLD_NOW);
	if (strcmp(how, "procaddress") == 0) {
		CUresult (*get)(const char *, void **, int, uint64_t, int *) = NULL;
		*(void **)&get = dlsym(handle, "cuGetProcAddress_v2");
		// As cudart does: cuGetProcAddress looks itself up.
		void *again = NULL;
		int status;
		check(get("cuGetProcAddress", &again, 12080, 0, &status), "cuGetProcAddress");
		*(void **)&get = again;
#define X(n, v, P) { char base[64]; strcpy(base, #n); char *cut = strstr(base, "_v2"); if (cut) *cut = 0; \
		check(get(base, (void **)&cu.n, v, 0, &status), #n); }
		ALL(X)
#undef X
		return;
	}
#define X(n, v, P) if (!(*(void **)&cu.n = dlsym(handle, #n))) { say("{\"error\": \"no %s\"}", #n); exit(4); }
	ALL(X)
#undef X
}

static const CUmemAllocationProp here = { .type = 1, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };

// An array of at most that many bytes, of words, not for computing.
static CUDA_ARRAY_DESCRIPTOR lines(size_t n)
{
	return (CUDA_ARRAY_DESCRIPTOR){ .Width = n / 4 < 16384 ? n / 4 : 16384, .Height = n / 4 / 16384, .Format = 3, .NumChannels = 1 };
}

static CUresult take(CUdeviceptr *p, size_t n, CUmemGenericAllocationHandle *h)
{
	if (strcmp(opt.alloc, "managed") == 0)
		return cu.cuMemAllocManaged(p, n, 1);
	if (strcmp(opt.alloc, "async") == 0)
		return cu.cuMemAllocAsync(p, n, 0);
	if (strcmp(opt.alloc, "vmm") == 0) {
		CUresult r = cu.cuMemCreate(h, n, &here, 0);
		if (r)
			return r;
		CUmemAccessDesc both = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, 3 }; // read and write
		DO(cuMemAddressReserve(p, n, 0, 0, 0));
		DO(cuMemMap(*p, n, 0, *h, 0));
		return cu.cuMemSetAccess(*p, n, &both, 1);
	}
	if (strcmp(opt.alloc, "array") == 0) {
		CUDA_ARRAY_DESCRIPTOR d = lines(n);
		return cu.cuArrayCreate_v2((CUarray *)p, &d);
	}
	return cu.cuMemAlloc_v2(p, n);
}

static void give(CUdeviceptr p, size_t n, CUmemGenericAllocationHandle h)
{
	if (strcmp(opt.alloc, "async") == 0)
		DO(cuMemFreeAsync(p, 0));
	else if (strcmp(opt.alloc, "array") == 0)
		DO(cuArrayDestroy((CUarray)p));
	else if (strcmp(opt.alloc, "vmm") == 0) {
		DO(cuMemRelease(h)); // the mapping keeps it
		DO(cuMemUnmap(p, n));
		DO(cuMemAddressFree(p, n));
	} else
		DO(cuMemFree_v2(p));
}

// The parts of a piece of memory that are computed on: 512 bytes each, evenly spread.
enum { WORDS = 64 };
static CUdeviceptr window(CUdeviceptr p, int i)
{
	return p + (unsigned long long)opt.bytes / 512 * (unsigned long long)i / (unsigned long long)opt.windows * 512;
}

static void launch(CUdeviceptr p, uint64_t seed)
{
	for (int i = 0; i < opt.windows; i++) {
		CUdeviceptr at = window(p, i);
		uint64_t n = WORDS, from = seed + (uint64_t)i * 1000003;
		void *args[] = { &at, &n, &from };
		DO(cuLaunchKernel(mix, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
	}
}

// Checks what ebb_mix has made of windows of zeros, over some launches.
static void verify(CUdeviceptr p, uint64_t seed, int launches)
{
	for (int k = 0; k < opt.windows; k++) {
		uint64_t got[WORDS], x = seed + (uint64_t)k * 1000003;
		DO(cuMemcpyDtoH_v2(got, window(p, k), sizeof got));
		for (int i = 0; i < WORDS; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			if (got[i] != (x >> 11) * (uint64_t)launches) {
				say("{\"error\": \"the memory does not hold what was computed\"}");
				exit(5);
			}
		}
	}
}

static void begin(void)
{
	CUmodule m;
	DO(cuInit(0));
	CUdevice dev;
	DO(cuDeviceGet(&dev, 0));
	DO(cuDevicePrimaryCtxRetain(&ctx, dev));
	DO(cuCtxSetCurrent(ctx));
	DO(cuModuleLoadData(&m, image));
	DO(cuModuleGetFunction(&mix, m, "ebb_mix"));
	DO(cuModuleGetFunction(&nop, m, "ebb_nop"));
}

// Waits after a step, until the test makes the file of --until.
static void rest(void)
{
	if (opt.pause_ms && !(opt.until && access(opt.until, F_OK) == 0))
		usleep((useconds_t)opt.pause_ms * 1000);
}

// Keeps the first step's memory, until the test makes the file of --after.
static void await_file(void)
{
	while (opt.after && access(opt.after, F_OK) != 0)
		usleep(50000);
}

static void *train(void *arg)
{
	unsigned long long seed = opt.seed + (unsigned long long)(uintptr_t)arg;
	DO(cuCtxSetCurrent(ctx));
	CUdeviceptr *p = calloc((size_t)opt.steps, sizeof *p);
	CUmemGenericAllocationHandle *h = calloc((size_t)opt.steps, sizeof *h);
	for (int i = 0; i < opt.steps; i++) {
		double t = now();
		check(take(&p[i], (size_t)opt.bytes, &h[i]), "take");
		for (int k = 0; k < opt.windows; k++)
			DO(cuMemsetD8_v2(window(p[i], k), 0, WORDS * 8));
		for (int k = 0; k <= i; k++)
			launch(p[k], seed + (unsigned long long)k);
		size_t f = 0, total = 0;
		DO(cuMemGetInfo_v2(&f, &total));
		say("{\"step\": %d, \"total\": %d, \"loss\": %.4f, \"t\": %.6f, \"took\": %.6f, \"free\": %zu, \"memory\": %zu}",
			i + 1, opt.steps + opt.count, 1.0 / (i + 1), now(), now() - t, f, total);
		rest();
		if (i == 0)
			await_file();
	}
	for (int r = 0; r < opt.count; r++) { // with all of it
		for (int k = 0; k < opt.steps; k++)
			launch(p[k], seed + (unsigned long long)k);
		DO(cuCtxSynchronize());
		int n = opt.steps + r + 1;
		say("{\"round\": %d, \"t\": %.6f, \"step\": %d, \"total\": %d, \"loss\": %.4f}", r + 1, now(), n, opt.steps + opt.count, 1.0 / n);
		rest();
	}
	hold();
	for (int i = 0; i < opt.steps; i++) {
		verify(p[i], seed + (unsigned long long)i, opt.steps - i + opt.count);
		give(p[i], (size_t)opt.bytes, h[i]);
	}
	free(p);
	free(h);
	return NULL;
}

static void end(void)
{
	DO(cuCtxSynchronize());
	DO(cuDevicePrimaryCtxRelease_v2(0));
	say("{\"done\": true}");
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

// Many small allocations and frees, and their times: ns is the mean of an allocation with its
// free, the others of allocations alone.
static void many(void)
{
	enum { LIVE = 1024 };
	CUdeviceptr p[LIVE] = { 0 };
	double *took = calloc((size_t)opt.count + 1, sizeof *took);
	double t = now();
	for (int i = 0; i < opt.count; i++) {
		CUdeviceptr *at = &p[i % LIVE];
		if (*at)
			DO(cuMemFree_v2(*at));
		double begun = now();
		DO(cuMemAlloc_v2(at, (size_t)opt.bytes));
		took[i] = (now() - begun) * 1e9;
	}
	t = now() - t;
	for (int i = 0; i < LIVE; i++)
		if (p[i])
			DO(cuMemFree_v2(p[i]));
	qsort(took, (size_t)opt.count, sizeof *took, ascending);
	say("{\"count\": %d, \"ns\": %.1f, \"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}", opt.count, t / opt.count * 1e9,
		took[opt.count / 2], took[(int)(opt.count * 0.99)], took[opt.count > 0 ? opt.count - 1 : 0]);
	free(took);
	hold();
}

// A training loop: a launch, work on the host, and waiting for the card. Without work it is
// launches alone, of an empty kernel.
static void loop(void)
{
	static volatile uint64_t sink;
	CUdeviceptr p;
	DO(cuMemAlloc_v2(&p, (size_t)opt.bytes));
	double *took = calloc((size_t)opt.count + 1, sizeof *took), t = now(), c = cpu();
	for (int i = 0; i < opt.count; i++) {
		double begun = opt.work ? now() : 0;
		if (!opt.work) {
			DO(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL));
			continue;
		}
		launch(p, opt.seed);
		uint64_t x = sink;
		for (long long k = 0; k < opt.work; k++)
			x = x * 6364136223846793005u + 1442695040888963407u;
		sink = x;
		DO(cuCtxSynchronize());
		took[i] = (now() - begun) * 1e9;
	}
	t = now() - t;
	c = cpu() - c;
	qsort(took, (size_t)opt.count, sizeof *took, ascending);
	say("{\"count\": %d, \"ns\": %.1f, \"cpu_ns\": %.1f, \"p50\": %.1f}", opt.count, t / opt.count * 1e9, c / opt.count * 1e9, took[opt.count / 2]);
	free(took);
	DO(cuMemFree_v2(p));
}

// With --ask, waits for a byte on stdin.
static void await_word(void)
{
	char c;
	if (!opt.ask)
		return;
	say("{\"ready\": true}");
	if (read(0, &c, 1) != 1)
		exit(7);
}

static size_t available(void)
{
	size_t f, total;
	DO(cuMemGetInfo_v2(&f, &total));
	return f;
}

// Allocates until it is refused; then half as much, down to --least. With --leave that much of the
// card is left free.
static void fill(void)
{
	enum { MOST = 1 << 15 };
	static CUdeviceptr p[MOST];
	static CUmemGenericAllocationHandle h[MOST];
	static size_t size[MOST];
	int n = 0;
	size_t f, total, got = 0, next = (size_t)opt.bytes, least = opt.least ? (size_t)opt.least : next;
	CUresult r = 0;
	await_word();
	while (n < MOST) {
		if (opt.leave) {
			size_t left = available(), more = left > (size_t)opt.leave ? left - (size_t)opt.leave : 0;
			more -= more % least;
			next = next < more ? next : more;
			if (!next)
				break;
		}
		r = take(&p[n], next, &h[n]);
		if (r && (r != CUDA_ERROR_OUT_OF_MEMORY || next / 2 < least))
			break;
		if (r) {
			next /= 2;
			continue;
		}
		size[n++] = next;
		got += next;
	}
	DO(cuMemGetInfo_v2(&f, &total));
	say("{\"got\": %zu, \"code\": %d, \"free\": %zu, \"memory\": %zu}", got, r, f, total);
	hold();
	while (n--)
		give(p[n], size[n], h[n]);
}

// What allocations of some sizes take of the card: the first, and many.
static void rounding(void)
{
	static const size_t sizes[] = { 1 << 10, (1 << 20) - 1, (1 << 20) + 1, (2 << 20) + 1, 33 << 20 };
	enum { MANY = 32 };
	for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
		CUdeviceptr p[MANY] = { 0 };
		CUmemGenericAllocationHandle h[MANY] = { 0 };
		size_t n = sizes[k], asked = n, unit = 0;
		if (strcmp(opt.alloc, "vmm") == 0) {
			DO(cuMemGetAllocationGranularity(&unit, &here, 0));
			asked = n = (n + unit - 1) / unit * unit; // others are refused
		}
		if (strcmp(opt.alloc, "array") == 0) {
			CUDA_ARRAY_DESCRIPTOR d = lines(n);
			asked = d.Width * (d.Height ? d.Height : 1) * 4;
		}
		size_t before = available();
		check(take(&p[0], n, &h[0]), "take");
		size_t first = available();
		for (int i = 1; i < MANY; i++)
			check(take(&p[i], n, &h[i]), "take");
		size_t all = available();
		for (int i = 0; i < MANY; i++)
			give(p[i], n, h[i]);
		DO(cuCtxSynchronize());
		if (strcmp(opt.alloc, "async") == 0) {
			CUmemoryPool pool;
			DO(cuDeviceGetDefaultMemPool(&pool, 0));
			DO(cuMemPoolTrimTo(pool, 0));
		}
		say("{\"size\": %zu, \"asked\": %zu, \"count\": %d, \"first\": %lld, \"all\": %lld, \"left\": %lld}", sizes[k], asked, MANY,
			(long long)(before - first), (long long)(before - all), (long long)(before - available()));
	}
}

// Allocates and frees in all threads at once: handles, addresses and pools are used again at once.
static void *churn(void *arg)
{
	static const CUmemPoolProps props = { .allocType = 1, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	bool pooled = strcmp(opt.alloc, "pool") == 0;
	(void)arg;
	DO(cuCtxSetCurrent(ctx));
	for (int i = 0; i < opt.count; i++) {
		CUmemGenericAllocationHandle h = 0;
		CUmemoryPool pool;
		CUdeviceptr p;
		if (!pooled) {
			check(take(&p, (size_t)opt.bytes, &h), "take");
			give(p, (size_t)opt.bytes, h);
			continue;
		}
		DO(cuMemPoolCreate(&pool, &props));
		DO(cuMemAllocFromPoolAsync(&p, (size_t)opt.bytes, pool, 0));
		DO(cuMemFreeAsync(p, 0));
		DO(cuMemPoolDestroy(pool));
	}
	return NULL;
}

// Makes contexts, and destroys them while their work may not be done.
static void *contexts(void *arg)
{
	(void)arg;
	for (int i = 0; i < opt.count; i++) {
		CUcontext c;
		DO(cuCtxCreate_v2(&c, 0, 0));
		DO(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL));
		rest();
		DO(cuCtxDestroy_v2(c));
	}
	return NULL;
}

// Stops until there is a byte on stdin, for others to look at the card.
static void stage(const char *name)
{
	size_t f, total, most;
	char c;
	DO(cuMemGetInfo_v2(&f, &total));
	DO(cuDeviceTotalMem_v2(&most, 0));
	say("{\"stage\": \"%s\", \"free\": %zu, \"memory\": %zu, \"device_total\": %zu}", name, f, total, most);
	if (read(0, &c, 1) != 1)
		exit(7);
}

// What a context takes, and a handle of cuBLAS before and after its first product.
static void sizes(void)
{
	int (*create)(void **) = NULL, (*product)(void *, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int) = NULL;
	enum { SIDE = 1024 };
	void *lib, *handle;
	CUdeviceptr p;
	float one = 1, zero = 0;
	stage("context");
	if (!opt.library)
		return;
	if (!(lib = dlopen(opt.library, RTLD_NOW | RTLD_GLOBAL))) {
		say("{\"error\": \"%.400s\"}", dlerror());
		exit(4);
	}
	*(void **)&create = dlsym(lib, "cublasCreate_v2");
	*(void **)&product = dlsym(lib, "cublasSgemm_v2");
	DO(cuMemAlloc_v2(&p, SIDE * SIDE * sizeof(float)));
	stage("memory");
	if (!create || !product || create(&handle)) {
		say("{\"error\": \"%s makes no handle\"}", opt.library);
		exit(6);
	}
	stage("handle");
	float *a = (float *)(uintptr_t)p;
	if (product(handle, 0, 0, SIDE, SIDE, SIDE, &one, a, SIDE, a, SIDE, &zero, a, SIDE)) {
		say("{\"error\": \"%s makes no product\"}", opt.library);
		exit(6);
	}
	DO(cuCtxSynchronize());
	stage("product");
}

static const char *const hooked[] = {
#define CUDA(n) #n,
#define NVML(n)
#define SUBMIT(n, ...) #n,
#include "../../preload/src/hooks.def"
#include "../../preload/src/submit.def"
#undef CUDA
#undef NVML
#undef SUBMIT
};
enum { HOOKED = sizeof hooked / sizeof *hooked };

// The name as cuGetProcAddress wants it: without the suffixes of variants.
static void base(char *to, size_t n, const char *name)
{
	static const char *const ends[] = { "_ptsz", "_ptds", "_v2", "_v3", "_v4", "_v5" };
	snprintf(to, n, "%s", name);
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		size_t have = strlen(to), cut = strlen(ends[i]);
		if (have > cut && strcmp(to + have - cut, ends[i]) == 0)
			to[have - cut] = 0;
	}
}

// What cuGetProcAddress returns for all hooked names, versions and kinds of stream: a line per
// address, with its library and whether dlsym knows it by a hooked name.
static void addresses(void)
{
	CUresult (*get)(const char *, void **, int, uint64_t, int *) = NULL;
	CUresult (*version)(int *) = NULL;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *known[HOOKED];
	int newest = 0, asked = 0, status;
	*(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
	*(void **)&version = dlsym(lib, "cuDriverGetVersion");
	if (!get || !version || version(&newest)) {
		say("{\"error\": \"the driver has no cuGetProcAddress_v2\"}");
		exit(4);
	}
	for (int i = 0; i < HOOKED; i++)
		known[i] = dlsym(lib, hooked[i]);
	char name[HOOKED][64];
	for (int i = 0; i < HOOKED; i++) {
		enum { MANY = 32 };
		void *seen[MANY];
		int n = 0, again = 0;
		base(name[i], sizeof name[i], hooked[i]);
		for (int k = 0; k < i; k++)
			again |= strcmp(name[k], name[i]) == 0;
		if (again)
			continue;
		asked++;
		for (uint64_t flags = 0; flags < 3; flags++) // the default, the legacy stream, one per thread
			for (int v = 2000; v <= newest; v += v % 1000 == 90 ? 910 : 10) {
				void *p = NULL;
				Dl_info at = { 0 };
				int old = 0, same = 0;
				if (get(name[i], &p, v, flags, &status) || !p)
					continue;
				for (int k = 0; k < n; k++)
					old |= seen[k] == p;
				if (old || n == MANY)
					continue;
				seen[n++] = p;
				for (int k = 0; k < HOOKED; k++)
					same |= known[k] == p;
				dladdr(p, &at);
				const char *file = at.dli_fname ? strrchr(at.dli_fname, '/') : NULL;
				say("{\"proc\": \"%s\", \"version\": %d, \"flags\": %d, \"file\": \"%.100s\", \"symbol\": \"%.100s\", \"same\": %d}", name[i], v, (int)flags,
					file ? file + 1 : at.dli_fname ? at.dli_fname : "", at.dli_sname ? at.dli_sname : "", same);
			}
	}
	say("{\"names\": %d, \"cuda\": %d}", asked, newest);
}

static void *lonely(void *arg)
{
	CUdeviceptr p;
	(void)arg;
	say("{\"code\": %d}", cu.cuMemAlloc_v2(&p, 4096));
	return NULL;
}

// Takes the functions of a program built for a default stream per thread.
static void own_streams(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
#define OWN(n) if (!(*(void **)&cu.n = dlsym(lib, #n "_ptsz"))) { say("{\"error\": \"no %s_ptsz\"}", #n); exit(4); }
	OWN(cuMemAllocAsync) OWN(cuMemFreeAsync) OWN(cuStreamBeginCapture_v2) OWN(cuStreamEndCapture) OWN(cuGraphLaunch)
#undef OWN
}

// A graph that allocates, and an allocation during the capture, which must not wait. Threads
// capture at the same time, each more memory than the one before, and launch one after the other.
static pthread_barrier_t together;
static void *capture(void *arg)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	CUstream s = 0;
	CUgraph g;
	CUgraphExec x;
	CUdeviceptr p, q;
	DO(cuCtxSetCurrent(ctx));
	if (!opt.own)
		DO(cuStreamCreate(&s, 1));
	DO(cuStreamBeginCapture_v2(s, 2));
	pthread_barrier_wait(&together);
	DO(cuMemAllocAsync(&p, (size_t)opt.bytes * (1 + (uintptr_t)arg / 1000), s));
	DO(cuMemFreeAsync(p, s));
	double t = now();
	CUresult r = cu.cuMemAlloc_v2(&q, (size_t)1 << 40);
	say("{\"code\": %d, \"took\": %.6f}", r, now() - t);
	pthread_barrier_wait(&together);
	DO(cuStreamEndCapture(s, &g));
	DO(cuGraphInstantiateWithFlags(&x, g, 0));
	pthread_barrier_wait(&together);
	pthread_mutex_lock(&one);
	for (int i = 0; i < 3; i++)
		DO(cuGraphLaunch(x, s));
	pthread_mutex_unlock(&one);
	pthread_barrier_wait(&together);
	size_t f, total;
	DO(cuMemGetInfo_v2(&f, &total));
	say("{\"launched\": 3, \"free\": %zu, \"memory\": %zu}", f, total);
	DO(cuGraphExecDestroy(x));
	DO(cuGraphDestroy(g));
	return NULL;
}

// A capture that ends because its stream is destroyed; then an allocation that must wait.
static void dropped(void)
{
	CUstream s;
	CUdeviceptr p;
	DO(cuStreamCreate(&s, 1));
	DO(cuStreamBeginCapture_v2(s, 2));
	DO(cuStreamDestroy_v2(s));
	double t = now();
	CUresult r = cu.cuMemAlloc_v2(&p, (size_t)1 << 40);
	say("{\"code\": %d, \"took\": %.6f}", r, now() - t);
}

// An allocation that must wait, twice by a library that allocates as PyTorch does, then directly.
static void flush(void)
{
	CUresult (*through)(void *, CUdeviceptr *, size_t) = NULL;
	void *lib = dlopen(opt.library, RTLD_NOW);
	if (!lib || !(*(void **)&through = dlsym(lib, "through"))) {
		say("{\"error\": \"%.400s\"}", dlerror());
		exit(4);
	}
	for (int i = 0; i < 3; i++) {
		CUdeviceptr p;
		double t = now();
		CUresult r = i < 2 ? through((void *)cu.cuMemAlloc_v2, &p, (size_t)1 << 40) : cu.cuMemAlloc_v2(&p, (size_t)1 << 40);
		say("{\"code\": %d, \"took\": %.6f}", r, now() - t);
	}
}

// Each variant of the fake answers a NULL with its own code.
static void variants(void)
{
	say("{\"cuMemAlloc_v2\": %d, \"cuMemAllocAsync\": %d, \"cuMemAllocManaged\": %d, \"cuMemGetInfo_v2\": %d, \"cuLaunchKernel\": %d, \"cuMemsetD8_v2\": %d, \"cuDeviceTotalMem_v2\": %d}",
		cu.cuMemAlloc_v2(NULL, 64), cu.cuMemAllocAsync(NULL, 64, 0), cu.cuMemAllocManaged(NULL, 64, 1), cu.cuMemGetInfo_v2(NULL, NULL),
		cu.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL), cu.cuMemsetD8_v2(0, 0, 1), cu.cuDeviceTotalMem_v2(NULL, 0));
}

// Prints what NVML reports of the first card, without a context: a line per process, then the
// card's.
static int card(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*init)(void) = NULL, (*by)(unsigned, nvmlDevice_t *) = NULL, (*info)(nvmlDevice_t, nvmlMemory_t *) = NULL;
	int (*list)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) = NULL, (*version)(int *) = NULL, cuda = 0;
	nvmlDevice_t dev;
	nvmlMemory_t m;
	static nvmlProcessInfo_t all[256];
	unsigned n = 256;
	if (!lib) {
		say("{\"error\": \"%s\"}", dlerror());
		return 4;
	}
	*(void **)&init = dlsym(lib, "nvmlInit_v2");
	*(void **)&by = dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&info = dlsym(lib, "nvmlDeviceGetMemoryInfo");
	*(void **)&list = dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3");
	*(void **)&version = dlsym(lib, "nvmlSystemGetCudaDriverVersion_v2");
	if (!init || !by || !info || init() || by(0, &dev) || info(dev, &m))
		return 6;
	if (!list || list(dev, &n, all))
		n = 0;
	for (unsigned i = 0; i < n; i++)
		if (all[i].usedGpuMemory != ~0ull) // not known
			say("{\"pid\": %u, \"used\": %llu}", all[i].pid, all[i].usedGpuMemory);
	if (version && version(&cuda))
		cuda = 0;
	say("{\"card_total\": %llu, \"card_used\": %llu, \"card_free\": %llu, \"cuda\": %d}", m.total, m.used, m.free, cuda);
	return 0;
}

static void nvml(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*init)(void) = NULL, (*by)(unsigned, nvmlDevice_t *) = NULL, (*info)(nvmlDevice_t, nvmlMemory_t *) = NULL;
	int (*list)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) = NULL;
	nvmlDevice_t dev;
	nvmlMemory_t m;
	nvmlProcessInfo_t all[8];
	unsigned n = 8;
	size_t f, total, most = 0;
	*(void **)&init = dlsym(lib, "nvmlInit_v2");
	*(void **)&by = dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&info = dlsym(lib, "nvmlDeviceGetMemoryInfo");
	*(void **)&list = dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3");
	if (init() || by(0, &dev) || info(dev, &m) || list(dev, &n, all))
		exit(6);
	DO(cuMemGetInfo_v2(&f, &total));
	DO(cuDeviceTotalMem_v2(&most, 0));
	say("{\"free\": %zu, \"memory\": %zu, \"device_total\": %zu, \"nvml_free\": %llu, \"nvml_total\": %llu, \"nvml_used\": %llu, \"processes\": %u, \"own\": %llu}",
		f, total, most, m.free, m.total, m.used, n, n ? all[0].usedGpuMemory : 0);
}

static void spread(void *(*f)(void *))
{
	pthread_t t[64];
	for (int i = 1; i < opt.threads; i++)
		pthread_create(&t[i], NULL, f, (void *)(uintptr_t)(i * 1000));
	f(NULL);
	for (int i = 1; i < opt.threads; i++)
		pthread_join(t[i], NULL);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "resolve", 1, 0, 'r' }, { "alloc", 1, 0, 'a' }, { "mode", 1, 0, 'm' }, { "bytes", 1, 0, 'b' }, { "steps", 1, 0, 's' },
		{ "threads", 1, 0, 't' }, { "pause-ms", 1, 0, 'w' }, { "hold-ms", 1, 0, 'h' }, { "count", 1, 0, 'c' }, { "seed", 1, 0, 'e' },
		{ "least", 1, 0, 'l' }, { "leave", 1, 0, 'v' }, { "library", 1, 0, 'L' }, { "work", 1, 0, 'k' }, { "windows", 1, 0, 'i' }, { "ask", 1, 0, 'q' },
		{ "until", 1, 0, 'u' }, { "after", 1, 0, 'f' }, { "own-stream", 0, 0, 'o' }, { 0 },
	};
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;)
		switch (c) {
		case 'r': opt.resolve = optarg; break; // dlsym, next, procaddress; linked in the linked build
		case 'a': opt.alloc = optarg; break;   // sync, async, vmm, managed, array; pool in churn
		case 'm': opt.mode = optarg; break;    // train, many, loop, fill, churn, thread, fork, capture, dropped, flush, variants, nvml, ipc, dmabuf, multicast, contexts, card, rounding, sizes, addresses
		case 'b': opt.bytes = atoll(optarg); break;
		case 's': opt.steps = atoi(optarg); break;
		case 't': opt.threads = atoi(optarg); break;
		case 'w': opt.pause_ms = atoi(optarg); break;
		case 'h': opt.hold_ms = atoi(optarg); break;
		case 'c': opt.count = atoi(optarg); break;
		case 'e': opt.seed = strtoull(optarg, NULL, 0); break;
		case 'l': opt.least = atoll(optarg); break;
		case 'v': opt.leave = atoll(optarg); break;
		case 'L': opt.library = optarg; break; // cuBLAS; in flush one that calls
		case 'k': opt.work = atoll(optarg); break;
		case 'q': opt.ask = atoi(optarg); break; // before it fills
		case 'u': opt.until = optarg; break; // --pause-ms counts until there is such a file
		case 'f': opt.after = optarg; break; // in train: the second step
		case 'o': opt.own = 1; break; // in capture: the default stream of each thread
		case 'i': opt.windows = atoi(optarg); break;
		default: return 64;
		}
	if (strcmp(opt.mode, "card") == 0)
		return card();
	if (strcmp(opt.mode, "addresses") == 0) { // also where there is no card
		addresses();
		return 0;
	}
	resolve();
	begin();
	if (strcmp(opt.mode, "many") == 0)
		many();
	else if (strcmp(opt.mode, "loop") == 0)
		loop();
	else if (strcmp(opt.mode, "fill") == 0)
		fill();
	else if (strcmp(opt.mode, "churn") == 0) {
		spread(churn);
		say("{\"free\": %zu}", available());
	} else if (strcmp(opt.mode, "dropped") == 0)
		dropped();
	else if (strcmp(opt.mode, "flush") == 0)
		flush();
	else if (strcmp(opt.mode, "contexts") == 0)
		spread(contexts);
	else if (strcmp(opt.mode, "rounding") == 0)
		rounding();
	else if (strcmp(opt.mode, "sizes") == 0)
		sizes();
	else if (strcmp(opt.mode, "capture") == 0) {
		if (opt.own)
			own_streams();
		pthread_barrier_init(&together, NULL, (unsigned)opt.threads);
		spread(capture);
	} else if (strcmp(opt.mode, "variants") == 0)
		variants();
	else if (strcmp(opt.mode, "nvml") == 0) {
		CUdeviceptr p;
		DO(cuMemAlloc_v2(&p, (size_t)opt.bytes));
		nvml();
		DO(cuMemFree_v2(p));
	} else if (strcmp(opt.mode, "ipc") == 0) {
		CUdeviceptr p;
		CUipcMemHandle h;
		DO(cuMemAlloc_v2(&p, (size_t)opt.bytes));
		DO(cuIpcGetMemHandle(&h, p));
		DO(cuMemFree_v2(p));
	} else if (strcmp(opt.mode, "dmabuf") == 0) { // CUDA 11.7 and later
		CUresult (*get)(void *, CUdeviceptr, size_t, int, unsigned long long) = NULL;
		CUdeviceptr p;
		int fd;
		DO(cuMemAlloc_v2(&p, 2 << 20));
		*(void **)&get = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemGetHandleForAddressRange");
		check(get ? get(&fd, p, 2 << 20, 1, 0) : CUDA_ERROR_NOT_FOUND, "cuMemGetHandleForAddressRange");
		DO(cuMemFree_v2(p));
	} else if (strcmp(opt.mode, "multicast") == 0) { // CUDA 12.1 and later
		CUresult (*create)(CUmemGenericAllocationHandle *, const void *) = NULL;
		CUmemGenericAllocationHandle m;
		long long prop[4] = { 1, 2 << 20, 0, 0 }; // one device, 2 MiB
		*(void **)&create = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMulticastCreate");
		check(create ? create(&m, prop) : CUDA_ERROR_NOT_FOUND, "cuMulticastCreate");
	} else if (strcmp(opt.mode, "thread") == 0) {
		pthread_t t;
		pthread_create(&t, NULL, lonely, NULL);
		pthread_join(t, NULL);
	} else if (strcmp(opt.mode, "fork") == 0) {
		CUdeviceptr p;
		DO(cuMemAlloc_v2(&p, (size_t)opt.bytes));
		pid_t child = fork();
		if (child == 0) {
			begin();
			train(NULL);
			end();
			_exit(0);
		}
		int status = 0;
		waitpid(child, &status, 0);
		say("{\"child\": %d}", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
		DO(cuMemFree_v2(p));
	} else
		spread(train);
	end();
	return 0;
}
