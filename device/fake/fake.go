// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package fake builds stand-ins for an NVIDIA card, for tests: libcuda.so.1 and libnvidia-ml.so.1
// over a file that all processes share, a workload like a training job, and the preload library.
//
//	EBBTIDE_FAKE_GPU         the file; without it there is no card
//	EBBTIDE_FAKE_MEMORY      bytes of each card (1 GiB)
//	EBBTIDE_FAKE_GPUS        cards (1)
//	EBBTIDE_FAKE_RESERVED    bytes that the driver keeps beyond that; NVML counts them, CUDA does not
//	EBBTIDE_FAKE_CONTEXT     bytes of a context (8 MiB)
//	EBBTIDE_FAKE_BLOCK       bytes to which allocations larger than half of it are rounded up (512)
//	EBBTIDE_FAKE_LAZY        bytes that a process's first launch takes, like a lazily loaded module
//	EBBTIDE_FAKE_LATENCY_US  of an allocation
//	EBBTIDE_FAKE_KERNEL_US   of a launch
//	EBBTIDE_FAKE_COPY_US     of parking or restoring a MiB
//	EBBTIDE_FAKE_SERIAL      1: kernels of all processes run one after the other; else at once
//	EBBTIDE_FAKE_NAME        of the card
//	EBBTIDE_FAKE_DRIVER      version of the driver
//	EBBTIDE_FAKE_FORK        a forked child may call cuInit again
//	EBBTIDE_FAKE_NEWER       a function of which cuGetProcAddress has a version that no program knows;
//	                         with _ptsz appended, for the per-thread default stream only
//
// The first process that opens the file makes the cards. Words in <file>.fail make calls fail: lock
// (times out), checkpoint, restore (breaks the process forever), mig (the card is in MIG mode),
// lost (NVML finds no card), util (NVML reports no utilisation per process). A number in <file>.xid
// is an Xid error.
package fake

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// ErrNoCompiler: gcc or make is missing.
var ErrNoCompiler = errors.New("gcc and make are needed to build the libraries")

// Beside returns the folder of this program if it also has the preload library, as in the bundle
// of make gpu-bundle; else "".
func Beside() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("locating this program: %w", err)
	}
	dir := filepath.Dir(self)
	switch _, err := os.Stat(filepath.Join(dir, "libebbtide-cuda.so")); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("locating this program: %w", err)
	}
	return dir, nil
}

// Build compiles the fakes, the workload and the preload library into a folder. vars are
// NAME=value for make, such as CFLAGS.
func Build(dir string, vars ...string) error {
	for _, tool := range []string{"gcc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			return ErrNoCompiler
		}
	}
	_, file, _, _ := runtime.Caller(0)
	here := filepath.Dir(file)
	for _, src := range []string{filepath.Join(here, "src"), filepath.Join(here, "..", "preload", "src")} {
		args := append([]string{"-s", "-C", src, "CC=gcc", "OUT=" + dir}, vars...)
		if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", src, err, out)
		}
	}
	return nil
}
