// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"math"

	"github.com/hashicorp/go-multierror"
)

// ErrEmptyPool means that nothing is left for the tasks to share: reserves and
// `cores` tasks have taken every CPU. There is nothing to divide then.
var ErrEmptyPool = errors.New("the pool is empty")

// PoolInput is what the size of the pool depends on.
type PoolInput struct {
	// Configured is the operator's pool_cores; 0 means work it out.
	Configured float64
	// NodeCores is the number of logical CPUs of the node.
	NodeCores int
	// UsableCores is how many of them Nomad may use: all, less reserved.cores
	// or what lies outside reservable_cores. 0 means all.
	UsableCores int
	// ReservedMHz is Nomad's reserved.cpu, in MHz.
	ReservedMHz float64
	// CoreMHz is the mean speed of the usable CPUs as Nomad counts it, in
	// MHz; needed only to turn ReservedMHz into cores.
	CoreMHz float64
	// PinnedCores is how many CPUs `cores` tasks hold for themselves.
	PinnedCores int
	// ContainerCores is the CPU quota over Nomad itself (it runs in a
	// container, or in a systemd unit with CPUQuota), in cores; 0 means none.
	ContainerCores float64
}

// Pool is the CPU the elastic tasks of a node share, in cores: Configured when
// it is set, else the usable CPUs less Nomad's reserve less what `cores` tasks
// have pinned, and no more than the container that Nomad runs in may use.
//
// Reserves are counted in cores by the speed of a core: Nomad's own
// PercentTicks divides by the usable compute but multiplies by all CPUs, and
// is not used here. Every wrong field is reported, by name, with what is
// allowed. ErrEmptyPool when nothing is left.
func Pool(in PoolInput) (cores float64, err error) {
	var errs *multierror.Error
	bad := func(field, allowed string, got any) {
		errs = multierror.Append(errs, fmt.Errorf("%s: must be %s, got %v", field, allowed, got))
	}
	if in.NodeCores < 1 {
		bad("node cores", "≥ 1", in.NodeCores)
	}
	if !(in.Configured >= 0 && in.Configured <= float64(max(in.NodeCores, 0))) {
		bad("pool_cores", fmt.Sprintf("between 0 (worked out) and %d (the node's CPUs)", in.NodeCores), in.Configured)
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
	if in.PinnedCores < 0 || in.PinnedCores > in.NodeCores {
		bad("pinned cores", fmt.Sprintf("between 0 and %d (the node's CPUs)", in.NodeCores), in.PinnedCores)
	}
	if !(in.ContainerCores >= 0) {
		bad("container cores", "≥ 0 (0 = no limit)", in.ContainerCores)
	}
	if err := errs.ErrorOrNil(); err != nil {
		return 0, err
	}

	if in.Configured > 0 {
		return in.Configured, nil
	}
	usable := in.UsableCores
	if usable == 0 {
		usable = in.NodeCores
	}
	reserved := 0.0
	if in.ReservedMHz > 0 {
		reserved = in.ReservedMHz / in.CoreMHz
	}
	cores = float64(usable) - reserved - float64(in.PinnedCores)
	if in.ContainerCores > 0 {
		cores = min(cores, in.ContainerCores)
	}
	if cores <= 0 {
		return 0, fmt.Errorf("%w: %d usable cores, less %.2f reserved, less %d pinned by `cores` tasks", ErrEmptyPool, usable, reserved, in.PinnedCores)
	}
	return cores, nil
}

// NomadShares are the shares that Nomad's drivers give a task with this many
// MHz of `cpu` on a node with totalMHz in all: the MHz themselves, or on nodes
// that have more MHz than there are shares, scaled to fit.
func NomadShares(cpuMHz, totalMHz int64) uint64 {
	if cpuMHz < int64(MinShares) {
		return MinShares
	}
	if totalMHz >= int64(MaxShares) {
		cpuMHz = int64(float64(cpuMHz) / float64(totalMHz) * float64(MaxShares))
	}
	return min(max(uint64(cpuMHz), MinShares), MaxShares)
}
