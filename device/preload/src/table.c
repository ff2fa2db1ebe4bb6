// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// A hash table from pointers and handles to what they hold, in stripes with a lock each.

#include "account.h"

#include <stdlib.h>
#include <string.h>

enum { DELETED = 0xff };

struct stripe eb_table[STRIPES] = { [0 ... STRIPES - 1] = { .mutex = PTHREAD_MUTEX_INITIALIZER } };

static uint64_t mix(uint64_t key, enum kind kind)
{
	uint64_t h = key + (uint64_t)kind * 0x9e3779b97f4a7c15u;
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	return h ^ h >> 31;
}

static struct entry *find(struct stripe *s, uint64_t hash, enum kind kind, uint64_t key)
{
	if (!s->cap)
		return NULL;
	for (size_t i = hash / STRIPES & (s->cap - 1);; i = (i + 1) & (s->cap - 1)) {
		struct entry *e = &s->at[i];
		if (e->kind == K_NONE)
			return NULL;
		if (e->kind == kind && e->key == key)
			return e;
	}
}

static struct entry *place(struct stripe *s, uint64_t hash)
{
	size_t i = hash / STRIPES & (s->cap - 1);
	while (s->at[i].kind != K_NONE && s->at[i].kind != DELETED)
		i = (i + 1) & (s->cap - 1);
	return &s->at[i];
}

static bool grow(struct stripe *s)
{
	size_t cap = s->live * 2 + 16, n = 16;
	while (n < cap + cap / 2)
		n *= 2;
	struct stripe bigger = { .at = calloc(n, sizeof *bigger.at), .cap = n };
	if (!bigger.at)
		return false;
	for (size_t i = 0; i < s->cap; i++) {
		struct entry *e = &s->at[i];
		if (e->kind != K_NONE && e->kind != DELETED)
			*place(&bigger, mix(e->key, e->kind)) = *e;
	}
	free(s->at);
	s->at = bigger.at;
	s->cap = n;
	s->filled = s->live;
	return true;
}

void eb_table_put(enum kind kind, uint64_t key, const struct entry *value)
{
	uint64_t hash = mix(key, kind);
	struct stripe *s = &eb_table[hash % STRIPES];
	pthread_mutex_lock(&s->mutex);
	struct entry *e = find(s, hash, kind, key);
	// A full table that cannot grow loses the entry. Its bytes then count until the process ends,
	// which is safe.
	if (!e && ((s->filled + 1) * 4 <= s->cap * 3 || grow(s))) {
		e = place(s, hash);
		s->live++;
		s->filled += e->kind == K_NONE;
	}
	if (e) {
		*e = *value;
		e->kind = (uint8_t)kind;
		e->key = key;
	}
	pthread_mutex_unlock(&s->mutex);
}

bool eb_table_get(enum kind kind, uint64_t key, struct entry *out)
{
	uint64_t hash = mix(key, kind);
	struct stripe *s = &eb_table[hash % STRIPES];
	pthread_mutex_lock(&s->mutex);
	struct entry *e = find(s, hash, kind, key);
	if (e)
		*out = *e;
	pthread_mutex_unlock(&s->mutex);
	return e;
}

bool eb_table_take(enum kind kind, uint64_t key, struct entry *out)
{
	uint64_t hash = mix(key, kind);
	struct stripe *s = &eb_table[hash % STRIPES];
	pthread_mutex_lock(&s->mutex);
	struct entry *e = find(s, hash, kind, key);
	if (e) {
		*out = *e;
		e->kind = DELETED;
		s->live--;
	}
	pthread_mutex_unlock(&s->mutex);
	return e;
}

bool eb_table_refer(enum kind kind, uint64_t key, int refs, uint64_t size, struct entry *after)
{
	uint64_t hash = mix(key, kind);
	struct stripe *s = &eb_table[hash % STRIPES];
	pthread_mutex_lock(&s->mutex);
	struct entry *e = find(s, hash, kind, key);
	if (e) {
		e->refs = (uint32_t)((int)e->refs + refs);
		e->size += size;
		*after = *e;
		if (!e->refs) {
			e->kind = DELETED;
			s->live--;
		}
	}
	pthread_mutex_unlock(&s->mutex);
	return e;
}

// A context's memory goes with it.
void eb_table_sweep(uint64_t owner, void (*each)(const struct entry *))
{
	for (int i = 0; i < STRIPES; i++) {
		struct stripe *s = &eb_table[i];
		for (size_t from = 0;;) {
			// One at a time: each may need the gate.
			struct entry out = { .kind = K_NONE };
			pthread_mutex_lock(&s->mutex);
			for (; from < s->cap; from++) {
				struct entry *e = &s->at[from];
				if ((e->kind == K_MEMORY || e->kind == K_ARRAY) && e->owner == owner) {
					out = *e;
					e->kind = DELETED;
					s->live--;
					break;
				}
			}
			pthread_mutex_unlock(&s->mutex);
			if (out.kind == K_NONE)
				break;
			each(&out);
		}
	}
}
