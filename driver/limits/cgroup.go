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
	// period is the quota period in µs where the cgroup's own is unusable.
	period = 100_000
	// minQuotaMicros is the kernel's minimum quota, in µs per period.
	minQuotaMicros = 1_000
)

// Cgroup is the cgroup of one task, version 1 or 2. It holds no open files and is safe
// for concurrent use, except for SetConversion.
//
// Errors name the file, and the value written if any. They wrap ErrGone if the cgroup
// no longer exists, ErrNoController if the kernel does not offer the control.
type Cgroup struct {
	cpu, acct, mem, blk, frz control
	conv                     Conversion
	finder                   Finder
}

// control is a cgroup's directory in the hierarchy of one controller.
type control struct {
	version int
	dir     string
	base    string // the mount point
	err     error  // why there is none
}

// Version returns the cgroup version, 1 or 2.
func (c *Cgroup) Version() int { return c.cpu.version }

// Conversion converts shares to the kernel's weight: Identity on version 1; on version
// 2 Quadratic, unless changed by SetConversion.
func (c *Cgroup) Conversion() Conversion { return c.conv }

// SetConversion sets the conversion of a version 2 cgroup for a runtime with another
// formula (see Detect). No-op on version 1.
func (c *Cgroup) SetConversion(conv Conversion) {
	if c.cpu.version == 2 && conv != Identity {
		c.conv = conv
	}
}

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

// Memory returns the working set in bytes: usage less inactive page cache, as in `docker stats`.
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

// Read returns the limits in force. On version 2 Shares is the largest value with the
// weight in force, so it may exceed what was set; compare with InForce.
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

// Weight is what the kernel divides CPU time by: cpu.weight on version 2 (1–10000; 0
// for an idle cgroup), cpu.shares on version 1.
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

// InForce reports whether got, as read, satisfies want. It allows for rounding: on
// version 2 many shares have one weight, and a quota is whole microseconds per period,
// at least 1 ms.
func (c *Cgroup) InForce(want, got Limits) bool {
	if c.conv.Weight(want.Shares) != c.conv.Weight(got.Shares) {
		return false
	}
	if want.QuotaCores <= 0 || got.QuotaCores <= 0 {
		return want.QuotaCores <= 0 && got.QuotaCores <= 0
	}
	return math.Abs(max(want.QuotaCores, float64(minQuotaMicros)/period)-got.QuotaCores) <= 0.001
}

// Set sets a task's limits. It writes them itself, for containers too: Docker's update makes runc
// before 1.0.0, and systemd under any runc, restore the devices that they know of, which takes those
// away that a hook has added, such as NVIDIA's GPUs.
//
// What Docker and systemd know stays, so systemd may restore it (daemon-reload), and the next read
// shows that.
func (c *Cgroup) Set(want Limits) error {
	return errors.Join(c.SetShares(want.Shares), c.SetQuota(want.QuotaCores))
}

// SetShares sets the weight for shares, clamped to MinShares and MaxShares.
func (c *Cgroup) SetShares(shares uint64) error {
	return c.cpu.write(c.weightFile(), strconv.FormatUint(c.conv.Weight(shares), 10))
}

// SetQuota sets the hard upper bound in cores; 0 removes it. The period in force is
// kept, as the job may have chosen it, unless the quota would fall below the kernel's
// minimum of 1 ms: then it is 100 ms.
//
// Version 1 refuses a quota above a parent's; the error names the parent.
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
	quota, per := quotaFor(cores, per)
	if c.cpu.version == 2 {
		return c.cpu.write("cpu.max", fmt.Sprintf("%d %d", quota, per))
	}
	if per != inForce {
		// The kernel checks each intermediate pair: lift the quota first.
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
		if dir, most := minQuota(above); dir != "" && most < float64(quota)/float64(per) {
			return fmt.Errorf("quota of %.3f cores: the parent %s allows at most %.3f: %w", cores, dir, most, err)
		}
	}
	return err
}

// quotaFor returns the quota for a number of cores > 0, in µs per period. The period is
// kept, unless it is 0 (not set) or too short for the kernel's minimum quota: then it
// is the kernel's default, with a quota of at least 1 ms.
func quotaFor(cores float64, per int64) (quota, newPer int64) {
	if quota = int64(math.Round(cores * float64(per))); quota >= minQuotaMicros {
		return quota, per
	}
	return max(int64(math.Round(cores*period)), minQuotaMicros), period
}

// readQuota reads quota and period in µs; quota 0 means none.
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
		return "", c.wrapErr("reading "+filepath.Join(c.dir, file), err)
	}
	return string(b), nil
}

// write writes a control in one system call, so the kernel takes or refuses the value
// as a whole. It never creates a file.
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
		return c.wrapErr(fmt.Sprintf("writing %q to %s", value, name), err)
	}
	return nil
}

// wrapErr adds the attempted operation and the reason for a missing file.
func (c control) wrapErr(what string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, statErr := os.Stat(filepath.Join(c.dir, "cgroup.procs")); statErr != nil {
		return fmt.Errorf("%s: %w: %w", what, ErrGone, err)
	}
	return fmt.Errorf("%s: %w (cgroup v2: %s must hold the controller): %w", what, ErrNoController,
		filepath.Join(filepath.Dir(c.dir), "cgroup.subtree_control"), err)
}
