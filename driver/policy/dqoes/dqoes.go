// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package dqoes divides a node's CPU by the response times that services are asked
// for, as DQoES does (thesis on TRADL and DQoES, §4.2 and §5.2): Algorithm 2 sorts
// services into classes and moves their limits, Algorithm 3, the adaptive
// listener, says when the next run is due.
//
// With p, the measured response time, o, the objective, and q = o − p:
//
//	class            when         limit
//	G  better        q > α·o      L · (1 − q/Q_G · R_G · β), not below 1/(2n)
//	S  satisfied     otherwise    L
//	B  worse         q < −α·o     L · (1 + q/Q_B · R_G · β), not above the pool
//
// Q_G and Q_B are the sums of q over a class, R_G is what can be taken: the CPU that
// class G uses, the idle part of the pool (headroom, ours), and what others have to
// spare (Params.Extra, ours).
//
// Where the thesis leaves something open, the choice is documented beside the rule.
package dqoes

import (
	"math"
	"slices"
)

// The rules that a Decision can name.
const (
	// RuleGood: a service that is better than asked gives CPU away.
	RuleGood = "dqoes.good"
	// RuleSatisfied: a service that is as asked keeps its limit.
	RuleSatisfied = "dqoes.satisfied"
	// RuleBad: a service that is worse than asked gets more.
	RuleBad = "dqoes.bad"
	// RuleBadFull: a service that is worse than asked, and there is nothing to take.
	RuleBadFull = "dqoes.bad.full"
	// RuleUnmeasured: a service without a response time keeps its limit.
	RuleUnmeasured = "dqoes.unmeasured"
)

// Class says how a service is doing.
type Class string

// The classes of DQoES.
const (
	// Good is a service that is better than asked.
	Good Class = "G"
	// Satisfied is a service that is as asked.
	Satisfied Class = "S"
	// Bad is a service that is worse than asked.
	Bad Class = "B"
	// Unmeasured is a service without a response time in the last interval.
	Unmeasured Class = ""
)

// Decision is what Decide decides for one service.
type Decision struct {
	// ID is the service's, as the input gave it.
	ID string `json:"id"`
	// Class says how it is doing.
	Class Class `json:"class"`
	// Limit is the upper bound of its CPU as a fraction of the pool, in [1/(2n), 1];
	// 1 means no limit. The limits of a node may sum to more than 1.
	Limit float64 `json:"limit"`
	// Rule is the stable name of the rule that set the limit.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Output is what Decide decides.
type Output struct {
	// Tasks has one decision for each service of the input, in the input's order.
	Tasks []Decision `json:"tasks"`
	// State is for the next run's Input.
	State State `json:"state"`
	// IntervalS is the time until the next run, in seconds.
	IntervalS float64 `json:"interval_s"`
	// Again says that fewer services are satisfied than in the last run: these limits
	// are not to wait for the end of the interval. The run that the listener asks for
	// is this one, on the very figures that show the fall: a second one on the same
	// figures would only take the same step twice.
	Again bool `json:"-"`
}

// rounding is the relative error that comparisons forgive, so that neither the
// order of the input nor the last bit of α·o decides anything.
const rounding = 1e-9

// Decide runs Algorithms 2 and 3, in this order, on a valid input. It does not
// change the input.
//
// Bounds. Every limit of the result is in [1/(2n), 1], whatever the class: the
// thesis bounds class G only, but a limit may stem from a time when more tasks were
// there. Its prose has 1/(2·|G|), its pseudo-code 1/(2·|C|): n = |C|, or Params.Tasks
// where tasks that are not services share the node. So a service whose objective
// cannot be reached may ask for the whole pool, and yet all others keep a floor: as
// ceilings, limits of 1/(2n) and more leave everybody 1/(2n) of the CPU at least;
// who enforces them as weights has to see to that, for they may sum to more than 1.
//
// R_G. Published, class B can never grow while G is empty, on an idle pool neither.
// With Params.Headroom the idle part of the pool, 1 − Σ use − Params.Others, is added,
// for both classes. Params.Extra is added in the same way, headroom or not. R_G is at
// most 1, the pool, even if tasks borrow from outside of it: the step of a single
// service is at most β. At R_G = 0, a full pool in which nobody is better than asked,
// limits stay: services with one unreachable objective that have equal limits keep
// them, but different ones from another time do not come together (StepProportional
// brings them).
//
// Unmeasured services (no batch ended in the interval) are in no class, sum or count
// and keep their limit: applying the same figure twice would take the same step
// twice, and a slow service under a short interval would never be measured if its
// limit fell meanwhile. One that was never measured keeps the limit that it was
// given, which should be 1. What they use is not idle.
//
// The listener compares with the state of the last run. If the number of satisfied
// services fell, the interval is halved, down to the initial one, and the trend
// begins anew; that goes first, as a broken stability outweighs a trend.
// Otherwise, the third run in a row in which both sums moved towards 0, strictly,
// doubles the interval, up to the maximum (the thesis says three times and counts to
// two: three). A sum that is 0 and stays 0 has not moved: as published, the interval
// of a node whose services are all satisfied stays as it is. In all other cases the
// interval stays. Unmeasured services make counts and sums incomparable: with any,
// the number has fallen only if it did even with all of them satisfied, and there
// is no trend.
func Decide(in Input) Output {
	n := newNode(in)
	n.classify()
	if n.params.Step == StepProportional {
		n.proportional()
	} else {
		n.published()
	}
	return n.output()
}

// node is the state of one run.
type node struct {
	in     Input
	params Params // usable ones
	floor  float64
	class  []Class
	q      []float64 // o − p of the measured ones
	sum    State     // of this run, but for Trend
	blind  int       // unmeasured services
	take   float64   // R_G with all that is added to it
	pool   float64   // what measured services can have together
	limit  []float64
	short  bool      // StepProportional: the pool is too small for the faster aim
	asked  []float64 // StepProportional: the limits before the largest were cut, if they were
}

func newNode(in Input) *node {
	n := &node{
		in:     in,
		params: in.Params,
		class:  make([]Class, len(in.Tasks)),
		q:      make([]float64, len(in.Tasks)),
		limit:  make([]float64, len(in.Tasks)),
	}
	// Params{} is meant to be usable.
	if !(n.params.Alpha > 0) {
		n.params.Alpha = DefaultAlpha
	}
	if !(n.params.Beta > 0) {
		n.params.Beta = DefaultBeta
	}
	n.params.Tasks = max(n.params.Tasks, len(in.Tasks), 1)
	n.floor = 1 / (2 * float64(n.params.Tasks))
	return n
}

// classify is Algorithm 2, lines 2–15.
func (n *node) classify() {
	var used, usedGood, usedBlind float64
	for i, t := range n.in.Tasks {
		used += t.Use
		if t.ResponseS == nil {
			n.blind++
			usedBlind += t.Use
			continue
		}
		q := t.ObjectiveS - *t.ResponseS
		n.q[i] = q
		switch edge := n.params.Alpha * t.ObjectiveS * (1 + rounding); {
		case q > edge:
			n.class[i] = Good
			n.sum.QGood = math.Min(n.sum.QGood+q, math.MaxFloat64) // JSON has no infinity
			usedGood += t.Use
		case q < -edge:
			n.class[i] = Bad
			n.sum.QBad = math.Max(n.sum.QBad+q, -math.MaxFloat64)
		default:
			n.class[i] = Satisfied
			n.sum.Satisfied++
		}
	}
	others := math.Max(n.params.Others, n.params.Extra) // Extra is a part of Others
	n.take = usedGood + n.params.Extra
	if n.params.Headroom {
		n.take += math.Max(0, 1-used-others)
	}
	if n.take = math.Min(1, n.take); n.take < rounding {
		n.take = 0 // only the last bits of a sum
	}
	n.pool = math.Max(0, math.Min(1, 1-others+n.params.Extra)-usedBlind)
}

// published is Algorithm 2, lines 16–24.
func (n *node) published() {
	for i, t := range n.in.Tasks {
		n.limit[i] = n.bound(t.Limit * (1 + n.part(i)*n.take*n.params.Beta))
	}
}

// part is the service's part of its class's sum, with the sign of the step.
func (n *node) part(i int) float64 {
	switch n.class[i] {
	case Good:
		return -n.q[i] / n.sum.QGood
	case Bad:
		return n.q[i] / n.sum.QBad
	default:
		return 0
	}
}

// proportional is StepProportional.
func (n *node) proportional() {
	n.towards(1 - n.params.Alpha/2)
	if n.fits() {
		return
	}
	n.short = true
	n.towards(n.shortAim())
	if !n.fits() {
		n.asked = slices.Clone(n.limit)
		n.level()
	}
}

// shortAim is what services aim at while the pool is short, as a part of o.
func (n *node) shortAim() float64 { return 1 + n.params.Alpha/4 }

// towards sets the limits for response times of aim·o.
func (n *node) towards(aim float64) {
	for i, t := range n.in.Tasks {
		limit := t.Limit
		if need := n.need(i, aim); n.class[i] != Unmeasured && need > 0 {
			half := math.Sqrt(need/t.Limit) * t.Limit
			half = math.Min(2*t.Limit, math.Max(t.Limit/2, half))
			off := math.Abs(*t.ResponseS/t.ObjectiveS - aim)
			if n.class[i] != Satisfied || n.short && off > n.params.Alpha/4 {
				limit = half
			}
		}
		n.limit[i] = n.bound(limit)
	}
}

// need is the limit with which a service would answer in aim·o; 0 when that cannot
// be said.
func (n *node) need(i int, aim float64) float64 {
	t := n.in.Tasks[i]
	if n.class[i] == Unmeasured || t.Use == 0 || *t.ResponseS == 0 {
		return 0
	}
	base := t.Use
	if n.class[i] != Good {
		base = math.Max(base, t.Limit)
	}
	return base * (*t.ResponseS / t.ObjectiveS / aim)
}

// fits says whether the limits of the measured services sum to what they can have.
func (n *node) fits() bool {
	var sum float64
	for i := range n.limit {
		if n.class[i] != Unmeasured {
			sum += n.limit[i]
		}
	}
	return sum <= n.pool*(1+rounding)
}

// level cuts the largest limits to one level, so that the sum fits.
func (n *node) level() {
	var limits []float64
	for i, l := range n.limit {
		if n.class[i] != Unmeasured {
			limits = append(limits, l)
		}
	}
	slices.Sort(limits)
	level, left := 1.0, n.pool
	for i, l := range limits {
		// Who asks for less than an equal part of what is left gets it.
		if part := left / float64(len(limits)-i); l > part {
			level = math.Max(part, n.floor)
			break
		}
		left -= l
	}
	for i, l := range n.limit {
		if n.class[i] != Unmeasured {
			n.limit[i] = math.Min(l, level)
		}
	}
}

func (n *node) bound(limit float64) float64 {
	return math.Min(1, math.Max(limit, n.floor))
}

// output puts the results together.
func (n *node) output() Output {
	out := Output{Tasks: make([]Decision, len(n.in.Tasks))}
	for i, t := range n.in.Tasks {
		d := Decision{ID: t.ID, Class: n.class[i], Limit: n.limit[i]}
		switch d.Class {
		case Good:
			d.Rule = RuleGood
		case Satisfied:
			d.Rule = RuleSatisfied
		case Bad:
			d.Rule = RuleBad
			if n.nothingFor(i) {
				d.Rule = RuleBadFull
			}
		default:
			d.Rule = RuleUnmeasured
		}
		d.Why = n.why(i, d)
		out.Tasks[i] = d
	}
	out.State, out.IntervalS, out.Again = n.listen()
	return out
}

// nothingFor says whether a service of class B gets nothing because the pool is full.
func (n *node) nothingFor(i int) bool {
	if n.params.Step == StepProportional {
		return n.cut(i) && n.limit[i] <= n.in.Tasks[i].Limit
	}
	return n.take == 0
}

// cut says whether a service's limit was one of the largest, which were cut.
func (n *node) cut(i int) bool { return n.asked != nil && n.limit[i] < n.asked[i] }

// listen is Algorithm 3.
func (n *node) listen() (next State, interval float64, fell bool) {
	last := n.in.State
	next, interval = n.sum, n.in.IntervalS

	fell = n.sum.Satisfied+n.blind < last.Satisfied
	towards := n.blind == 0 &&
		n.sum.QGood < last.QGood*(1-rounding) && n.sum.QBad > last.QBad*(1-rounding)
	switch {
	case fell:
		if interval > n.in.InitialIntervalS {
			interval = math.Max(interval/2, n.in.InitialIntervalS)
		}
	case towards:
		if next.Trend = last.Trend + 1; next.Trend < 3 {
			break
		}
		next.Trend = 0
		if interval < n.in.MaxIntervalS {
			interval = math.Min(2*interval, n.in.MaxIntervalS)
		}
	}
	return next, interval, fell
}
