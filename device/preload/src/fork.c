// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// fork: the child has none of the parent's memory on a card, none of its threads, and must not
// speak on its connection. It begins anew, with its own.

#include "preload.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void before(void)
{
	// All locks, in the order in which they nest, so that the child finds nothing half done.
	for (int i = 0; i < MAX_DEVICES; i++)
		pthread_mutex_lock(&eb.world.device[i].mutex);
	pthread_mutex_lock(&eb.world.mutex);
	pthread_mutex_lock(&eb.resolve.mutex);
	for (int i = 0; i < STRIPES; i++)
		pthread_mutex_lock(&eb.table[i].mutex);
	pthread_mutex_lock(&eb.pause.mutex);
	pthread_mutex_lock(&eb.gate.send);
	pthread_mutex_lock(&eb.gate.mutex);
}

static void parent(void)
{
	pthread_mutex_unlock(&eb.gate.mutex);
	pthread_mutex_unlock(&eb.gate.send);
	pthread_mutex_unlock(&eb.pause.mutex);
	for (int i = 0; i < STRIPES; i++)
		pthread_mutex_unlock(&eb.table[i].mutex);
	pthread_mutex_unlock(&eb.resolve.mutex);
	pthread_mutex_unlock(&eb.world.mutex);
	for (int i = 0; i < MAX_DEVICES; i++)
		pthread_mutex_unlock(&eb.world.device[i].mutex);
}

static void child(void)
{
	parent();
	if (eb.gate.fd >= 0)
		close(eb.gate.fd); // the parent's stays open
	for (int i = 0; i < STRIPES; i++) {
		free(eb.table[i].at);
		eb.table[i].at = NULL;
		eb.table[i].cap = eb.table[i].live = eb.table[i].filled = 0;
	}
	memset(&eb.gate, 0, sizeof eb.gate);
	eb.gate.fd = -1;
	pthread_mutex_init(&eb.gate.mutex, NULL);
	pthread_mutex_init(&eb.gate.send, NULL);
	pthread_cond_init(&eb.gate.changed, NULL);
	pthread_cond_init(&eb.gate.quiet, NULL);
	memset(&eb.pause, 0, sizeof eb.pause);
	pthread_mutex_init(&eb.pause.mutex, NULL);
	pthread_cond_init(&eb.pause.changed, NULL);
	unsigned epoch = eb.world.epoch + 1;
	memset(&eb.world, 0, sizeof eb.world);
	eb.world.epoch = epoch;
	pthread_mutex_init(&eb.world.mutex, NULL);
	for (int i = 0; i < MAX_DEVICES; i++)
		pthread_mutex_init(&eb.world.device[i].mutex, NULL);
	eb_thread.depth = 0;
	eb.pins = 0;
	if (eb.mode == BOUND)
		eb.mode = LOOSE;
}

// What pthread_atfork is in glibc. Where it is missing, in musl, the loader would end the whole
// program for it.
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
