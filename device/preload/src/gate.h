// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The third layer: what the gate grants, and when work may be submitted.

#ifndef EBBTIDE_GATE_H
#define EBBTIDE_GATE_H

#include "account.h"

enum {
	MAX_OPEN = 64, // requests that the gate allows a client to have open
	SLOTS = 32,    // a power of two
};

// A message of the gate's protocol (device/gate/wire).
struct message {
	uint32_t magic;
	uint16_t type, flags;
	uint64_t seq, device, bytes, id, arg;
};
_Static_assert(sizeof(struct message) == 48, "the protocol's messages have 48 bytes");

enum {
	MAGIC = 0x31544245,
	VERSION = 1,
	T_HELLO = 1, T_ATTACH, T_REQUEST, T_RETURN = 6, T_INFO, T_HOLDS, T_PINNED, T_PAUSED, T_ACTIVE, T_FULL,
	T_WELCOME = 65, T_ATTACHED, T_DENIED, T_GRANT, T_INFO_IS,
	T_SHARE = 80, T_PAUSE, T_RESUME, T_RECALL,
	F_MORE = 1,
};

enum pin { PIN_MANAGED = 1, PIN_IPC, PIN_MPS, PIN_EXTERNAL, PIN_UNHOOKED, PIN_MULTICAST, PIN_COUNT };

// A request that waits for its answer.
struct waiter {
	struct waiter *next;
	struct message answer;
	pthread_cond_t cond;
	int done; // 1: answered, -1: the connection is gone
};

// Callbacks of the connection.
struct listener {
	void (*on_connect)(void); // a new connection: report holdings, before any other message
	bool (*on_message)(const struct message *); // an unsolicited message; false: not understood
	void (*gone)(void);
	unsigned (*submitted)(void); // a number that changes when work is submitted
};

struct gate {
	pthread_mutex_t mutex, send;
	pthread_cond_t changed; // connected, disconnected, or fewer requests are open
	pthread_cond_t quiet;   // for the reader to sleep while others read
	const struct listener *listener;
	int fd;
	_Atomic bool started, tried, up; // tried: the first attempt is over
	_Atomic bool paused;             // by the gate
	_Atomic unsigned pins;           // a bit for each reason
	uint64_t generation;             // of the connection
	uint64_t seq;
	int open;
	bool reading;       // a thread reads
	int calling;        // threads that read their answers themselves
	unsigned submitted; // as last reported
	struct waiter *waiters;
};
#define GATE { .mutex = PTHREAD_MUTEX_INITIALIZER, .send = PTHREAD_MUTEX_INITIALIZER, \
	.changed = PTHREAD_COND_INITIALIZER, .quiet = PTHREAD_COND_INITIALIZER, .fd = -1 }
extern struct gate eb_gate HIDDEN;

struct pause {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	_Atomic unsigned turn;
	_Atomic int captures; // streams of this process that are being captured
	// Threads inside a driver call, and the number of calls so far.
	struct { _Alignas(64) _Atomic int n; _Atomic unsigned calls; } busy[SLOTS];
};
#define PAUSE { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER }
extern struct pause eb_pause HIDDEN;

// Memory set aside before the driver is asked for it.
struct reservation {
	struct device *device;
	int64_t bytes, part, granted; // part: from the credit; granted: by the gate, for this reservation
	uint64_t generation;          // of the granting connection
};

// gate.c
void eb_gate_start(const struct listener *);
int eb_gate_call(struct message *, uint64_t wait_ms, uint64_t *generation); // 0: answered in place
bool eb_gate_send(const struct message *, uint64_t generation); // false: that connection is over
uint64_t eb_gate_generation(void);
void eb_pin(enum pin);

// pause.c
void eb_enter(void);
void eb_leave(void);
uint64_t eb_capture(CUstream);
unsigned eb_submitted(void);
void eb_pause_begin(void);
void eb_pause_end(void);

// credit.c
int64_t eb_credit_size(const struct device *);
int64_t eb_credit_take(struct device *, int64_t bytes); // -1: the credit is too small
int eb_credit_ask(struct reservation *, int64_t bytes, uint16_t flags, uint64_t wait_ms);
void eb_commit(struct reservation *, int64_t actual);
void eb_cancel(struct reservation *);
void eb_charge(struct device *, int64_t bytes);
void eb_release(struct device *, int64_t bytes);
void eb_credit_return(struct device *, int64_t keep);
void eb_credit_recall(struct device *);
void eb_credit_share(struct device *, uint64_t bytes);
void eb_credit_held(struct device *, uint64_t handle);

// pools.c
struct pool *eb_pool(CUmemoryPool, struct device *);
CUresult eb_pool_destroy(CUmemoryPool, CUresult (*real)(CUmemoryPool));
int64_t eb_pool_attribute(CUmemoryPool, int which);
int64_t eb_pool_growth(struct pool *);
void eb_pool_settle(struct pool *, struct device *);
int64_t eb_graph_growth(struct device *);
void eb_pools_settle(struct device *);
void eb_pools_trim(struct device *);
void eb_pools_gone(struct device *);

// reserve.c
CUresult eb_reserve(struct device *, int64_t bytes, struct reservation *);
bool eb_retry(struct device *, CUresult, int *refused); // whether to retry
bool eb_room(struct device *, uint64_t *total, uint64_t *used);
bool eb_within(struct device *, int64_t bytes);

// device.c
bool eb_active(void);               // whether a gate exists or may appear
struct device *eb_device(CUdevice); // NULL: unknown to the gate
struct device *eb_device_uuid(const uint8_t *, CUdevice);
struct device *eb_device_here(void);    // of the calling thread's context
struct device *eb_device_of(CUstream);

#endif
