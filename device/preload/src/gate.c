// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The connection to the gate. One thread, the reader, connects, reads and reconnects. The others
// send, and wait for the answer with their seq. Most answers come at once: a thread that has sent
// first reads for a moment itself, to save the wake-up.

#include "gate.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
	FIRST_MS = 2000, // how long the first call waits for a connection
	GRACE_MS = 5000, // how late an answer may be
	SEND_S = 5,      // how long the gate may leave messages unread
	RETRY_MS = 50, RETRY_MAX_MS = 2000,
	ACTIVE_S = 5, // how often activity is reported
	SPIN_US = 50, // how long a sender polls for the answer: a wake-up takes as long
	OWN_MS = 2,   // how long it then waits to read the answer itself
	QUIET_MS = 3, // how long the reader leaves reading to it
};

struct gate eb_gate = GATE;

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
	pthread_mutex_lock(&eb_gate.mutex);
	uint64_t g = eb_gate.generation;
	pthread_mutex_unlock(&eb_gate.mutex);
	return g;
}

bool eb_gate_send(const struct message *m, uint64_t generation)
{
	struct message copy = *m;
	copy.magic = MAGIC;
	pthread_mutex_lock(&eb_gate.send);
	// Before the connection is up only the reader sends: holdings come first.
	bool ok = (eb_gate.up || eb_thread.connecting) && generation == eb_gate_generation() && eb_gate.fd >= 0;
	if (ok && !send_all(eb_gate.fd, &copy)) {
		shutdown(eb_gate.fd, SHUT_RDWR); // wakes the reader, which reconnects
		ok = false;
	}
	pthread_mutex_unlock(&eb_gate.send);
	return ok;
}

// Tells the gate, which sees allocations only, that work is submitted.
static void still_active(void)
{
	unsigned n = eb_gate.listener->submitted();
	if (n == eb_gate.submitted)
		return;
	eb_gate.submitted = n;
	struct message m = { .type = T_ACTIVE };
	eb_gate_send(&m, eb_gate_generation());
}

// Reads one message. Once the connection is up, each time-out reports activity.
static bool read_all(int fd, struct message *m)
{
	char *p = (char *)m;
	size_t left = sizeof *m;
	while (left) {
		ssize_t n = recv(fd, p, left, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && eb_gate.up) {
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

static void answer(const struct message *m)
{
	pthread_mutex_lock(&eb_gate.mutex);
	struct waiter *w = eb_gate.waiters;
	while (w && (w->done || w->answer.seq != m->seq))
		w = w->next;
	if (w) {
		w->answer = *m;
		w->done = 1;
		pthread_cond_signal(&w->cond);
	}
	pthread_mutex_unlock(&eb_gate.mutex);
	if (!w && m->type == T_GRANT) {
		struct message back = { .type = T_RETURN, .device = m->device, .bytes = m->bytes };
		eb_gate_send(&back, eb_gate_generation());
	}
}

static bool dispatch(const struct message *m)
{
	switch (m->type) {
	case T_WELCOME: case T_ATTACHED: case T_DENIED: case T_GRANT: case T_INFO_IS:
		answer(m);
		return true;
	}
	if (eb_gate.listener->on_message(m))
		return true;
	LOG(1, "the gate sent a message of type %u", m->type);
	return false;
}

// Reads and handles one message. The caller has set reading. False: the connection is over.
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

// Lets a thread that has sent over connection g read, without gate.mutex, which it holds. False:
// another thread reads, or there was nothing.
static bool read_own(uint64_t g)
{
	struct pollfd p = { .fd = eb_gate.fd, .events = POLLIN };
	if (eb_gate.reading || p.fd < 0 || eb_gate.generation != g)
		return false;
	eb_gate.reading = true;
	pthread_mutex_unlock(&eb_gate.mutex);
	int n = 0;
	for (uint64_t end = now_us() + SPIN_US; (n = poll(&p, 1, 0)) == 0 && now_us() < end;)
		sched_yield(); // the gate may need this processor
	bool some = (n ? n : poll(&p, 1, OWN_MS)) > 0 && step(p.fd);
	pthread_mutex_lock(&eb_gate.mutex);
	eb_gate.reading = false;
	for (struct waiter *w = eb_gate.waiters; w; w = w->next)
		if (!w->done) { // its turn to read
			pthread_cond_signal(&w->cond);
			break;
		}
	return some;
}

// Waits for a change, until the (monotonic) deadline, in slices: the condition's clock is the
// wall clock, and old libcs have no other.
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
	pthread_cond_timedwait(cond, &eb_gate.mutex, &t);
}

// Sends a request and waits for its answer: at most wait_ms and some grace, over reconnects. -1:
// no gate answers.
int eb_gate_call(struct message *m, uint64_t wait_ms, uint64_t *generation)
{
	if (wait_ms > 1ull << 40)
		wait_ms = 1ull << 40;
	uint64_t begin = eb_now(), deadline = begin + wait_ms + GRACE_MS;
	uint64_t handle_of = m->device, *id = (uint64_t[2]){ m->id, m->arg };
	struct device *d = NULL;
	for (int i = 0; i < eb_world.devices && handle_of; i++)
		if (eb_world.device[i].handle == handle_of)
			d = &eb_world.device[i];
	struct waiter w;
	pthread_cond_init(&w.cond, NULL);
	int result = -1;

	pthread_mutex_lock(&eb_gate.mutex);
	for (;;) {
		// A lost gate is awaited for as long as the request might have waited.
		while ((!eb_gate.up || eb_gate.open >= MAX_OPEN) && eb_now() < begin + wait_ms)
			pass(&eb_gate.changed, begin + wait_ms);
		if (!eb_gate.up || eb_gate.open >= MAX_OPEN)
			break;
		uint64_t spent = eb_now() - begin, g = eb_gate.generation;
		w.done = 0;
		m->seq = ++eb_gate.seq;
		m->id = id[0];
		m->arg = m->type == T_REQUEST ? (wait_ms > spent ? wait_ms - spent : 0) : id[1];
		if (d)
			m->device = d->handle; // changes with a reconnect
		w.answer = *m;
		w.next = eb_gate.waiters;
		eb_gate.waiters = &w;
		eb_gate.open++;
		eb_gate.calling++;
		pthread_mutex_unlock(&eb_gate.mutex);
		bool sent = eb_gate_send(m, g);
		uint64_t own = eb_now() + OWN_MS;
		pthread_mutex_lock(&eb_gate.mutex);
		while (sent && !w.done && eb_now() <= own && read_own(g))
			;
		eb_gate.calling--;
		while (sent && !w.done && eb_now() < deadline) {
			uint64_t before = eb_now();
			pass(&w.cond, deadline);
			if (eb_gate.paused) { // nothing is granted while paused: that time does not count
				begin += eb_now() - before;
				deadline += eb_now() - before;
			}
		}
		for (struct waiter **p = &eb_gate.waiters; *p; p = &(*p)->next)
			if (*p == &w) {
				*p = w.next;
				break;
			}
		eb_gate.open--;
		pthread_cond_broadcast(&eb_gate.changed);
		if (w.done == 1) {
			*m = w.answer;
			if (generation)
				*generation = g;
			result = 0;
			break;
		}
		if (sent && !w.done)
			break; // a late grant is returned by dispatch
		if (eb_now() >= begin + wait_ms)
			break;
	}
	pthread_mutex_unlock(&eb_gate.mutex);
	pthread_cond_destroy(&w.cond);
	return result;
}

// A request of the reader, before other threads may send.
static bool exchange(int fd, struct message *m)
{
	struct message got;
	m->magic = MAGIC;
	pthread_mutex_lock(&eb_gate.mutex);
	m->seq = ++eb_gate.seq;
	pthread_mutex_unlock(&eb_gate.mutex);
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
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit); // until the connection is up
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
		LOG(1, "the gate rejected the connection (reason %llu)", (unsigned long long)m.arg);
		return false;
	}
	for (int i = 0; i < eb_world.devices; i++) {
		struct device *d = &eb_world.device[i];
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

static void say_pins(unsigned pins)
{
	for (uint64_t reason = 1; reason < PIN_COUNT; reason++) {
		struct message m = { .type = T_PINNED, .arg = reason };
		if (pins & 1u << reason)
			eb_gate_send(&m, eb_gate_generation());
	}
}

// Reports once why this process cannot be parked, now or when the connection is up.
void eb_pin(enum pin reason)
{
	unsigned bit = 1u << reason;
	if (eb_gate.pins & bit)
		return;
	pthread_mutex_lock(&eb_gate.mutex);
	bool say = eb_gate.up && !(eb_gate.pins & bit);
	eb_gate.pins |= bit;
	pthread_mutex_unlock(&eb_gate.mutex);
	if (say)
		say_pins(bit);
	LOG(2, "cannot be parked: reason %d", reason);
}

static void connected(int fd)
{
	pthread_mutex_lock(&eb_gate.send);
	pthread_mutex_lock(&eb_gate.mutex);
	eb_gate.fd = fd;
	eb_gate.generation++;
	pthread_mutex_unlock(&eb_gate.mutex);
	pthread_mutex_unlock(&eb_gate.send);
	// Holdings are reported first: no other thread sends before up is set.
	eb_thread.connecting = true;
	eb_gate.listener->on_connect();
	unsigned pins = eb_gate.pins;
	say_pins(pins);
	eb_thread.connecting = false;
	pthread_mutex_lock(&eb_gate.mutex);
	eb_gate.up = eb_gate.tried = true;
	unsigned more = eb_gate.pins & ~pins; // reasons found meanwhile
	eb.mode = BOUND;
	pthread_cond_broadcast(&eb_gate.changed);
	pthread_mutex_unlock(&eb_gate.mutex);
	say_pins(more);
	LOG(2, "connected");
}

static void gone(int fd)
{
	pthread_mutex_lock(&eb_gate.send);
	pthread_mutex_lock(&eb_gate.mutex);
	eb_gate.fd = -1;
	eb_gate.up = eb_gate.reading = false;
	eb_gate.generation++;
	for (struct waiter *w = eb_gate.waiters; w; w = w->next)
		if (!w->done) {
			w->done = -1;
			pthread_cond_signal(&w->cond);
		}
	pthread_cond_broadcast(&eb_gate.changed);
	pthread_mutex_unlock(&eb_gate.mutex);
	pthread_mutex_unlock(&eb_gate.send);
	close(fd);
	eb_gate.listener->gone();
	LOG(1, "lost the gate; continuing with the memory already granted");
}

// Waits for the next message and reads it, unless another thread does. False: the connection is
// over, and reading is set: no other thread uses it any longer.
static bool listen_on(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n = poll(&p, 1, ACTIVE_S * 1000);
	if (n == 0)
		still_active();
	if (n <= 0)
		return true;
	pthread_mutex_lock(&eb_gate.mutex);
	bool others = eb_gate.reading || eb_gate.calling > 0;
	if (others)
		pass(&eb_gate.quiet, eb_now() + QUIET_MS);
	else
		eb_gate.reading = true;
	pthread_mutex_unlock(&eb_gate.mutex);
	if (others)
		return true;
	if (!step(fd))
		return false;
	pthread_mutex_lock(&eb_gate.mutex);
	eb_gate.reading = false;
	pthread_mutex_unlock(&eb_gate.mutex);
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
			pthread_mutex_lock(&eb_gate.mutex);
			eb_gate.tried = true;
			pthread_cond_broadcast(&eb_gate.changed);
			pthread_mutex_unlock(&eb_gate.mutex);
		}
		usleep((useconds_t)(wait * 1000));
		wait = wait * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : wait * 2;
	}
	return NULL;
}

// Called before the first use of a card. Waits for the first attempt, so that the program's view
// does not change after its first look.
void eb_gate_start(const struct listener *listener)
{
	pthread_mutex_lock(&eb_gate.mutex);
	if (!eb_gate.started) {
		eb_gate.started = true;
		eb_gate.listener = listener;
		eb_gate.tried = eb_spawn(reader, NULL) != 0;
	}
	for (uint64_t deadline = eb_now() + FIRST_MS; !eb_gate.tried && eb_now() < deadline;)
		pass(&eb_gate.changed, deadline);
	eb_gate.tried = true;
	pthread_mutex_unlock(&eb_gate.mutex);
}
