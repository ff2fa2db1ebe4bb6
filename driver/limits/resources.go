// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Resources are what a task uses besides CPU. NaN means unknown: not counted here, or
// not for this task alone.
type Resources struct {
	// MemoryBytes is the working set (Cgroup.Memory).
	MemoryBytes float64
	// BlockBytes is block I/O, read and written, since the task's start, without
	// stacked devices such as LVM's, whose I/O the disks below count. It may decrease
	// slightly where it is summed over processes.
	BlockBytes float64
	// NetworkBytes is traffic in both directions, without loopback, since the task's
	// network namespace was created. Tasks of one group share it. NaN on the host's
	// network.
	NetworkBytes float64
}

const (
	maxPids   = 1024
	maxGroups = 256
)

func (c *Cgroup) Resources() Resources {
	r := Resources{MemoryBytes: math.NaN(), BlockBytes: math.NaN(), NetworkBytes: math.NaN()}
	if n, err := c.Memory(); err == nil {
		r.MemoryBytes = float64(n)
	}
	pids := c.pids()
	if n, ok := c.blockBytes(pids); ok {
		r.BlockBytes = n
	}
	if n, ok := c.networkBytes(pids); ok {
		r.NetworkBytes = n
	}
	return r
}

// blockBytes returns the kernel's counts for the cgroup, else those of its processes.
func (c *Cgroup) blockBytes(pids []int) (float64, bool) {
	if c.blk.version == 2 {
		// The file exists if the controller is enabled; devices are listed once used.
		if text, err := c.blk.read("io.stat"); err == nil {
			return c.ioStat(text), true
		}
	} else if n, ok := c.serviceBytes(c.blk.dir); ok {
		if n > 0 {
			return n, true
		}
		// Linux 6.10 and later count on version 1 only once a throttle is set on the
		// device, and report 0 until then. That 0 is real only if any cgroup's bytes
		// are counted.
		if all, ok := c.serviceBytes(c.blk.base); ok && all > 0 {
			return 0, true
		}
	}
	return c.processBytes(pids)
}

func (c *Cgroup) ioStat(text string) (sum float64) {
	for line := range strings.Lines(text) {
		device, counts, _ := strings.Cut(line, " ")
		if c.stacked(device) {
			continue
		}
		for field := range strings.FieldsSeq(counts) {
			key, value, _ := strings.Cut(field, "=")
			if key == "rbytes" || key == "wbytes" {
				if n, err := strconv.ParseUint(value, 10, 64); err == nil {
					sum += float64(n)
				}
			}
		}
	}
	return sum
}

// stacked reports whether a device such as "253:0" has others below, which count the
// same bytes again.
func (c *Cgroup) stacked(device string) bool {
	below, err := os.ReadDir(c.finder.proc("..", "sys", "dev", "block", device, "slaves"))
	return err == nil && len(below) > 0
}

// serviceBytes sums lines like "8:0 Read 4096". Recursive counts include the task's
// child cgroups (Linux 5.4 and later). BFQ keeps its own counts of the same I/O, hence
// the maximum.
func (c *Cgroup) serviceBytes(dir string) (most float64, ok bool) {
	for _, file := range []string{
		"blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes",
		"blkio.bfq.io_service_bytes_recursive", "blkio.io_service_bytes_recursive",
	} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			continue
		}
		sum := 0.0
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) != 3 || f[1] != "Read" && f[1] != "Write" || c.stacked(f[0]) {
				continue
			}
			if n, err := strconv.ParseUint(f[2], 10, 64); err == nil {
				sum += float64(n)
			}
		}
		most, ok = max(most, sum), true
	}
	return most, ok
}

// processBytes sums the I/O of the task's processes; a process includes its reaped
// children.
func (c *Cgroup) processBytes(pids []int) (sum float64, ok bool) {
	for _, pid := range pids {
		b, err := os.ReadFile(c.procFile(pid, "io"))
		if err != nil {
			continue // exited, or not permitted
		}
		for key, n := range keyed(string(b)) {
			if key == "read_bytes:" || key == "write_bytes:" {
				sum, ok = sum+float64(n), true
			}
		}
	}
	return sum, ok
}

// networkBytes returns the traffic of the first process's network namespace that is not the host's.
func (c *Cgroup) networkBytes(pids []int) (float64, bool) {
	ours, err := os.Readlink(c.finder.proc("self", "ns", "net"))
	if err != nil {
		return 0, false
	}
	// The plugin may have its own namespace. If that of process 1 is unreadable, the
	// plugin's is used.
	host, _ := os.Readlink(c.finder.proc("1", "ns", "net"))
	for _, pid := range pids {
		ns, err := os.Readlink(c.procFile(pid, "ns", "net"))
		if err != nil || ns == ours || ns == host {
			continue
		}
		b, err := os.ReadFile(c.procFile(pid, "net", "dev"))
		if err != nil {
			continue
		}
		// The process may have exited, and its pid been reused, in between.
		if again, err := os.Readlink(c.procFile(pid, "ns", "net")); err == nil && again == ns {
			return netDev(string(b)), true
		}
	}
	return 0, false
}

func netDev(text string) (sum float64) {
	for line := range strings.Lines(text) {
		name, counts, ok := strings.Cut(line, ":")
		f := strings.Fields(counts)
		if !ok || len(f) < 9 || strings.TrimSpace(name) == "lo" {
			continue
		}
		for _, i := range []int{0, 8} {
			if n, err := strconv.ParseUint(f[i], 10, 64); err == nil {
				sum += float64(n)
			}
		}
	}
	return sum
}

func (c *Cgroup) pids() []int {
	var out []int
	dirs := []string{c.cpu.dir}
	for i := 0; i < len(dirs) && len(out) < maxPids; i++ {
		b, err := os.ReadFile(filepath.Join(dirs[i], "cgroup.procs"))
		if err == nil {
			for field := range strings.FieldsSeq(string(b)) {
				// 0: a process outside our pid namespace
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					out = append(out, pid)
				}
			}
		}
		below, err := os.ReadDir(dirs[i])
		if err != nil {
			continue
		}
		for _, e := range below {
			if e.IsDir() && len(dirs) < maxGroups {
				dirs = append(dirs, filepath.Join(dirs[i], e.Name()))
			}
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxPids)]
}

func (c *Cgroup) procFile(pid int, elem ...string) string {
	return c.finder.proc(append([]string{strconv.Itoa(pid)}, elem...)...)
}
