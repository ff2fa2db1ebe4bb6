// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package auto divides a node's CPU among tasks of all kinds: services with a
// response time to keep, training tasks with targets and without, and tasks of which
// nothing is known. It is ours, and composed of the published policies: DQoES
// (package dqoes) for services, TRADL (package tradl) and FlowCon (package flowcon)
// for training tasks. These are its rules; the code names them by their numbers.
//
//  1. A task's fair share φ is what Nomad gave it of the whole: 1/n of n tasks, of all
//     kinds, with equal entitlements. No task is limited to less than the floor φ/2.
//  2. A training task that has reached its objective stops, as TRADL says. Until it has
//     ended it keeps its share, up to the fair share, for its last save, and takes part in
//     nothing else: below, the pool is what stopping tasks leave of it.
//  3. Nobody is limited (all limits are 1) if there is no service, no acceptable task
//     yields (rule 10), and FlowCon limits nobody (rule 12). Otherwise all limits sum to
//     1: the pool is divided, completely.
//  4. A task's share in force is its limit; it is the fair share if it has none (limit
//     1, or 0 for none yet). So a task that was free, alone or among its like, does
//     not claim the pool of those who join it, and one of which nothing is known
//     begins as under plain Nomad.
//  5. A service moves from its share in force, or from what it needs of the CPU that
//     it uses, if that is more: it has borrowed CPU that others left idle, and must
//     not lose its target when they come back for it. With use u, response time p and
//     objective o that is u·p/((1−α/2)·o), and u at most.
//  6. From there DQoES moves it, and what training tasks use
//     above the rest that rule 8 guarantees to them is CPU that may be taken. On an
//     event services do not move: their response times belong to a node that is no
//     more, and several events in one interval would take the same step several times.
//  7. A service that is not worse than asked is not cut in one run below what answers
//     in (1+α/2)·o as far as response times go with limits: p/((1+α/2)·o) of its share
//     in force, or of its use, if that is more. So neither the unreachable objective of another service nor a load
//     that leaves most of its share unused costs it its own objective.
//  8. Services may have together: without training tasks the whole pool, and they
//     get it; with any of them service_share at most, and their floors less than the
//     pool at most, but the services' own floors in any case. If they ask for more, the
//     largest are cut to one level of their fair shares: first those that are worse than asked or not measured, down to the
//     fair share, and those that are better, down to what rule 7 keeps for them; if
//     that is not enough all, down to the floor.
//  9. Training tasks have the rest R, and the fair share of it goes by entitlement, too.
//  10. TRADL runs over the training tasks with the R in force as its pool. An
//     acceptable task that it limits yields: it gets TRADL's part of R, but not less
//     than the floor. One that it does not limit (R not full, or all training tasks
//     acceptable) gets the fair share of R.
//  11. A task of which nothing is known (it has never reported, or is new) gets the
//     fair share of R, more if nobody else takes what yielding tasks leave.
//  12. FlowCon runs over the training tasks, those that are acceptable as converged
//     ones without growth. What rules 10 and 11 leave is divided in proportion to its
//     limits, but nobody gets less than the floor, and a task with a target that it
//     has not reached not less than the fair share of R: its job has said that it is
//     not done, however slowly it grows. A task that FlowCon leaves unchanged (watched,
//     or idle) keeps its part of R, unless the least parts of the others need it; it
//     gets more if nobody else takes what is left.
//  13. The interval is the shorter of those of FlowCon and DQoES; with services, on
//     an event, the initial one; never more than the maximum.
//
// So services get what their targets need, up to a bound that does not depend on how
// training goes, and what a service does not need any more goes to training tasks.
//
// # Enforcement
//
// Limits that sum to 1 are meant as weights (`mode = "weight"`, the default), which
// limits.Plan then divides exactly so. Who does not use his share lends it, so
// neither an idle service nor a training task with one thread wastes anything; the
// next run sees the use, and rules 4 to 7 see to it that a service keeps of the
// borrowed CPU what it needs.
//
// As hard ceilings (`mode = "quota"`) they work, and waste CPU. A service's ceiling is
// what it needs for (1−α/2)·o, so it can still show that it is better than asked: its
// response time falls with its load, ceiling or not, and DQoES takes the ceiling back;
// at full load it is satisfied. But what a service reserves and does not use, and what a
// training task cannot use of its part of R, nobody can use. And where yielding tasks
// leave CPU that nobody else can use, TRADL's first branch makes them yield every
// other run only, as published: in `weight` they would have borrowed it.
package auto

import (
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// The rules that a Decision can name, besides those of flowcon, tradl and dqoes, which
// it names where their limit, or their part of the pool, is what the task gets.
const (
	// RuleFree: nobody is limited (rule 3).
	RuleFree = "auto.free"
	// RuleShare: a service that has neither been measured nor limited begins with the
	// fair share (rule 4).
	RuleShare = "auto.service.share"
	// RuleEvent: on an event a service keeps its share (rule 6).
	RuleEvent = "auto.service.event"
	// RuleKeep: a service is not cut below its own objective (rule 7).
	RuleKeep = "auto.service.keep"
	// RuleBound: all services together asked for more than they may have (rule 8).
	RuleBound = "auto.service.bound"
	// RuleAcceptable: an acceptable task that has not to yield (rule 10).
	RuleAcceptable = "auto.acceptable"
	// RuleWanting: a task is not held below the fair share before it has reached its
	// first target (rule 12).
	RuleWanting = "auto.wanting"
	// RuleUnknown: a task of which nothing is known (rule 11).
	RuleUnknown = "auto.unknown"
)

// rounding is the relative error that comparisons forgive.
const rounding = 1e-9

// Decide divides the pool of a node by the rules of the package, on a valid snapshot.
//
// The step of DQoES is the proportional one by default, not the published one: a
// service whose load rises from 0.2 to 0.5 of a full pool has its target back after 3
// runs, instead of 26 (go test -v -run TestPlant_load).
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	n := newNode(s, p)
	n.targets()
	n.shares()
	n.regulate()
	n.training()
	return n.output()
}

// node is the state of one run. Slices have an element for each task of the snapshot.
type node struct {
	policy.Snapshot
	params Params
	out    []policy.Decision
	limit  []policy.Share
	why    []string // the reason, as the policy behind it gives it

	serving, learning, stopping []int // the tasks by what becomes of them

	fair     []policy.Share // φ
	equal    bool           // all fair shares are 1/n
	learns   policy.Share   // Σφ of the learning tasks
	share    []policy.Share // in force
	pool     policy.Share   // what stopping tasks leave of it
	restHad  policy.Share   // R in force
	bound    policy.Share   // what services may have together
	asked    policy.Share   // what they asked for together
	rest     policy.Share   // R
	free     bool           // nobody is limited
	growth   policy.Outcome // of FlowCon, for the learning ones
	response policy.Outcome // of DQoES
}

func newNode(s policy.Snapshot, p Params) *node {
	n := &node{
		Snapshot: s, params: p, fair: s.FairShares(), equal: true,
		out:   make([]policy.Decision, len(s.Tasks)),
		limit: make([]policy.Share, len(s.Tasks)),
		why:   make([]string, len(s.Tasks)),
		share: make([]policy.Share, len(s.Tasks)),
	}
	for i, t := range s.Tasks {
		n.equal = n.equal && n.fair[i] == n.fair[0]
		n.out[i] = policy.Decision{ID: t.ID, Kind: policy.Training, Limit: &n.limit[i]}
		if t.Service() {
			n.out[i].Kind = policy.Service
		}
	}
	return n
}

// floor is what a task has at least: rule 1.
func (n *node) floor(i int) policy.Share { return n.fair[i] / 2 }

// sum adds up what tasks have of something.
func sum(tasks []int, of func(int) policy.Share) (sum policy.Share) {
	for _, i := range tasks {
		sum += of(i)
	}
	return sum
}

// targets says what training tasks have reached, and so who takes part: rule 2.
func (n *node) targets() {
	for i, t := range n.Tasks {
		d := &n.out[i]
		if d.Kind == policy.Service {
			n.serving = append(n.serving, i)
			continue
		}
		d.State = tradl.Reached(t)
		if d.Category = t.Category; d.Category == policy.New {
			d.Category = policy.NL
		}
		if d.Stop = d.State == policy.Objective; d.Stop {
			n.why[i] = cause(tradl.Decide(policy.Snapshot{Tasks: n.Tasks[i : i+1]}, n.params.Tradl).Tasks[0].Why)
			n.stopping = append(n.stopping, i)
		} else {
			n.learning = append(n.learning, i)
		}
	}
}

// wanting says whether a training task has a target that it has not reached.
func (n *node) wanting(i int) bool {
	t := n.Tasks[i]
	return (t.Acceptable != nil || t.Objective != nil) && n.out[i].State == policy.InTraining
}

// shares says what tasks have in force, and what is there to divide: rules 1, 2, 4.
func (n *node) shares() {
	for i, t := range n.Tasks {
		if n.share[i] = t.Bound(); n.share[i] == 1 {
			n.share[i] = n.fair[i]
		}
	}
	inForce := func(i int) policy.Share { return n.share[i] }
	for _, i := range n.stopping {
		n.out[i].Rule = tradl.RuleObjective
		n.limit[i] = min(n.fair[i], max(n.share[i], n.floor(i)))
	}
	n.pool = 1 - sum(n.stopping, func(i int) policy.Share { return n.limit[i] })
	n.rest = n.pool
	// Services that were free may have had more than training tasks leave them now.
	n.learns = sum(n.learning, func(i int) policy.Share { return n.fair[i] })
	n.restHad = max(1-sum(n.stopping, inForce)-sum(n.serving, inForce), n.learns/2)
}

// base is the limit from which a service moves: rule 5.
func (n *node) base(i int) policy.Share {
	return min(1, max(n.share[i], n.Tasks[i].Use*n.faster(i, -1)))
}

// faster is the part of its CPU with which a service would still answer in
// (1 + side·α/2)·o; 1 if that is not less than it has, 0 if it was not measured.
func (n *node) faster(i int, side float64) policy.Share {
	t := n.Tasks[i]
	if t.ResponseS == nil {
		return 0
	}
	return policy.Share(min(1, *t.ResponseS / *t.ObjectiveS / (1+side*n.params.Dqoes.Alpha/2)))
}

// keep is what a service keeps: rule 7.
func (n *node) keep(i int) policy.Share {
	return min(1, max(n.share[i], n.Tasks[i].Use)*n.faster(i, +1))
}

// regulate divides what services get: rules 5 to 8.
func (n *node) regulate() {
	if len(n.serving) == 0 {
		return
	}
	n.bound = n.pool
	if len(n.learning) > 0 {
		n.bound = min(policy.Share(n.params.ServiceShare), n.pool-n.learns/2)
		n.bound = max(n.bound, sum(n.serving, n.floor))
	}
	s := n.Snapshot
	s.Tasks = slices.Clone(n.Tasks)
	for _, i := range n.serving {
		s.Tasks[i].Limit = n.base(i)
	}
	var others policy.Share
	for _, i := range slices.Concat(n.learning, n.stopping) {
		others = min(1, others+n.Tasks[i].Use)
	}
	n.response = dqoes.DecideWith(s, n.params.Dqoes, max(0, others-(1-n.bound)))
	for _, i := range n.serving {
		d, r, was := &n.out[i], n.response.Tasks[i], n.Tasks[i].Bound()
		d.Class, d.Rule, n.limit[i], n.why[i] = r.Class, r.Rule, r.Bound(), cause(r.Why)
		switch {
		case r.Class == policy.Unmeasured && was == 1:
			d.Rule, n.why[i] = RuleShare, "no response time yet and no limit so far: begins with the fair share"
		case n.Event != policy.EventNone:
			d.Rule, n.why[i] = RuleEvent, "a task has joined or left: keeps its share until it is measured again"
		case r.Class == policy.Good || r.Class == policy.Satisfied:
			if keep := n.keep(i); keep > n.limit[i]*(1+rounding) {
				d.Rule, n.limit[i] = RuleKeep, keep
			}
		}
	}
	n.limitServices()
	n.rest -= sum(n.serving, func(i int) policy.Share { return n.limit[i] })
}

// limitServices is rule 8.
func (n *node) limitServices() {
	var first, last, all claims
	var guaranteed policy.Share
	for _, i := range n.serving {
		want := n.limit[i]
		least := want
		switch n.out[i].Class {
		case policy.Bad, policy.Unmeasured:
			least = min(want, n.fair[i])
		case policy.Good:
			least = min(want, max(n.floor(i), n.keep(i)))
		}
		n.asked += want
		guaranteed += least
		first.add(i, n.fair[i], least, want)
		last.add(i, n.fair[i], n.floor(i), least)
		all.add(i, want, least, unbounded)
	}
	switch {
	case n.asked > n.bound*(1+rounding) && guaranteed <= n.bound:
		n.divideAmong(n.bound, first, RuleBound)
	case n.asked > n.bound*(1+rounding):
		n.divideAmong(n.bound, last, RuleBound)
	case len(n.learning) == 0:
		n.divideAmong(n.bound, all, "")
	}
}

// claims are what tasks ask of a sum.
type claims struct {
	tasks  []int
	claims []waterfill.Claim
}

// unbounded is the most of a claim that takes all it can get.
const unbounded = policy.Share(math.MaxFloat64)

func (c *claims) add(task int, weight, least, most policy.Share) {
	c.tasks = append(c.tasks, task)
	c.claims = append(c.claims, waterfill.Claim{Weight: float64(weight), Min: float64(least), Max: float64(most)})
}

// divideAmong sets limits, and the rule of those that are less than before.
func (n *node) divideAmong(total policy.Share, c claims, rule string) {
	for k, part := range waterfill.Divide(float64(total), c.claims) {
		i := c.tasks[k]
		limit := min(1, policy.Share(part))
		if rule != "" && limit < n.limit[i]*(1-rounding) {
			n.out[i].Rule = rule
		}
		n.limit[i] = limit
	}
}

// training divides the rest among training tasks: rules 3 and 9 to 12.
func (n *node) training() {
	n.grow()
	yields := n.accept()
	n.free = len(n.serving) == 0 && !yields
	for k, i := range n.learning {
		n.free = n.free && (n.out[i].State == policy.Acceptable || n.growth.Tasks[k].Bound() == 1)
	}
	if !n.free {
		n.divide()
		return
	}
	for _, i := range n.learning {
		n.out[i].Rule, n.limit[i] = RuleFree, 1
	}
	for _, i := range n.stopping {
		n.limit[i] = 1
	}
}

// inRest is the node that the learning tasks make of the R in force.
func (n *node) inRest() policy.Snapshot {
	s := n.Snapshot
	s.Tasks = nil
	s.Gone /= n.restHad
	for _, i := range n.learning {
		t := n.Tasks[i]
		t.Use /= n.restHad
		t.Limit = min(1, n.share[i]/n.restHad)
		s.Tasks = append(s.Tasks, t)
	}
	return s
}

// grow runs FlowCon, in parts of R: rule 12.
func (n *node) grow() {
	s := n.inRest()
	for k, i := range n.learning {
		if n.out[i].State == policy.Acceptable {
			t := &s.Tasks[k]
			t.Category, t.Growth, t.Progress = policy.CL, nil, nil
		}
	}
	n.growth = flowcon.Decide(s, n.params.Flowcon)
	for k, i := range n.learning {
		d, g := &n.out[i], n.growth.Tasks[k]
		d.Category, d.Rule, n.why[i] = g.Category, g.Rule, cause(g.Why)
	}
}

// accept runs TRADL, in parts of R, and sets the limits of acceptable tasks: rule 10.
// It says whether one of them yields.
func (n *node) accept() (yields bool) {
	for k, r := range tradl.Decide(n.inRest(), n.params.Tradl).Tasks {
		i := n.learning[k]
		d := &n.out[i]
		if d.State != policy.Acceptable {
			continue
		}
		d.Rule, n.limit[i], n.why[i] = RuleAcceptable, n.fairOfRest(i), cause(r.Why)
		if r.Limit != nil {
			yields = true
			d.Rule, n.limit[i] = r.Rule, max(n.rest**r.Limit, n.floor(i))
		}
	}
	return yields
}

// fairOfRest is a training task's fair share of R: rule 9.
func (n *node) fairOfRest(i int) policy.Share {
	return n.rest * (n.fair[i] / n.learns)
}

// divide divides R among the training tasks: rules 11 and 12.
func (n *node) divide() {
	left := n.rest
	var unknown, kept, open claims
	var fairs, keep, least policy.Share // of unknown tasks, what kept ones want, what open ones need
	for k, i := range n.learning {
		d, g, fair := &n.out[i], n.growth.Tasks[k], n.fairOfRest(i)
		lowest := n.floor(i)
		if n.wanting(i) {
			lowest = fair
		}
		switch {
		case d.State == policy.Acceptable:
			left -= n.limit[i]
		case g.Rule == flowcon.RuleUnmeasured || g.Rule == flowcon.RuleJoin:
			d.Rule, n.limit[i] = RuleUnknown, fair
			left -= fair
			fairs += fair
			unknown.add(i, fair, fair, unbounded)
		case g.Rule == flowcon.RuleUndefined || g.Rule == flowcon.RuleWL:
			want := max(g.Bound()*n.rest, lowest)
			keep += want
			kept.add(i, want, lowest, unbounded)
		default:
			weight := max(g.Bound(), rounding)
			if g.Rule == flowcon.RuleAllCL {
				weight = fair // free competition, as under plain Nomad
			}
			least += lowest
			open.add(i, weight, lowest, unbounded)
		}
	}
	switch {
	case len(open.tasks) > 0:
		keep = min(keep, left-least)
	case len(kept.tasks) > 0:
		keep = left
	default:
		n.divideAmong(left+fairs, unknown, "")
		return
	}
	n.divideAmong(keep, kept, "")
	n.divideAmong(left-keep, open, "")
	for _, i := range slices.Concat(kept.tasks, open.tasks) {
		if n.wanting(i) && n.limit[i] <= n.fairOfRest(i)*(1+rounding) {
			n.out[i].Rule = RuleWanting
		}
	}
}

// output puts the results together: rule 13.
func (n *node) output() policy.Outcome {
	for i := range n.Tasks {
		n.out[i].Unknown = n.unknown(i)
		n.out[i].Why = n.sentence(i)
	}
	interval := n.growth.IntervalS
	if len(n.serving) > 0 {
		interval = min(interval, n.response.IntervalS)
	}
	return policy.Outcome{
		Tasks: n.out, Alpha: n.growth.Alpha, State: n.response.State,
		IntervalS: min(interval, n.MaxIntervalS), Floor: 0.5,
	}
}

// unknown says whether a task needs no ceiling: nothing is known about it, and it has
// exactly its fair share, on a node without services, or no limit.
func (n *node) unknown(i int) bool {
	d := n.out[i]
	return d.Kind == policy.Training && d.State == policy.InTraining && d.Category == policy.NL &&
		flowcon.Growth(n.Tasks[i], n.Event) == nil && len(n.serving) == 0 &&
		(n.limit[i] == 1 || math.Abs(float64(n.limit[i]/n.fair[i]-1)) <= rounding)
}
