// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package libcuda loads libcuda.so.1 at run time, and calls its checkpoint functions. Helper does
// so for other processes.
package libcuda

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// As in cuda.h, from version 12.8 on; unused arguments are NULL.
typedef struct {
	unsigned int timeoutMs;
	unsigned int reserved0;
	uint64_t reserved1[7];
} lock_args;

typedef struct {
	int (*init)(unsigned int);
	int (*version)(int *);
	int (*state)(int, int *);
	int (*lock)(int, lock_args *);
	int (*checkpoint)(int, void *);
	int (*restore)(int, void *);
	int (*unlock)(int, void *);
} functions;

// Returns what is missing: the loader's message, or the name of a function.
static const char *load(const char *path, functions *f)
{
	static const char *names[] = {
		"cuInit", "cuDriverGetVersion", "cuCheckpointProcessGetState", "cuCheckpointProcessLock",
		"cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock",
	};
	void **at[] = {
		(void **)&f->init, (void **)&f->version, (void **)&f->state, (void **)&f->lock,
		(void **)&f->checkpoint, (void **)&f->restore, (void **)&f->unlock,
	};
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return dlerror();
	for (unsigned i = 0; i < sizeof at / sizeof *at; i++)
		if (!(*at[i] = dlsym(lib, names[i])))
			return names[i];
	return NULL;
}

static int call_init(functions *f) { return f->init(0); }
static int call_version(functions *f, int *v) { return f->version(v); }
static int call_state(functions *f, int pid, int *state) { return f->state(pid, state); }
static int call_lock(functions *f, int pid, unsigned ms) { lock_args a = { .timeoutMs = ms }; return f->lock(pid, &a); }
static int call_checkpoint(functions *f, int pid) { return f->checkpoint(pid, NULL); }
static int call_restore(functions *f, int pid) { return f->restore(pid, NULL); }
static int call_unlock(functions *f, int pid) { return f->unlock(pid, NULL); }
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
)

const soname = "libcuda.so.1"

// Library is the driver's library, loaded and initialised until the program ends.
type Library struct {
	functions *C.functions // C memory, because Go's may move
	cuda      int
}

var _ driver.Calls = (*Library)(nil)

// Open loads the library at a path; "" is the system's. The error says what is missing.
func Open(path string) (*Library, error) {
	if path == "" {
		path = soname
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	l := &Library{functions: (*C.functions)(C.calloc(1, C.sizeof_functions))}
	if missing := C.load(name, l.functions); missing != nil {
		what := C.GoString(missing)
		if strings.HasPrefix(what, "cu") {
			return nil, fmt.Errorf("%s has no function %s: the driver is too old", path, what)
		}
		return nil, fmt.Errorf("the driver's library cannot be loaded: %s", what)
	}
	if r := driver.Result(C.call_init(l.functions)); r != driver.Success {
		return nil, fmt.Errorf("initialising CUDA: %w", r)
	}
	var v C.int
	if r := driver.Result(C.call_version(l.functions, &v)); r != driver.Success {
		return nil, fmt.Errorf("reading CUDA's version: %w", r)
	}
	l.cuda = int(v)
	return l, nil
}

// CUDA returns the driver's CUDA version, 1000 · major + 10 · minor.
func (l *Library) CUDA() int { return l.cuda }

// State implements driver.Calls.
func (l *Library) State(pid int) (driver.State, driver.Result) {
	s := C.int(-1)
	r := C.call_state(l.functions, C.int(pid), &s)
	return driver.State(s), driver.Result(r)
}

// Lock implements driver.Calls.
func (l *Library) Lock(pid int, timeoutMS uint32) driver.Result {
	return driver.Result(C.call_lock(l.functions, C.int(pid), C.uint(timeoutMS)))
}

// Checkpoint implements driver.Calls.
func (l *Library) Checkpoint(pid int) driver.Result {
	return driver.Result(C.call_checkpoint(l.functions, C.int(pid)))
}

// Restore implements driver.Calls.
func (l *Library) Restore(pid int) driver.Result {
	return driver.Result(C.call_restore(l.functions, C.int(pid)))
}

// Unlock implements driver.Calls.
func (l *Library) Unlock(pid int) driver.Result {
	return driver.Result(C.call_unlock(l.functions, C.int(pid)))
}
