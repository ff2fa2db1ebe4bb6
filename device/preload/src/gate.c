// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The connection to the gate. One thread connects, reads and connects again; everyone else
// sends, and waits for the answer with its seq. Most answers come at once: so whoever has sent
// reads itself for a moment, which spares waking one thread to wake another.

#include "preload.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
	FIRST_MS = 2000,  // how long the first call waits for the first attempt
	GRACE_MS = 5000,  // an answer may be late by this
	SEND_S = 5,       // a gate that does not read for so long is taken for dead
	RETRY_MS = 50, RETRY_MAX_MS = 2000,
	ACTIVE_S = 5,     // how often it is said that work is submitted
	SPIN_US = 50,     // for so long who has sent looks for the answer without a rest: to be woken takes as long
	OWN_MS = 2,       // for so long it waits for it to read it itself
	QUIET_MS = 3,     // and the reader stays out of the way
};

static bool send_all(int fd, const struct message *m)
{
	const char *p = (const char *)m;
	size_t left = sizeof *m;
	while (left) {
		ssize_t n = send(fd, p, left, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		p += n;
		left -= (size_t)n;
	}
	return true;
}

uint64_t eb_gate_generation(void)
{
	pthread_mutex_lock(&eb.gate.mutex);
	uint64_t g = eb.gate.generation;
	pthread_mutex_unlock(&eb.gate.mutex);
	return g;
}

static bool send_to(const struct message *m, uint64_t generation)
{
	struct message copy = *m;
	copy.magic = MAGIC;
	pthread_mutex_lock(&eb.gate.send);
	// Before the connection is up only the thread that makes it speaks: what is held comes first.
	bool ok = (eb.gate.up || eb_thread.greeting) && generation == eb_gate_generation() && eb.gate.fd >= 0;
	if (ok && !send_all(eb.gate.fd, &copy)) {
		shutdown(eb.gate.fd, SHUT_RDWR); // wakes the reader, which connects again
		ok = false;
	}
	pthread_mutex_unlock(&eb.gate.send);
	return ok;
}

// still_active tells the gate, which hears of allocations only, that work is submitted.
static void still_active(void)
{
	unsigned n = eb_submitted();
	if (n == eb.gate.submitted)
		return;
	eb.gate.submitted = n;
	struct message m = { .type = T_ACTIVE };
	send_to(&m, eb_gate_generation());
}

// read_all reads one message. Where the connection is up, the time-out of its reading is the
// moment to say that this process is active.
static bool read_all(int fd, struct message *m)
{
	char *p = (char *)m;
	size_t left = sizeof *m;
	while (left) {
		ssize_t n = recv(fd, p, left, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && eb.gate.up) {
			still_active();
			continue;
		}
		if (n <= 0)
			return false;
		p += n;
		left -= (size_t)n;
	}
	return m->magic == MAGIC;
}

bool eb_gate_send(const struct message *m, uint64_t generation)
{
	return send_to(m, generation);
}

// pass waits for a change, until the (monotonic) deadline. In slices: the condition's clock is
// the wall clock, which may jump. Newer libcs have better ones, older ones do not.
static bool dispatch(const struct message *);

// step reads one message and does what it says. Only who has set reading may. False: the
// connection is over, and the reader will see it.
static bool step(int fd)
{
	struct message m;
	if (read_all(fd, &m) && dispatch(&m))
		return true;
	shutdown(fd, SHUT_RDWR);
	return false;
}

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

// read_own lets a thread that has sent over the connection g read, under gate.mutex, which is
// not held meanwhile. False: it is not to, or there was nothing.
static bool read_own(uint64_t g)
{
	struct pollfd p = { .fd = eb.gate.fd, .events = POLLIN };
	if (eb.gate.reading || p.fd < 0 || eb.gate.generation != g)
		return false;
	eb.gate.reading = true;
	pthread_mutex_unlock(&eb.gate.mutex);
	int n = 0;
	for (uint64_t end = now_us() + SPIN_US; (n = poll(&p, 1, 0)) == 0 && now_us() < end;)
		sched_yield(); // the gate may need this processor
	bool some = (n ? n : poll(&p, 1, OWN_MS)) > 0 && step(p.fd);
	pthread_mutex_lock(&eb.gate.mutex);
	eb.gate.reading = false;
	for (struct waiter *w = eb.gate.waiters; w; w = w->next)
		if (!w->done) { // it may be the next one
			pthread_cond_signal(&w->cond);
			break;
		}
	return some;
}

static void pass(pthread_cond_t *cond, uint64_t deadline)
{
	uint64_t now = eb_now(), ms = deadline > now ? deadline - now : 0;
	struct timespec t;
	ms = ms > 500 ? 500 : ms;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += (time_t)(ms / 1000);
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(cond, &eb.gate.mutex, &t);
}

// eb_gate_call sends a request and waits for its answer: at most wait_ms and some grace, over
// reconnects. -1: there is no gate, or none that answers.
int eb_gate_call(struct message *m, uint64_t wait_ms, uint64_t *generation)
{
	if (wait_ms > 1ull << 40)
		wait_ms = 1ull << 40;
	uint64_t begin = eb_now(), deadline = begin + wait_ms + GRACE_MS;
	uint64_t handle_of = m->device, *id = (uint64_t[2]){ m->id, m->arg };
	struct device *d = NULL;
	for (int i = 0; i < eb.world.devices && handle_of; i++)
		if (eb.world.device[i].handle == handle_of)
			d = &eb.world.device[i];
	struct waiter w;
	pthread_cond_init(&w.cond, NULL);
	int result = -1;

	pthread_mutex_lock(&eb.gate.mutex);
	for (;;) {
		// A gate that is gone is waited for as long as the request might have waited.
		while ((!eb.gate.up || eb.gate.open >= MAX_OPEN) && eb_now() < begin + wait_ms)
			pass(&eb.gate.changed, begin + wait_ms);
		if (!eb.gate.up || eb.gate.open >= MAX_OPEN)
			break;
		uint64_t spent = eb_now() - begin, g = eb.gate.generation;
		w.done = 0;
		m->seq = ++eb.gate.seq;
		m->id = id[0];
		m->arg = m->type == T_REQUEST ? (wait_ms > spent ? wait_ms - spent : 0) : id[1];
		if (d)
			m->device = d->handle; // another one after a reconnect
		w.answer = *m;
		w.next = eb.gate.waiters;
		eb.gate.waiters = &w;
		eb.gate.open++;
		eb.gate.calling++;
		pthread_mutex_unlock(&eb.gate.mutex);
		bool sent = send_to(m, g);
		uint64_t own = eb_now() + OWN_MS;
		pthread_mutex_lock(&eb.gate.mutex);
		while (sent && !w.done && eb_now() <= own && read_own(g))
			;
		eb.gate.calling--;
		while (sent && !w.done && eb_now() < deadline) {
			uint64_t before = eb_now();
			pass(&w.cond, deadline);
			if (eb.pause.on) { // while the process is paused nothing is granted: that does not count
				begin += eb_now() - before;
				deadline += eb_now() - before;
			}
		}
		for (struct waiter **p = &eb.gate.waiters; *p; p = &(*p)->next)
			if (*p == &w) {
				*p = w.next;
				break;
			}
		eb.gate.open--;
		pthread_cond_broadcast(&eb.gate.changed);
		if (w.done == 1) {
			*m = w.answer;
			if (generation)
				*generation = g;
			result = 0;
			break;
		}
		if (sent && !w.done)
			break; // no answer; a grant that comes late is sent back by the reader
		if (eb_now() >= begin + wait_ms)
			break;
	}
	pthread_mutex_unlock(&eb.gate.mutex);
	pthread_cond_destroy(&w.cond);
	return result;
}

static void answer(const struct message *m)
{
	pthread_mutex_lock(&eb.gate.mutex);
	struct waiter *w = eb.gate.waiters;
	while (w && (w->done || w->answer.seq != m->seq))
		w = w->next;
	if (w) {
		w->answer = *m;
		w->done = 1;
		pthread_cond_signal(&w->cond);
	}
	pthread_mutex_unlock(&eb.gate.mutex);
	if (!w && m->type == T_GRANT) {
		struct message back = { .type = T_RETURN, .device = m->device, .bytes = m->bytes };
		send_to(&back, eb_gate_generation());
	}
}

static bool dispatch(const struct message *m)
{
	switch (m->type) {
	case T_WELCOME: case T_ATTACHED: case T_REFUSED: case T_GRANT: case T_INFO_IS:
		answer(m);
		return true;
	case T_LIMIT:
		for (int i = 0; i < eb.world.devices; i++) {
			struct device *d = &eb.world.device[i];
			if (d->handle != m->device)
				continue;
			d->limit = m->bytes;
			d->scarce = 0;
			LOG(2, "limit %llu", (unsigned long long)m->bytes);
			if ((uint64_t)(d->used + d->avail) > m->bytes)
				eb_lease_return(d, 0);
		}
		return true;
	case T_RECALL:
		for (int i = 0; i < eb.world.devices; i++)
			if (eb.world.device[i].handle == m->device)
				eb_lease_recall(&eb.world.device[i]);
		return true;
	case T_PAUSE:
		eb_pause();
		return true;
	case T_RESUME:
		eb_resume();
		return true;
	}
	LOG(1, "the gate sent a message of type %u", m->type);
	return false;
}

// exchange is a request of the reading thread itself, before anyone else may send.
static bool exchange(int fd, struct message *m)
{
	struct message got;
	m->magic = MAGIC;
	pthread_mutex_lock(&eb.gate.mutex);
	m->seq = ++eb.gate.seq;
	pthread_mutex_unlock(&eb.gate.mutex);
	if (!send_all(fd, m))
		return false;
	while (read_all(fd, &got)) {
		if (got.seq == m->seq) {
			*m = got;
			return true;
		}
		if (!dispatch(&got))
			return false;
	}
	return false;
}

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	if (strlen(eb.path) >= sizeof a.sun_path)
		return -1;
	strcpy(a.sun_path, eb.path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	struct timeval limit = { .tv_sec = SEND_S };
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit); // while we introduce ourselves
	if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool introduce(int fd)
{
	struct message m = { .type = T_HELLO, .arg = VERSION, .id = (uint64_t)getpid() };
	if (!exchange(fd, &m) || m.type != T_WELCOME) {
		LOG(1, "the gate does not take this library (reason %llu)", (unsigned long long)m.arg);
		return false;
	}
	for (int i = 0; i < eb.world.devices; i++) {
		struct device *d = &eb.world.device[i];
		struct message a = { .type = T_ATTACH };
		memcpy(&a.id, d->uuid, 8);
		memcpy(&a.arg, d->uuid + 8, 8);
		if (!exchange(fd, &a))
			return false;
		d->handle = a.type == T_ATTACHED ? a.device : 0;
	}
	struct timeval often = { .tv_sec = ACTIVE_S };
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &often, sizeof often);
	return true;
}

static void connected(int fd)
{
	pthread_mutex_lock(&eb.gate.send);
	pthread_mutex_lock(&eb.gate.mutex);
	eb.gate.fd = fd;
	eb.gate.generation++;
	pthread_mutex_unlock(&eb.gate.mutex);
	pthread_mutex_unlock(&eb.gate.send);
	// What is held is the first thing said; nobody asks before (up is false).
	eb_thread.greeting = true;
	for (int i = 0; i < eb.world.devices; i++)
		if (eb.world.device[i].handle)
			eb_lease_held(&eb.world.device[i], eb.world.device[i].handle);
	unsigned pins = eb.pins;
	eb_pins_tell();
	eb_thread.greeting = false;
	pthread_mutex_lock(&eb.gate.mutex);
	eb.gate.up = eb.gate.tried = true;
	eb.mode = BOUND;
	pthread_cond_broadcast(&eb.gate.changed);
	pthread_mutex_unlock(&eb.gate.mutex);
	if (eb.pins != pins) // another thread found a reason before it could send it
		eb_pins_tell();
	LOG(2, "connected");
}

static void gone(int fd)
{
	pthread_mutex_lock(&eb.gate.send);
	pthread_mutex_lock(&eb.gate.mutex);
	eb.gate.fd = -1;
	eb.gate.up = eb.gate.reading = false;
	eb.gate.generation++;
	for (struct waiter *w = eb.gate.waiters; w; w = w->next)
		if (!w->done) {
			w->done = -1;
			pthread_cond_signal(&w->cond);
		}
	pthread_cond_broadcast(&eb.gate.changed);
	pthread_mutex_unlock(&eb.gate.mutex);
	pthread_mutex_unlock(&eb.gate.send);
	close(fd);
	eb_resume(); // whoever asked for the pause is not there to end it
	LOG(1, "the gate is gone; on with what it has granted");
}

// listen_on waits for the next message and reads it, if nobody else does. False: the connection
// is over, and reading is set: nobody else touches it any more.
static bool listen_on(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n = poll(&p, 1, ACTIVE_S * 1000);
	if (n == 0)
		still_active();
	if (n <= 0)
		return true;
	pthread_mutex_lock(&eb.gate.mutex);
	bool others = eb.gate.reading || eb.gate.calling > 0;
	if (others)
		pass(&eb.gate.quiet, eb_now() + QUIET_MS);
	else
		eb.gate.reading = true;
	pthread_mutex_unlock(&eb.gate.mutex);
	if (others)
		return true;
	if (!step(fd))
		return false;
	pthread_mutex_lock(&eb.gate.mutex);
	eb.gate.reading = false;
	pthread_mutex_unlock(&eb.gate.mutex);
	return true;
}

static void *reader(void *arg)
{
	uint64_t wait = RETRY_MS;
	(void)arg;
	for (;;) {
		int fd = dial();
		if (fd >= 0 && introduce(fd)) {
			wait = RETRY_MS;
			connected(fd);
			while (listen_on(fd))
				;
			gone(fd);
		} else {
			if (fd >= 0)
				close(fd);
			pthread_mutex_lock(&eb.gate.mutex);
			eb.gate.tried = true;
			pthread_cond_broadcast(&eb.gate.changed);
			pthread_mutex_unlock(&eb.gate.mutex);
		}
		usleep((useconds_t)(wait * 1000));
		wait = wait * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : wait * 2;
	}
	return NULL;
}

// eb_spawn starts a thread that takes none of the program's signals. pthread_create is looked up:
// it has moved between libraries, and a program with a GPU has it in any case.
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

// eb_gate_start is called before the first use of a card. It waits for the first attempt, so that
// what the program sees does not change after its first look.
void eb_gate_start(void)
{
	pthread_mutex_lock(&eb.gate.mutex);
	if (!eb.gate.started) {
		eb.gate.started = true;
		eb.gate.tried = eb_spawn(reader, NULL) != 0;
	}
	for (uint64_t deadline = eb_now() + FIRST_MS; !eb.gate.tried && eb_now() < deadline;)
		pass(&eb.gate.changed, deadline);
	eb.gate.tried = true;
	pthread_mutex_unlock(&eb.gate.mutex);
}
