// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package plan turns what a policy decided, shares of the pool, into what the kernel
// is to enforce: weights or quotas (Limits), held steady against flutter (Damper). It
// also knows how large the pool is (Pool). It is arithmetic: no clock, no files.
//
// What Nomad gave a task is its entitlement. Everything here fails towards it: a task
// about which nothing is known, and a request that makes no sense, keep it.
package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// Mode is how a share of the pool is enforced.
type Mode string

const (
	// ModeWeight is work-conserving: weights decide only while CPU is short.
	ModeWeight Mode = "weight"
	// ModeQuota is a hard upper bound, as the FlowCon papers had it.
	ModeQuota Mode = "quota"
	// ModeNone gives every task back what Nomad set.
	ModeNone Mode = "none"
)

// Request is what a policy decided for one task.
type Request struct {
	// ID names the task; the Damper remembers by it.
	ID string
	// Limit is the upper bound in (0, 1]; 1 means no limit, and what is not positive
	// that nothing was decided.
	Limit policy.Share
	// Unknown says that the task keeps its entitlement, and has no quota of ours.
	Unknown bool
	// Base is what Nomad set, the entitlement. Shares of 0 mean the kernel's default;
	// the quota (Docker's cpu_hard_limit) is never exceeded.
	Base limits.Limits
}

// base is what the task had from Nomad, and has again when it is released.
func (r Request) base() limits.Limits {
	b := limits.Limits{Shares: limits.ClampShares(r.Base.Shares), QuotaCores: r.Base.QuotaCores}
	if !(b.QuotaCores > 0) || math.IsInf(b.QuotaCores, 1) {
		b.QuotaCores = 0
	}
	return b
}

// bound says whether a limit is to be enforced.
func (r Request) bound() bool { return !r.Unknown && r.Limit > 0 && r.Limit < 1 }

// Defaults of Options.
const (
	DefaultFloor         = 0.5
	DefaultQuotaMinCores = 1.0
	// LeastQuotaCores is 10 ms in each period of 100 ms: below it a task
	// stands still for most of a second at a time.
	LeastQuotaCores = 0.1
)

// Options tune Limits. The zero value means the defaults.
type Options struct {
	// Floor is the part of its entitlement that no task falls below, in (0, 1];
	// default DefaultFloor, which is FlowCon's floor 1/(β·n) with β = 2 and the most
	// that is used: with a floor of 1 nothing could be decided. It is needed because
	// published limits are upper bounds that may sum to n: divided in proportion
	// without it, one converged task among 99 that are free would be left with 1/200
	// of its fair share.
	Floor float64
	// QuotaMinCores is the least quota where the pool allows it; default
	// DefaultQuotaMinCores. Throughput of a program with more threads than quota
	// collapses below one CPU's worth.
	QuotaMinCores float64
	// Conversion is how shares reach the kernel on this node (Cgroup.Conversion).
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

// Entitlements are what Nomad gave the tasks, as the kernel divides CPU by it: the
// weights of their base shares.
func Entitlements(reqs []Request, conv limits.Conversion) []float64 {
	out := make([]float64, len(reqs))
	for i, r := range reqs {
		out[i] = float64(conv.Weight(r.base().Shares))
	}
	return out
}

// Limits turns decisions into limits, in the order of reqs.
//
// ModeWeight: when nobody is bound, every task's base shares are restored. Otherwise
// the tasks divide the sum of their base weights, so that others on the node are
// neither squeezed nor fed. An unknown task keeps its own weight; the rest is divided in
// proportion to Limit, or for a task without a limit to n times its part of the
// entitlements (1 with equal ones, as L = 1 is). Each weight is at least Floor times the
// entitlement, or its own proportion if lower. The quota stays Nomad's.
//
// ModeQuota: a task without a limit has the quota Nomad gave it, mostly none. The
// others have Limit × pool, but at least QuotaMinCores where Floor times their part of
// the pool is that much, else that part, and never less than LeastQuotaCores. Shares
// stay Nomad's.
//
// A pool that is not positive releases everybody in ModeQuota, and so does any other
// mode than these two.
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
	entitled := Entitlements(reqs, opts.Conversion)
	var total float64
	for _, e := range entitled {
		total += e
	}
	for i, r := range reqs {
		if !r.bound() {
			continue
		}
		// min(a, b) is the contract "QuotaMinCores where the pool allows it" made
		// continuous: on the border both are equal.
		least := max(min(opts.quotaMin(), pool*opts.floor()*entitled[i]/total), LeastQuotaCores)
		quota := max(float64(r.Limit)*pool, least)
		if base := out[i].QuotaCores; base > 0 {
			quota = min(quota, base)
		}
		out[i].QuotaCores = quota
	}
}

// planWeight divides the sum of the base weights. It works in the kernel's own
// unit (see limits.Conversion) and goes back to shares at the end.
func planWeight(reqs []Request, opts Options, out []limits.Limits) {
	conv := opts.Conversion
	lo, hi := conv.Bounds()
	entitled := Entitlements(reqs, conv)
	var total float64
	for _, e := range entitled {
		total += e
	}
	parts := make([]waterfill.Claim, len(reqs))
	for i, r := range reqs {
		e := entitled[i]
		switch {
		case r.Unknown || !(r.Limit > 0):
			parts[i] = waterfill.Claim{Weight: e, Min: e, Max: e}
		case r.bound():
			least := min(float64(r.Limit)*total, opts.floor()*e)
			parts[i] = waterfill.Claim{Weight: float64(r.Limit), Min: max(least, float64(lo)), Max: float64(hi)}
		default:
			parts[i] = waterfill.Claim{Weight: float64(len(reqs)) * e / total, Min: max(opts.floor()*e, float64(lo)), Max: float64(hi)}
		}
	}
	inverse := make(map[uint64]uint64) // many tasks, few weights
	for i, w := range apportion(waterfill.Divide(total, parts), uint64(total), lo, hi) {
		if w == uint64(entitled[i]) {
			// A weight that did not change keeps Nomad's own number of shares,
			// which may be one of several that have this weight.
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

// apportion rounds xs to integers within [lo, hi] whose sum is total, by
// largest remainder (ties: the earlier one), so that rounding favours nobody.
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
	// Too much happens only where the floor lo lifted somebody.
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

// IOWeights turns limits into weights for block I/O, in the same order. The tasks
// divide limits.DefaultIOWeight a task, as much as they have under plain Nomad, in
// proportion to their limits; an unknown task keeps that. Each weight is at least half
// of it, or its own proportion if lower.
func IOWeights(reqs []Request) []uint64 {
	const fair, lo, hi = float64(limits.DefaultIOWeight), float64(limits.MinIOWeight), float64(limits.MaxIOWeight)
	total := limits.DefaultIOWeight * uint64(len(reqs))
	parts := make([]waterfill.Claim, len(reqs))
	for i, r := range reqs {
		if r.Unknown || !(r.Limit > 0) {
			parts[i] = waterfill.Claim{Weight: 1, Min: fair, Max: fair}
			continue
		}
		l := float64(min(r.Limit, 1))
		parts[i] = waterfill.Claim{Weight: l, Min: max(min(l*float64(total), DefaultFloor*fair), lo), Max: hi}
	}
	return apportion(waterfill.Divide(float64(total), parts), total, limits.MinIOWeight, limits.MaxIOWeight)
}
