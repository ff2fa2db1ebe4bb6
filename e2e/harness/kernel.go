// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Kernel is a task's CPU state in the kernel, read independently of the driver's code.
type Kernel struct {
	Path       string // of the cgroup in the cpu hierarchy
	Version    int
	Shares     uint64  // cpu.shares, or converted from cpu.weight
	Weight     uint64  // cpu.weight; 0 on v1
	QuotaCores float64 // 0 for no quota

	CPU       time.Duration // used since its creation
	Throttled time.Duration
	At        time.Time
}

// ReadKernel reads the cgroup of a process.
func ReadKernel(pid int) (Kernel, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return Kernel{}, err
	}
	defer f.Close()
	byController := make(map[string]string)
	unified := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[0] == "0" {
			unified = parts[2]
		}
		for _, c := range strings.Split(parts[1], ",") {
			byController[c] = parts[2]
		}
	}
	if path, ok := byController["cpu"]; ok {
		return readV1(filepath.Join(v1Root("cpu"), path), filepath.Join(v1Root("cpuacct"), byController["cpuacct"]))
	}
	return readV2(filepath.Join(cgroupV2Root, unified))
}

// v1Root returns a controller's mount point.
func v1Root(controller string) string {
	for _, dir := range []string{controller, "cpu,cpuacct", "cpuacct,cpu"} {
		if root := filepath.Join(cgroupV2Root, dir); exists(root) {
			return root
		}
	}
	return filepath.Join(cgroupV2Root, controller)
}

// Confine limits the total CPU of a daemon's containers, to emulate a node's size.
func (d *Docker) Confine(cores float64) error {
	const period = 100_000 // µs, the kernel's default
	quota := int(cores * period)
	dir := filepath.Join(v1Root("cpu"), d.Cgroup)
	file, text := "cpu.cfs_quota_us", strconv.Itoa(quota)
	if !exists(filepath.Join(v1Root("cpu"), "cpu.shares")) {
		dir = filepath.Join(cgroupV2Root, d.Cgroup)
		file, text = "cpu.max", fmt.Sprintf("%d %d", quota, period)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bounding the CPU of %s: %w", d.name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		return fmt.Errorf("bounding the CPU of %s: %w", d.name, err)
	}
	return nil
}

func readV1(cpu, acct string) (Kernel, error) {
	k := Kernel{Path: cpu, Version: 1, At: time.Now()}
	var errs []error
	number := func(path string) int64 {
		data, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			return 0
		}
		v, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		errs = append(errs, err)
		return v
	}
	k.Shares = uint64(number(filepath.Join(cpu, "cpu.shares")))
	if quota, period := number(filepath.Join(cpu, "cpu.cfs_quota_us")), number(filepath.Join(cpu, "cpu.cfs_period_us")); quota > 0 && period > 0 {
		k.QuotaCores = float64(quota) / float64(period)
	}
	k.CPU = time.Duration(number(filepath.Join(acct, "cpuacct.usage")))
	stat, err := keyValues(filepath.Join(cpu, "cpu.stat"))
	errs = append(errs, err)
	k.Throttled = time.Duration(stat["throttled_time"])
	return k, errors.Join(errs...)
}

func readV2(dir string) (Kernel, error) {
	k := Kernel{Path: dir, Version: 2, At: time.Now()}
	data, err := os.ReadFile(filepath.Join(dir, "cpu.weight"))
	if err != nil {
		return k, err
	}
	if k.Weight, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64); err != nil {
		return k, err
	}
	k.Shares = 2 + (k.Weight-1)*262142/9999
	if data, err = os.ReadFile(filepath.Join(dir, "cpu.max")); err != nil {
		return k, err
	}
	var quota, period float64
	if n, _ := fmt.Sscanf(string(data), "%f %f", &quota, &period); n == 2 && period > 0 {
		k.QuotaCores = quota / period
	}
	stat, err := keyValues(filepath.Join(dir, "cpu.stat"))
	k.CPU = time.Duration(stat["usage_usec"]) * time.Microsecond
	k.Throttled = time.Duration(stat["throttled_usec"]) * time.Microsecond
	return k, err
}

func keyValues(path string) (map[string]int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := make(map[string]int64)
	for _, line := range strings.Split(string(data), "\n") {
		if name, value, ok := strings.Cut(line, " "); ok {
			m[name], _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return m, nil
}

// Cores returns the mean CPU use since an earlier reading, in cores.
func (k Kernel) Cores(since Kernel) float64 {
	d := k.At.Sub(since.At)
	if d <= 0 {
		return 0
	}
	return float64(k.CPU-since.CPU) / float64(d)
}

// Processes lists the processes in the same cgroup.
func (k Kernel) Processes() ([]int, error) {
	data, err := os.ReadFile(filepath.Join(k.Path, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
