// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The library has four layers, with a header each. A file calls only files listed before it:
//
//	resolve.h   elf, state, resolve, newer    the environment, and the driver's own functions
//	account.h   table, world                  what the process holds, and on which device
//	gate.h      gate, pause, credit, pools,   what the gate grants, and when work may be
//	            reserve, device               submitted
//	hooks.h     hooks_*, fork                 what the program calls
//
// An allocation's hook finds the device (device), reserves memory (reserve) from the credit (credit)
// or the gate (gate), waits while the process is paused (pause), calls the driver (resolve), and
// records what the pointer holds (table). The gate's messages go up by callbacks (struct listener).

#ifndef EBBTIDE_HOOKS_H
#define EBBTIDE_HOOKS_H

#include "gate.h"

// The driver's function; a missing one is answered as the driver would.
#define NEED(n, real) \
	__typeof__(&n) real = REAL(n); \
	if (UNLIKELY(!real)) return CUDA_ERROR_NOT_FOUND

// In functions with _ptsz, stream 0 is the thread's own.
#define ANY(s) (s)
#define OWN(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

// TAKE makes a driver call that takes memory, under a reservation. If the driver refuses what was
// granted, it is retried: the gate measures the card, and makes room.
#define TAKE(device, bytes, reservation, result, call) \
	for (int refused = 0;;) { \
		if ((result = eb_reserve(device, bytes, reservation)) != CUDA_SUCCESS) \
			return result; \
		eb_enter(); \
		result = call; \
		eb_leave(); \
		if (result == CUDA_SUCCESS) \
			break; \
		eb_cancel(reservation); \
		if (!eb_retry(device, result, &refused)) \
			return result; \
	}

// hooks_alloc.c
void eb_hold(enum kind, uint64_t key, struct reservation *, int64_t actual);
void eb_freed(enum kind, uint64_t key, const struct entry *, CUresult);

// hooks_graph.c
void eb_graph_note(uint64_t capture, CUstream, size_t);

// hooks_info.c
int64_t eb_nvml_used(struct device *, bool own); // of the process or of the card; -1: unknown

#endif
