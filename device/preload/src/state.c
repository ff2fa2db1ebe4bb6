// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The environment, the log, and threads.

#include "resolve.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct state eb = { .resolve.mutex = PTHREAD_MUTEX_INITIALIZER };

// strtoull would bind the library to glibc 2.38, where it has another symbol.
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

// May run before all constructors: another library's may be the first to look a symbol up.
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
	eb.path = getenv("EBBTIDE_GATE");
	// Loaded by /etc/ld.so.preload into a program with a cleared environment: the gate is where
	// containers have it.
	static const char mounted[] = "/run/ebbtide/gate.sock";
	if (!eb.path && access(mounted, F_OK) == 0)
		eb.path = mounted;
	eb.wait_ms = number("EBBTIDE_GATE_WAIT_MS", 3600000);
	eb.credit = number("EBBTIDE_GATE_CREDIT", 64 << 20);
	eb.context = number("EBBTIDE_GATE_CONTEXT", 512 << 20);
	eb.log = (int)number("EBBTIDE_GATE_LOG", 0);
	if (eb.credit > INT64_MAX / 8)
		eb.credit = INT64_MAX / 8;
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
	// One write, without stdio, whose lock the program may hold.
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}

// Starts a thread that takes none of the program's signals. pthread_create has moved from
// libpthread to libc: it is looked up, to load with either.
int eb_spawn(void *(*run)(void *), void *arg)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
	int (*detach)(pthread_t) = NULL;
	*(void **)&create = eb.real_dlsym(NULL, "pthread_create"); // RTLD_DEFAULT: a sanitizer's comes first
	*(void **)&detach = eb.real_dlsym(NULL, "pthread_detach");
	if (!create || !detach)
		return -1;
	sigset_t all, before;
	pthread_t t;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before); // of this thread: Linux has no other
	int r = create(&t, NULL, run, arg);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (r == 0)
		detach(t);
	return r;
}
