// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package plan converts a policy's shares of the pool to limits for the kernel: weights or quotas
// (Limits), damped (Damper). It also computes the pool's size (Pool). It is pure arithmetic: no
// clock, no files.
//
// A task's entitlement is what Nomad gave it. Tasks without progress data and invalid requests keep
// theirs.
package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// Mode selects how shares of the pool are enforced.
type Mode string

const (
	// ModeWeight is work-conserving: weights matter only while CPU is scarce.
	ModeWeight Mode = "weight"
	// ModeQuota is a hard upper bound, as in the FlowCon papers.
	ModeQuota Mode = "quota"
	// ModeNone restores Nomad's limits.
	ModeNone Mode = "none"
)

// Request is a policy's decision for one task.
type Request struct {
	// ID identifies the task to Damper.
	ID string
	// Limit is the upper bound in (0, 1]; 1 means no limit, ≤ 0 or NaN no decision.
	Limit policy.Share
	// Keeps means that the task keeps its entitlement and its quota.
	Keeps bool
	// Demand is what the task could use; 0 if unknown.
	Demand policy.Cores
	// Base is the entitlement, the limits set by Nomad. Shares of 0 mean the kernel's default; the
	// quota (Docker's cpu_hard_limit) is never exceeded.
	Base limits.Limits
}

// base is Base, sanitised.
func (r Request) base() limits.Limits {
	b := limits.Limits{Shares: limits.ClampShares(r.Base.Shares), QuotaCores: r.Base.QuotaCores}
	if !(b.QuotaCores > 0) || math.IsInf(b.QuotaCores, 1) {
		b.QuotaCores = 0
	}
	return b
}

func (r Request) bound() bool { return !r.Keeps && r.Limit > 0 && r.Limit < 1 }

const (
	DefaultFloor         = 0.5
	DefaultQuotaMinCores = 1.0
	// HardMinQuotaCores is 10 ms in each period of 100 ms; with less, a task would pause for most
	// of a second.
	HardMinQuotaCores = 0.1
)

// Options tune Limits. Zero values mean the defaults.
type Options struct {
	// Floor is the fraction of its entitlement that every task keeps, in (0, DefaultFloor];
	// DefaultFloor is FlowCon's floor 1/(β·n) with β = 2. Published limits are upper bounds that
	// may sum to n: without a floor, dividing in proportion would leave one converged task among 99
	// unlimited ones 1/200 of its fair share.
	Floor float64
	// QuotaMinCores is the minimum quota where the pool allows it; default DefaultQuotaMinCores.
	// Programs with more threads than cores become very slow below one core.
	QuotaMinCores float64
	// Conversion is the node's conversion of shares (Cgroup.Conversion).
	Conversion limits.Conversion
}

func (o Options) floor() float64 {
	if !(o.Floor > 0) {
		return DefaultFloor
	}
	return min(o.Floor, DefaultFloor)
}

func (o Options) quotaMin() float64 {
	if !(o.QuotaMinCores > 0) || math.IsInf(o.QuotaMinCores, 1) {
		return DefaultQuotaMinCores
	}
	return o.QuotaMinCores
}

// Entitlements returns the weights of the tasks' base shares, and their sum.
func Entitlements(reqs []Request, conv limits.Conversion) (entitled []float64, total float64) {
	entitled = make([]float64, len(reqs))
	for i, r := range reqs {
		entitled[i] = float64(conv.Weight(r.base().Shares))
		total += entitled[i]
	}
	return entitled, total
}

// Modest returns the fair share of the pool of each task that could use no more, and 0 for the others.
// Such a task keeps its entitlement, which Modest sets: it takes nothing from others, and one that
// waits for something else, such as a GPU, is slowed by any weight that lets it wait for a CPU as well.
func Modest(pool policy.Cores, reqs []Request, conv limits.Conversion) []policy.Cores {
	entitled, total := Entitlements(reqs, conv)
	out := make([]policy.Cores, len(reqs))
	for i, r := range reqs {
		if share := pool * policy.Cores(entitled[i]/total); r.Demand > 0 && r.Demand <= share {
			out[i], reqs[i].Keeps = share, true
		}
	}
	return out
}

// Limits converts decisions to limits, in the order of reqs.
//
// ModeWeight: if no task is limited, the base shares are restored. Otherwise the tasks divide the
// sum of their base weights, so other cgroups on the node are unaffected. A task that keeps its
// entitlement keeps its weight; the rest is divided in proportion to Limit, or for an unlimited task to n times its
// fraction of the entitlements (1 if they are equal, which is L = 1). Each weight is at least Floor
// times the entitlement, or its own proportion if lower. Quotas stay Nomad's.
//
// ModeQuota: an unlimited task keeps Nomad's quota, usually none. The others get Limit × pool, but
// at least the lesser of QuotaMinCores and Floor times their fraction of the pool, and never less
// than HardMinQuotaCores. Shares stay Nomad's.
//
// A pool ≤ 0 releases every task in ModeQuota, and so does any other mode.
func Limits(mode Mode, pool policy.Cores, reqs []Request, opts Options) []limits.Limits {
	out := make([]limits.Limits, len(reqs))
	for i, r := range reqs {
		out[i] = r.base()
	}
	if !slices.ContainsFunc(reqs, Request.bound) {
		return out
	}
	switch mode {
	case ModeWeight:
		planWeight(reqs, opts, out)
	case ModeQuota:
		planQuota(float64(pool), reqs, opts, out)
	}
	return out
}

func planQuota(pool float64, reqs []Request, opts Options, out []limits.Limits) {
	if !(pool > 0) || math.IsInf(pool, 1) {
		return
	}
	entitled, total := Entitlements(reqs, opts.Conversion)
	for i, r := range reqs {
		if !r.bound() {
			continue
		}
		// min makes "QuotaMinCores where the pool allows it" continuous.
		least := max(min(opts.quotaMin(), pool*opts.floor()*entitled[i]/total), HardMinQuotaCores)
		quota := max(float64(r.Limit)*pool, least)
		if base := out[i].QuotaCores; base > 0 {
			quota = min(quota, base)
		}
		out[i].QuotaCores = quota
	}
}

// planWeight divides the sum of the base weights, in the kernel's unit (see
// limits.Conversion), and converts the result back to shares.
func planWeight(reqs []Request, opts Options, out []limits.Limits) {
	conv := opts.Conversion
	lo, hi := conv.Bounds()
	entitled, total := Entitlements(reqs, conv)
	parts := make([]waterfill.Claim, len(reqs))
	for i, r := range reqs {
		e := entitled[i]
		switch {
		case r.Keeps || !(r.Limit > 0):
			parts[i] = waterfill.Claim{Weight: e, Min: e, Max: e}
		case r.bound():
			least := min(float64(r.Limit)*total, opts.floor()*e)
			parts[i] = waterfill.Claim{Weight: float64(r.Limit), Min: max(least, float64(lo)), Max: float64(hi)}
		default:
			parts[i] = waterfill.Claim{Weight: float64(len(reqs)) * e / total, Min: max(opts.floor()*e, float64(lo)), Max: float64(hi)}
		}
	}
	inverse := make(map[uint64]uint64) // cache: many tasks have few different weights
	for i, w := range apportion(waterfill.Divide(total, parts), uint64(total), lo, hi) {
		if w == uint64(entitled[i]) {
			// Several values of shares may have this weight: keep Nomad's.
			continue
		}
		shares, ok := inverse[w]
		if !ok {
			shares = conv.Shares(w)
			inverse[w] = shares
		}
		out[i].Shares = shares
	}
}

// apportion rounds xs to integers within [lo, hi] that sum to total, by largest remainder, ties to
// the earlier one.
func apportion(xs []float64, total, lo, hi uint64) []uint64 {
	out := make([]uint64, len(xs))
	order := make([]int, len(xs))
	var sum uint64
	for i, x := range xs {
		order[i] = i
		out[i] = min(max(uint64(math.Floor(x)), lo), hi)
		sum += out[i]
	}
	rest := func(i int) float64 { return xs[i] - float64(out[i]) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest(b), rest(a)) })

	for sum < total {
		moved := false
		for _, i := range order {
			if sum < total && out[i] < hi {
				out[i]++
				sum++
				moved = true
			}
		}
		if !moved {
			break
		}
	}
	// The sum exceeds total only if lo raised a weight.
	for sum > total {
		moved := false
		for k := len(order) - 1; k >= 0; k-- {
			if i := order[k]; sum > total && out[i] > lo {
				out[i]--
				sum--
				moved = true
			}
		}
		if !moved {
			break
		}
	}
	return out
}
