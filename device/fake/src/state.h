// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The state of the fake cards: a file, named by EBBTIDE_FAKE_GPU, that every process maps. A
// process owns a slot while it holds a lock on the slot's byte of the file. The kernel drops the
// lock when the process dies, and tells others its pid in their own pid namespace: this works
// across containers.

#ifndef EBBTIDE_FAKE_STATE_H
#define EBBTIDE_FAKE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../preload/src/cuda.h"

enum { FAKE_GPUS = 8, FAKE_SLOTS = 128, FAKE_MAGIC = 0x46414b45 };

struct fake_process {
	_Atomic int live;
	int pid;           // in its own namespace
	_Atomic int state; // CU_PROCESS_STATE_*
	_Atomic int busy;  // threads inside a call
	_Atomic int managed;
	_Atomic int64_t used[FAKE_GPUS], parked[FAKE_GPUS];
	_Atomic int64_t done_us[FAKE_GPUS]; // of kernels submitted so far
};

struct fake_gpu {
	unsigned char uuid[16];
	char name[64];
	int64_t total;
	_Atomic int64_t used;
};

struct fake_state {
	_Atomic uint32_t magic;
	int gpus;
	int64_t reserved;      // bytes that the driver keeps beyond total
	int64_t context;       // bytes that a context takes
	int64_t block;         // allocations larger than half of one are rounded up to it
	int64_t lazy;          // bytes that a process's first launch takes
	int64_t latency_us;    // of an allocation
	int64_t kernel_us;     // of a launch
	int64_t copy_us;       // of parking or restoring a MiB
	int serial;            // kernels of all processes run one after the other
	_Atomic int64_t until; // then: when all are done, µs
	pthread_mutex_t mutex;
	struct fake_gpu gpu[FAKE_GPUS];
	struct fake_process process[FAKE_SLOTS];
};

struct fake_state *fake_open(void); // NULL: no EBBTIDE_FAKE_GPU, hence no card
int fake_join(void);                // this process's slot
int fake_mine(void);                // the same, or -1: for libnvidia-ml
void fake_adopt(int slot);          // takes over the slot that libcuda has joined
int fake_pid(int slot);             // 0: the slot is free
int fake_find(int pid);             // the slot of that process, or -1
void fake_reap(void);               // frees what dead processes held
bool fake_take(int gpu, int64_t bytes, int slot);
void fake_give(int gpu, int64_t bytes, int slot);
bool fake_fails(const char *what); // is that word in <file>.fail?
void fake_lock(void);
void fake_unlock(void);

#endif
