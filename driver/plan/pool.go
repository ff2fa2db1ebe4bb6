// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"errors"
	"fmt"
	"math"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
)

// ErrEmptyPool means that Nomad reserves every CPU.
var ErrEmptyPool = errors.New("the pool is empty")

// PoolInput is the input of Pool.
type PoolInput struct {
	// Configured is the operator's pool_cores; 0 means automatic.
	Configured float64
	// NodeCores is the number of logical CPUs of the node.
	NodeCores int
	// UsableCores is the number of CPUs that Nomad may use: all, less reserved.cores or those
	// outside reservable_cores. 0 means all.
	UsableCores int
	// ReservedMHz is Nomad's reserved.cpu, in MHz.
	ReservedMHz float64
	// CoreMHz is the mean speed of the usable CPUs as computed by Nomad, in MHz; it converts
	// ReservedMHz to cores.
	CoreMHz float64
	// ContainerCores is the CPU quota of Nomad itself (in a container or a systemd unit with
	// CPUQuota), in cores; 0 means none.
	ContainerCores float64
}

// Pool returns the CPU that the node's elastic tasks share, in cores: Configured if set, else the
// usable CPUs less Nomad's reserve, at most Nomad's own quota. The caller subtracts tasks with
// `cores`.
//
// Nomad's PercentTicks divides by the usable compute but multiplies by all CPUs, so it is not used.
// Pool reports all invalid fields, or ErrEmptyPool if nothing is left.
func Pool(in PoolInput) (policy.Cores, error) {
	var errs []error
	bad := func(field, allowed string, got any) {
		errs = append(errs, fmt.Errorf("%s: must be %s, got %v", field, allowed, got))
	}
	if in.NodeCores < 1 {
		bad("node cores", "≥ 1", in.NodeCores)
	}
	if !(in.Configured >= 0 && in.Configured <= float64(max(in.NodeCores, 0))) {
		bad("pool_cores", fmt.Sprintf("between 0 (automatic) and %d (the node's CPUs)", in.NodeCores), in.Configured)
	}
	if in.UsableCores < 0 || in.UsableCores > in.NodeCores {
		bad("usable cores", fmt.Sprintf("between 0 (all) and %d (the node's CPUs)", in.NodeCores), in.UsableCores)
	}
	if !(in.ReservedMHz >= 0) || math.IsInf(in.ReservedMHz, 1) {
		bad("reserved.cpu", "a number of MHz ≥ 0", in.ReservedMHz)
	}
	if in.ReservedMHz > 0 && !(in.CoreMHz > 0 && !math.IsInf(in.CoreMHz, 1)) {
		bad("core speed", "> 0 MHz where reserved.cpu is set", in.CoreMHz)
	}
	if !(in.ContainerCores >= 0) {
		bad("container cores", "≥ 0 (0 = no limit)", in.ContainerCores)
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}

	if in.Configured > 0 {
		return policy.Cores(in.Configured), nil
	}
	usable := in.UsableCores
	if usable == 0 {
		usable = in.NodeCores
	}
	reserved := 0.0
	if in.ReservedMHz > 0 {
		reserved = in.ReservedMHz / in.CoreMHz
	}
	cores := float64(usable) - reserved
	if in.ContainerCores > 0 {
		cores = min(cores, in.ContainerCores)
	}
	if cores <= 0 {
		return 0, fmt.Errorf("%w: %d usable cores, less %.2f reserved", ErrEmptyPool, usable, reserved)
	}
	return policy.Cores(cores), nil
}

// NomadShares returns the shares that Nomad's drivers give a task with cpuMHz on a node with
// totalMHz: the MHz, scaled down on nodes whose MHz exceed the range of shares.
func NomadShares(cpuMHz, totalMHz int64) uint64 {
	if cpuMHz < int64(limits.MinShares) {
		return limits.MinShares
	}
	if totalMHz >= int64(limits.MaxShares) {
		cpuMHz = int64(float64(cpuMHz) / float64(totalMHz) * float64(limits.MaxShares))
	}
	return min(max(uint64(cpuMHz), limits.MinShares), limits.MaxShares)
}
