// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The credit: what was granted beyond what is in use, so that most allocations need no request.

#include "gate.h"

enum { RECALL_MS = 2000, PART = 16 };

// How much is kept beyond what is in use: of a small share only a part.
int64_t eb_credit_size(const struct device *d)
{
	uint64_t share = d->share;
	return (int64_t)(share && share / PART < eb.credit ? share / PART : eb.credit);
}

int64_t eb_credit_take(struct device *d, int64_t bytes)
{
	int64_t a = atomic_load_explicit(&d->avail, memory_order_relaxed);
	while (a >= bytes)
		if (atomic_compare_exchange_weak(&d->avail, &a, a - bytes))
			return bytes;
	return -1;
}

// Counts what is kept of a grant, and returns the rest, in one step with the message: HOLDS,
// after a reconnect, must not fall between them. False: the grant ended with its connection.
static bool accept_grant(const struct reservation *r, int64_t keep)
{
	struct device *d = r->device;
	pthread_mutex_lock(&d->mutex);
	bool ours = eb_gate_generation() == r->generation;
	if (ours && r->granted > keep) {
		struct message m = { .type = T_RETURN, .device = d->handle, .bytes = (uint64_t)(r->granted - keep) };
		ours = eb_gate_send(&m, r->generation);
	}
	if (ours)
		d->granted += keep;
	pthread_mutex_unlock(&d->mutex);
	return ours;
}

int eb_credit_ask(struct reservation *r, int64_t bytes, uint16_t flags, uint64_t wait_ms)
{
	struct device *d = r->device;
	struct message m = { .type = T_REQUEST, .flags = flags, .device = d->handle, .bytes = (uint64_t)bytes, .arg = wait_ms };
	if (eb_gate_call(&m, wait_ms, &r->generation) != 0)
		return -1;
	if (m.type != T_GRANT || (int64_t)m.bytes < bytes) {
		LOG(3, "request for %lld bytes denied (reason %llu)", (long long)bytes, (unsigned long long)m.arg);
		return m.type == T_DENIED ? (int)m.arg : -1;
	}
	r->granted = (int64_t)m.bytes;
	return 0;
}

// Ends a reservation for which the driver has taken actual bytes.
void eb_commit(struct reservation *r, int64_t actual)
{
	struct device *d = r->device;
	if (actual != r->bytes)
		atomic_fetch_add(&d->used, actual - r->bytes);
	int64_t left = r->part - actual;
	if (r->granted) {
		int64_t keep = r->granted, surplus = left + r->granted - eb_credit_size(d);
		if (surplus > 0)
			keep -= surplus < keep ? surplus : keep;
		if (accept_grant(r, keep))
			left += keep;
	}
	if (left)
		atomic_fetch_add(&d->avail, left);
	if (UNLIKELY(d->avail < 0) && eb.mode == BOUND && d->handle) {
		// The driver took more than requested. The gate is asked at once, without waiting.
		int64_t debt = -atomic_exchange(&d->avail, 0);
		struct reservation more = { .device = d };
		if (debt > 0 && eb_credit_ask(&more, debt, 0, 0) == 0 && accept_grant(&more, debt))
			debt = 0;
		atomic_fetch_sub(&d->avail, debt);
	} else if (UNLIKELY(d->avail > 2 * eb_credit_size(d))) {
		eb_credit_return(d, eb_credit_size(d));
	}
}

// Ends a reservation for which the driver has taken nothing.
void eb_cancel(struct reservation *r)
{
	struct device *d = r->device;
	atomic_fetch_sub(&d->used, r->bytes);
	atomic_fetch_add(&d->avail, r->part);
	if (r->granted)
		accept_grant(r, 0);
}

// Counts what the driver has taken, or returned (below zero), by itself.
void eb_charge(struct device *d, int64_t bytes)
{
	if (bytes < 0) {
		eb_release(d, -bytes);
	} else if (bytes > 0) {
		atomic_fetch_add(&d->used, bytes);
		atomic_fetch_sub(&d->avail, bytes);
	}
}

// The driver has freed bytes. They are kept for later allocations, up to twice the credit.
void eb_release(struct device *d, int64_t bytes)
{
	atomic_fetch_sub(&d->used, bytes);
	if (atomic_fetch_add(&d->avail, bytes) + bytes > 2 * eb_credit_size(d))
		eb_credit_return(d, eb_credit_size(d));
}

// Returns the credit but for keep.
void eb_credit_return(struct device *d, int64_t keep)
{
	if (eb.mode != BOUND || !d->handle)
		return;
	uint64_t generation = eb_gate_generation();
	pthread_mutex_lock(&d->mutex);
	int64_t a = atomic_load(&d->avail);
	while (a > keep && !atomic_compare_exchange_weak(&d->avail, &a, keep))
		;
	if (a > keep) {
		struct message m = { .type = T_RETURN, .device = d->handle, .bytes = (uint64_t)(a - keep) };
		if (eb_gate_send(&m, generation))
			d->granted -= a - keep;
		else // HOLDS will report it
			atomic_fetch_add(&d->avail, a - keep);
	}
	pthread_mutex_unlock(&d->mutex);
}

// Another process waits for memory.
void eb_credit_recall(struct device *d)
{
	d->scarce = eb_now() + RECALL_MS;
	eb_credit_return(d, 0);
}

void eb_credit_share(struct device *d, uint64_t bytes)
{
	d->share = bytes;
	d->scarce = 0;
	LOG(2, "share %llu", (unsigned long long)bytes);
	if ((uint64_t)(d->used + d->avail) > bytes)
		eb_credit_return(d, 0);
}

// Reports holdings over a new connection, before any request.
void eb_credit_held(struct device *d, uint64_t handle)
{
	pthread_mutex_lock(&d->mutex);
	// In this order: what is granted in between is in use. What is only requested is not held,
	// and is requested again.
	int64_t used = d->used, wanted = d->wanted;
	int64_t held = used - wanted > d->granted ? used - wanted : d->granted;
	atomic_fetch_add(&d->avail, held - d->granted);
	d->granted = held;
	struct message m = { .type = T_HOLDS, .device = handle, .bytes = (uint64_t)held };
	if (held > 0)
		eb_gate_send(&m, eb_gate_generation());
	pthread_mutex_unlock(&d->mutex);
	LOG(2, "holds %lld bytes", (long long)held);
}
