// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// OwnQuota is the CPU quota over this process: see Finder.OwnQuota.
func OwnQuota() (cores float64, err error) { return Finder{}.OwnQuota() }

// OwnQuota is the least CPU quota of our own cgroup and those above it, as far as they
// can be seen, in cores; 0 means that there is none. It may change at any time.
func (f Finder) OwnQuota() (cores float64, err error) {
	ours, mounts, err := f.self()
	if err != nil {
		return 0, err
	}
	hierarchy, version := "", 2
	if _, ok := ours["cpu"]; ok {
		hierarchy, version = "cpu", 1
	}
	dir, base, err := locate(mounts, hierarchy, ours[hierarchy])
	if err != nil {
		return 0, fmt.Errorf("reading the CPU quota over our own cgroup: %w", err)
	}
	_, cores = leastQuota(control{version: version, dir: dir, base: base})
	return cores, nil
}

// leastQuota finds the least quota from a cgroup up to the top of its mount, and where
// it is set; 0 when there is none.
func leastQuota(c control) (at string, cores float64) {
	for ; len(c.dir) >= len(c.base); c.dir = filepath.Dir(c.dir) {
		// The root has no such file, and one without the controller has no quota.
		quota, per, err := c.readQuota()
		if err == nil && quota > 0 && (at == "" || float64(quota)/float64(per) < cores) {
			at, cores = c.dir, float64(quota)/float64(per)
		}
		if c.dir == c.base {
			break
		}
	}
	return at, cores
}

// SharedCores is the number of CPUs that Nomad leaves to tasks without `cores`
// of their own, now: see Finder.SharedCores.
func SharedCores() (int, error) { return Finder{}.SharedCores() }

// SharedCores reads the cpuset that the Nomad client keeps for all tasks
// without `cores` of their own, and counts its CPUs: the node less
// reserved.cores less what `cores` tasks of any driver have pinned. (It knows
// nothing of reserved.cpu.) fs.ErrNotExist where Nomad keeps none, or has not
// yet: it writes the set when the first task comes.
func (f Finder) SharedCores() (int, error) {
	mounts, err := f.mounts()
	if err != nil {
		return 0, err
	}
	for _, m := range mounts {
		dir := "nomad.slice/share.slice"
		if m.FSType == "cgroup" {
			if !holds(m, "cpuset") {
				continue
			}
			dir = "nomad/share"
		}
		file := filepath.Join(m.Mountpoint, dir, "cpuset.cpus")
		b, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(b)) == "" {
			continue
		}
		n, err := countCPUs(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, fmt.Errorf("reading %s: %w", file, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("finding the cpuset that Nomad's tasks share: %w", fs.ErrNotExist)
}

// countCPUs counts a list such as "0-3,7".
func countCPUs(list string) (n int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if err := errors.Join(errA, errB); err != nil || a < 0 || b < a {
			return 0, fmt.Errorf("cannot read the CPU list %q", list)
		}
		n += b - a + 1
	}
	return n, nil
}

// IdleTime is how long the machine's CPUs have been idle since it was started, all
// together, in core-seconds.
func IdleTime() (float64, error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, fmt.Errorf("reading the machine's idle time: %w", err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return 0, fmt.Errorf("reading the machine's idle time: %w", err)
	}
	return stat.CPUTotal.Idle + stat.CPUTotal.Iowait, nil
}
