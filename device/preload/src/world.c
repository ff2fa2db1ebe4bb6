// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// The lists of devices and contexts.

#include "account.h"

#include <string.h>

struct world eb_world = WORLD;
__thread struct thread eb_thread __attribute__((tls_model("initial-exec")));

// Returns the device, and adds it if it is fresh. NULL: there are too many.
struct device *eb_world_device(const uint8_t *uuid, CUdevice ordinal, bool *fresh)
{
	struct device *d = NULL;
	pthread_mutex_lock(&eb_world.mutex);
	int n = eb_world.devices;
	for (int i = 0; i < n && !d; i++)
		if (memcmp(eb_world.device[i].uuid, uuid, 16) == 0)
			d = &eb_world.device[i];
	*fresh = !d && n < MAX_DEVICES;
	if (*fresh) {
		d = &eb_world.device[n];
		memcpy(d->uuid, uuid, 16);
		d->ordinal = -1;
		atomic_store(&eb_world.devices, n + 1);
	}
	if (d && ordinal >= 0)
		d->ordinal = ordinal;
	pthread_mutex_unlock(&eb_world.mutex);
	return d;
}

// The mutex is held.
static struct context *find(CUcontext ctx, bool dying)
{
	for (int i = 0; i < eb_world.contexts; i++)
		if (eb_world.context[i].ctx == ctx && eb_world.context[i].dying == dying)
			return &eb_world.context[i];
	return NULL;
}

struct device *eb_world_of(CUcontext ctx)
{
	pthread_mutex_lock(&eb_world.mutex);
	struct context *c = find(ctx, false);
	struct device *d = c ? c->device : NULL;
	pthread_mutex_unlock(&eb_world.mutex);
	return d;
}

// Keeps a context from being destroyed. False: it is gone, or about to be.
bool eb_world_hold(CUcontext ctx)
{
	pthread_mutex_lock(&eb_world.mutex);
	struct context *c = find(ctx, false);
	if (c)
		c->held++;
	pthread_mutex_unlock(&eb_world.mutex);
	return c;
}

void eb_world_drop(CUcontext ctx)
{
	pthread_mutex_lock(&eb_world.mutex);
	struct context *c = find(ctx, false);
	if (!c)
		c = find(ctx, true);
	if (c)
		c->held--;
	pthread_cond_broadcast(&eb_world.dropped);
	pthread_mutex_unlock(&eb_world.mutex);
}

// A context is about to be destroyed, once nothing holds it, or has not been after all.
void eb_world_dying(CUcontext ctx, bool is)
{
	pthread_mutex_lock(&eb_world.mutex);
	struct context *c = find(ctx, !is);
	if (c)
		c->dying = is;
	while (is && c && (c = find(ctx, true)) && c->held)
		pthread_cond_wait(&eb_world.dropped, &eb_world.mutex);
	pthread_mutex_unlock(&eb_world.mutex);
}

bool eb_world_primary(struct device *d)
{
	bool has = false;
	pthread_mutex_lock(&eb_world.mutex);
	for (int i = 0; i < eb_world.contexts; i++)
		has |= eb_world.context[i].primary && eb_world.context[i].device == d;
	pthread_mutex_unlock(&eb_world.mutex);
	return has;
}

// Adds a context; false: another thread was first. Without room for it, it counts as empty.
bool eb_world_add(struct context *c)
{
	pthread_mutex_lock(&eb_world.mutex);
	bool known = find(c->ctx, false);
	if (!known && eb_world.contexts < MAX_CONTEXTS)
		eb_world.context[eb_world.contexts++] = *c;
	else if (!known)
		c->bytes = 0;
	pthread_mutex_unlock(&eb_world.mutex);
	return !known;
}

// Removes a dying context, or the primary one of a device, and tells whether its device has others.
// False: there is no such context.
bool eb_world_remove(CUcontext ctx, struct device *primary, struct context *was, bool *others)
{
	bool found = false;
	*others = false;
	pthread_mutex_lock(&eb_world.mutex);
	for (int i = 0; i < eb_world.contexts && !found; i++) {
		struct context *c = &eb_world.context[i];
		if (primary ? c->primary && c->device == primary : c->ctx == ctx && c->dying) {
			*was = *c;
			*c = eb_world.context[--eb_world.contexts];
			found = true;
		}
	}
	for (int i = 0; i < eb_world.contexts && found; i++)
		*others |= eb_world.context[i].device == was->device;
	eb_world.epoch++;
	pthread_mutex_unlock(&eb_world.mutex);
	return found;
}
