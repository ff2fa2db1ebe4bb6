// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package dqoes divides a node's CPU by the response time objectives of services, as
// DQoES does (thesis on TRADL and DQoES, §4.2 and §5.2): Algorithm 2 classifies
// services and moves their limits, Algorithm 3, the adaptive listener, sets the time of
// the next run.
//
// With p, the measured response time, o, the objective, and q = o − p:
//
//	class            when         limit
//	G  better        q > α·o      L · (1 − q/Q_G · R_G · β), not below φ/2
//	S  satisfied     otherwise    L
//	B  worse         q < −α·o     L · (1 + q/Q_B · R_G · β), not above the pool
//
// Q_G and Q_B are the sums of q over a class. R_G is the reclaimable CPU: the use of
// class G and the idle part of the pool (headroom, ours). φ is the fair share, 1/n with
// equal entitlements.
//
// Where the thesis is ambiguous, the choice is documented at the rule.
package dqoes

import (
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

const (
	// RuleGood: better than its target: gives CPU away.
	RuleGood = "dqoes.good"
	// RuleSatisfied: meets its target: the limit stays.
	RuleSatisfied = "dqoes.satisfied"
	// RuleBad: worse than its target: gets more CPU.
	RuleBad = "dqoes.bad"
	// RuleBadFull: worse than its target, but no CPU is left.
	RuleBadFull = "dqoes.bad.full"
	// RuleUnmeasured: no response time: the limit stays.
	RuleUnmeasured = "dqoes.unmeasured"
	// RuleEvent: a task has joined or left: the limit stays.
	RuleEvent = "dqoes.event"
	// RuleNoService: no target: no limit.
	RuleNoService = "dqoes.no-service"
)

// rounding is the relative tolerance of comparisons: neither the order of the input nor
// the last bit of α·o may matter.
const rounding = 1e-9

// Decide runs Algorithm 2, then 3, on a valid snapshot.
//
// Bounds. Every limit of the result is in [φ/2, 1], whatever the class. The thesis
// bounds class G only, but a limit may date from a time with more tasks; its prose has
// 1/(2·|G|), its pseudo-code 1/(2·|C|), and n = |C| includes other tasks. So a service
// with an unreachable objective may ask for the whole pool while all others keep a
// floor: as ceilings, such limits leave each task φ/2; as weights they need a bound of
// their own (Outcome.Floor), because they may sum to more than 1.
//
// R_G. As published, class B cannot grow while G is empty, even on an idle pool.
// Params.Headroom adds the idle part of the pool, for both classes. R_G is at most 1,
// even if tasks use CPU outside the pool, so that a service moves by at most β. At R_G
// = 0, a full pool without class G, limits stay: services with the same unreachable
// objective keep limits that differ from earlier times (StepProportional equalises
// them).
//
// Unmeasured services (no batch ended in the interval) are in no class, sum or count
// and keep their limits: a repeated figure would repeat the step, and a slow service
// under a short interval would never be measured if its limit kept falling. Their use
// is not idle. On an event nothing was measured: limits and state stay, and the
// interval is the initial one.
//
// The listener compares with the last run's state. If fewer services are satisfied, the
// interval is halved, down to the initial one, and the trend restarts. Otherwise the
// third consecutive run in which both sums moved strictly towards 0 doubles the
// interval, up to the maximum (the thesis says three times and counts to two). A sum
// that stays 0 has not moved, so that the interval of a fully satisfied node stays, as
// published. Unmeasured services make counts and sums incomparable: then there is no
// trend, and the count has fallen only if it would have with all of them satisfied.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	n := newNode(s, p)
	n.classify()
	switch {
	case s.Event != policy.EventNone:
		n.keep()
	case p.Step == StepProportional:
		n.proportional()
	default:
		n.published()
	}
	return n.output()
}

// node is the state of a run. Slices have one element per task of the snapshot.
type node struct {
	policy.Snapshot
	params        Params
	services      []int
	fair          []policy.Share // φ
	equal         bool           // all fair shares are 1/n
	class         []policy.Class
	q             []float64 // o − p of measured services
	sum           State     // of this run, except Trend
	unmeasured    int
	reclaimable   policy.Share // R_G with its additions
	pool          policy.Share // for all measured services
	limit         []policy.Share
	overcommitted bool           // StepProportional: the pool is too small for the faster aim
	uncut         []policy.Share // StepProportional: the limits before level cut them, else nil
}

func newNode(s policy.Snapshot, p Params) *node {
	n := &node{
		Snapshot: s, params: p, fair: s.FairShares(), equal: true,
		class: make([]policy.Class, len(s.Tasks)),
		q:     make([]float64, len(s.Tasks)),
		limit: make([]policy.Share, len(s.Tasks)),
	}
	for i, t := range s.Tasks {
		n.equal = n.equal && n.fair[i] == n.fair[0]
		if t.Service() {
			n.services = append(n.services, i)
		}
	}
	return n
}

// classify is Algorithm 2, lines 2–15.
func (n *node) classify() {
	var used, others, usedGood, usedUnmeasured policy.Share
	for i, t := range n.Tasks {
		if !t.Service() {
			others += t.Use
			continue
		}
		used += t.Use
		if t.ResponseS == nil {
			n.unmeasured++
			usedUnmeasured += t.Use
			continue
		}
		q := *t.ObjectiveS - *t.ResponseS
		n.q[i] = q
		switch edge := n.params.Alpha * *t.ObjectiveS * (1 + rounding); {
		case q > edge:
			n.class[i] = policy.Good
			n.sum.QGood = math.Min(n.sum.QGood+q, math.MaxFloat64) // JSON has no infinity
			usedGood += t.Use
		case q < -edge:
			n.class[i] = policy.Bad
			n.sum.QBad = math.Max(n.sum.QBad+q, -math.MaxFloat64)
		default:
			n.class[i] = policy.Satisfied
			n.sum.Satisfied++
		}
	}
	others = min(1, others)
	n.reclaimable = usedGood
	if n.params.Headroom {
		n.reclaimable += max(0, 1-used-others)
	}
	if n.reclaimable = min(1, n.reclaimable); n.reclaimable < rounding {
		n.reclaimable = 0 // only rounding errors
	}
	n.pool = max(0, 1-others-usedUnmeasured)
}

func (n *node) keep() {
	for _, i := range n.services {
		n.limit[i] = n.bound(i, n.Tasks[i].Bound())
	}
}

// published is Algorithm 2, lines 16–24.
func (n *node) published() {
	for _, i := range n.services {
		step := policy.Share(n.part(i)) * n.reclaimable * policy.Share(n.params.Beta)
		n.limit[i] = n.bound(i, n.Tasks[i].Bound()*(1+step))
	}
}

// part returns the service's part of its class's sum, signed like the step.
func (n *node) part(i int) float64 {
	switch n.class[i] {
	case policy.Good:
		return -n.q[i] / n.sum.QGood
	case policy.Bad:
		return n.q[i] / n.sum.QBad
	default:
		return 0
	}
}

func (n *node) proportional() {
	n.moveTowards(1 - n.params.Alpha/2)
	if n.fits() {
		return
	}
	n.overcommitted = true
	n.moveTowards(n.shortAim())
	if !n.fits() {
		n.uncut = slices.Clone(n.limit)
		n.level()
	}
}

// shortAim returns the aim on a short pool, as a part of o.
func (n *node) shortAim() float64 { return 1 + n.params.Alpha/4 }

// moveTowards moves the limits towards response times of aim·o.
func (n *node) moveTowards(aim float64) {
	for _, i := range n.services {
		t := n.Tasks[i]
		limit := t.Bound()
		if need := n.need(i, aim); n.class[i] != policy.Unmeasured && need > 0 {
			half := policy.Share(math.Sqrt(float64(need/limit))) * limit
			half = min(2*limit, max(limit/2, half))
			off := math.Abs(*t.ResponseS / *t.ObjectiveS - aim)
			if n.class[i] != policy.Satisfied || n.overcommitted && off > n.params.Alpha/4 {
				limit = half
			}
		}
		n.limit[i] = n.bound(i, limit)
	}
}

// need returns the limit for a response time of aim·o; 0 if unknown.
func (n *node) need(i int, aim float64) policy.Share {
	t := n.Tasks[i]
	if n.class[i] == policy.Unmeasured || t.Use == 0 || *t.ResponseS == 0 {
		return 0
	}
	base := t.Use
	if n.class[i] != policy.Good {
		base = max(base, t.Bound())
	}
	return base * policy.Share(*t.ResponseS / *t.ObjectiveS / aim)
}

// fits reports whether the limits of the measured services fit into their part of the
// pool.
func (n *node) fits() bool {
	var sum policy.Share
	for _, i := range n.services {
		if n.class[i] != policy.Unmeasured {
			sum += n.limit[i]
		}
	}
	return sum <= n.pool*(1+rounding)
}

// level cuts the largest limits to one level of their fair shares, so that the sum
// fits.
func (n *node) level() {
	var cut []int
	var claims []waterfill.Claim
	for _, i := range n.services {
		if n.class[i] != policy.Unmeasured {
			cut = append(cut, i)
			claims = append(claims, waterfill.Claim{
				Weight: float64(n.fair[i]), Min: float64(n.floor(i)), Max: float64(n.limit[i]),
			})
		}
	}
	for k, limit := range waterfill.Divide(float64(n.pool), claims) {
		n.limit[cut[k]] = policy.Share(limit)
	}
}

func (n *node) floor(i int) policy.Share { return n.fair[i] / 2 }

func (n *node) bound(i int, limit policy.Share) policy.Share {
	return min(1, max(limit, n.floor(i)))
}

func (n *node) output() policy.Outcome {
	out := policy.Outcome{Tasks: make([]policy.Decision, len(n.Tasks)), Floor: 0.5}
	for i, t := range n.Tasks {
		d := policy.Decision{ID: t.ID, Class: n.class[i], Limit: &n.limit[i]}
		switch {
		case !t.Service():
			n.limit[i], d.Rule = 1, RuleNoService
		case d.Class == policy.Unmeasured:
			d.Rule = RuleUnmeasured
		case n.Event != policy.EventNone:
			d.Rule = RuleEvent
		case d.Class == policy.Good:
			d.Rule = RuleGood
		case d.Class == policy.Satisfied:
			d.Rule = RuleSatisfied
		case n.starved(i):
			d.Rule = RuleBadFull
		default:
			d.Rule = RuleBad
		}
		d.Why = n.why(i, d)
		out.Tasks[i] = d
	}
	state, interval := n.listen()
	out.State, out.IntervalS = state.Encode(), interval
	return out
}

// starved reports whether a service of class B gets nothing because the pool is full.
func (n *node) starved(i int) bool {
	if n.params.Step == StepProportional {
		return n.cut(i) && n.limit[i] <= n.Tasks[i].Bound()
	}
	return n.reclaimable == 0
}

func (n *node) cut(i int) bool { return n.uncut != nil && n.limit[i] < n.uncut[i] }

// listen is Algorithm 3.
func (n *node) listen() (next State, interval float64) {
	last, _ := stateOf(n.Snapshot) // validated by Check
	if n.Event != policy.EventNone {
		if len(n.services) == 0 {
			last = State{} // nothing to compare with later
		}
		return last, n.InitialIntervalS
	}
	next, interval = n.sum, n.IntervalS
	towards := n.unmeasured == 0 &&
		n.sum.QGood < last.QGood*(1-rounding) && n.sum.QBad > last.QBad*(1-rounding)
	switch {
	case n.sum.Satisfied+n.unmeasured < last.Satisfied:
		if interval > n.InitialIntervalS {
			interval = math.Max(interval/2, n.InitialIntervalS)
		}
	case towards:
		if next.Trend = last.Trend + 1; next.Trend < 3 {
			break
		}
		next.Trend = 0
		if interval < n.MaxIntervalS {
			interval = math.Min(2*interval, n.MaxIntervalS)
		}
	}
	return next, interval
}
