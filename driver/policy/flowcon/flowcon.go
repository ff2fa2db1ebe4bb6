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
	// RuleJoin: a new task enters NL without a limit (Algorithm 2).
	RuleJoin = "flowcon.alg2.join"
	// RuleUnmeasured: a task without any growth yet is not limited.
	RuleUnmeasured = "flowcon.alg1.unmeasured"
	// RuleUndefined: a task that used no CPU keeps its category and limit.
	RuleUndefined = "flowcon.alg1.undefined"
	// RuleNL: a growing task gets its part of the growth.
	RuleNL = "flowcon.alg1.nl"
	// RuleWL: a watched task keeps its limit.
	RuleWL = "flowcon.alg1.wl"
	// RuleCL: a converged task gets its part of the growth, but not less than the floor.
	RuleCL = "flowcon.alg1.cl"
	// RuleAllCL: all tasks have converged and compete freely.
	RuleAllCL = "flowcon.alg1.all-cl"
	// RuleLone: nobody else is there to leave CPU to.
	RuleLone = "flowcon.alg1.lone"
)

// Output is what Decide decides.
type Output struct {
	// Tasks has one decision for each task of the input, in the input's order.
	Tasks []policy.Decision `json:"tasks"`
	// Alpha is the threshold that was used, in the unit of G, or Off.
	Alpha float64 `json:"alpha"`
	// IntervalS is the time until the next run, in seconds. It doubles while all
	// tasks are converged: the caller keeps it below the maximum he wants.
	IntervalS float64 `json:"interval_s"`
}

// Decide runs Algorithms 2, 3 and 1, in this order, on a valid input. It does not
// change the input.
//
// Every limit L of the result is in [1/(β·n), 1], whatever the rule. That goes
// beyond the papers, which have the floor in CL only: a task in NL beside a far
// faster one, or in WL with a limit from a time when more tasks were there, would
// starve.
//
// Algorithm 2. A task of category New enters NL with L = 1 and is not measured
// against α before the next run; a growth that is known already counts in ΣG and α.
// An event sets the interval back to its initial value before Algorithm 1 runs, so
// a run in which all tasks are in CL ends with twice the initial value. A task that
// left is simply not in the input: n is smaller and ΣG has one term less.
//
// Algorithm 3 works on the categories and growths from before the changes that its
// α brings about. It averages G where the paper has P, because Algorithm 1 compares
// α with G: as P = G·R, a task on a tenth of the pool would otherwise be compared
// with a tenth of its own growth. Tasks without G are left out of the averages, a
// category without any G drops out of the sum, and if both do, there is nothing to
// set a threshold by: α is Off and categories stay as they are, so that converged
// tasks remain converged when a new one joins them.
//
// Algorithm 1. G ≥ α forgives a relative rounding error of 1e-9, so that tasks with
// equal growth stay together whatever its unit. G = 0 is never ≥ α: with α = 0, all
// tasks standing still, they would otherwise count as growing fast. If ΣG is 0 each
// task's part of it is 0. A lone task always has L = 1.
func Decide(in Input) Output {
	n := newNode(in)

	interval := in.IntervalS
	if in.Event != EventNone {
		interval = in.InitialIntervalS
	}
	n.threshold()
	n.categorise()
	if n.converged() {
		// The largest number, not infinity: JSON has none.
		interval = math.Min(2*interval, math.MaxFloat64)
	}
	return Output{Tasks: n.limit(), Alpha: n.alpha, IntervalS: interval}
}

// node is the state of one run.
type node struct {
	in     Input
	floor  float64           // 1/(β·n)
	alpha  float64           // or Off
	before []policy.Category // with new tasks already in NL
	after  []policy.Category
	growth total
	words  sentence // reused from task to task
}

func newNode(in Input) *node {
	n := &node{
		in:     in,
		before: make([]policy.Category, len(in.Tasks)),
		after:  make([]policy.Category, len(in.Tasks)),
	}
	beta := in.Params.Beta
	if !(beta >= 1) {
		beta = DefaultBeta // Params{} is meant to be usable
	}
	// A limit of 0 would mean something else: not even a huge β leads to it.
	n.floor = math.Max(1/(beta*float64(len(in.Tasks))), math.SmallestNonzeroFloat64)
	for i, t := range in.Tasks {
		n.before[i] = t.Category
		if t.Category == policy.New {
			n.before[i] = policy.NL // Algorithm 2, line 7
		}
	}
	n.growth = sum(in.Tasks, func(int) bool { return true })
	return n
}

// threshold sets α: Algorithm 3, unless it is fixed.
func (n *node) threshold() {
	if fixed, ok := n.in.Params.Alpha.Fixed(); ok {
		n.alpha = fixed
		return
	}
	if all(n.before, policy.CL) {
		n.alpha = Off // lines 2–4
		return
	}
	// Lines 5–6, the only task of a node, need no case of their own: of the two
	// categories one is empty, and half the mean of the other is half its growth.
	nl := sum(n.in.Tasks, func(i int) bool { return n.before[i] == policy.NL })
	wl := sum(n.in.Tasks, func(i int) bool { return n.before[i] == policy.WL })
	if nl.count+wl.count == 0 {
		n.alpha = Off
		return
	}
	n.alpha = nl.mean()/2 + wl.mean()/2
}

// categorise moves the measured tasks: Algorithm 1, lines 2–13.
func (n *node) categorise() {
	for i, t := range n.in.Tasks {
		n.after[i] = n.before[i]
		if n.alpha == Off || t.Growth == nil || t.Category == policy.New {
			continue
		}
		switch {
		case n.grows(*t.Growth):
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
	out := make([]policy.Decision, len(n.in.Tasks))
	converged := n.converged()
	for i, t := range n.in.Tasks {
		d := &out[i]
		d.ID, d.Category = t.ID, n.after[i]
		switch {
		case t.Category == policy.New:
			d.Rule, d.Limit = RuleJoin, 1
		case converged:
			d.Rule, d.Limit = RuleAllCL, 1
		case t.Growth == nil && d.Category == policy.NL:
			d.Rule, d.Limit = RuleUnmeasured, 1
		case len(out) == 1 && d.Category == policy.WL:
			d.Rule, d.Limit = RuleLone, 1
		case t.Growth == nil:
			d.Rule, d.Limit = RuleUndefined, t.Limit
		case d.Category == policy.WL:
			d.Rule, d.Limit = RuleWL, t.Limit
		case d.Category == policy.CL:
			d.Rule, d.Limit = RuleCL, n.growth.share(*t.Growth)
		default:
			d.Rule, d.Limit = RuleNL, n.growth.share(*t.Growth)
		}
		raised := d.Limit < n.floor
		d.Limit = math.Min(1, math.Max(d.Limit, n.floor))
		d.Why = n.why(t, *d, n.before[i], raised)
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

// sum adds up the known growths of the tasks that take part, in the input's order.
func sum(tasks []Task, part func(i int) bool) total {
	s := total{scale: 1}
	add := func() {
		s.scaled, s.count = 0, 0
		for i, t := range tasks {
			if t.Growth != nil && part(i) {
				s.scaled += *t.Growth * s.scale
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

// share returns the part that g has in the sum, 0 when the sum is 0.
func (s total) share(g float64) float64 {
	if s.scaled == 0 {
		return 0
	}
	return g * s.scale / s.scaled
}

// value returns the sum itself; it may be +Inf.
func (s total) value() float64 { return s.scaled / s.scale }
