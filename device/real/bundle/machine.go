// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/real/report"
)

func machine(dir string) (m report.Machine, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("reading the kernel's version: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("reading the machine's memory: %w", err)
	}
	m = report.Machine{
		Kernel: unix.ByteSliceToString(name.Release[:]), Architecture: runtime.GOARCH, Processors: runtime.NumCPU(),
		MemoryMiB: uint64(info.Totalram) * uint64(info.Unit) >> 20, Root: os.Geteuid() == 0,
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m.Glibc = strings.TrimPrefix(strings.TrimSpace(output(ctx, "getconf", "GNU_LIBC_VERSION")), "glibc ")
	for _, program := range []string{"real.test", "preload.test", "ebbtide-gpu", "workload", "libebbtide-cuda.so"} {
		needed, err := glibc(filepath.Join(dir, program))
		if err != nil {
			return m, err
		}
		if older(m.GlibcNeeded, needed) {
			m.GlibcNeeded = needed
		}
	}
	return m, nil
}

// glibc returns the version that a program or library needs, or "".
func glibc(path string) (newest string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading which glibc is needed: %w", err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return "", fmt.Errorf("reading which glibc %s needs: %w", path, err)
	}
	for _, s := range symbols {
		if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok && older(newest, v) {
			newest = v
		}
	}
	return newest, nil
}

// older compares versions, as 2.9 and 2.34. "" is the oldest.
func older(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(x) && i < len(y); i++ {
		n, _ := strconv.Atoi(x[i])
		m, _ := strconv.Atoi(y[i])
		if n != m {
			return n < m
		}
	}
	return len(x) < len(y)
}

// libcuda returns the path of the driver's library as the loader knows it, or "".
func libcuda(ctx context.Context) string {
	for line := range strings.Lines(output(ctx, "ldconfig", "-p")) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == "libcuda.so.1" {
			return f[len(f)-1]
		}
	}
	return ""
}

// output returns a program's output; "" if it cannot be run. Its folder may not be in PATH.
func output(ctx context.Context, program string, args ...string) string {
	for _, dir := range []string{"", "/sbin/", "/usr/sbin/", "/bin/", "/usr/bin/"} {
		if out, err := exec.CommandContext(ctx, dir+program, args...).Output(); err == nil {
			return string(out)
		}
	}
	return ""
}
