// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Figures. All calls show the container's memory: total is its share, free what it can have now.

#include "hooks.h"

#include <string.h>
#include <unistd.h>

// NVML names a GPU by its UUID as text; MIG devices ("MIG-…") are not shared.
static bool parse(const char *s, uint8_t *uuid)
{
	int n = 0;
	if (strncmp(s, "GPU-", 4) != 0)
		return false;
	for (s += 4; *s && n < 32; s++) {
		int v = *s >= '0' && *s <= '9' ? *s - '0' : (*s | 32) >= 'a' && (*s | 32) <= 'f' ? (*s | 32) - 'a' + 10 : -1;
		if (*s == '-')
			continue;
		if (v < 0)
			return false;
		uuid[n / 2] = (uint8_t)(n % 2 ? uuid[n / 2] | v : v << 4);
		n++;
	}
	return n == 32 && !*s;
}

static struct device *of_nvml(nvmlDevice_t dev)
{
	char text[96] = "";
	uint8_t uuid[16];
	nvmlReturn_t (*get)(nvmlDevice_t, char *, unsigned) = NULL;
	if (eb.resolve.nvml != 1)
		return NULL;
	*(void **)&get = eb.real_dlsym(eb.resolve.nvml_handle, "nvmlDeviceGetUUID");
	if (!get || get(dev, text, sizeof text) != NVML_SUCCESS || !parse(text, uuid))
		return NULL;
	return eb_device_uuid(uuid, -1);
}

// Before CUDA 3.2 sizes had 32 bits. A larger one becomes the largest.
static unsigned narrow(uint64_t n)
{
	return n > UINT32_MAX ? UINT32_MAX : (unsigned)n;
}

// FIGURE lets the driver answer first, so that its errors are the driver's: t is the total, u
// what is used.
#define FIGURE(result, missing, name, params, args, out, find, tell) \
	EXPORT result name params \
	{ \
		__typeof__(&name) real = REAL(name); \
		result r = real ? real args : missing; \
		struct device *d; \
		uint64_t t, u; \
		if (!r && out && eb_active() && (d = find) && eb_room(d, &t, &u)) { \
			tell; \
		} \
		return r; \
	}
#define CUDA(...) FIGURE(CUresult, CUDA_ERROR_NOT_FOUND, __VA_ARGS__)
CUDA(cuMemGetInfo_v2, (size_t *f, size_t *n), (f, n), f && n, eb_device_here(), *n = t; *f = t - u)
CUDA(cuMemGetInfo, (unsigned *f, unsigned *n), (f, n), f && n, eb_device_here(), *n = narrow(t); *f = narrow(t - u))
CUDA(cuDeviceTotalMem_v2, (size_t *n, CUdevice dev), (n, dev), n, eb_device(dev), *n = t)
CUDA(cuDeviceTotalMem, (unsigned *n, CUdevice dev), (n, dev), n, eb_device(dev), *n = narrow(t))
#define NVML(...) FIGURE(nvmlReturn_t, NVML_ERROR_FUNCTION_NOT_FOUND, __VA_ARGS__)
NVML(nvmlDeviceGetMemoryInfo, (nvmlDevice_t dev, nvmlMemory_t *m), (dev, m), m, of_nvml(dev), m->total = t; m->used = u; m->free = t - u)
NVML(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t dev, nvmlMemory_v2_t *m), (dev, m), m, of_nvml(dev), m->total = t; m->used = u; m->free = t - u; m->reserved = 0)

// Of the processes on the card a program sees only itself: the others' pids are the host's.
#define PROCESSES(name, type, more) \
	EXPORT nvmlReturn_t name(nvmlDevice_t dev, unsigned *count, type *list) \
	{ \
		__typeof__(&name) real = REAL(name); \
		struct device *d; \
		if (!real) \
			return NVML_ERROR_FUNCTION_NOT_FOUND; \
		if (!count || !eb_active() || eb.mode != BOUND || !(d = of_nvml(dev)) || !d->handle) \
			return real(dev, count, list); \
		unsigned have = *count, n = d->used > 0; \
		*count = n; \
		if (have < n) \
			return NVML_ERROR_INSUFFICIENT_SIZE; \
		if (n && !list) \
			return NVML_ERROR_INVALID_ARGUMENT; \
		if (n) \
			*list = (type){ .pid = (unsigned)getpid(), .usedGpuMemory = (unsigned long long)d->used more }; \
		return NVML_SUCCESS; \
	}
#define INSTANCES , .gpuInstanceId = 0xffffffff, .computeInstanceId = 0xffffffff
PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, )
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, INSTANCES)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, INSTANCES)

// NVML's own figure: of this process, if NVML knows it by its pid here, or of the whole card.
int64_t eb_nvml_used(struct device *d, bool own)
{
	nvmlReturn_t (*init)(void) = NULL, (*by_uuid)(const char *, nvmlDevice_t *) = NULL;
	nvmlDevice_t dev;
	char text[48] = "GPU-";
	__typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) list = REAL(nvmlDeviceGetComputeRunningProcesses_v3);
	__typeof__(&nvmlDeviceGetMemoryInfo) memory = REAL(nvmlDeviceGetMemoryInfo);
	if (eb.resolve.nvml != 1)
		return -1;
	*(void **)&init = eb.real_dlsym(eb.resolve.nvml_handle, "nvmlInit_v2");
	*(void **)&by_uuid = eb.real_dlsym(eb.resolve.nvml_handle, "nvmlDeviceGetHandleByUUID");
	char *p = text + 4;
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		*p++ = "0123456789abcdef"[d->uuid[i] >> 4];
		*p++ = "0123456789abcdef"[d->uuid[i] & 15];
	}
	*p = 0;
	if (!init || !by_uuid || init() != NVML_SUCCESS || by_uuid(text, &dev) != NVML_SUCCESS)
		return -1;
	if (!own) {
		nvmlMemory_t m;
		return memory && memory(dev, &m) == NVML_SUCCESS ? (int64_t)m.used : -1;
	}
	nvmlProcessInfo_t all[64];
	unsigned n = 64;
	if (!list || list(dev, &n, all) != NVML_SUCCESS)
		return -1;
	for (unsigned i = 0; i < n; i++)
		if (all[i].pid == (unsigned)getpid() && all[i].usedGpuMemory >> 48 == 0)
			return (int64_t)all[i].usedGpuMemory;
	return -1;
}
