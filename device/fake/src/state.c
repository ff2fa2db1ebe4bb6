// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
	struct fake_state *s;
	int fd, slot, owner;
	pthread_mutex_t mutex;
} my = { .fd = -1, .slot = -1, .mutex = PTHREAD_MUTEX_INITIALIZER };

static int64_t env(const char *name, int64_t otherwise)
{
	const char *s = getenv(name);
	return s && *s ? strtoll(s, NULL, 0) : otherwise;
}

static void create(struct fake_state *s)
{
	pthread_mutexattr_t a;
	s->gpus = (int)env("EBBTIDE_FAKE_GPUS", 1);
	if (s->gpus > FAKE_GPUS)
		s->gpus = FAKE_GPUS;
	s->context = env("EBBTIDE_FAKE_CONTEXT", 8 << 20);
	s->reserved = env("EBBTIDE_FAKE_RESERVED", 0);
	s->block = env("EBBTIDE_FAKE_BLOCK", 512);
	s->lazy = env("EBBTIDE_FAKE_LAZY", 0);
	s->latency_us = env("EBBTIDE_FAKE_LATENCY_US", 0);
	s->kernel_us = env("EBBTIDE_FAKE_KERNEL_US", 0);
	s->copy_us = env("EBBTIDE_FAKE_COPY_US", 0);
	s->serial = env("EBBTIDE_FAKE_SERIAL", 0) != 0;
	for (int i = 0; i < s->gpus; i++) {
		struct fake_gpu *g = &s->gpu[i];
		const char *name = getenv("EBBTIDE_FAKE_NAME");
		static const unsigned char uuid[16] = { 0xeb, 0xb7, 0x1d, 0xe0, 0xfa, 0x4e, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0 };
		memcpy(g->uuid, uuid, 16);
		g->uuid[3] += (unsigned char)i; // its beginning is in the card's name in Nomad
		g->uuid[15] = (unsigned char)(i + 1);
		snprintf(g->name, sizeof g->name, "%s", name && *name ? name : "Ebbtide Fake GPU");
		g->total = env("EBBTIDE_FAKE_MEMORY", 1 << 30);
	}
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&s->mutex, &a);
	atomic_store(&s->magic, FAKE_MAGIC);
}

struct fake_state *fake_open(void)
{
	const char *path = getenv("EBBTIDE_FAKE_GPU");
	pthread_mutex_lock(&my.mutex);
	if (!my.s && path && *path) {
		// Never closed: that would drop the lock by which the process counts as alive.
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd >= 0 && flock(fd, LOCK_EX) == 0) {
			struct fake_state *s = MAP_FAILED;
			if (ftruncate(fd, sizeof *s) == 0)
				s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (s != MAP_FAILED) {
				if (s->magic != FAKE_MAGIC)
					create(s);
				my.fd = fd;
				my.s = s;
			}
			flock(fd, LOCK_UN);
		}
	}
	pthread_mutex_unlock(&my.mutex);
	return my.s;
}

static struct flock byte(int slot, short type)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = (1 << 30) + slot, .l_len = 1 };
}

int fake_pid(int slot)
{
	struct flock f = byte(slot, F_WRLCK);
	if (!my.s->process[slot].live)
		return 0;
	if (slot == my.slot && my.owner == getpid())
		return getpid();
	if (fcntl(my.fd, F_GETLK, &f) != 0 || f.l_type == F_UNLCK)
		return 0;
	return f.l_pid > 0 ? f.l_pid : -1; // -1: of another container
}

int fake_mine(void)
{
	return my.owner == getpid() ? my.slot : -1;
}

void fake_adopt(int slot)
{
	if (slot < 0)
		return;
	my.slot = slot;
	my.owner = getpid();
}

int fake_find(int pid)
{
	for (int i = 0; i < FAKE_SLOTS; i++)
		if (my.s->process[i].live && fake_pid(i) == pid)
			return i;
	return -1;
}

void fake_lock(void)
{
	if (pthread_mutex_lock(&my.s->mutex) == EOWNERDEAD)
		pthread_mutex_consistent(&my.s->mutex);
}

void fake_unlock(void)
{
	pthread_mutex_unlock(&my.s->mutex);
}

static void reap(void)
{
	for (int i = 0; i < FAKE_SLOTS; i++) {
		struct fake_process *p = &my.s->process[i];
		if (!p->live || fake_pid(i))
			continue;
		for (int g = 0; g < my.s->gpus; g++) {
			my.s->gpu[g].used -= p->used[g];
			p->used[g] = p->parked[g] = 0;
		}
		p->live = 0;
	}
}

void fake_reap(void)
{
	fake_lock();
	reap();
	fake_unlock();
}

int fake_join(void)
{
	if (my.slot >= 0 && my.owner == getpid())
		return my.slot;
	fake_lock();
	reap();
	for (int i = 0; i < FAKE_SLOTS; i++) {
		struct fake_process *p = &my.s->process[i];
		struct flock f = byte(i, F_WRLCK);
		if (p->live || fcntl(my.fd, F_SETLK, &f) != 0)
			continue;
		memset(p, 0, sizeof *p);
		p->pid = getpid();
		p->live = 1;
		my.slot = i;
		my.owner = getpid();
		break;
	}
	fake_unlock();
	return my.slot;
}

bool fake_take(int gpu, int64_t bytes, int slot)
{
	bool ok = false;
	fake_lock();
	struct fake_gpu *g = &my.s->gpu[gpu];
	if (g->used + bytes > g->total)
		reap();
	if (bytes >= 0 && g->used + bytes <= g->total) {
		g->used += bytes;
		my.s->process[slot].used[gpu] += bytes;
		ok = true;
	}
	fake_unlock();
	return ok;
}

void fake_give(int gpu, int64_t bytes, int slot)
{
	fake_lock();
	my.s->gpu[gpu].used -= bytes;
	my.s->process[slot].used[gpu] -= bytes;
	fake_unlock();
}

bool fake_fails(const char *what)
{
	char path[4096], text[1024];
	snprintf(path, sizeof path, "%s.fail", getenv("EBBTIDE_FAKE_GPU") ?: "");
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n < 0)
		return false;
	text[n] = 0;
	return strstr(text, what);
}
