// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Finds the driver's functions, and gives programs the hooks instead: by the exported names (the
// library is loaded first), dlsym and dlvsym. cuGetProcAddress is in hooks_proc.c.

#include "resolve.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

// dlsym's answer depends on its caller: RTLD_NEXT means after the caller's library. A wrapper in
// C would be the caller. So these ask eb_dlsym, keep the arguments, and if it returns NULL jump
// to the real function, which then returns to the program.
#if defined(__x86_64__)
__asm__(
	".text\n"
	".globl dlsym\n.type dlsym, @function\n"
	"dlsym:\n"
	"	.cfi_startproc\n"
	"	push %rdi\n	.cfi_adjust_cfa_offset 8\n"
	"	push %rsi\n	.cfi_adjust_cfa_offset 8\n"
	"	sub $8, %rsp\n	.cfi_adjust_cfa_offset 8\n"
	"	call eb_dlsym\n"
	"	add $8, %rsp\n	.cfi_adjust_cfa_offset -8\n"
	"	pop %rsi\n	.cfi_adjust_cfa_offset -8\n"
	"	pop %rdi\n	.cfi_adjust_cfa_offset -8\n"
	"	test %rax, %rax\n"
	"	jne 1f\n"
	"	jmp *eb(%rip)\n"
	"1:	ret\n"
	"	.cfi_endproc\n"
	".size dlsym, . - dlsym\n"
	".globl dlvsym\n.type dlvsym, @function\n"
	"dlvsym:\n"
	"	.cfi_startproc\n"
	"	push %rdi\n	.cfi_adjust_cfa_offset 8\n"
	"	push %rsi\n	.cfi_adjust_cfa_offset 8\n"
	"	push %rdx\n	.cfi_adjust_cfa_offset 8\n"
	"	call eb_dlsym\n"
	"	pop %rdx\n	.cfi_adjust_cfa_offset -8\n"
	"	pop %rsi\n	.cfi_adjust_cfa_offset -8\n"
	"	pop %rdi\n	.cfi_adjust_cfa_offset -8\n"
	"	test %rax, %rax\n"
	"	jne 1f\n"
	"	jmp *eb+8(%rip)\n"
	"1:	ret\n"
	"	.cfi_endproc\n"
	".size dlvsym, . - dlvsym\n"
	".section .note.GNU-stack,\"\",@progbits\n"
	".text\n");
#elif defined(__aarch64__)
#define TRAMPOLINE(name, offset) \
	".globl " name "\n.type " name ", %function\n" \
	name ":\n" \
	"	stp x29, x30, [sp, -48]!\n" \
	"	stp x0, x1, [sp, 16]\n" \
	"	str x2, [sp, 32]\n" \
	"	bl eb_dlsym\n" \
	"	mov x9, x0\n" \
	"	ldp x0, x1, [sp, 16]\n" \
	"	ldr x2, [sp, 32]\n" \
	"	ldp x29, x30, [sp], 48\n" \
	"	cbz x9, 1f\n" \
	"	mov x0, x9\n" \
	"	ret\n" \
	"1:	adrp x16, eb\n" \
	"	add x16, x16, :lo12:eb\n" \
	"	ldr x16, [x16, " offset "]\n" \
	"	br x16\n" \
	".size " name ", . - " name "\n"
__asm__(".text\n" TRAMPOLINE("dlsym", "0") TRAMPOLINE("dlvsym", "8")
	".section .note.GNU-stack,\"\",%progbits\n.text\n");
#else
#error "the jump to the real dlsym is not written for this architecture"
#endif
_Static_assert(offsetof(struct state, real_dlsym) == 0, "known to the assembler above");
_Static_assert(offsetof(struct state, real_dlvsym) == 8, "known to the assembler above");

struct name {
	const char *name;
	void *hook;
	bool nvml;
};

#define CUDA(n) extern EXPORT void n(void);
#define NVML(n) extern EXPORT void n(void);
#define SUBMIT(n, P, A) extern EXPORT void n(void);
#include "hooks.def"
#include "submit.def"
#undef CUDA
#undef NVML
#undef SUBMIT

static const struct name names[H_COUNT] = {
#define CUDA(n) { #n, (void *)n, false },
#define NVML(n) { #n, (void *)n, true },
#define SUBMIT(n, P, A) { #n, (void *)n, false },
#include "hooks.def"
#include "submit.def"
};

static uint32_t text_hash(const char *s)
{
	uint32_t h = 2166136261u;
	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 16777619u;
	return h;
}

static uint32_t address_hash(const void *p)
{
	return (uint32_t)(((uintptr_t)p >> 3) * 0x9e3779b97f4a7c15u >> 40);
}

static void *plain(void *handle, const char *name)
{
	return eb.real_dlsym(handle, name);
}

// Finds what every look-up needs. It may run before anything else, and in two threads at once:
// both find the same.
static void early(void)
{
	// In libc since glibc 2.34, in libdl before.
	void *s = eb_elf_find("libc.so", "dlsym"), *v = eb_elf_find("libc.so", "dlvsym");
	if (!s)
		s = eb_elf_find("libdl.so", "dlsym");
	if (!v)
		v = eb_elf_find("libdl.so", "dlvsym");
	// A program with another C library cannot load the driver, and must run all the same. musl
	// has no dlvsym.
	if (!s)
		s = eb_elf_find("ld-musl", "dlsym");
	if (!v)
		v = s;
	if (!s) {
		static const char msg[] = "ebbtide-cuda: no dlsym found in libc or libdl\n";
		if (write(STDERR_FILENO, msg, sizeof msg - 1) >= 0)
			_exit(127); // nothing can be loaded without it
	}
	eb.real_dlvsym = (__typeof__(eb.real_dlvsym))v;
	__atomic_store_n(&eb.real_dlsym, (__typeof__(eb.real_dlsym))s, __ATOMIC_RELEASE);
}

static void bootstrap(void)
{
	eb_init();
	if (!__atomic_load_n(&eb.real_dlsym, __ATOMIC_ACQUIRE))
		early();
	if (atomic_load_explicit(&eb.resolve.indexed, memory_order_acquire))
		return;
	pthread_mutex_lock(&eb.resolve.mutex);
	if (!eb.resolve.indexed)
		for (int i = 0; i < H_COUNT; i++) {
			uint32_t at = text_hash(names[i].name) % BUCKETS;
			while (eb.resolve.by_name[at])
				at = (at + 1) % BUCKETS;
			eb.resolve.by_name[at] = (int16_t)(i + 1);
		}
	atomic_store_explicit(&eb.resolve.indexed, true, memory_order_release);
	pthread_mutex_unlock(&eb.resolve.mutex);
}

__attribute__((constructor)) static void start(void)
{
	bootstrap();
}

static int by_name(const char *name)
{
	uint32_t at = text_hash(name) % BUCKETS;
	for (; eb.resolve.by_name[at]; at = (at + 1) % BUCKETS) {
		int i = eb.resolve.by_name[at] - 1;
		if (strcmp(names[i].name, name) == 0)
			return i;
	}
	return -1;
}

// Resolves all hooked functions of a library at once, to recognise any address that
// cuGetProcAddress returns.
static bool look(bool nvml, const char *soname)
{
	_Atomic int *done = nvml ? &eb.resolve.nvml : &eb.resolve.cuda;
	if (atomic_load_explicit(done, memory_order_acquire) == 1)
		return true;
	void *(*open)(const char *, int) = NULL;
	*(void **)&open = eb_elf_find("libc.so", "dlopen");
	if (!open)
		*(void **)&open = eb_elf_find("libdl.so", "dlopen");
	if (!open)
		return false;
	// Mostly the program has loaded it; one that links it weakly may not have.
	void *handle = open(soname, RTLD_LAZY | RTLD_NOLOAD);
	if (!handle)
		handle = open(soname, RTLD_LAZY);
	if (!handle)
		return false; // it may be loaded later

	pthread_mutex_lock(&eb.resolve.mutex);
	if (*done != 1) {
		for (int i = 0; i < H_COUNT; i++) {
			void *real;
			if (names[i].nvml != nvml || !(real = plain(handle, names[i].name)) || real == names[i].hook)
				continue;
			eb.resolve.real[i] = real;
			uint32_t at = address_hash(real) % BUCKETS;
			while (eb.resolve.by_address[at])
				at = (at + 1) % BUCKETS;
			eb.resolve.by_address[at] = (int16_t)(i + 1);
		}
		if (nvml) {
			eb.resolve.nvml_handle = handle;
		} else {
#define CALL(R, n, P) *(void **)&eb.cu.n = plain(handle, #n);
#include "calls.def"
#undef CALL
		}
		atomic_store_explicit(done, 1, memory_order_release);
		LOG(2, "%s is hooked", soname);
	}
	pthread_mutex_unlock(&eb.resolve.mutex);
	return true;
}

bool eb_resolve_cuda(void)
{
	bootstrap();
	return look(false, "libcuda.so.1");
}

void *eb_real(int hook)
{
	void *real = atomic_load_explicit(&eb.resolve.real[hook], memory_order_acquire);
	if (UNLIKELY(!real)) {
		bootstrap();
		if (look(names[hook].nvml, names[hook].nvml ? "libnvidia-ml.so.1" : "libcuda.so.1"))
			real = eb.resolve.real[hook];
	}
	return real;
}

void *eb_map(void *address)
{
	if (!address || eb.mode == OFF || !look(false, "libcuda.so.1"))
		return address;
	uint32_t at = address_hash(address) % BUCKETS;
	for (; eb.resolve.by_address[at]; at = (at + 1) % BUCKETS) {
		int i = eb.resolve.by_address[at] - 1;
		if (eb.resolve.real[i] == address)
			return names[i].hook;
	}
	return address;
}

// Returns the hook for a name, or NULL for one that is not hooked, which the real dlsym then
// answers.
__attribute__((visibility("hidden"), used)) void *eb_dlsym(void *handle, const char *name)
{
	if (UNLIKELY(!__atomic_load_n(&eb.real_dlsym, __ATOMIC_ACQUIRE)))
		early();
	// Cheap for the thousands of other names that programs look up.
	if (!name || !((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')))
		return NULL;
	bootstrap();
	if (eb.mode == OFF)
		return NULL;
	int i = by_name(name);
	if (i < 0)
		return NULL;
	// The handle must lead to the driver's function: another library may export the same name.
	void *found = handle == RTLD_NEXT || handle == RTLD_DEFAULT ? eb_real(i) : plain(handle, name);
	if (!found || (found != names[i].hook && found != eb_real(i)))
		return NULL;
	return names[i].hook;
}
