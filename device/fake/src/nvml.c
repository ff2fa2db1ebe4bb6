// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// NVML over the same state as cuda.c: the functions that go-nvml, pynvml and the plugin call.
// Others are missing, as in an old driver.

#include "state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned pid; unsigned long long timeStamp; unsigned smUtil, memUtil, encUtil, decUtil; } nvmlProcessUtilizationSample_t;
typedef struct nvmlEventSet_st { unsigned long long types[FAKE_GPUS]; int told; } *nvmlEventSet_t;
typedef struct { nvmlDevice_t device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; } nvmlEventData_t;
typedef struct { unsigned version; int sensorType; int temperature; } nvmlTemperature_t;
enum { EVENT_XID = 8 };

static struct { struct fake_state *s; int refs; } my;

API nvmlReturn_t nvmlInit_v2(void)
{
	if (!(my.s = fake_open()))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	my.refs++;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
API nvmlReturn_t nvmlShutdown(void)
{
	if (!my.refs)
		return NVML_ERROR_UNINITIALIZED;
	my.refs--;
	return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t r)
{
	switch (r) {
	case NVML_SUCCESS: return "The operation was successful";
	case NVML_ERROR_UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
	case NVML_ERROR_INVALID_ARGUMENT: return "A supplied argument is invalid";
	case NVML_ERROR_NOT_SUPPORTED: return "The requested operation is not available on target device";
	case NVML_ERROR_NOT_FOUND: return "A query to find an object was unsuccessful";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "NVIDIA driver is not loaded";
	case NVML_ERROR_TIMEOUT: return "User provided timeout passed";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	}
	return "Unknown Error";
}

static void reap(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	int (*slot)(void) = NULL;
	if (cuda)
		*(void **)&slot = dlsym(cuda, "ebbtide_fake_slot");
	if (slot)
		fake_adopt(slot());
	if (cuda)
		dlclose(cuda);
	fake_reap();
}

#define READY() if (!my.refs) return NVML_ERROR_UNINITIALIZED
#define GPU(dev, g) \
	READY(); \
	int g = (int)(intptr_t)dev - 1; \
	if (g < 0 || g >= my.s->gpus) return NVML_ERROR_INVALID_ARGUMENT

static nvmlReturn_t text(char *to, unsigned n, const char *s)
{
	if (strlen(s) >= n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, s);
	return NVML_SUCCESS;
}

static void uuid(int g, char *to)
{
	const unsigned char *u = my.s->gpu[g].uuid;
	sprintf(to, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7],
		u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *s, unsigned n) { READY(); return text(s, n, getenv("EBBTIDE_FAKE_DRIVER") ?: "580.95.05"); }
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *s, unsigned n) { READY(); return text(s, n, "13.580.95.05"); }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { READY(); *v = 13000; return NVML_SUCCESS; }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *v) { return nvmlSystemGetCudaDriverVersion_v2(v); }

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) { READY(); *n = (unsigned)my.s->gpus; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetCount(unsigned *n) { return nvmlDeviceGetCount_v2(n); }
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *dev)
{
	READY();
	if (i >= (unsigned)my.s->gpus)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (fake_fails("lost"))
		return NVML_ERROR_GPU_IS_LOST;
	*dev = (nvmlDevice_t)(intptr_t)(i + 1);
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned i, nvmlDevice_t *dev) { return nvmlDeviceGetHandleByIndex_v2(i, dev); }
API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *s, nvmlDevice_t *dev)
{
	char u[48];
	READY();
	for (int g = 0; g < my.s->gpus; g++) {
		uuid(g, u);
		if (strcasecmp(u, s) == 0)
			return nvmlDeviceGetHandleByIndex_v2((unsigned)g, dev);
	}
	return NVML_ERROR_NOT_FOUND;
}
API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t dev, char *s, unsigned n)
{
	char u[48];
	GPU(dev, g);
	uuid(g, u);
	return text(s, n, u);
}
API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t dev, char *s, unsigned n) { GPU(dev, g); return text(s, n, my.s->gpu[g].name); }
API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t dev, unsigned *i) { GPU(dev, g); *i = (unsigned)g; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t dev, unsigned *i) { GPU(dev, g); *i = (unsigned)g; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t dev, int *b) { GPU(dev, g); (void)g; *b = 14; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t dev, unsigned *a) { GPU(dev, g); (void)g; *a = 9; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t dev, int *a, int *b) { GPU(dev, g); (void)g; *a = 9; *b = 0; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t dev, int *m) { GPU(dev, g); (void)g; *m = 0; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t dev, int *m) { GPU(dev, g); (void)g; *m = 1; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t dev, int *m) { GPU(dev, g); (void)g; *m = 0; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t dev, unsigned *now, unsigned *next)
{
	GPU(dev, g);
	(void)g;
	if (!fake_fails("mig"))
		return NVML_ERROR_NOT_SUPPORTED;
	*now = *next = 1;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t dev, nvmlPciInfo_t *p)
{
	GPU(dev, g);
	*p = (nvmlPciInfo_t){ .bus = (unsigned)g + 1, .pciDeviceId = 0x233010de };
	sprintf(p->busIdLegacy, "0000:%02X:00.0", p->bus & 0xff);
	sprintf(p->busId, "00000000:%02X:00.0", p->bus & 0xff);
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t dev, nvmlPciInfo_t *p) { return nvmlDeviceGetPciInfo_v3(dev, p); }
API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t dev, nvmlPciInfo_t *p) { return nvmlDeviceGetPciInfo_v3(dev, p); }
API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t dev, int sensor, unsigned *t) { GPU(dev, g); (void)g; (void)sensor; *t = 41; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t dev, nvmlTemperature_t *t) { GPU(dev, g); (void)g; t->temperature = 41; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t dev, unsigned *mw) { GPU(dev, g); (void)g; *mw = 120000; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t dev, unsigned *mw) { GPU(dev, g); (void)g; *mw = 700000; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t dev, int type, int counter, int location, unsigned long long *count)
{
	GPU(dev, g);
	(void)g, (void)type, (void)counter;
	if (location == 0) // the L1 cache, as on cards of today
		return NVML_ERROR_NOT_SUPPORTED;
	*count = 0;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t dev, int of, unsigned *mhz) { GPU(dev, g); (void)g; *mhz = of == 2 ? 2619 : 1980; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t dev, nvmlUtilization_t *u)
{
	GPU(dev, g);
	u->gpu = my.s->gpu[g].used > 0 ? 50 : 0;
	u->memory = (unsigned)(my.s->gpu[g].used * 100 / my.s->gpu[g].total);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t dev, nvmlMemory_t *m)
{
	GPU(dev, g);
	reap();
	// The old call counts what the driver keeps as used.
	m->total = (unsigned long long)(my.s->gpu[g].total + my.s->reserved);
	m->used = (unsigned long long)(my.s->gpu[g].used + my.s->reserved);
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t dev, nvmlMemory_v2_t *m)
{
	nvmlMemory_t old;
	if (m->version != (sizeof *m | 2u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t r = nvmlDeviceGetMemoryInfo(dev, &old);
	if (r == NVML_SUCCESS) {
		m->total = old.total;
		m->reserved = (unsigned long long)my.s->reserved;
		m->used = old.used - m->reserved;
		m->free = old.free;
	}
	return r;
}

static nvmlReturn_t processes(nvmlDevice_t dev, unsigned *count, void *list, bool old)
{
	unsigned n = 0, have = *count;
	GPU(dev, g);
	reap();
	for (int i = 0; i < FAKE_SLOTS; i++) {
		struct fake_process *p = &my.s->process[i];
		int pid = p->live && p->used[g] > 0 ? fake_pid(i) : 0;
		if (pid <= 0)
			continue; // in another container: NVML does not show it
		if (n < have && list && old)
			((nvmlProcessInfo_v1_t *)list)[n] = (nvmlProcessInfo_v1_t){ (unsigned)pid, (unsigned long long)p->used[g] };
		else if (n < have && list)
			((nvmlProcessInfo_t *)list)[n] = (nvmlProcessInfo_t){ (unsigned)pid, (unsigned long long)p->used[g], 0xffffffff, 0xffffffff };
		n++;
	}
	*count = n;
	return n > have ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v1_t *l) { return processes(d, n, l, true); }
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *l) { return processes(d, n, l, false); }
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *l) { return processes(d, n, l, false); }
API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *l) { GPU(d, g); (void)g; (void)l; *n = 0; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *l) { GPU(d, g); (void)g; (void)l; *n = 0; return NVML_SUCCESS; }

// The average since the last query by this program. Kernels count when they are submitted: those of
// more than the time that has passed are left to the next query.
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t dev, nvmlProcessUtilizationSample_t *list, unsigned *count, unsigned long long since)
{
	static struct { int64_t at; struct { int pid; int64_t told; } of[FAKE_SLOTS]; } last[FAKE_GPUS];
	struct timespec t;
	unsigned n = 0;
	GPU(dev, g);
	(void)since;
	if (fake_fails("util"))
		return NVML_ERROR_NOT_SUPPORTED;
	if (!list || *count < FAKE_SLOTS) {
		*count = FAKE_SLOTS; // like the driver: how many there can be
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	reap();
	clock_gettime(CLOCK_REALTIME, &t);
	int64_t now = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000, passed = now - last[g].at;
	bool first = !last[g].at;
	*count = 0;
	if (passed < 1000)
		return NVML_ERROR_NOT_FOUND;
	for (int i = 0; i < FAKE_SLOTS; i++) {
		struct fake_process *p = &my.s->process[i];
		int pid = p->live && p->used[g] > 0 ? fake_pid(i) : 0;
		int64_t done = p->done_us[g], *told = &last[g].of[i].told;
		if (pid <= 0)
			continue;
		if (last[g].of[i].pid != pid || done < *told) { // another one has the slot
			last[g].of[i].pid = pid;
			*told = first ? done : 0;
		}
		int64_t percent = (done - *told) * 100 / passed;
		if (percent > 100)
			percent = 100;
		*told += percent * passed / 100;
		if (!first)
			list[n++] = (nvmlProcessUtilizationSample_t){ .pid = (unsigned)pid, .timeStamp = (unsigned long long)now, .smUtil = (unsigned)percent };
	}
	last[g].at = now;
	*count = n;
	return n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *s, unsigned n)
{
	char path[64], got[256] = "";
	snprintf(path, sizeof path, "/proc/%u/exe", pid);
	return readlink(path, got, sizeof got - 1) < 0 ? NVML_ERROR_NOT_FOUND : text(s, n, got);
}

// Events. A number in the file <state>.xid is an Xid error on the first card; each event set gets
// it once.
API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) { READY(); *set = calloc(1, sizeof **set); return NVML_SUCCESS; }
API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { READY(); free(set); return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t dev, unsigned long long *t) { GPU(dev, g); (void)g; *t = EVENT_XID; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t dev, unsigned long long t, nvmlEventSet_t set) { GPU(dev, g); set->types[g] |= t; return NVML_SUCCESS; }
API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *e, unsigned ms)
{
	char path[4096];
	READY();
	snprintf(path, sizeof path, "%s.xid", getenv("EBBTIDE_FAKE_GPU") ?: "");
	for (unsigned t = 0;; t += 20) {
		FILE *f = set->told || !(set->types[0] & EVENT_XID) ? NULL : fopen(path, "re");
		unsigned xid = 0;
		if (f) {
			int n = fscanf(f, "%u", &xid);
			fclose(f);
			if (n == 1) {
				set->told = 1;
				*e = (nvmlEventData_t){ (nvmlDevice_t)1, EVENT_XID, xid, 0xffffffff, 0xffffffff };
				return NVML_SUCCESS;
			}
		}
		if (t >= ms)
			return NVML_ERROR_TIMEOUT;
		usleep(20000);
	}
}
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *e, unsigned ms) { return nvmlEventSetWait_v2(set, e, ms); }
