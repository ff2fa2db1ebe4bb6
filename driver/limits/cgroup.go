// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// period is the quota period where the cgroup's own cannot be used, in µs.
	period = 100_000
	// leastQuota is the least quota the kernel takes, in µs a period.
	leastQuota = 1_000
)

// Cgroup is the cgroup of one task, of either version. It holds no open files
// and may be used by several goroutines, except for SetConversion.
//
// Every error names the file, and the value where one was written. An error
// that means that the cgroup is no more wraps ErrGone, and one that means that
// the kernel does not offer the control there wraps ErrNoController.
type Cgroup struct {
	version int
	path    string // in the hierarchy of the cpu controller
	base    string // directory of its mount

	cpu, acct, mem  string // directories
	acctErr, memErr error
	conv            Conversion

	frz    string // directory of the freezer
	frzErr error

	blk, blkBase string // of the controller for block I/O, and of its mount
	blkVersion   int    // which need not be that of the cpu controller
	blkErr       error
	proc         string // as Finder.Proc
}

// Path is the cgroup's path in the hierarchy that has the cpu controller, as
// in /proc/<pid>/cgroup.
func (c *Cgroup) Path() string { return c.path }

// Dir is the directory with the CPU controls.
func (c *Cgroup) Dir() string { return c.cpu }

// Version is 1 or 2.
func (c *Cgroup) Version() int { return c.version }

// Conversion says how shares become what the kernel divides by: Identity on
// version 1, and on version 2 Quadratic unless SetConversion said otherwise.
func (c *Cgroup) Conversion() Conversion { return c.conv }

// SetConversion sets the conversion of a version 2 cgroup, for a runtime that
// does it differently (see Detect); on version 1 it does nothing.
func (c *Cgroup) SetConversion(conv Conversion) {
	if c.version == 2 && conv != Identity {
		c.conv = conv
	}
}

// Usage reads what the task has consumed.
func (c *Cgroup) Usage() (Usage, error) {
	var u Usage
	stat, err := c.read(c.cpu, "cpu.stat")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(stat) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			continue
		}
		switch key {
		case "usage_usec":
			u.CPUSeconds = float64(n) / 1e6
		case "nr_periods":
			u.Periods = n
		case "nr_throttled":
			u.Throttled = n
		case "throttled_usec": // version 2
			u.ThrottledSeconds = float64(n) / 1e6
		case "throttled_time": // version 1
			u.ThrottledSeconds = float64(n) / 1e9
		}
	}
	if c.version == 2 {
		return u, nil
	}
	if c.acctErr != nil {
		return u, fmt.Errorf("reading CPU time: %w", c.acctErr)
	}
	ns, err := c.readUint(c.acct, "cpuacct.usage")
	u.CPUSeconds = float64(ns) / 1e9
	return u, err
}

// Memory is the memory in use, in bytes: what is charged to the cgroup less
// the page cache that the kernel would give up first (inactive files), as
// `docker stats` counts it.
func (c *Cgroup) Memory() (bytes uint64, err error) {
	if c.memErr != nil {
		return 0, fmt.Errorf("reading memory: %w", c.memErr)
	}
	usage, cache := "memory.current", "inactive_file"
	if c.version == 1 {
		usage, cache = "memory.usage_in_bytes", "total_inactive_file"
	}
	bytes, err = c.readUint(c.mem, usage)
	if err != nil {
		return 0, err
	}
	stat, err := c.read(c.mem, "memory.stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(stat) {
		if value, ok := strings.CutPrefix(line, cache+" "); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); err == nil && n <= bytes {
				return bytes - n, nil
			}
		}
	}
	return bytes, nil
}

// Read reads what the kernel enforces now. On version 2 the weight comes back
// as the largest shares that have this weight, so it may be a little above
// what was set; compare with InForce.
func (c *Cgroup) Read() (Limits, error) {
	weight, err := c.Weight()
	if err != nil {
		return Limits{}, err
	}
	quota, per, err := c.readQuota()
	if err != nil {
		return Limits{}, err
	}
	l := Limits{Shares: c.conv.Shares(weight)}
	if quota > 0 {
		l.QuotaCores = float64(quota) / float64(per)
	}
	return l, nil
}

// Weight is the number that the kernel divides CPU time by: cpu.weight on
// version 2 (1–10000; 0 for an idle cgroup), cpu.shares on version 1.
func (c *Cgroup) Weight() (uint64, error) {
	if c.version == 1 {
		return c.readUint(c.cpu, "cpu.shares")
	}
	return c.readUint(c.cpu, "cpu.weight")
}

// InForce says whether got, as read, is what want asks for. It knows the two
// roundings: on version 2 many shares have one weight, and a quota is whole
// microseconds per period, 1 ms at least.
func (c *Cgroup) InForce(want, got Limits) bool {
	if c.conv.Weight(want.Shares) != c.conv.Weight(got.Shares) {
		return false
	}
	if want.QuotaCores <= 0 || got.QuotaCores <= 0 {
		return want.QuotaCores <= 0 && got.QuotaCores <= 0
	}
	return math.Abs(max(want.QuotaCores, float64(leastQuota)/period)-got.QuotaCores) <= 0.001
}

// SetShares sets the weight, clamped to MinShares and MaxShares. On version 2
// it writes the weight that Conversion gives.
func (c *Cgroup) SetShares(shares uint64) error {
	file := "cpu.shares"
	if c.version == 2 {
		file = "cpu.weight"
	}
	return c.write(file, strconv.FormatUint(c.conv.Weight(shares), 10))
}

// SetQuota sets the hard upper bound, in cores; 0 takes it off. The period in
// force is kept, as the job may have chosen it, unless the quota would be less
// than the 1 ms a period that the kernel demands: then it is 100 ms.
//
// *ParentQuotaError when version 1's kernel refuses because a parent has less.
func (c *Cgroup) SetQuota(cores float64) error {
	if !(cores >= 0) || math.IsInf(cores, 1) {
		return fmt.Errorf("setting the CPU quota of %s: must be a number of cores ≥ 0 (0 = none), got %v", c.cpu, cores)
	}
	_, per, err := c.readQuota()
	if err != nil {
		return err
	}
	if cores == 0 {
		if c.version == 2 {
			return c.write("cpu.max", fmt.Sprintf("max %d", per))
		}
		return c.write("cpu.cfs_quota_us", "-1")
	}
	inForce := per
	quota := int64(math.Round(cores * float64(per)))
	if quota < leastQuota {
		per = period
		quota = max(int64(math.Round(cores*period)), leastQuota)
	}
	if c.version == 2 {
		return c.write("cpu.max", fmt.Sprintf("%d %d", quota, per))
	}
	if per != inForce {
		// One at a time, and each pair is checked: lift the quota first.
		if err := c.write("cpu.cfs_quota_us", "-1"); err != nil {
			return err
		}
		if err := c.write("cpu.cfs_period_us", strconv.FormatInt(per, 10)); err != nil {
			return err
		}
	}
	err = c.write("cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
	if errors.Is(err, unix.EINVAL) {
		if dir, least, ok := c.parentQuota(); ok && least < float64(quota)/float64(per) {
			return &ParentQuotaError{Cores: cores, Parent: dir, ParentCores: least, Err: err}
		}
	}
	return err
}

// parentQuota finds the least quota above the cgroup, in cores.
func (c *Cgroup) parentQuota() (dir string, cores float64, ok bool) {
	for d := filepath.Dir(c.cpu); len(d) >= len(c.base) && d != filepath.Dir(d); d = filepath.Dir(d) {
		up := Cgroup{version: c.version, cpu: d}
		// The root has no such file; nothing to find there.
		quota, per, err := up.readQuota()
		if err != nil || quota <= 0 {
			continue
		}
		if q := float64(quota) / float64(per); !ok || q < cores {
			dir, cores, ok = d, q, true
		}
	}
	return dir, cores, ok
}

// ParentQuota is the least quota of the cgroups above this one that can be
// seen, in cores; 0 when there is none. It holds for the task together with
// its siblings, whatever the task's own limit is.
func (c *Cgroup) ParentQuota() float64 {
	_, cores, _ := c.parentQuota()
	return cores
}

// readQuota reads quota and period in µs; a quota of 0 is none.
func (c *Cgroup) readQuota() (quota, per int64, err error) {
	if c.version == 1 {
		q, err := c.readInt(c.cpu, "cpu.cfs_quota_us")
		if err != nil {
			return 0, 0, err
		}
		p, err := c.readInt(c.cpu, "cpu.cfs_period_us")
		if err != nil {
			return 0, 0, err
		}
		return max(q, 0), positive(p), nil
	}
	text, err := c.read(c.cpu, "cpu.max")
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return 0, 0, fmt.Errorf("reading %s: cannot read %q", filepath.Join(c.cpu, "cpu.max"), text)
	}
	per, err = strconv.ParseInt(fields[1], 10, 64)
	if err == nil && fields[0] != "max" {
		quota, err = strconv.ParseInt(fields[0], 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("reading %s: %w", filepath.Join(c.cpu, "cpu.max"), err)
	}
	return quota, positive(per), nil
}

func positive(per int64) int64 {
	if per <= 0 {
		return period
	}
	return per
}

func (c *Cgroup) readUint(dir, file string) (uint64, error) {
	text, err := c.read(dir, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", filepath.Join(dir, file), err)
	}
	return n, nil
}

func (c *Cgroup) readInt(dir, file string) (int64, error) {
	text, err := c.read(dir, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", filepath.Join(dir, file), err)
	}
	return n, nil
}

func (c *Cgroup) read(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return "", explain(fmt.Sprintf("reading %s", filepath.Join(dir, file)), dir, err)
	}
	return string(b), nil
}

// write writes one control in one system call; the kernel takes or refuses the
// value as a whole. It never creates a file.
func (c *Cgroup) write(file, value string) error { return writeFile(c.cpu, file, value) }

func writeFile(dir, file, value string) error {
	name := filepath.Join(dir, file)
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return explain(fmt.Sprintf("writing %q to %s", value, name), dir, err)
	}
	return nil
}

// explain adds what was attempted, and what a missing file means.
func explain(what, dir string, err error) error {
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
	if !missing {
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, statErr := os.Stat(filepath.Join(dir, "cgroup.procs")); statErr != nil {
		return fmt.Errorf("%s: %w: %w", what, ErrGone, err)
	}
	return fmt.Errorf("%s: %w (cgroup v2: %s must hold the controller): %w", what, ErrNoController,
		filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), err)
}
