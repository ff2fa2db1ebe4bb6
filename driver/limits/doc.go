// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package limits is what the Linux kernel knows of a task's CPU: it finds the control
// group of a task, of either version (FindFor, Cgroup), reads and writes its CPU
// controller, freezes and thaws it. A limit is never believed to be in force until it
// has been read back: see Cgroup.Read and Cgroup.InForce. What the limits are to be is
// decided elsewhere (package plan).
//
// Everything fails towards plain Nomad. A process that has no cgroup of its own is
// refused (ErrRefused) rather than limited together with others.
package limits

// Usage is what a cgroup has consumed since it was made. Every figure only grows.
type Usage struct {
	// CPUSeconds is the CPU time used, user and system, in seconds.
	CPUSeconds float64
	// Periods counts the quota periods in which the task wanted to run. It
	// stays 0 without a quota.
	Periods uint64
	// Throttled counts the periods in which the task hit its quota.
	Throttled uint64
	// ThrottledSeconds is how long the task's CPUs stood throttled, in
	// seconds, summed over CPUs: two CPUs throttled for a second make two.
	ThrottledSeconds float64
}

// Limits are the CPU limits of one task.
type Limits struct {
	// Shares is the task's weight against its siblings, in the units of
	// cgroup v1's cpu.shares: MinShares to MaxShares.
	Shares uint64
	// QuotaCores is the hard upper bound in cores; 0 means none.
	QuotaCores float64
}

// Range of cpu.shares as the kernel enforces it, and its default.
const (
	MinShares     uint64 = 2
	MaxShares     uint64 = 262_144
	DefaultShares uint64 = 1024
)

// ClampShares brings shares into what the kernel takes. 0 means "not set",
// for which both Docker and the kernel use DefaultShares.
func ClampShares(shares uint64) uint64 {
	if shares == 0 {
		return DefaultShares
	}
	return min(max(shares, MinShares), MaxShares)
}
