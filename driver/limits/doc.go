// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package limits controls a task's CPU in the Linux kernel: it finds the task's cgroup,
// version 1 or 2 (FindFor), reads and writes its CPU controller (Cgroup), and freezes
// and thaws it. Callers read limits back before they report them as in force
// (Cgroup.Read, Cgroup.InForce). Package plan decides the values.
//
// A process without its own cgroup is refused (ErrNotExclusive) rather than
// limited together with others.
package limits

// Usage is what a cgroup has consumed since its creation; all figures are monotonic.
type Usage struct {
	CPUSeconds float64
	// Periods counts the quota periods in which the task was runnable; 0 without a
	// quota.
	Periods uint64
	// Throttled counts the periods in which the task reached its quota.
	Throttled uint64
	// ThrottledSeconds is the throttled time summed over CPUs, in seconds.
	ThrottledSeconds float64
}

type Limits struct {
	// Shares is the weight against siblings, in units of cpu.shares: MinShares to
	// MaxShares.
	Shares uint64
	// QuotaCores is the hard upper bound in cores; 0 means none.
	QuotaCores float64
}

// The kernel's range of cpu.shares, and its default.
const (
	MinShares     uint64 = 2
	MaxShares     uint64 = 262_144
	DefaultShares uint64 = 1024
)

// ClampShares clamps shares to the kernel's range; 0 ("not set") becomes DefaultShares,
// as in Docker and the kernel.
func ClampShares(shares uint64) uint64 {
	if shares == 0 {
		return DefaultShares
	}
	return min(max(shares, MinShares), MaxShares)
}
