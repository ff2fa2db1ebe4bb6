// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

func OwnQuota() (cores float64, err error) { return Finder{}.OwnQuota() }

// OwnQuota returns the minimum CPU quota of the plugin's cgroup and its visible parents, in cores;
// 0 means none. It may change at any time.
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
	_, cores = minQuota(control{version: version, dir: dir, base: base})
	return cores, nil
}

// minQuota finds the lowest quota from a cgroup up to its mount point, and where it is
// set; 0 means none.
func minQuota(c control) (at string, cores float64) {
	for ; len(c.dir) >= len(c.base); c.dir = filepath.Dir(c.dir) {
		// The root and cgroups without the controller have no such file.
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

func SharedCPUs() ([]int, error) { return Finder{}.SharedCPUs() }

// SharedCPUs returns the CPUs of the cpuset that Nomad keeps for tasks without `cores`:
// the node less reserved.cores less the CPUs pinned by `cores` tasks of any driver, but
// not less reserved.cpu. fs.ErrNotExist if there is none; Nomad writes it with the
// first task.
func (f Finder) SharedCPUs() ([]int, error) {
	mounts, err := f.mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		dir := "nomad.slice/share.slice"
		if m.FSType == "cgroup" {
			if !isHierarchy(m, "cpuset") {
				continue
			}
			dir = "nomad/share"
		}
		file := filepath.Join(m.Mountpoint, dir, "cpuset.cpus")
		b, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(b)) == "" {
			continue
		}
		cpus, err := parseCPUs(strings.TrimSpace(string(b)))
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		return cpus, nil
	}
	return nil, fmt.Errorf("finding the cpuset that Nomad's tasks share: %w", fs.ErrNotExist)
}

func parseCPUs(list string) (cpus []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if err := errors.Join(errA, errB); err != nil || a < 0 || b < a {
			return nil, fmt.Errorf("cannot read the CPU list %q", list)
		}
		for ; a <= b; a++ {
			cpus = append(cpus, a)
		}
	}
	return cpus, nil
}

func IdleTimes(cpus []int) (map[int]float64, error) { return Finder{}.IdleTimes(cpus) }

// IdleTimes returns how long each of the CPUs has been idle since boot, in seconds; each of the machine's
// without any.
func (f Finder) IdleTimes(cpus []int) (map[int]float64, error) {
	proc, err := procfs.NewFS(f.proc())
	if err != nil {
		return nil, fmt.Errorf("reading the CPUs' idle times: %w", err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the CPUs' idle times: %w", err)
	}
	out := make(map[int]float64, len(stat.CPU))
	for id, cpu := range stat.CPU {
		if len(cpus) == 0 || slices.Contains(cpus, int(id)) {
			out[int(id)] = cpu.Idle + cpu.Iowait
		}
	}
	return out, nil
}
