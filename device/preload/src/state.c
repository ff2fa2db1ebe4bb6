// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The state, the environment and the log.

#include "preload.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct state eb;
__thread struct thread eb_thread __attribute__((tls_model("initial-exec")));

// strtoull would bind the library to the newest libc: its name changed with glibc 2.38.
static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *s = getenv(name);
	uint64_t n = 0;
	if (!s || !*s)
		return otherwise;
	for (; *s >= '0' && *s <= '9'; s++) {
		if (n > (UINT64_MAX - 9) / 10)
			return otherwise;
		n = n * 10 + (uint64_t)(*s - '0');
	}
	return *s ? otherwise : n;
}

static void locks(void)
{
	pthread_mutex_init(&eb.resolve.mutex, NULL);
	pthread_mutex_init(&eb.world.mutex, NULL);
	pthread_mutex_init(&eb.gate.mutex, NULL);
	pthread_mutex_init(&eb.gate.send, NULL);
	pthread_cond_init(&eb.gate.changed, NULL);
	pthread_cond_init(&eb.gate.quiet, NULL);
	pthread_mutex_init(&eb.pause.mutex, NULL);
	pthread_cond_init(&eb.pause.changed, NULL);
	for (int i = 0; i < STRIPES; i++)
		pthread_mutex_init(&eb.table[i].mutex, NULL);
	for (int i = 0; i < MAX_DEVICES; i++)
		pthread_mutex_init(&eb.world.device[i].mutex, NULL);
}

// eb_init may be called before any constructor has run: another library's constructor may be
// the first to look a symbol up.
void eb_init(void)
{
	int not_yet = 0;
	if (atomic_load_explicit(&eb.ready, memory_order_acquire) == 2)
		return;
	if (!atomic_compare_exchange_strong(&eb.ready, &not_yet, 1)) {
		while (atomic_load_explicit(&eb.ready, memory_order_acquire) != 2)
			usleep(100);
		return;
	}
	locks();
	eb.gate.fd = -1;
	eb.path = getenv("EBBTIDE_GATE");
	eb.wait_ms = number("EBBTIDE_GATE_WAIT_MS", 60000);
	eb.lease = number("EBBTIDE_GATE_LEASE", 64 << 20);
	eb.context = number("EBBTIDE_GATE_CONTEXT", 512 << 20);
	eb.log = (int)number("EBBTIDE_GATE_LOG", 0);
	if (eb.lease > INT64_MAX / 8)
		eb.lease = INT64_MAX / 8;
	if (eb.context > INT64_MAX / 8)
		eb.context = INT64_MAX / 8;
	eb.mode = eb.path && *eb.path ? LOOSE : OFF;
	atomic_store_explicit(&eb.ready, 2, memory_order_release);
}

uint64_t eb_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void eb_log(int level, const char *format, ...)
{
	static const char *const name[] = { "", "warning", "info", "debug" };
	char line[512];
	va_list args;
	int n = snprintf(line, sizeof line, "ebbtide-cuda[%d] %s: ", (int)getpid(), name[level & 3]);
	va_start(args, format);
	int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
	va_end(args);
	n += m < 0 ? 0 : m;
	if (n > (int)sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	// In one piece, and never through stdio: the program may hold its lock.
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}
