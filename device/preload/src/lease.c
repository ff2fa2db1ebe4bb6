// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The lease: what the gate has granted beyond what is in use, so that most allocations need no
// word with it. In a device used + avail is what is committed; avail below zero is debt.

#include "preload.h"

enum { SCARCE_MS = 200, RECALL_MS = 2000, PART = 16, TRIES = 3 };

// lease is how much is kept beyond what is in use: of a small limit only a part.
static int64_t lease(const struct device *d)
{
	uint64_t limit = d->limit;
	return (int64_t)(limit && limit / PART < eb.lease ? limit / PART : eb.lease);
}

static int64_t take(struct device *d, int64_t bytes)
{
	int64_t a = atomic_load_explicit(&d->avail, memory_order_relaxed);
	while (a >= bytes)
		if (atomic_compare_exchange_weak(&d->avail, &a, a - bytes))
			return bytes;
	return -1;
}

// settle counts what is kept of a grant, and returns the rest. The count and the message are one
// step: HOLDS, after a reconnect, must not fall between them. False: the grant was of a connection
// that is gone, and so is the grant.
static bool settle(struct device *d, uint64_t generation, int64_t granted, int64_t keep)
{
	pthread_mutex_lock(&d->mutex);
	bool ours = eb_gate_generation() == generation;
	if (ours && granted > keep) {
		struct message m = { .type = T_RETURN, .device = d->handle, .bytes = (uint64_t)(granted - keep) };
		ours = eb_gate_send(&m, generation);
	}
	if (ours)
		d->committed += keep;
	pthread_mutex_unlock(&d->mutex);
	return ours;
}

static int ask(struct device *d, int64_t bytes, uint16_t flags, uint64_t wait_ms, struct claim *c)
{
	struct message m = { .type = T_REQUEST, .flags = flags, .device = d->handle, .bytes = (uint64_t)bytes, .arg = wait_ms };
	if (eb_gate_call(&m, wait_ms, &c->generation) != 0)
		return -1;
	if (m.type != T_GRANT || (int64_t)m.bytes < bytes) {
		LOG(3, "%lld bytes refused: %llu", (long long)bytes, (unsigned long long)m.arg);
		return m.type == T_REFUSED ? (int)m.arg : -1;
	}
	c->granted = (int64_t)m.bytes;
	return 0;
}

static CUresult claim(struct device *d, int64_t bytes, struct claim *c)
{
	*c = (struct claim){ .device = d, .bytes = bytes };
	atomic_fetch_add(&d->used, bytes);
	c->part = take(d, bytes);
	if (c->part >= 0)
		return CUDA_SUCCESS;

	// What the driver has taken from its pools back may be enough.
	eb_pools_settle(d);
	c->part = take(d, bytes);
	if (c->part >= 0)
		return CUDA_SUCCESS;

	if (eb.mode != BOUND || !d->handle) {
		atomic_fetch_sub(&d->avail, bytes); // counted, for the gate that may come
		c->part = bytes;
		return CUDA_SUCCESS;
	}
	uint64_t wait = eb.pause.captures ? 0 : eb.wait_ms, now = eb_now();
	for (int try = 0; try < 2; try++) {
		// All there is, or the debt, which is asked for with it.
		c->part = atomic_exchange(&d->avail, 0);
		int64_t need = bytes - c->part;
		if (need <= 0)
			return CUDA_SUCCESS;
		// A whole lease first, without waiting; where there is none, only what is needed.
		if (need < lease(d) && now >= d->scarce) {
			int r = ask(d, lease(d), 0, 0, c);
			if (r == 0)
				return CUDA_SUCCESS;
			d->scarce = now + SCARCE_MS;
		}
		if (ask(d, need, need < lease(d) ? F_MORE : 0, try == 0 ? 0 : wait, c) == 0)
			return CUDA_SUCCESS;
		atomic_fetch_add(&d->avail, c->part);
		if (try == 0) // before it is waited for: what our own pools keep without use
			eb_pools_trim(d);
	}
	atomic_fetch_sub(&d->used, bytes);
	LOG(1, "out of memory: %lld bytes, %lld of %llu in use", (long long)bytes, (long long)d->used, (unsigned long long)d->limit);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

// eb_claim sets bytes aside before the driver is asked for them. It may wait, unless a stream is
// being captured, and must be called without a lock.
CUresult eb_claim(struct device *d, int64_t bytes, struct claim *c)
{
	atomic_fetch_add(&d->wanted, bytes);
	CUresult r = claim(d, bytes, c);
	atomic_fetch_sub(&d->wanted, bytes);
	return r;
}

// eb_keep settles a claim after the driver has taken actual bytes for it.
void eb_keep(struct claim *c, int64_t actual)
{
	struct device *d = c->device;
	if (actual != c->bytes)
		atomic_fetch_add(&d->used, actual - c->bytes);
	int64_t left = c->part - actual;
	if (c->granted) {
		int64_t keep = c->granted, surplus = left + c->granted - lease(d);
		if (surplus > 0)
			keep -= surplus < keep ? surplus : keep;
		if (settle(d, c->generation, c->granted, keep))
			left += keep;
	}
	if (left)
		atomic_fetch_add(&d->avail, left);
	if (UNLIKELY(d->avail < 0) && eb.mode == BOUND && d->handle) {
		// The driver took more than it was asked for. It is said at once, and not waited for.
		int64_t debt = -atomic_exchange(&d->avail, 0);
		struct claim more = { .device = d };
		if (debt > 0 && ask(d, debt, 0, 0, &more) == 0 && settle(d, more.generation, more.granted, debt))
			debt = 0;
		atomic_fetch_sub(&d->avail, debt);
	} else if (UNLIKELY(d->avail > 2 * lease(d))) {
		eb_lease_return(d, lease(d));
	}
}

void eb_drop(struct claim *c)
{
	struct device *d = c->device;
	LOG(1, "the driver refused %lld bytes for which there is room", (long long)c->bytes);
	atomic_fetch_sub(&d->used, c->bytes);
	atomic_fetch_add(&d->avail, c->part);
	if (c->granted)
		settle(d, c->generation, c->granted, 0);
}

// eb_again tells the gate that the driver has refused what was granted. What is kept without use
// goes back first, so that the gate is asked.
bool eb_again(struct device *d, CUresult r, int *refused)
{
	if (r != CUDA_ERROR_OUT_OF_MEMORY || eb.mode != BOUND || !d->handle || eb.pause.captures || ++*refused > TRIES)
		return false;
	eb_lease_return(d, 0);
	struct message m = { .type = T_FULL, .device = d->handle };
	return eb_gate_send(&m, eb_gate_generation());
}

void eb_give(struct device *d, int64_t bytes)
{
	atomic_fetch_sub(&d->used, bytes);
	if (atomic_fetch_add(&d->avail, bytes) + bytes > 2 * lease(d))
		eb_lease_return(d, lease(d));
}

void eb_lease_return(struct device *d, int64_t keep)
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
			d->committed -= a - keep;
		else // HOLDS will say it
			atomic_fetch_add(&d->avail, a - keep);
	}
	pthread_mutex_unlock(&d->mutex);
}

void eb_lease_recall(struct device *d)
{
	d->scarce = eb_now() + RECALL_MS;
	eb_lease_return(d, 0);
}

void eb_lease_held(struct device *d, uint64_t handle)
{
	pthread_mutex_lock(&d->mutex);
	// In this order: what is granted in between is in use. What is only asked for is not held, and
	// is asked for again.
	int64_t used = d->used, wanted = d->wanted;
	int64_t held = used - wanted > d->committed ? used - wanted : d->committed;
	atomic_fetch_add(&d->avail, held - d->committed);
	d->committed = held;
	struct message m = { .type = T_HOLDS, .device = handle, .bytes = (uint64_t)held };
	if (held > 0)
		eb_gate_send(&m, eb_gate_generation());
	pthread_mutex_unlock(&d->mutex);
	LOG(2, "holds %lld bytes", (long long)held);
}

static void tell(enum pin reason)
{
	struct message m = { .type = T_PINNED, .arg = reason };
	eb_gate_send(&m, eb_gate_generation());
}

// eb_pin says once why this process cannot be parked.
void eb_pin(enum pin reason)
{
	if (atomic_fetch_or(&eb.pins, 1u << reason) & 1u << reason)
		return;
	tell(reason);
	LOG(2, "cannot be parked: reason %d", reason);
}

// eb_pins_tell says all reasons, over a new connection.
void eb_pins_tell(void)
{
	for (int pin = 1; pin < PIN_COUNT; pin++)
		if (eb.pins & 1u << pin)
			tell(pin);
}
