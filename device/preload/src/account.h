// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The second layer: what the process holds, and on which device.

#ifndef EBBTIDE_ACCOUNT_H
#define EBBTIDE_ACCOUNT_H

#include "resolve.h"

enum { MAX_DEVICES = 64, MAX_CONTEXTS = 64, MAX_POOLS = 64, STRIPES = 64 };

// One GPU. Of what the gate has granted this process, some is in use and the rest is the credit:
// granted = used + avail, always. avail below zero is debt: memory that the driver took beyond
// what was requested, or before there was a gate.
struct device {
	uint8_t uuid[16];
	_Atomic uint64_t handle; // the gate's handle; 0: unknown to the gate
	_Atomic int64_t used, avail;
	_Atomic int64_t wanted; // of used, requested and not granted yet
	int64_t granted;        // under mutex, with the message to the gate
	pthread_mutex_t mutex;
	_Atomic uint64_t share;      // the container's, in bytes; 0: not received
	_Atomic uint64_t scarce;     // until then (ms) only what is needed is requested
	_Atomic bool graphs;         // a graph that allocates was seen
	_Atomic int64_t graph_bytes; // what the driver keeps for graphs
	CUdevice ordinal;            // -1: known from NVML only
};

struct context {
	CUcontext ctx;
	struct device *device;
	int64_t bytes; // code, stacks, heaps
	bool primary;
	bool dying; // it is being destroyed: the driver may give its handle to another one
	int held;   // by pauses that synchronise it: it is not destroyed meanwhile
};

// A pool holds what it has reserved, not what is allocated from it.
struct pool {
	CUmemoryPool pool;
	struct device *device;
	int64_t charged;
};

struct world {
	pthread_mutex_t mutex; // of the lists; never held over a call
	pthread_cond_t dropped; // a context is not held any longer
	struct device device[MAX_DEVICES];
	_Atomic int devices;
	_Atomic(struct device *) by_ordinal[MAX_DEVICES];
	struct context context[MAX_CONTEXTS];
	_Atomic int contexts;
	// Of the pools, and held over the driver's calls about them: none is destroyed meanwhile.
	pthread_mutex_t pooled;
	struct pool pool[MAX_POOLS];
	_Atomic int pools;
	_Atomic unsigned epoch; // changes when a context is destroyed: threads look theirs up again
};
#define WORLD { .mutex = PTHREAD_MUTEX_INITIALIZER, .dropped = PTHREAD_COND_INITIALIZER, .pooled = PTHREAD_MUTEX_INITIALIZER, \
	.device = { [0 ... MAX_DEVICES - 1] = { .mutex = PTHREAD_MUTEX_INITIALIZER } } }
extern struct world eb_world HIDDEN;

struct thread {
	int depth, slot;
	bool connecting; // this thread connects, and reports what the process holds
	unsigned epoch;
	CUcontext ctx;
	struct device *device;
	int64_t refused; // bytes that PyTorch's allocator was refused without waiting, just before
};
extern __thread struct thread eb_thread HIDDEN __attribute__((tls_model("initial-exec")));

// What a pointer or handle in the table is.
enum kind {
	K_NONE,
	K_MEMORY,  // a device pointer
	K_HANDLE,  // of cuMemCreate; refs counts handles and mappings
	K_MAPPING, // an address at which such a handle is mapped; owner is the handle
	K_ARRAY,
	K_GRAPH,   // size is what its nodes allocate
	K_EXEC,
	K_CAPTURE, // a capture's number; size is what was allocated in it
	K_ORIGIN,  // a stream whose capture has begun
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
extern struct stripe eb_table[STRIPES] HIDDEN;

// table.c
void eb_table_put(enum kind, uint64_t key, const struct entry *);
bool eb_table_get(enum kind, uint64_t key, struct entry *);
bool eb_table_take(enum kind, uint64_t key, struct entry *);
// Adds to the references (of captures and graphs, to the size) of an entry, and removes it
// without references. False: there is no such entry.
bool eb_table_refer(enum kind, uint64_t key, int refs, uint64_t size, struct entry *after);
void eb_table_sweep(uint64_t owner, void (*each)(const struct entry *));

// world.c
struct device *eb_world_device(const uint8_t *uuid, CUdevice ordinal, bool *fresh);
struct device *eb_world_of(CUcontext);
bool eb_world_primary(struct device *); // has it a primary context?
bool eb_world_add(struct context *);
bool eb_world_hold(CUcontext);
void eb_world_drop(CUcontext);
void eb_world_dying(CUcontext, bool is);
bool eb_world_remove(CUcontext, struct device *primary, struct context *was, bool *others);

#endif
