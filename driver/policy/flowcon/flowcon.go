// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package flowcon divides a node's CPU by growth efficiency, as FlowCon does
// (Zheng et al., ICPP 2019; Mao et al., IEEE TCC 2022): Algorithm 1 sorts tasks
// into categories and sets their limits, Algorithm 2 says what happens when tasks
// join and leave, Algorithm 3 adapts the threshold α. Placement (Algorithm 4)
// is elsewhere.
//
// The categories move like this, one step a run:
//
//	from   G ≥ α   G < α
//	new    NL      NL      (measured against α from the next run on)
//	NL     NL      WL
//	WL     NL      CL
//	CL     NL      CL
//
// Where the papers leave something open, the choice is documented beside the rule.
package flowcon

import (
	"math"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Off is the α of Algorithm 3 that turns the category changes of Algorithm 1 off.
const Off = -1

// The rules that a Decision can name.
const (
	// RuleJoin: new: category NL, no limit (Algorithm 2).
	RuleJoin = "flowcon.alg2.join"
	// RuleUnmeasured: no growth known yet: no limit.
	RuleUnmeasured = "flowcon.alg1.unmeasured"
	// RuleUndefined: used no CPU: category and limit stay.
	RuleUndefined = "flowcon.alg1.undefined"
	// RuleNL: growing: its part of the growth.
	RuleNL = "flowcon.alg1.nl"
	// RuleWL: watched: the limit stays.
	RuleWL = "flowcon.alg1.wl"
	// RuleCL: converged: its part of the growth, at least the floor.
	RuleCL = "flowcon.alg1.cl"
	// RuleAllCL: all have converged: no limits.
	RuleAllCL = "flowcon.alg1.all-cl"
	// RuleLone: alone: no limit.
	RuleLone = "flowcon.alg1.lone"
)

// Decide runs Algorithms 2, 3 and 1, in this order, on a valid snapshot.
//
// Every limit L of the result is in [φ/β, 1], φ being the task's fair share (1/n with
// equal entitlements), whatever the rule. That goes beyond the papers, which have the
// floor in CL only: a task in NL beside a far faster one, or in WL with a limit from a
// time when more tasks were there, would starve.
//
// Algorithm 2. A task of category New enters NL with L = 1 and is not measured
// against α before the next run; a growth that is known already counts in ΣG and α.
// An event sets the interval back to its initial value before Algorithm 1 runs, so
// a run in which all tasks are in CL ends with twice the initial value. A task that
// left is simply not in the snapshot: n is smaller and ΣG has one term less.
//
// Algorithm 3 works on the categories and growths from before the changes that its
// α brings about. It averages G where the paper has P, because Algorithm 1 compares
// α with G: as P = G·R, a task on a tenth of the pool would otherwise be compared
// with a tenth of its own growth. Tasks without G are left out of the averages, a
// category without any G drops out of the sum, and if both do, there is nothing to
// set a threshold by: α is Off and categories stay as they are, so that converged
// tasks remain converged when a new one joins them.
//
// Algorithm 1. A category changes only on new evidence (policy.Task.Fresh). G ≥ α
// forgives a relative rounding error of 1e-9, so that tasks with equal growth stay
// together whatever its unit. G = 0 is never ≥ α: with α = 0, all tasks standing still,
// they would otherwise count as growing fast. If ΣG is 0 each task's part of it is 0.
// Each G counts by the task's fair share, φG/ΣφG: with equal entitlements that is the
// published G/ΣG. A lone task always has L = 1.
//
// The time until the next run doubles while all tasks are converged: the caller keeps
// it below the maximum.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	n := newNode(s, p)

	interval := s.IntervalS
	if s.Event != policy.EventNone {
		interval = s.InitialIntervalS
	}
	n.threshold()
	n.categorise()
	if n.converged() {
		// The largest number, not infinity: JSON has none.
		interval = math.Min(2*interval, math.MaxFloat64)
	}
	return policy.Outcome{Tasks: n.limit(), Alpha: &n.alpha, IntervalS: interval, Floor: 1 / p.Beta}
}

// Growth returns a task's G, or nil where it has none: it has not reported enough, it
// is no training task, or it used no CPU in the interval that has ended.
func Growth(t policy.Task, event policy.Event) *float64 {
	if t.Service() || t.Use == 0 && event == policy.EventNone {
		return nil
	}
	return t.Growth
}

// node is the state of one run.
type node struct {
	tasks  []policy.Task
	params Params
	growth []*float64
	weight []float64 // entitlement, of the largest
	equal  bool      // all entitlements are
	floor  []policy.Share
	alpha  float64           // or Off
	before []policy.Category // with new tasks already in NL
	after  []policy.Category
	sum    total    // of growths by weight
	words  sentence // reused from task to task
}

func newNode(s policy.Snapshot, p Params) *node {
	n := &node{
		tasks:  s.Tasks,
		params: p,
		growth: make([]*float64, len(s.Tasks)),
		weight: make([]float64, len(s.Tasks)),
		equal:  true,
		floor:  s.FairShares(),
		before: make([]policy.Category, len(s.Tasks)),
		after:  make([]policy.Category, len(s.Tasks)),
	}
	var most policy.Share
	for _, fair := range n.floor {
		most = max(most, fair)
	}
	for i, t := range s.Tasks {
		n.growth[i] = Growth(t, s.Event)
		n.weight[i] = float64(n.floor[i] / most)
		n.equal = n.equal && n.weight[i] == 1
		// A limit of 0 would mean something else: not even a huge β leads to it.
		n.floor[i] = max(n.floor[i]/policy.Share(p.Beta), math.SmallestNonzeroFloat64)
		if n.before[i] = t.Category; t.Category == policy.New {
			n.before[i] = policy.NL // Algorithm 2, line 7
		}
	}
	n.sum = n.add(func(i int) float64 { return n.weight[i] })
	return n
}

// threshold sets α: Algorithm 3, unless it is fixed.
func (n *node) threshold() {
	if fixed, ok := n.params.Alpha.Fixed(); ok {
		n.alpha = fixed
		return
	}
	if all(n.before, policy.CL) {
		n.alpha = Off // lines 2–4
		return
	}
	// Lines 5–6, the only task of a node, need no case of their own: of the two
	// categories one is empty, and half the mean of the other is half its growth.
	in := func(c policy.Category) total {
		return n.add(func(i int) float64 {
			if n.before[i] == c {
				return 1
			}
			return 0
		})
	}
	nl, wl := in(policy.NL), in(policy.WL)
	if nl.count+wl.count == 0 {
		n.alpha = Off
		return
	}
	n.alpha = nl.mean()/2 + wl.mean()/2
}

// categorise moves the measured tasks: Algorithm 1, lines 2–13.
func (n *node) categorise() {
	for i, t := range n.tasks {
		n.after[i] = n.before[i]
		if n.alpha == Off || n.growth[i] == nil || t.Category == policy.New || !t.Fresh() {
			continue
		}
		switch {
		case n.grows(*n.growth[i]):
			n.after[i] = policy.NL
		case n.before[i] == policy.NL:
			n.after[i] = policy.WL
		default:
			n.after[i] = policy.CL
		}
	}
}

// grows says whether G ≥ α.
func (n *node) grows(g float64) bool {
	const rounding = 1e-9
	return g > 0 && g >= n.alpha*(1-rounding)
}

// converged says whether all tasks are in CL now. It holds for a node without
// tasks, as it does for Algorithm 4.
func (n *node) converged() bool { return all(n.after, policy.CL) }

// limit sets the limits: Algorithm 1, lines 14–26.
func (n *node) limit() []policy.Decision {
	out := make([]policy.Decision, len(n.tasks))
	limits := make([]policy.Share, len(n.tasks))
	converged := n.converged()
	for i, t := range n.tasks {
		d, unmeasured, limit := &out[i], n.growth[i] == nil, policy.Share(1)
		d.ID, d.Category = t.ID, n.after[i]
		switch {
		case t.Category == policy.New:
			d.Rule = RuleJoin
		case converged:
			d.Rule = RuleAllCL
		case unmeasured && d.Category == policy.NL:
			d.Rule = RuleUnmeasured
		case len(out) == 1:
			d.Rule = RuleLone
		case unmeasured:
			d.Rule, limit = RuleUndefined, t.Bound()
		case d.Category == policy.WL:
			d.Rule, limit = RuleWL, t.Bound()
		case d.Category == policy.CL:
			d.Rule, limit = RuleCL, n.share(i)
		default:
			d.Rule, limit = RuleNL, n.share(i)
		}
		limits[i] = min(1, max(limit, n.floor[i]))
		d.Limit = &limits[i]
		d.Unknown = t.Growth == nil && d.Category == policy.NL
		d.Why = n.why(i, *d, limit < n.floor[i])
	}
	return out
}

// all says whether all categories are c.
func all(categories []policy.Category, c policy.Category) bool {
	for _, have := range categories {
		if have != c {
			return false
		}
	}
	return true
}

// total is a sum of growths. Terms are scaled by a power of two where they would
// overflow otherwise; in all other cases scale is 1.
type total struct {
	scaled float64
	scale  float64
	count  int // terms in the sum
}

// add adds up the known growths by weight, in the snapshot's order.
func (n *node) add(weight func(i int) float64) total {
	s := total{scale: 1}
	add := func() {
		s.scaled, s.count = 0, 0
		for i, g := range n.growth {
			if w := weight(i); g != nil && w > 0 {
				s.scaled += *g * s.scale * w
				s.count++
			}
		}
	}
	add()
	if math.IsInf(s.scaled, 1) {
		s.scale = 0x1p-64 // enough for 2⁶⁴ terms
		add()
	}
	return s
}

// mean returns the average of the terms, 0 without any.
func (s total) mean() float64 {
	if s.count == 0 {
		return 0
	}
	return s.scaled / float64(s.count) / s.scale
}

// share returns the part that a task's growth has in the sum, 0 when the sum is 0.
func (n *node) share(i int) policy.Share {
	if n.sum.scaled == 0 {
		return 0
	}
	return policy.Share(*n.growth[i] * n.sum.scale * n.weight[i] / n.sum.scaled)
}

// value returns the sum itself; it may be +Inf.
func (s total) value() float64 { return s.scaled / s.scale }
