// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package flowcon divides a node's CPU by growth efficiency, as FlowCon does (Zheng et
// al., ICPP 2019; Mao et al., IEEE TCC 2022): Algorithm 1 categorises tasks and sets
// their limits, Algorithm 2 handles joins and leaves, Algorithm 3 adapts the threshold
// α. The shim implements placement (Algorithm 4).
//
// Categories change one step per run:
//
//	from   G ≥ α   G < α
//	new    NL      NL      (compared with α from the next run on)
//	NL     NL      WL
//	WL     NL      CL
//	CL     NL      CL
//
// Where the papers are ambiguous, the choice is documented at the rule.
package flowcon

import (
	"math"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Off is the α of Algorithm 3 that disables category changes.
const Off = -1

const (
	// RuleJoin: new: category NL, no limit (Algorithm 2).
	RuleJoin = "flowcon.alg2.join"
	// RuleUnmeasured: growth not known yet: no limit.
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
// Every limit L of the result is in [φ/β, 1], φ being the task's fair share (1/n with equal
// entitlements). The papers have the floor in CL only; then a task in NL next to a far faster one,
// or in WL with a limit from when there were more tasks, would starve.
//
// Algorithm 2. A New task enters NL with L = 1 and is compared with α from the next run on; a known
// growth already counts in ΣG and α. An event resets the interval before Algorithm 1 runs, so a run
// with all tasks in CL ends with twice the initial interval. A task that left is missing from the
// snapshot.
//
// Algorithm 3 uses the categories and growths before the changes that its α causes. It averages G
// where the paper has P, because Algorithm 1 compares α with G: as P = G·R, a task on a tenth of
// the pool would be compared with a tenth of its growth. Averages omit tasks without G, sums omit
// categories without any; if none remains, α is Off, so converged tasks stay converged when a new
// one joins.
//
// Algorithm 1. Categories change only on new evidence (policy.Task.Fresh). G ≥ α tolerates a
// relative error of 1e-9, so tasks with equal growth are treated alike. G = 0 is never ≥ α: with α
// = 0, tasks without progress would count as growing. If ΣG is 0, so is each fraction. G is
// weighted by fair share, φG/ΣφG, which with equal entitlements is the published G/ΣG. A lone task
// has L = 1.
//
// The interval doubles while all tasks are converged; the caller bounds it.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	n := newNode(s, p)

	interval := s.IntervalS
	if s.Event != policy.EventNone {
		interval = s.InitialIntervalS
	}
	n.threshold()
	n.categorise()
	if n.converged() {
		// JSON has no infinity.
		interval = math.Min(2*interval, math.MaxFloat64)
	}
	return policy.Outcome{Tasks: n.limit(), Alpha: &n.alpha, IntervalS: interval, Floor: 1 / p.Beta}
}

// Categorise adds the categories of training tasks, with an adaptive α, to the outcome of a policy
// without categories.
func Categorise(s policy.Snapshot, out *policy.Outcome) {
	if out.Alpha != nil {
		return
	}
	in, at := s, []int(nil)
	in.Tasks = nil
	i := 0
	for _, t := range s.Tasks {
		if i == len(out.Tasks) || out.Tasks[i].ID != t.ID {
			continue // ended: omitted by most policies
		}
		if !t.Service() && !t.Ended {
			at, in.Tasks = append(at, i), append(in.Tasks, t)
		}
		i++
	}
	n := newNode(in, DefaultParams())
	n.threshold()
	n.categorise()
	for i, category := range n.after {
		out.Tasks[at[i]].Category = category
	}
	out.Alpha = &n.alpha
}

// Growth returns a task's G; nil for a service, without enough reports, or if no CPU was used in
// the last interval.
func Growth(t policy.Task, event policy.Event) *float64 {
	if t.Service() || t.Use == 0 && event == policy.EventNone {
		return nil
	}
	return t.Growth
}

type node struct {
	tasks  []policy.Task
	params Params
	growth []*float64
	weight []float64 // entitlement relative to the largest
	equal  bool      // weights are equal
	floor  []policy.Share
	alpha  float64           // α, or Off
	before []policy.Category // categories, with new tasks already in NL
	after  []policy.Category
	sum    total    // of growths, weighted
	words  sentence // buffer reused by all tasks
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
		// 0 would mean no limit, so a huge β must not result in it.
		n.floor[i] = max(n.floor[i]/policy.Share(p.Beta), math.SmallestNonzeroFloat64)
		if n.before[i] = t.Category; t.Category == policy.New {
			n.before[i] = policy.NL // Algorithm 2, line 7
		}
	}
	n.sum = n.add(func(i int) float64 { return n.weight[i] })
	return n
}

// threshold sets α: fixed, or by Algorithm 3.
func (n *node) threshold() {
	if fixed, ok := n.params.Alpha.Fixed(); ok {
		n.alpha = fixed
		return
	}
	if all(n.before, policy.CL) {
		n.alpha = Off // lines 2–4
		return
	}
	// A lone task, lines 5–6, needs no case: one category is empty, and half the mean of the other
	// is half its growth.
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

// categorise is Algorithm 1, lines 2–13, for measured tasks.
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

func (n *node) grows(g float64) bool {
	const rounding = 1e-9
	return g > 0 && g >= n.alpha*(1-rounding)
}

func (n *node) converged() bool { return all(n.after, policy.CL) }

// limit is Algorithm 1, lines 14–26.
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

func all(categories []policy.Category, c policy.Category) bool {
	for _, have := range categories {
		if have != c {
			return false
		}
	}
	return true
}

// total is a sum of growths, scaled by a power of two if it would overflow.
type total struct {
	scaled float64
	scale  float64
	count  int // terms in the sum
}

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

func (s total) mean() float64 {
	if s.count == 0 {
		return 0
	}
	return s.scaled / float64(s.count) / s.scale
}

func (n *node) share(i int) policy.Share {
	if n.sum.scaled == 0 {
		return 0
	}
	return policy.Share(*n.growth[i] * n.sum.scale * n.weight[i] / n.sum.scaled)
}

// value returns the sum, possibly +Inf.
func (s total) value() float64 { return s.scaled / s.scale }
