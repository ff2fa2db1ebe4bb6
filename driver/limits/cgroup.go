// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
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
	// leastQuotaMicros is the least quota the kernel takes, in µs a period.
	leastQuotaMicros = 1_000
)

// Cgroup is the cgroup of one task, of either version. It holds no open files
// and may be used by several goroutines, except for SetConversion.
//
// Every error names the file, and the value where one was written. An error
// that means that the cgroup is no more wraps ErrGone, and one that means that
// the kernel does not offer the control there wraps ErrNoController.
type Cgroup struct {
	cpu, acct, mem, blk, frz control
	conv                     Conversion
	finder                   Finder
}

// control is a cgroup's directory in the hierarchy of one controller.
type control struct {
	version int
	dir     string
	base    string // of its mount
	err     error  // why there is none
}

// Version is 1 or 2.
func (c *Cgroup) Version() int { return c.cpu.version }

// Conversion says how shares become what the kernel divides by: Identity on
// version 1, and on version 2 Quadratic unless SetConversion said otherwise.
func (c *Cgroup) Conversion() Conversion { return c.conv }

// SetConversion sets the conversion of a version 2 cgroup, for a runtime that
// does it differently (see Detect); on version 1 it does nothing.
func (c *Cgroup) SetConversion(conv Conversion) {
	if c.cpu.version == 2 && conv != Identity {
		c.conv = conv
	}
}

// Usage reads what the task has consumed.
func (c *Cgroup) Usage() (Usage, error) {
	var u Usage
	stat, err := c.cpu.read("cpu.stat")
	if err != nil {
		return u, err
	}
	for key, n := range keyed(stat) {
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
	if c.cpu.version == 2 {
		return u, nil
	}
	ns, err := c.acct.readInt("cpuacct.usage")
	u.CPUSeconds = float64(ns) / 1e9
	return u, err
}

// keyed yields the figures of a file that has one on each line, after its name.
func keyed(text string) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.ParseUint(value, 10, 64); err == nil && !yield(key, n) {
				return
			}
		}
	}
}

// Memory is the memory in use, in bytes: what is charged to the cgroup less
// the page cache that the kernel would give up first (inactive files), as
// `docker stats` counts it.
func (c *Cgroup) Memory() (bytes uint64, err error) {
	usage, cache := "memory.current", "inactive_file"
	if c.mem.version == 1 {
		usage, cache = "memory.usage_in_bytes", "total_inactive_file"
	}
	used, err := c.mem.readInt(usage)
	if err != nil {
		return 0, err
	}
	stat, err := c.mem.read("memory.stat")
	if err != nil {
		return 0, err
	}
	bytes = uint64(used)
	for key, n := range keyed(stat) {
		if key == cache && n <= bytes {
			return bytes - n, nil
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
	quota, per, err := c.cpu.readQuota()
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
	n, err := c.cpu.readInt(c.weightFile())
	return uint64(n), err
}

func (c *Cgroup) weightFile() string {
	if c.cpu.version == 1 {
		return "cpu.shares"
	}
	return "cpu.weight"
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
	return math.Abs(max(want.QuotaCores, float64(leastQuotaMicros)/period)-got.QuotaCores) <= 0.001
}

// SetShares sets the weight, clamped to MinShares and MaxShares. On version 2
// it writes the weight that Conversion gives.
func (c *Cgroup) SetShares(shares uint64) error {
	return c.cpu.write(c.weightFile(), strconv.FormatUint(c.conv.Weight(shares), 10))
}

// SetQuota sets the hard upper bound, in cores; 0 takes it off. The period in
// force is kept, as the job may have chosen it, unless the quota would be less
// than the 1 ms a period that the kernel demands: then it is 100 ms.
//
// Version 1's kernel refuses more than a parent has; the error names that parent.
func (c *Cgroup) SetQuota(cores float64) error {
	if !(cores >= 0) || math.IsInf(cores, 1) {
		return fmt.Errorf("setting the CPU quota of %s: must be a number of cores ≥ 0 (0 = none), got %v", c.cpu.dir, cores)
	}
	_, per, err := c.cpu.readQuota()
	if err != nil {
		return err
	}
	if cores == 0 {
		if c.cpu.version == 2 {
			return c.cpu.write("cpu.max", fmt.Sprintf("max %d", per))
		}
		return c.cpu.write("cpu.cfs_quota_us", "-1")
	}
	inForce := per
	quota, per := Quota(cores, per)
	if c.cpu.version == 2 {
		return c.cpu.write("cpu.max", fmt.Sprintf("%d %d", quota, per))
	}
	if per != inForce {
		// One at a time, and each pair is checked: lift the quota first.
		if err := c.cpu.write("cpu.cfs_quota_us", "-1"); err != nil {
			return err
		}
		if err := c.cpu.write("cpu.cfs_period_us", strconv.FormatInt(per, 10)); err != nil {
			return err
		}
	}
	err = c.cpu.write("cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
	if errors.Is(err, unix.EINVAL) {
		above := c.cpu
		above.dir = filepath.Dir(above.dir)
		if dir, most := leastQuota(above); dir != "" && most < float64(quota)/float64(per) {
			return fmt.Errorf("quota of %.3f cores: the parent %s allows at most %.3f: %w", cores, dir, most, err)
		}
	}
	return err
}

// Quota returns a quota for a number of cores > 0, in µs per period. The period stays,
// unless it is not set (0) or so short that the kernel does not take the quota: then it is
// the kernel's default, and the quota 1 ms at least.
func Quota(cores float64, per int64) (quota, newPer int64) {
	if quota = int64(math.Round(cores * float64(per))); quota >= leastQuotaMicros {
		return quota, per
	}
	return max(int64(math.Round(cores*period)), leastQuotaMicros), period
}

// readQuota reads quota and period in µs; a quota of 0 is none.
func (c control) readQuota() (quota, per int64, err error) {
	if c.version == 1 {
		if quota, err = c.readInt("cpu.cfs_quota_us"); err == nil {
			per, err = c.readInt("cpu.cfs_period_us")
		}
	} else {
		var text string
		if text, err = c.read("cpu.max"); err != nil {
			return 0, 0, err
		}
		most, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
		if per, err = strconv.ParseInt(rest, 10, 64); err == nil && most != "max" {
			quota, err = strconv.ParseInt(most, 10, 64)
		}
		if err != nil {
			err = fmt.Errorf("reading %s: %w", filepath.Join(c.dir, "cpu.max"), err)
		}
	}
	if err != nil {
		return 0, 0, err
	}
	if per <= 0 {
		per = period
	}
	return max(quota, 0), per, nil
}

// readInt reads a file with one figure.
func (c control) readInt(file string) (int64, error) {
	text, err := c.read(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", filepath.Join(c.dir, file), err)
	}
	return n, nil
}

func (c control) read(file string) (string, error) {
	if c.err != nil {
		return "", fmt.Errorf("reading %s: %w", file, c.err)
	}
	b, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		return "", c.explain("reading "+filepath.Join(c.dir, file), err)
	}
	return string(b), nil
}

// write writes one control in one system call; the kernel takes or refuses the
// value as a whole. It never creates a file.
func (c control) write(file, value string) error {
	if c.err != nil {
		return fmt.Errorf("writing %s: %w", file, c.err)
	}
	name := filepath.Join(c.dir, file)
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return c.explain(fmt.Sprintf("writing %q to %s", value, name), err)
	}
	return nil
}

// explain adds what was attempted, and what a missing file means.
func (c control) explain(what string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, statErr := os.Stat(filepath.Join(c.dir, "cgroup.procs")); statErr != nil {
		return fmt.Errorf("%s: %w: %w", what, ErrGone, err)
	}
	return fmt.Errorf("%s: %w (cgroup v2: %s must hold the controller): %w", what, ErrNoController,
		filepath.Join(filepath.Dir(c.dir), "cgroup.subtree_control"), err)
}
