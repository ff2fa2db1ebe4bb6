// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Reserves memory from the credit, the program's pools, or the gate.

#include "gate.h"

#include <dlfcn.h>
#include <string.h>

enum { SCARCE_MS = 200, TRIES = 3 };

// Does PyTorch's allocator ask? Others of the process do not ask again. Both functions are looked
// up: old libcs have one in libdl, musl lacks the other.
static bool by_pytorch(void)
{
	enum { FRAMES = 24 };
	int (*trace)(void **, int) = NULL, (*locate)(const void *, Dl_info *) = NULL;
	void *at[FRAMES];
	Dl_info where;
	*(void **)&trace = eb.real_dlsym(NULL, "backtrace"); // RTLD_DEFAULT
	*(void **)&locate = eb.real_dlsym(NULL, "dladdr");
	int n = trace && locate ? trace(at, FRAMES) : 0;
	for (int i = 0; i < n; i++)
		if (locate(at[i], &where) && where.dli_fname && strstr(where.dli_fname, "libc10_cuda"))
			return true;
	return false;
}

// PyTorch frees its cache after an allocation has failed, and asks for as much again: only then
// is there a reason to wait.
static bool may_flush(int64_t bytes)
{
	bool again = eb_thread.refused == bytes;
	eb_thread.refused = !again && by_pytorch() ? bytes : 0;
	return eb_thread.refused;
}

static CUresult reserve(struct reservation *r)
{
	struct device *d = r->device;
	int64_t bytes = r->bytes;
	atomic_fetch_add(&d->used, bytes);
	r->part = eb_credit_take(d, bytes);
	if (r->part >= 0)
		return CUDA_SUCCESS;

	eb_pools_settle(d); // what pools have returned may be enough
	r->part = eb_credit_take(d, bytes);
	if (r->part >= 0)
		return CUDA_SUCCESS;

	if (eb.mode != BOUND || !d->handle) {
		atomic_fetch_sub(&d->avail, bytes); // counted, for a gate that may come
		r->part = bytes;
		return CUDA_SUCCESS;
	}
	uint64_t wait = eb_pause.captures ? 0 : eb.wait_ms, now = eb_now();
	for (int try = 0; try < 2; try++) {
		// All there is, or the debt, which is requested with it.
		r->part = atomic_exchange(&d->avail, 0);
		int64_t need = bytes - r->part, credit = eb_credit_size(d);
		if (need <= 0)
			return CUDA_SUCCESS;
		// First a whole credit, without waiting; else only what is needed.
		if (need < credit && now >= d->scarce) {
			if (eb_credit_ask(r, credit, 0, 0) == 0)
				return CUDA_SUCCESS;
			d->scarce = now + SCARCE_MS;
		}
		if (eb_credit_ask(r, need, need < credit ? F_MORE : 0, try == 0 ? 0 : wait) == 0)
			return CUDA_SUCCESS;
		atomic_fetch_add(&d->avail, r->part);
		if (try == 0) { // before it waits
			eb_pools_trim(d);
			if (wait && may_flush(bytes))
				break;
		}
	}
	atomic_fetch_sub(&d->used, bytes);
	LOG(1, "out of memory: %lld bytes, %lld of %llu in use", (long long)bytes, (long long)d->used, (unsigned long long)d->share);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

// Sets bytes aside before the driver is asked for them. It may wait, unless a stream is being
// captured, and must be called without a lock.
CUresult eb_reserve(struct device *d, int64_t bytes, struct reservation *r)
{
	*r = (struct reservation){ .device = d, .bytes = bytes };
	atomic_fetch_add(&d->wanted, bytes);
	CUresult result = reserve(r);
	if (result == CUDA_SUCCESS)
		eb_thread.refused = 0;
	atomic_fetch_sub(&d->wanted, bytes);
	return result;
}

// The driver has refused what was granted: tells the gate. The credit is returned first, so that
// the gate is asked again.
bool eb_retry(struct device *d, CUresult r, int *refused)
{
	if (r != CUDA_ERROR_OUT_OF_MEMORY || eb.mode != BOUND || !d->handle || eb_pause.captures || ++*refused > TRIES)
		return false;
	LOG(1, "the driver refused memory for which there is room");
	eb_credit_return(d, 0);
	struct message m = { .type = T_FULL, .device = d->handle };
	return eb_gate_send(&m, eb_gate_generation());
}

// The figures that the program sees. Free is what both the share and the card leave, and the credit: a
// program that takes all that is free must get it at once.
bool eb_room(struct device *d, uint64_t *total, uint64_t *used)
{
	uint64_t share = d->share, room = 0;
	if (eb.mode != BOUND)
		return false;
	struct message m = { .type = T_INFO, .device = d->handle };
	int64_t avail = d->avail > 0 ? d->avail : 0;
	if (d->handle && eb_gate_call(&m, 0, NULL) == 0 && m.type == T_INFO_IS) {
		d->share = share = m.bytes;
		room = share > m.id ? share - m.id : 0;
		room = room < m.arg ? room : m.arg;
	} else if (!d->handle || !share) {
		return false;
	}
	room += (uint64_t)avail;
	*total = share;
	*used = room < share ? share - room : 0;
	return true;
}

// Are bytes more within the container's share? Memory that cannot be parked must be:
// others could not have it back.
bool eb_within(struct device *d, int64_t bytes)
{
	struct message m = { .type = T_INFO, .device = d->handle };
	if (eb.mode != BOUND || !d->handle || eb_gate_call(&m, 0, NULL) != 0 || m.type != T_INFO_IS)
		return true;
	int64_t kept = d->avail > 0 ? d->avail : 0;
	return (int64_t)m.id - kept + bytes <= (int64_t)m.bytes;
}
