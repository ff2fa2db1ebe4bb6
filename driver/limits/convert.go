// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"sort"

	"github.com/opencontainers/cgroups"
)

// Conversion says how cpu.shares become the number the kernel's scheduler
// divides CPU time by, in proportion. On cgroup v1 that is cpu.shares itself.
// On v2 it is cpu.weight, and the container runtime converts; there are two
// formulas about, and with the current one the weights are NOT in proportion
// to the shares: 1024 and 256 shares (4 : 1) become weights 100 and 35
// (2.9 : 1). Plan therefore divides weights, not shares, on cgroup v2.
type Conversion int

const (
	// Identity is cgroup v1: the kernel uses shares as they are.
	Identity Conversion = iota
	// Quadratic is what runc does since 1.3.2, crun since 1.23, and Nomad's
	// exec driver in 1.11 (opencontainers/cgroups v0.0.6): a curve in the
	// logarithm through 2→1, 1024→100 and 262144→10000, rounded up.
	Quadratic
	// Linear is what runtimes did before: 2→1, 262144→10000 on a straight
	// line, which takes 1024 to 39.
	Linear
)

// Weight is what the kernel gets for these shares.
func (c Conversion) Weight(shares uint64) uint64 {
	shares = ClampShares(shares)
	switch c {
	case Quadratic:
		return cgroups.ConvertCPUSharesToCgroupV2Value(shares)
	case Linear:
		return 1 + (shares-2)*9999/262142
	default:
		return shares
	}
}

// Shares is the inverse of Weight: the largest shares that give at most this
// weight. Every weight in range is reachable under Quadratic and Linear, so
// Weight(Shares(w)) == w; the other way round many shares have one weight, and
// Shares(Weight(s)) is s or a little more (never less).
func (c Conversion) Shares(weight uint64) uint64 {
	above := sort.Search(int(MaxShares-MinShares), func(i int) bool {
		return c.Weight(MinShares+1+uint64(i)) > weight
	})
	return MinShares + uint64(above)
}

// Bounds are the least and the greatest weight the kernel takes.
func (c Conversion) Bounds() (lo, hi uint64) { return c.Weight(MinShares), c.Weight(MaxShares) }

// Detect tells which conversion turned shares into the weight found in the
// kernel. Docker's API takes shares and leaves the formula to the runtime
// installed, so it is learned from a container whose shares are known. The
// nearer formula wins; a tie (both agree at the ends of the range) is Quadratic.
func Detect(version int, shares, weight uint64) Conversion {
	if version < 2 {
		return Identity
	}
	if distance(Linear.Weight(shares), weight) < distance(Quadratic.Weight(shares), weight) {
		return Linear
	}
	return Quadratic
}

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }
