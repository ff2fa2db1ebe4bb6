// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"math"
	"sort"
)

// Mode is how a fraction of the pool is enforced.
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
	// Limit is the fraction of the pool in (0, 1]; 1 means no limit. NaN, and
	// what is not positive, is read as Unmeasured.
	Limit float64
	// Unmeasured tasks have never reported progress: they are never held
	// below their fair share 1/n, and never under a quota of ours.
	Unmeasured bool
	// BaseShares is what Nomad set; 0 means the kernel's default.
	BaseShares uint64
	// BaseQuotaCores is the quota Nomad set (Docker's cpu_hard_limit), in
	// cores; 0 means none. It is never exceeded.
	BaseQuotaCores float64
}

// Base is what the task had from Nomad, and has again when it is released.
func (r Request) Base() Limits {
	return Limits{Shares: ClampShares(r.BaseShares), QuotaCores: baseQuota(r.BaseQuotaCores)}
}

func baseQuota(cores float64) float64 {
	if !(cores > 0) || math.IsInf(cores, 1) {
		return 0
	}
	return cores
}

// measured says whether Limit is to be used.
func (r Request) measured() bool { return !r.Unmeasured && r.Limit > 0 }

// free says that nothing limits the task.
func (r Request) free() bool { return !r.measured() || r.Limit >= 1 }

// Defaults of Options.
const (
	DefaultFloor         = 0.5
	DefaultQuotaMinCores = 1.0
	// LeastQuotaCores is 10 ms in each period of 100 ms: below it a task
	// stands still for most of a second at a time.
	LeastQuotaCores = 0.1
)

// Options tune Plan. The zero value means the defaults.
type Options struct {
	// Floor is the part of its fair share 1/n that no task falls below, in
	// (0, 1]; default DefaultFloor, which is FlowCon's floor 1/(β·n) with β = 2.
	// It is needed because published limits are upper bounds that may sum to
	// n: divided in proportion without it, one converged task among 99 that
	// are free would be left with 1/200 of its fair share. Mind that a floor of
	// 1 (a β of 1) is the fair share itself: ModeWeight then divides equally,
	// whatever the policy says.
	Floor float64
	// QuotaMinCores is the least quota where the pool allows it, in cores;
	// default DefaultQuotaMinCores. Throughput of a program with more threads
	// than quota collapses below one CPU's worth.
	QuotaMinCores float64
	// Conversion is how shares reach the kernel on this node (Cgroup.Conversion).
	Conversion Conversion
}

func (o Options) floor() float64 {
	if !(o.Floor > 0 && o.Floor <= 1) {
		return DefaultFloor
	}
	return o.Floor
}

func (o Options) quotaMin() float64 {
	if !(o.QuotaMinCores > 0) || math.IsInf(o.QuotaMinCores, 1) {
		return DefaultQuotaMinCores
	}
	return o.QuotaMinCores
}

// Plan turns decisions into limits, in the order of reqs. It is pure.
//
// ModeWeight: when every limit is 1, everyone gets his base shares back.
// Otherwise the tasks divide the sum of their base weights, so that others on
// the node are neither squeezed nor fed: an unmeasured task gets 1/n of it,
// measured ones the rest in proportion to Limit, but at least Floor/n (or
// Limit, where that is less). The quota stays Nomad's.
//
// ModeQuota: a task with limit 1, or an unmeasured one, has the quota Nomad
// gave it, mostly none. The others have Limit × poolCores, but at least
// QuotaMinCores where the pool allows (poolCores ≥ n·QuotaMinCores/Floor) and
// else Floor/n of the pool, and never less than LeastQuotaCores. Shares stay
// Nomad's.
//
// A poolCores that is not positive releases everybody in ModeQuota, and so
// does any other mode than these two.
func Plan(mode Mode, poolCores float64, reqs []Request, opts Options) []Limits {
	out := make([]Limits, len(reqs))
	released := true
	for i, r := range reqs {
		out[i] = r.Base()
		released = released && r.free()
	}
	if released {
		return out
	}
	switch mode {
	case ModeWeight:
		planWeight(reqs, opts, out)
	case ModeQuota:
		planQuota(poolCores, reqs, opts, out)
	}
	return out
}

func planQuota(pool float64, reqs []Request, opts Options, out []Limits) {
	if !(pool > 0) || math.IsInf(pool, 1) {
		return
	}
	n := float64(len(reqs))
	// min(a, b) is the contract "QuotaMinCores where the pool allows it" made
	// continuous: on the border both are equal.
	least := max(min(opts.quotaMin(), pool*opts.floor()/n), LeastQuotaCores)
	for i, r := range reqs {
		if r.free() {
			continue
		}
		quota := max(r.Limit*pool, least)
		if base := out[i].QuotaCores; base > 0 {
			quota = min(quota, base)
		}
		out[i].QuotaCores = quota
	}
}

// planWeight divides the sum of the base weights. It works in the kernel's own
// unit (see Conversion) and goes back to shares at the end.
func planWeight(reqs []Request, opts Options, out []Limits) {
	conv := opts.Conversion
	lo, hi := conv.bounds()
	n := len(reqs)

	var total uint64
	base := make([]uint64, n)
	for i, l := range out {
		base[i] = conv.Weight(l.Shares)
		total += base[i]
	}
	fair := float64(total) / float64(n)

	parts := make([]part, n)
	for i, r := range reqs {
		if !r.measured() {
			parts[i] = part{min: fair, max: fair}
			continue
		}
		limit := min(r.Limit, 1)
		least := min(limit*float64(total), opts.floor()*fair)
		parts[i] = part{want: limit, min: max(least, float64(lo)), max: float64(hi)}
	}
	inverse := make(map[uint64]uint64) // many tasks, few weights
	for i, w := range apportion(divide(float64(total), parts), total, lo, hi) {
		if w == base[i] {
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

// part is one claim on a sum: in proportion to want, within [min, max].
type part struct{ want, min, max float64 }

// divide finds the factor λ for which Σ clamp(λ·want, min, max) = total, and
// returns the terms. The sum grows with λ, so bisection finds it; Σ min ≤ total
// ≤ Σ max holds by construction in planWeight.
func divide(total float64, parts []part) []float64 {
	sum := func(lambda float64) (s float64) {
		for _, p := range parts {
			s += min(max(lambda*p.want, p.min), p.max)
		}
		return s
	}
	var least = math.Inf(1)
	for _, p := range parts {
		if p.want > 0 {
			least = min(least, p.want)
		}
	}
	lambda := 0.0
	if !math.IsInf(least, 1) {
		// At the upper end even the smallest claim would take everything.
		a, b := 0.0, total/least
		for range 64 { // more than a float64's mantissa
			lambda = a + (b-a)/2
			if lambda == a || lambda == b {
				break
			}
			if sum(lambda) < total {
				a = lambda
			} else {
				b = lambda
			}
		}
	}
	out := make([]float64, len(parts))
	for i, p := range parts {
		out[i] = min(max(lambda*p.want, p.min), p.max)
	}
	return out
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
	sort.SliceStable(order, func(a, b int) bool { return rest(order[a]) > rest(order[b]) })

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
