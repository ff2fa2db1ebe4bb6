// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"sort"

	"github.com/opencontainers/cgroups"
)

// Conversion is the formula from cpu.shares to the number that the kernel divides CPU
// time by. On cgroup v1 that is cpu.shares itself. On v2 the container runtime converts
// to cpu.weight by one of two formulas; with the current one weights are NOT
// proportional to shares: 1024 and 256 shares (4 : 1) become 100 and 35 (2.9 : 1).
// Hence package plan divides weights on v2.
type Conversion int

const (
	// Identity is cgroup v1: shares are used as they are.
	Identity Conversion = iota
	// Quadratic is used by runc since 1.3.2, crun since 1.23 and Nomad's exec driver in
	// 1.11 (opencontainers/cgroups v0.0.6): a curve in the logarithm through 2→1,
	// 1024→100 and 262144→10000, rounded up.
	Quadratic
	// Linear is the earlier formula: a straight line through 2→1 and 262144→10000,
	// where 1024 becomes 39.
	Linear
)

// Weight returns the kernel's number for shares.
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

// Shares is the inverse of Weight: the largest shares with at most this weight. Every
// weight in range is reachable, so Weight(Shares(w)) == w, while Shares(Weight(s)) ≥ s.
func (c Conversion) Shares(weight uint64) uint64 {
	above := sort.Search(int(MaxShares-MinShares), func(i int) bool {
		return c.Weight(MinShares+1+uint64(i)) > weight
	})
	return MinShares + uint64(above)
}

// Bounds returns the kernel's minimum and maximum weight.
func (c Conversion) Bounds() (lo, hi uint64) { return c.Weight(MinShares), c.Weight(MaxShares) }

// Detect infers the conversion from a container with known shares and the weight found
// in the kernel: Docker's API takes shares and leaves the formula to the installed
// runtime. The nearer formula wins; ties (at the ends of the range) are Quadratic.
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
