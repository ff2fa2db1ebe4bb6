// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// PAUSE: nothing new is handed to the cards, and what has been is done. Every call that submits
// is counted while it is inside the driver, so that the pause can wait for those that were on
// their way in.

#include "preload.h"

#include <stdint.h>
#include <unistd.h>

// A stream that is capturing gets no work done: what is "submitted" to it is only written down.
// To synchronise then would break the capture, and to wait in it might never end. So while any
// stream of the process captures, calls go through and the pause waits.
static bool may_wait(void)
{
	return eb.pause.on && eb.pause.captures <= 0;
}

void eb_enter(void)
{
	struct thread *t = &eb_thread;
	if (t->depth++) // a call that the driver itself makes
		return;
	if (UNLIKELY(!t->slot))
		t->slot = 1 + (int)((uintptr_t)t >> 6 & (SLOTS - 1));
	_Atomic int *busy = &eb.pause.busy[t->slot - 1].n;
	for (;;) {
		atomic_fetch_add(busy, 1);
		if (!UNLIKELY(eb.pause.on) || !may_wait()) {
			_Atomic unsigned *calls = &eb.pause.busy[t->slot - 1].calls;
			atomic_store_explicit(calls, atomic_load_explicit(calls, memory_order_relaxed) + 1, memory_order_relaxed);
			return;
		}
		atomic_fetch_sub(busy, 1);
		// Whoever is parked while nothing of it wants to run may stay so until this is said.
		struct message m = { .type = T_ACTIVE };
		eb_gate_send(&m, eb_gate_generation());
		pthread_mutex_lock(&eb.pause.mutex);
		while (may_wait())
			pthread_cond_wait(&eb.pause.changed, &eb.pause.mutex);
		pthread_mutex_unlock(&eb.pause.mutex);
	}
}

void eb_leave(void)
{
	struct thread *t = &eb_thread;
	if (!--t->depth)
		atomic_fetch_sub(&eb.pause.busy[t->slot - 1].n, 1);
}

// eb_submitted is a sum that may miss a call of two threads of one slot, and never all of them.
unsigned eb_submitted(void)
{
	unsigned n = 0;
	for (int i = 0; i < SLOTS; i++)
		n += atomic_load_explicit(&eb.pause.busy[i].calls, memory_order_relaxed);
	return n;
}

// eb_capture is the number of the capture that a stream takes part in, or 0. The driver is asked only
// while some stream is captured.
uint64_t eb_capture(CUstream s)
{
	int status = 0;
	uint64_t id = 0;
	if (eb.pause.captures <= 0 || !eb.cu.cuStreamGetCaptureInfo || eb.cu.cuStreamGetCaptureInfo(s, &status, &id) != CUDA_SUCCESS)
		return 0;
	return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

static bool still(unsigned turn)
{
	return eb.pause.on && eb.pause.turn == turn;
}

// drain runs in a thread of its own: a kernel may wait for a host thread that waits for RESUME,
// and the reader must be there to take it.
static void *drain(void *arg)
{
	unsigned turn = (unsigned)(uintptr_t)arg;
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	for (;;) {
		int busy = eb.pause.captures;
		for (int i = 0; i < SLOTS; i++)
			busy += eb.pause.busy[i].n;
		if (!still(turn))
			return NULL;
		if (busy <= 0)
			break;
		usleep(200);
	}
	if (eb.cu.cuThreadExchangeStreamCaptureMode)
		eb.cu.cuThreadExchangeStreamCaptureMode(&relaxed);
	CUcontext all[MAX_CONTEXTS];
	pthread_mutex_lock(&eb.world.mutex);
	int n = eb.world.contexts;
	for (int i = 0; i < n; i++)
		all[i] = eb.world.context[i].ctx;
	pthread_mutex_unlock(&eb.world.mutex);
	for (int i = 0; i < n && still(turn); i++) {
		CUcontext was;
		if (!eb.cu.cuCtxPushCurrent_v2 || eb.cu.cuCtxPushCurrent_v2(all[i]) != CUDA_SUCCESS)
			continue;
		eb.cu.cuCtxSynchronize();
		eb.cu.cuCtxPopCurrent_v2(&was);
	}
	// A pause may be the first thing said on a connection that is not quite up.
	struct message m = { .type = T_PAUSED };
	while (still(turn) && !eb_gate_send(&m, eb_gate_generation()))
		usleep(1000);
	LOG(2, "paused");
	return NULL;
}

void eb_pause(void)
{
	pthread_mutex_lock(&eb.pause.mutex);
	unsigned turn = ++eb.pause.turn;
	eb.pause.on = true;
	pthread_mutex_unlock(&eb.pause.mutex);
	eb_spawn(drain, (void *)(uintptr_t)turn);
}

void eb_resume(void)
{
	pthread_mutex_lock(&eb.pause.mutex);
	eb.pause.on = false;
	eb.pause.turn++;
	pthread_cond_broadcast(&eb.pause.changed);
	pthread_mutex_unlock(&eb.pause.mutex);
}
