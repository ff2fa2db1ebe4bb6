// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package auto divides a node's CPU among tasks of all kinds: services with a
// response time to keep, training tasks with targets and without, and tasks of which
// nothing is known. It is ours, and composed of the published policies: DQoES
// (package dqoes) for services, TRADL (package tradl) and FlowCon (package flowcon)
// for training tasks. These are its rules; the code names them by their numbers.
//
//  1. n is the number of tasks, of all kinds, and 1/n is the fair share. Nobody is
//     limited to less than the floor 1/(2n).
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
//  6. From there DQoES moves it, with n of rule 1 and with what training tasks use
//     above the rest that rule 8 guarantees to them as CPU that may be taken. On an
//     event services do not move: their response times belong to a node that is no
//     more, and several events in one interval would take the same step several times.
//  7. A service that is not worse than asked is not cut in one run below what answers
//     in (1+α/2)·o as far as response times go with limits: p/((1+α/2)·o) of its share
//     in force, or of its use, if that is more. So neither the unreachable objective of another service nor a load
//     that leaves most of its share unused costs it its own objective.
//  8. Services may have together: without training tasks the whole pool, and they
//     get it; with T of them service_share at most, and T floors less than the pool at
//     most, but their own floors in any case. If they ask for more, the largest are cut
//     to one level: first those that are worse than asked or not measured, down to the
//     fair share, and those that are better, down to what rule 7 keeps for them; if
//     that is not enough all, down to the floor.
//  9. Training tasks have the rest R, and R/T is the fair share of it.
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

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
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

// Decision is what Decide decides for one task.
type Decision struct {
	// ID is the task's, as the input gave it.
	ID string `json:"id"`
	// Kind is the task's, as the input gave it.
	Kind Kind `json:"kind"`
	// Category is that of a training task from now on; never New.
	Category policy.Category `json:"category,omitempty"`
	// State says what a training task has reached by now; never "".
	State tradl.State `json:"state,omitempty"`
	// Class says how a service is doing; "" if it was not measured.
	Class dqoes.Class `json:"class,omitempty"`
	// Limit is the task's part of the pool, in (0, 1]; 1 means no limit.
	Limit float64 `json:"limit"`
	// Stop says that the task has succeeded and is to be stopped gracefully.
	Stop bool `json:"stop"`
	// Unmeasured says that nothing is known about a training task and that it has
	// exactly the fair share 1/n on a node without services, or no limit: it needs no
	// ceiling. Meant for limits.Request, which would give it 1/n.
	Unmeasured bool `json:"unmeasured"`
	// Rule is the stable name of the rule that set the limit.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Output is what Decide decides.
type Output struct {
	// Tasks has one decision for each task of the input, in the input's order.
	Tasks []Decision `json:"tasks"`
	// Alpha is FlowCon's threshold, in the unit of G, or flowcon.Off.
	Alpha float64 `json:"alpha"`
	// Services is for the next run's Input.
	Services dqoes.State `json:"services"`
	// IntervalS is the time until the next run, in seconds.
	IntervalS float64 `json:"interval_s"`
}

// rounding is the relative error that comparisons forgive.
const rounding = 1e-9

// Decide divides the pool of a node by the rules of the package, on a valid input. It
// does not change the input.
//
// The step of DQoES is the proportional one by default, not the published one: a
// service whose load rises from 0.2 to 0.5 of a full pool has its target back after 3
// runs, instead of 26 (go test -v -run TestPlant_load).
func Decide(in Input) Output {
	n := newNode(in)
	n.targets()
	n.shares()
	n.services()
	n.training()
	return n.output()
}

// node is the state of one run. Slices have an element for each task of the input.
type node struct {
	in     Input
	params Params
	out    []Decision
	why    []string // the reason, as the policy behind it gives it

	serving, learning, stopping []int // the tasks by what becomes of them
	floor, fair                 float64

	share    []float64 // in force
	pool     float64   // what stopping tasks leave of it
	restHad  float64   // R in force
	bound    float64   // what services may have together
	asked    float64   // what they asked for together
	rest     float64   // R
	free     bool      // nobody is limited
	growth   flowcon.Output
	response dqoes.Output
}

func newNode(in Input) *node {
	n := &node{
		in:     in,
		params: in.Params,
		out:    make([]Decision, len(in.Tasks)),
		why:    make([]string, len(in.Tasks)),
		share:  make([]float64, len(in.Tasks)),
	}
	// Params{} is meant to be usable, as it is in the other policies.
	if !(n.params.ServiceShare > 0) {
		n.params.ServiceShare = DefaultServiceShare
	}
	if !(n.params.Dqoes.Alpha > 0) {
		n.params.Dqoes.Alpha = dqoes.DefaultAlpha
	}
	for i, t := range in.Tasks {
		n.out[i].ID, n.out[i].Kind = t.ID, t.Kind
	}
	return n
}

// targets says what training tasks have reached, and so who takes part: rule 2.
func (n *node) targets() {
	for i, t := range n.in.Tasks {
		d := &n.out[i]
		if t.Kind == KindService {
			n.serving = append(n.serving, i)
			continue
		}
		d.State, n.why[i] = n.reached(t)
		if d.Category = t.Category; d.Category == policy.New {
			d.Category = policy.NL
		}
		if d.Stop = d.State == tradl.StateObjective; d.Stop {
			n.stopping = append(n.stopping, i)
		} else {
			n.learning = append(n.learning, i)
		}
	}
}

// reached asks TRADL for a task's state, which depends on no other task.
func (n *node) reached(t Task) (tradl.State, string) {
	d := tradl.Decide(tradl.Input{Tasks: []tradl.Task{t.targets()}, Params: n.params.Tradl}).Tasks[0]
	return d.State, cause(d.Why)
}

// targets is the task as TRADL sees it, without use and limit.
func (t Task) targets() tradl.Task {
	return tradl.Task{
		ID: t.ID, Goal: t.Goal, Value: t.Value, Acceptable: t.Acceptable, Objective: t.Objective,
		State: t.State, Tracked: t.Tracked,
	}
}

// wanting says whether a training task has a target that it has not reached.
func (t Task) wanting(reached tradl.State) bool {
	return (t.Acceptable != nil || t.Objective != nil) && reached == tradl.StateTraining
}

// shares says what tasks have in force, and what is there to divide: rules 1, 2, 4.
func (n *node) shares() {
	count := math.Max(1, float64(len(n.in.Tasks)))
	n.fair, n.floor = 1/count, 1/(2*count)
	for i, t := range n.in.Tasks {
		if n.share[i] = t.Limit; t.Limit == 0 || t.Limit == 1 {
			n.share[i] = n.fair
		}
	}
	n.pool, n.restHad = 1, 1
	for _, i := range n.stopping {
		n.restHad -= n.share[i]
		n.out[i].Rule = tradl.RuleObjective
		n.out[i].Limit = math.Min(n.fair, math.Max(n.share[i], n.floor))
		n.pool -= n.out[i].Limit
	}
	for _, i := range n.serving {
		n.restHad -= n.share[i]
	}
	// Services that were free may have had more than training tasks leave them now.
	n.restHad = math.Max(n.restHad, float64(len(n.learning))*n.floor)
}

// services divides what services get: rules 5 to 8.
func (n *node) services() {
	n.rest = n.pool
	if len(n.serving) == 0 {
		return
	}
	n.bound = n.pool
	if t := float64(len(n.learning)); t > 0 {
		n.bound = math.Min(n.params.ServiceShare, n.pool-t*n.floor)
		n.bound = math.Max(n.bound, float64(len(n.serving))*n.floor)
	}
	n.regulate()
	n.limitServices()
	for _, i := range n.serving {
		n.rest -= n.out[i].Limit
	}
}

// base is the limit from which a service moves: rule 5.
func (n *node) base(i int) float64 {
	return math.Min(1, math.Max(n.share[i], n.in.Tasks[i].Use*n.faster(i, -1)))
}

// faster is the part of its CPU with which a service would still answer in
// (1 + side·α/2)·o; 1 if that is not less than it has, 0 if it was not measured.
func (n *node) faster(i int, side float64) float64 {
	t := n.in.Tasks[i]
	if t.ResponseS == nil {
		return 0
	}
	return math.Min(1, *t.ResponseS/t.ObjectiveS/(1+side*n.params.Dqoes.Alpha/2))
}

// keep is what a service keeps: rule 7.
func (n *node) keep(i int) float64 {
	return math.Min(1, math.Max(n.share[i], n.in.Tasks[i].Use)*n.faster(i, +1))
}

// regulate runs DQoES: rules 6 and 7.
func (n *node) regulate() {
	in := dqoes.Input{
		State:     n.in.Services,
		IntervalS: n.in.IntervalS, InitialIntervalS: n.in.InitialIntervalS, MaxIntervalS: n.in.MaxIntervalS,
		Params: n.params.Dqoes,
	}
	in.Params.Tasks = len(n.in.Tasks)
	for i, t := range n.in.Tasks {
		if t.Kind == KindTraining {
			in.Params.Others += t.Use
			continue
		}
		in.Tasks = append(in.Tasks, dqoes.Task{
			ID: t.ID, ObjectiveS: t.ObjectiveS, ResponseS: t.ResponseS, Use: t.Use, Limit: n.base(i),
		})
	}
	in.Params.Others = math.Min(1, in.Params.Others)
	in.Params.Extra = math.Max(0, in.Params.Others-(1-n.bound))
	n.response = dqoes.Decide(in)
	event := n.in.Event != flowcon.EventNone
	if event {
		n.response.State, n.response.IntervalS = n.in.Services, n.in.InitialIntervalS
	}
	for k, i := range n.serving {
		d, r, base := &n.out[i], n.response.Tasks[k], in.Tasks[k].Limit
		d.Class, d.Rule, d.Limit, n.why[i] = r.Class, r.Rule, r.Limit, cause(r.Why)
		switch was := n.in.Tasks[i].Limit; {
		case r.Class == dqoes.Unmeasured && (was == 0 || was == 1):
			d.Rule, n.why[i] = RuleShare, "no response time yet and no limit so far: begins with the fair share"
		case event:
			d.Rule, n.why[i] = RuleEvent, "a task has joined or left: keeps its share until it is measured again"
			d.Limit = math.Max(base, n.floor)
		case r.Class == dqoes.Good || r.Class == dqoes.Satisfied:
			if keep := n.keep(i); keep > d.Limit*(1+rounding) {
				d.Rule, d.Limit = RuleKeep, keep
			}
		}
	}
}

// limitServices is rule 8.
func (n *node) limitServices() {
	var first, last []claim
	var guaranteed float64
	for _, i := range n.serving {
		c := claim{task: i, want: n.out[i].Limit, min: n.out[i].Limit}
		switch n.out[i].Class {
		case dqoes.Bad, dqoes.Unmeasured:
			c.min = math.Min(c.want, n.fair)
		case dqoes.Good:
			c.min = math.Min(c.want, math.Max(n.floor, n.keep(i)))
		}
		n.asked += c.want
		guaranteed += c.min
		first = append(first, c)
		last = append(last, claim{task: i, want: c.min, min: n.floor})
	}
	switch {
	case n.asked > n.bound*(1+rounding) && guaranteed <= n.bound:
		n.assign(first, level(n.bound, first), RuleBound)
	case n.asked > n.bound*(1+rounding):
		n.assign(last, level(n.bound, last), RuleBound)
	case len(n.learning) == 0:
		n.assign(first, fill(n.bound, first), "")
	}
}

// assign sets limits, and the rule of those that are less than what was asked for.
func (n *node) assign(claims []claim, limits []float64, rule string) {
	for k, c := range claims {
		d := &n.out[c.task]
		if rule != "" && limits[k] < d.Limit*(1-rounding) {
			d.Rule = rule
		}
		d.Limit = math.Min(1, limits[k])
	}
}

// training divides the rest among training tasks: rules 3 and 9 to 12.
func (n *node) training() {
	n.grow()
	yields := n.accept()
	n.free = len(n.serving) == 0 && !yields
	for k, i := range n.learning {
		n.free = n.free && (n.out[i].State == tradl.StateAcceptable || n.growth.Tasks[k].Limit == 1)
	}
	if !n.free {
		n.divide()
		return
	}
	for _, i := range n.learning {
		n.out[i].Rule, n.out[i].Limit = RuleFree, 1
	}
	for _, i := range n.stopping {
		n.out[i].Limit = 1
	}
}

// grow runs FlowCon, in parts of R: rule 12.
func (n *node) grow() {
	in := flowcon.Input{
		IntervalS: n.in.IntervalS, InitialIntervalS: n.in.InitialIntervalS,
		Event: n.in.Event, Params: n.params.Flowcon,
	}
	for _, i := range n.learning {
		t := n.in.Tasks[i]
		g := flowcon.Task{
			ID: t.ID, Category: t.Category, Growth: t.Growth, Progress: t.Progress,
			Limit: n.ofRest(i), Use: t.Use,
		}
		if n.out[i].State == tradl.StateAcceptable {
			g.Category, g.Growth, g.Progress = policy.CL, nil, nil
		}
		in.Tasks = append(in.Tasks, g)
	}
	n.growth = flowcon.Decide(in)
	for k, i := range n.learning {
		d, g := &n.out[i], n.growth.Tasks[k]
		d.Category, d.Rule, n.why[i] = g.Category, g.Rule, cause(g.Why)
	}
}

// ofRest is the part of the R in force that a task has.
func (n *node) ofRest(i int) float64 { return math.Min(1, n.share[i]/n.restHad) }

// accept runs TRADL, in parts of R, and sets the limits of acceptable tasks: rule 10.
// It says whether one of them yields.
func (n *node) accept() (yields bool) {
	in := tradl.Input{Gone: n.in.Gone / n.restHad, Params: n.params.Tradl}
	for _, i := range n.learning {
		t := n.in.Tasks[i].targets()
		t.Use, t.Limit = n.in.Tasks[i].Use/n.restHad, n.ofRest(i)
		in.Tasks = append(in.Tasks, t)
	}
	fair := n.rest / float64(len(n.learning))
	for k, r := range tradl.Decide(in).Tasks {
		i := n.learning[k]
		d := &n.out[i]
		if d.State != tradl.StateAcceptable {
			continue
		}
		d.Rule, d.Limit, n.why[i] = RuleAcceptable, fair, cause(r.Why)
		if r.Limit != nil {
			yields = true
			d.Rule, d.Limit = r.Rule, math.Max(n.rest**r.Limit, n.floor)
		}
	}
	return yields
}

// divide divides R among the training tasks: rules 11 and 12.
func (n *node) divide() {
	fair := n.rest / float64(len(n.learning))
	left := n.rest
	var unknown, kept, open []claim
	var keep, least float64 // what kept tasks want, and what open ones need
	for k, i := range n.learning {
		d, g := &n.out[i], n.growth.Tasks[k]
		part := claim{task: i, want: math.Max(g.Limit, rounding), min: n.floor}
		if n.in.Tasks[i].wanting(d.State) {
			part.min = fair
		}
		switch {
		case d.State == tradl.StateAcceptable:
			left -= d.Limit
		case g.Rule == flowcon.RuleUnmeasured || g.Rule == flowcon.RuleJoin:
			d.Rule, d.Limit = RuleUnknown, fair
			left -= fair
			unknown = append(unknown, claim{task: i, want: fair, min: fair})
		case g.Rule == flowcon.RuleUndefined || g.Rule == flowcon.RuleWL:
			part.want = math.Max(g.Limit*n.rest, part.min)
			keep += part.want
			kept = append(kept, part)
		default:
			least += part.min
			open = append(open, part)
		}
	}
	switch {
	case len(open) > 0:
		keep = math.Min(keep, left-least)
	case len(kept) > 0:
		keep = left
	default:
		n.assign(unknown, fill(left+fair*float64(len(unknown)), unknown), "")
		return
	}
	n.assign(kept, fill(keep, kept), "")
	n.assign(open, fill(left-keep, open), "")
	for _, c := range append(kept, open...) {
		if d := &n.out[c.task]; n.in.Tasks[c.task].wanting(d.State) && d.Limit <= fair*(1+rounding) {
			d.Rule = RuleWanting
		}
	}
}

// output puts the results together: rule 13.
func (n *node) output() Output {
	for i := range n.in.Tasks {
		n.out[i].Unmeasured = n.unmeasured(i)
		n.out[i].Why = n.sentence(i)
	}
	interval := n.growth.IntervalS
	if len(n.serving) > 0 {
		interval = math.Min(interval, n.response.IntervalS)
	}
	return Output{
		Tasks:     n.out,
		Alpha:     n.growth.Alpha,
		Services:  n.response.State,
		IntervalS: math.Min(interval, n.in.MaxIntervalS),
	}
}

// unmeasured says whether a task needs no ceiling: see Decision.
func (n *node) unmeasured(i int) bool {
	d, t := n.out[i], n.in.Tasks[i]
	unknown := d.Kind == KindTraining && d.State == tradl.StateTraining && d.Category == policy.NL && t.Growth == nil
	return unknown && len(n.serving) == 0 && (d.Limit == 1 || math.Abs(d.Limit-n.fair) <= rounding)
}
