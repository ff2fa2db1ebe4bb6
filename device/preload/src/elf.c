// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Finds a function in a loaded library by reading its symbol table.
//
// The library hooks dlsym, so it cannot ask dlsym for the real one. Linking against it would bind
// the library to glibc from 2.34 on, where it moved from libdl to libc, or to those before.

#include "resolve.h"

#include <elf.h>
#include <link.h>

struct search {
	const char *library, *symbol;
	void *found;
};

// Calls only dl_iterate_phdr of libc: a sanitizer looks libc's functions up through this library
// before any of them works.
static bool begins(const char *s, const char *with)
{
	for (; *with; s++, with++)
		if (*s != *with)
			return false;
	return true;
}

static bool equal(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		;
	return *a == *b;
}

static uint32_t gnu_hash(const char *s)
{
	uint32_t h = 5381;
	for (; *s; s++)
		h = h * 33 + (unsigned char)*s;
	return h;
}

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *s = arg;
	const ElfW(Dyn) *dyn = NULL;
	const ElfW(Sym) *syms = NULL;
	const char *strs = NULL;
	const uint32_t *hash = NULL;
	const ElfW(Half) *versions = NULL;
	(void)size;

	const char *base = info->dlpi_name ? info->dlpi_name : "";
	for (const char *p = base; *p; p++)
		if (*p == '/')
			base = p + 1;
	if (!begins(base, s->library))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dyn = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; dyn && dyn->d_tag != DT_NULL; dyn++) {
		// glibc relocates these addresses in place, but not on every architecture.
		const void *p = (const void *)(dyn->d_un.d_ptr < info->dlpi_addr ?
			info->dlpi_addr + dyn->d_un.d_ptr : dyn->d_un.d_ptr);
		switch (dyn->d_tag) {
		case DT_SYMTAB: syms = p; break;
		case DT_STRTAB: strs = p; break;
		case DT_GNU_HASH: hash = p; break;
		case DT_VERSYM: versions = p; break;
		}
	}
	if (!syms || !strs || !hash)
		return 0;
	uint32_t buckets = hash[0], first = hash[1], bloom = hash[2];
	const uint32_t *bucket = hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = bucket + buckets;
	uint32_t want = gnu_hash(s->symbol);
	if (!buckets)
		return 0;
	for (uint32_t i = bucket[want % buckets]; i >= first; i++) {
		const ElfW(Sym) *sym = &syms[i];
		uint32_t h = chain[i - first];
		// The bit marks a version kept for old programs: taken only if there is no newer one.
		if ((h | 1) == (want | 1) && sym->st_shndx != SHN_UNDEF &&
		    equal(strs + sym->st_name, s->symbol)) {
			s->found = (void *)(info->dlpi_addr + sym->st_value);
			if (!versions || !(versions[i] & 0x8000))
				return 1;
		}
		if (h & 1)
			break;
	}
	return s->found != NULL;
}

void *eb_elf_find(const char *library, const char *symbol)
{
	struct search s = { library, symbol, NULL };
	dl_iterate_phdr(look, &s);
	return s.found;
}
