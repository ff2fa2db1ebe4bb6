// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// A pause: no work is submitted, and submitted work is done. Submitting calls are counted while
// inside the driver, so that the pause can wait for them.

#include "gate.h"

#include <unistd.h>

struct pause eb_pause = PAUSE;

// Work on a captured stream is recorded, not done. Synchronising would break the capture, and
// waiting in it might never end: while any stream is captured, calls pass through and the pause
// waits.
static bool may_wait(void)
{
	return eb_gate.paused && eb_pause.captures <= 0;
}

void eb_enter(void)
{
	struct thread *t = &eb_thread;
	if (t->depth++) // the driver calls itself
		return;
	if (UNLIKELY(!t->slot))
		t->slot = 1 + (int)((uintptr_t)t >> 6 & (SLOTS - 1));
	_Atomic int *busy = &eb_pause.busy[t->slot - 1].n;
	for (;;) {
		atomic_fetch_add(busy, 1);
		if (!UNLIKELY(eb_gate.paused) || !may_wait()) {
			_Atomic unsigned *calls = &eb_pause.busy[t->slot - 1].calls;
			atomic_store_explicit(calls, atomic_load_explicit(calls, memory_order_relaxed) + 1, memory_order_relaxed);
			return;
		}
		atomic_fetch_sub(busy, 1);
		// A process that was idle when parked stays parked until it reports activity.
		struct message m = { .type = T_ACTIVE };
		eb_gate_send(&m, eb_gate_generation());
		pthread_mutex_lock(&eb_pause.mutex);
		while (may_wait())
			pthread_cond_wait(&eb_pause.changed, &eb_pause.mutex);
		pthread_mutex_unlock(&eb_pause.mutex);
	}
}

void eb_leave(void)
{
	struct thread *t = &eb_thread;
	if (!--t->depth)
		atomic_fetch_sub(&eb_pause.busy[t->slot - 1].n, 1);
}

// Changes when work is submitted. Of calls of two threads in one slot it may miss some, never
// all.
unsigned eb_submitted(void)
{
	unsigned n = 0;
	for (int i = 0; i < SLOTS; i++)
		n += atomic_load_explicit(&eb_pause.busy[i].calls, memory_order_relaxed);
	return n;
}

// The number of the capture that a stream takes part in, or 0. The driver is asked only while
// some stream is captured.
uint64_t eb_capture(CUstream s)
{
	int status = 0;
	uint64_t id = 0;
	if (eb_pause.captures <= 0 || !eb.cu.cuStreamGetCaptureInfo || eb.cu.cuStreamGetCaptureInfo(s, &status, &id) != CUDA_SUCCESS)
		return 0;
	return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

static bool still(unsigned turn)
{
	return eb_gate.paused && eb_pause.turn == turn;
}

// Runs in its own thread: a kernel may wait for a host thread that waits for RESUME, which the
// reader must be free to read.
static void *drain(void *arg)
{
	unsigned turn = (unsigned)(uintptr_t)arg;
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	for (;;) {
		int busy = eb_pause.captures;
		for (int i = 0; i < SLOTS; i++)
			busy += eb_pause.busy[i].n;
		if (!still(turn))
			return NULL;
		if (busy <= 0)
			break;
		usleep(200);
	}
	if (eb.cu.cuThreadExchangeStreamCaptureMode)
		eb.cu.cuThreadExchangeStreamCaptureMode(&relaxed);
	CUcontext all[MAX_CONTEXTS];
	pthread_mutex_lock(&eb_world.mutex);
	int n = eb_world.contexts;
	for (int i = 0; i < n; i++)
		all[i] = eb_world.context[i].ctx;
	pthread_mutex_unlock(&eb_world.mutex);
	for (int i = 0; i < n && still(turn); i++) {
		CUcontext was;
		if (!eb.cu.cuCtxPushCurrent_v2 || !eb_world_hold(all[i]))
			continue;
		if (eb.cu.cuCtxPushCurrent_v2(all[i]) == CUDA_SUCCESS) {
			eb.cu.cuCtxSynchronize();
			eb.cu.cuCtxPopCurrent_v2(&was);
		}
		eb_world_drop(all[i]);
	}
	// The pause may begin before the connection is up.
	struct message m = { .type = T_PAUSED };
	while (still(turn) && !eb_gate_send(&m, eb_gate_generation()))
		usleep(1000);
	LOG(2, "paused");
	return NULL;
}

void eb_pause_begin(void)
{
	pthread_mutex_lock(&eb_pause.mutex);
	unsigned turn = ++eb_pause.turn;
	eb_gate.paused = true;
	pthread_mutex_unlock(&eb_pause.mutex);
	eb_spawn(drain, (void *)(uintptr_t)turn);
}

void eb_pause_end(void)
{
	pthread_mutex_lock(&eb_pause.mutex);
	eb_gate.paused = false;
	eb_pause.turn++;
	pthread_cond_broadcast(&eb_pause.changed);
	pthread_mutex_unlock(&eb_pause.mutex);
}
