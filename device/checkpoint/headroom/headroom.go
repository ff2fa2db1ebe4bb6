// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package headroom checks that host memory has room for what processes hold on cards: once
// parked, it counts in the process's memory cgroup and all its ancestors, and the kernel would
// OOM-kill a task that exceeds its limit.
package headroom

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrHostMemory: the host, or a task's limit, lacks memory.
var ErrHostMemory = errors.New("not enough host memory")

// Margins, in bytes.
const (
	margin     = 64 << 20  // below a cgroup's limit
	hostMargin = 512 << 20 // of the host, or a twentieth of its memory
)

const mib = 1 << 20

// Checker checks the host. The zero value checks this machine.
type Checker struct {
	// Proc is the mount point of procfs; "" means /proc.
	Proc string
	// Cgroup is the mount point of the cgroups; "" means /sys/fs/cgroup. Version 1's memory
	// controller is at "memory" in it.
	Cgroup string
}

// Check checks that host memory has room for what processes hold on cards, in bytes by pid. The
// error wraps ErrHostMemory if it does not.
func (c Checker) Check(need map[int]uint64) error {
	var total uint64
	cgroups := make(map[string]uint64) // needed below each directory
	for pid, bytes := range need {
		text, err := os.ReadFile(c.proc(strconv.Itoa(pid), "cgroup"))
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH):
			continue
		case err != nil:
			return fmt.Errorf("reading the cgroups of process %d: %w", pid, err)
		}
		total += bytes
		root, below := c.memory(string(text))
		for ; root != ""; below = path.Dir(below) {
			cgroups[filepath.Join(root, below)] += bytes
			if below == "/" {
				break
			}
		}
	}
	if total == 0 {
		return nil
	}
	text, err := os.ReadFile(c.proc("meminfo"))
	if err != nil {
		return fmt.Errorf("reading the host's memory: %w", err)
	}
	if err := checkHost(string(text), total); err != nil {
		return err
	}
	for dir, bytes := range cgroups {
		free, limited, err := cgroupRoom(dir)
		switch {
		case err != nil:
			return fmt.Errorf("reading the memory limit of %s: %w", dir, err)
		case limited && free < bytes+margin:
			return fmt.Errorf("%w: the memory limit of %s leaves %d MiB, and %d MiB have to be parked, with %d MiB to spare: give the task a memory_max that is at least %d MiB higher",
				ErrHostMemory, dir, free/mib, ceilMiB(bytes), margin/mib, ceilMiB(bytes+margin-free))
		}
	}
	return nil
}

func (c Checker) proc(names ...string) string {
	root := c.Proc
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, names...)...)
}

// memory finds the memory cgroup in /proc/<pid>/cgroup: the hierarchy's directory, or "", and the
// path below it.
func (c Checker) memory(text string) (root, below string) {
	dir := c.Cgroup
	if dir == "" {
		dir = "/sys/fs/cgroup"
	}
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path; the path may hold colons.
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(f) != 3:
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			return filepath.Join(dir, "memory"), path.Clean("/" + f[2])
		case f[0] == "0" && f[1] == "":
			root, below = dir, path.Clean("/"+f[2])
		}
	}
	return root, below
}

// cgroupRoom returns what a cgroup's limit leaves, in bytes, with what the kernel can drop at
// once: inactive file pages. limited is false without a limit.
func cgroupRoom(dir string) (free uint64, limited bool, err error) {
	limit, used, files := uint64(math.MaxUint64), "memory.current", "inactive_file"
	for _, name := range []string{"memory.max", "memory.high", "memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // of the other version, or a root
		}
		if err != nil {
			return 0, false, err
		}
		if name == "memory.limit_in_bytes" {
			used, files = "memory.usage_in_bytes", "total_inactive_file"
		}
		if s := strings.TrimSpace(string(text)); s != "max" {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				return 0, false, fmt.Errorf("%s: %w", name, err)
			}
			limit = min(limit, n)
		}
	}
	if limit >= 1<<62 { // version 1's "no limit", less a page
		return 0, false, nil
	}
	text, err := os.ReadFile(filepath.Join(dir, used))
	if err != nil {
		return 0, false, err
	}
	usage, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%s: %w", used, err)
	}
	if text, err = os.ReadFile(filepath.Join(dir, "memory.stat")); err != nil {
		return 0, false, err
	}
	droppable, err := field(string(text), files)
	if err != nil {
		return 0, false, fmt.Errorf("memory.stat: %w", err)
	}
	usage -= min(usage, droppable)
	return limit - min(limit, usage), true, nil
}

func checkHost(meminfo string, bytes uint64) error {
	all, err := field(meminfo, "MemTotal:")
	var free uint64
	if err == nil {
		free, err = field(meminfo, "MemAvailable:")
	}
	if err != nil {
		return fmt.Errorf("reading the host's memory: %w", err)
	}
	all, free = all<<10, free<<10 // kB
	spare := max(all/20, hostMargin)
	if free < bytes+spare {
		return fmt.Errorf("%w: the host has %d MiB free, and %d MiB have to be parked, with %d MiB to spare", ErrHostMemory, free/mib, ceilMiB(bytes), spare/mib)
	}
	return nil
}

func field(text, name string) (uint64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			return strconv.ParseUint(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("there is no %s", name)
}

func ceilMiB(bytes uint64) uint64 { return (bytes + mib - 1) / mib }
