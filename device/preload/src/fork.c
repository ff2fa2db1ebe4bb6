// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// fork: the child has none of the parent's GPU memory and threads, and must not use its
// connection. It opens its own.

#include "hooks.h"

#include <stdlib.h>
#include <unistd.h>

static void before(void)
{
	// All locks, in the order in which they nest.
	for (int i = 0; i < MAX_DEVICES; i++)
		pthread_mutex_lock(&eb_world.device[i].mutex);
	pthread_mutex_lock(&eb_world.pooled);
	pthread_mutex_lock(&eb_world.mutex);
	pthread_mutex_lock(&eb.resolve.mutex);
	for (int i = 0; i < STRIPES; i++)
		pthread_mutex_lock(&eb_table[i].mutex);
	pthread_mutex_lock(&eb_pause.mutex);
	pthread_mutex_lock(&eb_gate.send);
	pthread_mutex_lock(&eb_gate.mutex);
}

static void parent(void)
{
	pthread_mutex_unlock(&eb_gate.mutex);
	pthread_mutex_unlock(&eb_gate.send);
	pthread_mutex_unlock(&eb_pause.mutex);
	for (int i = 0; i < STRIPES; i++)
		pthread_mutex_unlock(&eb_table[i].mutex);
	pthread_mutex_unlock(&eb.resolve.mutex);
	pthread_mutex_unlock(&eb_world.mutex);
	pthread_mutex_unlock(&eb_world.pooled);
	for (int i = 0; i < MAX_DEVICES; i++)
		pthread_mutex_unlock(&eb_world.device[i].mutex);
}

static void child(void)
{
	parent();
	if (eb_gate.fd >= 0)
		close(eb_gate.fd); // the parent's stays open
	for (int i = 0; i < STRIPES; i++) {
		free(eb_table[i].at);
		eb_table[i] = (struct stripe){ .mutex = PTHREAD_MUTEX_INITIALIZER };
	}
	eb_gate = (struct gate)GATE;
	eb_pause = (struct pause)PAUSE;
	unsigned epoch = eb_world.epoch + 1; // threads' contexts are the parent's
	eb_world = (struct world)WORLD;
	eb_world.epoch = epoch;
	eb_thread.depth = 0;
	if (eb.mode == BOUND)
		eb.mode = LOOSE;
}

// pthread_atfork calls this in glibc. musl lacks it: a strong reference would keep the program
// from starting.
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

__attribute__((constructor)) static void watch(void)
{
	eb_init();
	if (eb.mode == OFF)
		return;
	if (__register_atfork)
		__register_atfork(before, parent, child, __dso_handle);
}
