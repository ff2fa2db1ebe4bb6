// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The lowest layer (see hooks.h): the environment, the log, and the driver's functions.

#ifndef EBBTIDE_RESOLVE_H
#define EBBTIDE_RESOLVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum hook {
#define CUDA(n) H_##n,
#define NVML(n) H_##n,
#define SUBMIT(n, P, A) H_##n,
#include "hooks.def"
#include "submit.def"
#undef CUDA
#undef NVML
#undef SUBMIT
	H_COUNT
};

enum { BUCKETS = 1024 }; // of the index of hooks; a power of two, well above H_COUNT

enum mode {
	OFF,   // no gate is named: calls pass through
	LOOSE, // the gate was never reached: calls pass through, and are counted
	BOUND, // the gate was reached once: nothing is taken beyond its grants
};

// An interposer's entry points have the driver's signatures, so its state is global. The
// assembler in resolve.c knows the first two fields.
struct state {
	void *(*real_dlsym)(void *, const char *);
	void *(*real_dlvsym)(void *, const char *, const char *);

	_Atomic int ready; // 2: the environment is read
	_Atomic int mode;
	const char *path;
	uint64_t wait_ms, credit, context;
	int log;

	struct {
		pthread_mutex_t mutex;
		_Atomic(void *) real[H_COUNT];
		_Atomic int cuda, nvml; // 1: looked up
		_Atomic bool indexed;   // by_name is filled
		int16_t by_name[BUCKETS], by_address[BUCKETS];
		void *nvml_handle;
	} resolve;

	struct {
#define CALL(R, n, P) R(*n) P;
#include "calls.def"
#undef CALL
	} cu;
};
extern struct state eb HIDDEN;

// state.c
void eb_init(void);
void eb_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define LOG(level, ...) do { if (UNLIKELY(eb.log >= (level))) eb_log(level, __VA_ARGS__); } while (0)
uint64_t eb_now(void); // milliseconds, monotonic
int eb_spawn(void *(*)(void *), void *);

// elf.c
void *eb_elf_find(const char *library, const char *symbol);

// resolve.c
void *eb_real(int hook);     // the driver's function of that name, or NULL
void *eb_map(void *address); // the hook for a function of the driver, or the address itself
bool eb_resolve_cuda(void);
#define REAL(n) ((__typeof__(&n))eb_real(H_##n))

// newer.c
bool eb_all_hooked(void);

#endif
