// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// What the files of the preload library have in common. The way of an allocation:
//
//	hooks_*.c   the exported call, with the driver's signature
//	lease.c     is there room in what the gate has granted? if not:
//	gate.c      ask, over the socket, and perhaps wait
//	pause.c     not while the process is paused
//	resolve.c   the driver's own function
//	table.c     remember what the pointer holds, for the day it is freed

#ifndef EBBTIDE_PRELOAD_H
#define EBBTIDE_PRELOAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda.h"

#define EXPORT __attribute__((visibility("default")))
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

enum {
	MAX_DEVICES = 64,
	MAX_CONTEXTS = 64,
	MAX_POOLS = 64,
	MAX_OPEN = 64, // requests that the gate allows a client to have open
	STRIPES = 64,
	SLOTS = 32, // a power of two
	BUCKETS = 1024, // of the index of hooks; a power of two, well above H_COUNT
};

// A message of the gate's protocol.
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
	T_WELCOME = 65, T_ATTACHED, T_REFUSED, T_GRANT, T_INFO_IS,
	T_LIMIT = 80, T_PAUSE, T_RESUME, T_RECALL,
	F_MORE = 1,
	REASON_DEVICE = 2,
};

// Why the process cannot be parked: what cannot be checkpointed, or (PIN_UNHOOKED) functions of
// the driver that allocate and are not hooked.
enum pin { PIN_MANAGED = 1, PIN_IPC, PIN_MPS, PIN_EXTERNAL, PIN_UNHOOKED, PIN_MULTICAST, PIN_COUNT };

// One GPU. Of what the gate knows that this process holds there (committed), some is in use and
// the rest is the lease: committed = used + avail, always. avail below zero is debt: memory that
// the driver took beyond what was asked for, or that was taken before there was a gate.
struct device {
	uint8_t uuid[16];
	_Atomic uint64_t handle; // what the gate calls it; 0 where the gate does not know it
	_Atomic int64_t used, avail;
	_Atomic int64_t wanted;  // of used, what is asked for and not granted yet
	int64_t committed;       // under mutex, with the message that tells the gate
	pthread_mutex_t mutex;
	_Atomic uint64_t limit;  // of the container, as last heard; 0: not heard
	_Atomic uint64_t scarce; // until then (ms) no more than what is needed is asked for
	_Atomic bool graphs;     // a graph that allocates has been seen
	_Atomic int64_t graph_bytes; // what the driver keeps for graphs
	CUdevice ordinal;        // -1: known from NVML only
};

struct context {
	CUcontext ctx;
	struct device *device;
	int64_t bytes; // its own memory: code, stacks, heaps
	bool primary;
};

// What a pool keeps is what counts, not what is allocated from it: memory that is freed into a
// pool stays on the card.
struct pool {
	CUmemoryPool pool;
	struct device *device;
	int64_t charged;
};

// What the table remembers of a pointer or a handle.
enum kind {
	K_NONE,
	K_MEMORY, // a device pointer
	K_HANDLE, // of cuMemCreate; refs counts handles and mappings
	K_MAPPING, // an address at which such a handle is mapped; owner is the handle
	K_ARRAY,
	K_GRAPH, // size is what its nodes allocate
	K_EXEC,
	K_CAPTURE, // the number of a capture; size is what has been allocated in it
};

struct entry {
	uint64_t key, size, owner;
	struct device *device;
	uint32_t refs;
	uint8_t kind;
};

struct stripe {
	pthread_mutex_t mutex;
	struct entry *at;
	size_t cap, live, filled; // filled: live and deleted
};

// A request that waits for its answer.
struct waiter {
	struct waiter *next;
	struct message answer;
	pthread_cond_t cond;
	int done; // 1 answered, -1 the connection is gone
};

enum mode {
	OFF,   // no gate is named: every call goes straight through
	LOOSE, // it has never been reached: calls go through, and what is held is counted
	BOUND, // it has been reached once: nothing beyond what it has granted
};

// All state there is. An interposer has no other place for it: its entry points are C functions
// with the driver's signatures. The first two fields are known to the assembler in resolve.c.
struct state {
	void *(*real_dlsym)(void *, const char *);
	void *(*real_dlvsym)(void *, const char *, const char *);

	_Atomic int ready; // the environment is read, locks are made
	_Atomic int mode;
	_Atomic unsigned pins; // why the process cannot be parked, a bit for each reason
	const char *path;
	uint64_t wait_ms, lease, context;
	int log;

	struct {
		pthread_mutex_t mutex;
		_Atomic(void *) real[H_COUNT];
		_Atomic int cuda, nvml; // 1: looked up
		_Atomic bool indexed;   // by_name is filled
		int16_t by_name[BUCKETS], by_address[BUCKETS];
		void *cuda_handle, *nvml_handle;
	} resolve;

	struct {
#define CALL(R, n, P) R(*n) P;
#include "calls.def"
#undef CALL
	} cu;

	struct stripe table[STRIPES];

	struct {
		pthread_mutex_t mutex; // of the lists; never held over a wait
		struct device device[MAX_DEVICES];
		_Atomic int devices;
		_Atomic(struct device *) by_ordinal[MAX_DEVICES];
		struct context context[MAX_CONTEXTS];
		_Atomic int contexts;
		struct pool pool[MAX_POOLS];
		_Atomic int pools;
		_Atomic unsigned epoch; // of the contexts: a thread's memory of its own ends with it
	} world;

	struct {
		pthread_mutex_t mutex, send;
		pthread_cond_t changed; // connected, gone, or a place is free
		pthread_cond_t quiet;   // for the reader's sleep while others read
		int fd;
		_Atomic bool started, tried, up; // tried: the first attempt is over
		uint64_t generation;     // of the connection
		uint64_t seq;
		int open;
		bool reading; // somebody reads, and nobody else may
		int calling;  // threads that would rather read their answers themselves
		unsigned submitted; // as far as the gate has been told
		struct waiter *waiters;
	} gate;

	struct {
		pthread_mutex_t mutex;
		pthread_cond_t changed;
		_Atomic bool on;
		_Atomic unsigned turn;
		_Atomic int captures; // streams of this process that are capturing
		// Threads inside a call of the driver, and how many calls there have been.
		struct { _Alignas(64) _Atomic int n; _Atomic unsigned calls; } busy[SLOTS];
	} pause;
};

extern struct state eb __attribute__((visibility("hidden")));

// What a thread keeps: how deep it is in our hooks, and the device of its context.
struct thread {
	int depth, slot;
	bool greeting; // this is the thread that connects, and the gate is being told what is held
	unsigned epoch;
	CUcontext ctx;
	struct device *device;
};
extern __thread struct thread eb_thread __attribute__((visibility("hidden"), tls_model("initial-exec")));

// state.c
void eb_init(void);
void eb_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t eb_now(void); // milliseconds, monotonic
#define LOG(level, ...) do { if (UNLIKELY(eb.log >= (level))) eb_log(level, __VA_ARGS__); } while (0)

// elf.c
void *eb_elf_find(const char *library, const char *symbol);

// resolve.c
void *eb_real(int hook);
void *eb_map(void *address); // the hook for a function of the driver, or the address itself
bool eb_resolve_cuda(void);
bool eb_all_hooked(void);

// The driver's own function of that name; what is not there is answered as the driver would.
#define REAL(n) ((__typeof__(&n))eb_real(H_##n))
#define NEED(n, real) \
	__typeof__(&n) real = REAL(n); \
	if (UNLIKELY(!real)) return CUDA_ERROR_NOT_FOUND

// The stream that a call means by s: in the functions with _ptsz, 0 is the thread's own stream.
#define ANY(s) (s)
#define OWN(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

// table.c
void eb_table_put(enum kind, uint64_t key, const struct entry *);
bool eb_table_get(enum kind, uint64_t key, struct entry *);
bool eb_table_take(enum kind, uint64_t key, struct entry *);
// Adds to the references (or, of captures and graphs, to the size) of an entry; what is left
// without a reference is taken out. False: there is no such entry.
bool eb_table_refer(enum kind, uint64_t key, int refs, uint64_t size, struct entry *after);
void eb_table_sweep(uint64_t owner, void (*each)(const struct entry *));

// world.c: devices and contexts
bool eb_active(void);                   // is there a gate to speak to, or one that may come?
struct device *eb_device(CUdevice);     // NULL: not of the gate's
struct device *eb_device_uuid(const uint8_t *, CUdevice);
struct device *eb_device_here(void);    // of the calling thread's context
struct device *eb_device_of(CUstream);

// lease.c
struct claim {
	struct device *device;
	int64_t bytes, part, granted;
	uint64_t generation; // of the connection over which it was granted
};
CUresult eb_claim(struct device *, int64_t bytes, struct claim *);
void eb_keep(struct claim *, int64_t actual);
void eb_drop(struct claim *);
void eb_give(struct device *, int64_t bytes);
bool eb_again(struct device *, CUresult, int *refused); // is what the driver refused to be asked for again?

// TAKE makes a call of the driver that takes memory, under a claim for it. What the driver
// refuses although it was granted is asked for again: the gate looks at the card, and makes room.
#define TAKE(device, bytes, claim, result, call) \
	for (int refused = 0;;) { \
		if ((result = eb_claim(device, bytes, claim)) != CUDA_SUCCESS) \
			return result; \
		eb_enter(); \
		result = call; \
		eb_leave(); \
		if (result == CUDA_SUCCESS) \
			break; \
		eb_drop(claim); \
		if (!eb_again(device, result, &refused)) \
			return result; \
	}
void eb_lease_return(struct device *, int64_t keep);
void eb_lease_recall(struct device *); // somebody else waits
void eb_lease_held(struct device *, uint64_t handle); // HOLDS, before anything is asked for there
void eb_pin(enum pin);
void eb_pins_tell(void);

// gate.c
void eb_gate_start(void);
int eb_gate_call(struct message *, uint64_t wait_ms, uint64_t *generation); // 0: answered in place
bool eb_gate_send(const struct message *, uint64_t generation); // false: not that connection any more
uint64_t eb_gate_generation(void);
int eb_spawn(void *(*)(void *), void *);

// pause.c
void eb_enter(void);
void eb_leave(void);
uint64_t eb_capture(CUstream);
unsigned eb_submitted(void); // changes when something is submitted
void eb_pause(void);
void eb_resume(void);

// hooks_pool.c, hooks_graph.c
void eb_pools_settle(struct device *);
void eb_pools_trim(struct device *);
void eb_pools_gone(struct device *);
void eb_graph_note(uint64_t capture, CUstream, size_t);
void eb_graph_settle(struct device *, struct claim *);

// info.c
bool eb_info(struct device *, uint64_t *total, uint64_t *used);
bool eb_within(struct device *, int64_t bytes);
int64_t eb_info_driver(struct device *, bool own); // NVML: bytes of the process or of the card, -1 unknown

#endif
