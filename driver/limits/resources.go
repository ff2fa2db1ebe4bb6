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

// Resources are what a task uses besides the CPU. NaN means not known, which hurts
// nobody: the kernel does not count it here, or not for this task alone.
type Resources struct {
	// MemoryBytes is the working set now, as of Cgroup.Memory.
	MemoryBytes float64
	// BlockBytes is what was read from block devices and written to them since the
	// task started; of devices that lie upon others, such as those of LVM, the others
	// count. It may fall a little where it is summed over processes.
	BlockBytes float64
	// NetworkBytes is what was received and sent, loopback aside, since the network
	// namespace that the task has was made. Tasks of one group share theirs, and
	// what it counts. A task on the host's network has none.
	NetworkBytes float64
}

// Bounds of what is looked at to find a task's processes.
const (
	maxPids   = 1024
	maxGroups = 256
)

// Resources reads what the task uses now.
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

// blockBytes are what the kernel has counted for the cgroup or, where it does not,
// for its processes.
func (c *Cgroup) blockBytes(pids []int) (float64, bool) {
	if c.blk.version == 2 {
		// Each device has a line, once it was used. The file is there when the
		// controller is enabled.
		if text, err := c.blk.read("io.stat"); err == nil {
			return c.ioStat(text), true
		}
	} else if n, ok := c.serviceBytes(c.blk.dir); ok {
		if n > 0 {
			return n, true
		}
		// Linux 6.10 and later count on version 1 only once somebody has set a
		// throttle on the device, and say 0 until then. It is true if anybody's
		// bytes were counted.
		if all, ok := c.serviceBytes(c.blk.base); ok && all > 0 {
			return 0, true
		}
	}
	return c.processBytes(pids)
}

// ioStat sums up lines like "8:0 rbytes=1 wbytes=2 rios=3 …".
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

// stacked says whether a device, as "253:0", lies upon others: the kernel counts the
// same bytes there again.
func (c *Cgroup) stacked(device string) bool {
	below, err := os.ReadDir(c.finder.proc("..", "sys", "dev", "block", device, "slaves"))
	return err == nil && len(below) > 0
}

// serviceBytes sums up lines like "8:0 Read 4096". The recursive counts are those of
// the task's own children, too; kernels before 5.4 do not have them. BFQ counts for
// itself, and while it schedules that is the same once more.
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

// processBytes sums up what the task's processes have read and written themselves.
// A process counts what its children did once it has waited for them.
func (c *Cgroup) processBytes(pids []int) (sum float64, ok bool) {
	for _, pid := range pids {
		b, err := os.ReadFile(c.procFile(pid, "io"))
		if err != nil {
			continue // it has ended, or we may not
		}
		for key, n := range keyed(string(b)) {
			if key == "read_bytes:" || key == "write_bytes:" {
				sum, ok = sum+float64(n), true
			}
		}
	}
	return sum, ok
}

// networkBytes are those of the network namespace of the task's oldest process that
// has one which is not the host's.
func (c *Cgroup) networkBytes(pids []int) (float64, bool) {
	ours, err := os.Readlink(c.finder.proc("self", "ns", "net"))
	if err != nil {
		return 0, false
	}
	// The plugin may have one of its own, too. Not everybody may see that of process
	// 1; ours must do then.
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
		// It may have ended, and its number may be another's, in between.
		if again, err := os.Readlink(c.procFile(pid, "ns", "net")); err == nil && again == ns {
			return netDev(string(b)), true
		}
	}
	return 0, false
}

// netDev sums up lines like "eth0: 100 1 0 0 0 0 0 0 200 2 …": bytes received come
// first, bytes sent ninth.
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

// pids are the processes in the cgroup and below it, in the order of their numbers.
func (c *Cgroup) pids() []int {
	var out []int
	dirs := []string{c.cpu.dir}
	for i := 0; i < len(dirs) && len(out) < maxPids; i++ {
		b, err := os.ReadFile(filepath.Join(dirs[i], "cgroup.procs"))
		if err == nil {
			for field := range strings.FieldsSeq(string(b)) {
				// 0 is a process that our pid namespace does not have.
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
