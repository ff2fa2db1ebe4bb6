// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package fsp divides a node's CPU by fair finish: tasks are served one after the
// other, and none ends later than under fair sharing. It is the Fair Sojourn Protocol
// (Friedman and Henderson, SIGMETRICS 2003) with the weights and late jobs of PSBS
// (Dell'Amico et al., IEEE Trans. Computers 2016) and an order of preference.
//
// Beside each task runs its twin, which has what fair sharing would have given the task:
//
//	f  service of the twin      S = a + r  size (a: CPU time used, r: remaining)
//	v = S − f  what the twin still has to do
//	d  when the twin ends if no task joins
//
// A task that has ended stays as a ghost until its twin has ended too. Tasks of unknown
// size run at their twin's rate; K cores are left for the others.
//
// The guard. In the order of d, the prefix up to task k has the slack
//
//	slack_k = K·(d_k − now) − Σ_{j ≤ k} r_j − φ·Σ_{j > k} (service of twin j until d_k)
//
// where the last sum has no ghosts, and φ = Params.Floor. K changes as twins end, so
// K·(d_k − now) stands for its integral. While every slack is ≥ 0, all r_k can be served
// by d_k, with each task at φ times its twin's rate at least. Service beyond that floor
// takes from the slack of all prefixes that the task is not in, and nothing else makes a
// slack smaller: not time, and not a task that joins. Without caps the twins of two
// tasks end in the same order whatever joins, so for a task n that joins
//
//	before k    K·(d_k − now) grows by v_n = r_n
//	after k     it grows by the service of twin n until then, of which φ is the floor's
//	slack_n     is that of its predecessor or more
//
// So with exact sizes, without caps and with fluid CPU no task ends later than its twin,
// for every order, every floor and every interval in which no task joins or ends
// unnoticed.
package fsp

import (
	"cmp"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// The rules that a Decision can name.
const (
	// RulePreferred: served by the order of preference.
	RulePreferred = "fsp.preferred"
	// RuleGuard: served so that none is late.
	RuleGuard = "fsp.guard"
	// RuleWait: others come first; the task has its floor.
	RuleWait = "fsp.wait"
	// RuleSpare: others come first and leave CPU that they cannot use.
	RuleSpare = "fsp.spare"
	// RuleLate: its twin has ended.
	RuleLate = "fsp.late"
	// RuleUnknown: its size is not known: its fair share.
	RuleUnknown = "fsp.unknown"
	// RuleGhost: the task has ended, its twin has not.
	RuleGhost = "fsp.ghost"
	// RuleService: a service, which leaves what it does not use.
	RuleService = "fsp.service"
)

const (
	// rounding is the relative error that sums may have.
	rounding = 1e-12
	// mostForeseen is how many tasks a node may have for their ends to be foreseen: that
	// takes 10 ms for 100 tasks, and a hundred times as long for ten times as many.
	mostForeseen = 100
	// least is the smallest limit that is given, and the least part of the pool that
	// services leave: a limit of 0 would mean none.
	least = 1e-9
)

// Decide divides the pool on a valid snapshot.
//
// The guard holds for the time until the next decision: Snapshot.IntervalS, or, where
// that is 0, until a task joins, leaves or a twin ends. A task that could use up a slack
// within that time has a part of the rate only; so no timer has to end its turn.
//
// After unknown tasks and floors, late tasks are served first. CPU that the tasks in
// front cannot use because of their caps goes to the next one, whatever the guard says:
// idle CPU would help no task. There is no hysteresis, hence no state: served tasks stay
// in front, and if each estimate is wrong by some 7 % the task in front changes two to
// three times per task, instead of two.
//
// FlowCon's categories are for people and for the shim: a task has converged (CL) when it
// is past its quality point.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	n := newNode(s, p)
	n.foresee()
	slack := n.slack()
	n.run(s.IntervalS)
	out := policy.Outcome{Tasks: make([]policy.Decision, len(s.Tasks)), Floor: p.Floor, SlackCPUS: &slack}
	for i, t := range s.Tasks {
		// It keeps what Nomad gave it: without a limit of its own it would squeeze all others.
		out.Tasks[i] = policy.Decision{ID: t.ID, Kind: policy.Service, Unknown: true, Rule: RuleService, Why: whyService(t), Fair: &policy.Fair{}}
	}
	// What nobody is known to be able to use is no reason to hold anybody back.
	spare, weights := n.pool, 0.0
	for _, j := range n.decided {
		if spare -= j.real; !j.ended {
			weights += j.weight
		}
	}
	if spare <= n.pool*rounding {
		spare = 0
	}
	for i, j := range n.decided {
		t, d := s.Tasks[j.task], &out.Tasks[j.task]
		d.Kind, d.Unknown, d.Rule = policy.Training, false, j.rule
		d.Late, d.FairRateCores = j.late(), policy.Cores(j.rate)
		if j.known && j.twin > 0 {
			d.FairFinishS = later(s.NowS, j.due)
		}
		if !j.ended {
			limit := policy.Share(min(max((j.real+spare*j.weight/weights)/float64(s.PoolCores), least), 1))
			d.Limit = &limit
			if n.jobs[i].done {
				d.FinishS = later(s.NowS, n.jobs[i].end)
			}
		}
		switch {
		case j.ended:
		case t.QualityCPUS != nil && *t.QualityCPUS == 0:
			d.Category = policy.CL
		default:
			d.Category = policy.NL
		}
		d.Why = why(t, *d, s, p.Prefer)
	}
	return out
}

func later(now, seconds float64) *float64 {
	at := now + seconds
	return &at
}

// job is a task that shares the pool. Amounts are in CPU-seconds, rates in cores, times
// in seconds from now.
type job struct {
	task         int     // in the snapshot
	id           string  // breaks ties
	weight, most float64 // entitlement, of the largest; cap
	known, ended bool

	size float64 // v at the start
	due  float64 // d

	// These change as time passes.
	twin, rate float64 // v, and the twin's rate
	left, way  float64 // r, and the part of it to the quality point
	real       float64 // rate
	done       bool
	rule       string
	end        float64 // when it ended
}

// late says whether the twin has ended and the task has not.
func (j *job) late() bool { return j.known && j.twin == 0 && !j.done }

// cap is the most that the task can use, and room what it could use beside its rate.
func (j *job) cap() float64  { return j.most }
func (j *job) room() float64 { return j.most - j.real }

// node is the state of one run.
type node struct {
	params Params
	pool   float64 // what services leave, in cores
	jobs   []job
	order  []*job // of known size, by d
	// Of each prefix of order: the integral of K until its d, and the service that the
	// twins behind it have until then, without ghosts.
	work, behind []float64
	now, spent   float64 // time, and the integral of K so far
	decided      []job   // jobs, as they are until the next decision
}

func newNode(s policy.Snapshot, p Params) *node {
	n := &node{params: p, pool: capacity(s, p)}
	heaviest := 0.0
	for _, t := range s.Tasks {
		if !t.Service() {
			heaviest = max(heaviest, t.Entitlement)
		}
	}
	for i, t := range s.Tasks {
		if t.Service() {
			continue
		}
		j := job{
			task: i, id: t.ID, known: t.Ended || t.RemainingCPUS != nil, ended: t.Ended, done: t.Ended,
			weight: max(t.Entitlement/heaviest, rounding), // so that no time overflows
			most:   n.pool, twin: math.Inf(1), left: math.Inf(1),
		}
		if t.CapCores > 0 {
			j.most = min(n.pool, float64(t.CapCores))
		}
		if j.known {
			j.left = 0
			if !t.Ended {
				j.left = some(float64(*t.RemainingCPUS))
			}
			j.twin = some(float64(t.CPUS-t.FairCPUS) + j.left)
		}
		if j.way = j.left; t.QualityCPUS != nil {
			j.way = min(j.left, some(float64(*t.QualityCPUS)))
		}
		j.size = j.twin
		n.jobs = append(n.jobs, j)
	}
	return n
}

// capacity returns the cores that services leave to the other tasks. A service holds
// what it uses, up to its limit: beyond that it has borrowed. All services together
// leave the others their floor.
func capacity(s policy.Snapshot, p Params) float64 {
	free, training := 1.0, 0.0
	for i, fair := range s.FairShares() {
		if t := s.Tasks[i]; t.Service() {
			free -= float64(min(t.Use, t.Bound()))
		} else {
			training += float64(fair)
		}
	}
	return float64(s.PoolCores) * max(free, p.Floor*training, least)
}

// divide shares cores by entitlement, up to so many each, among those that take part.
func (n *node) divide(cores float64, most func(*job) float64, part func(*job) bool) []float64 {
	claims := make([]waterfill.Claim, len(n.jobs))
	for i := range n.jobs {
		if j := &n.jobs[i]; part(j) {
			claims[i] = waterfill.Claim{Weight: j.weight, Max: most(j)}
		}
	}
	return waterfill.Divide(cores, claims)
}

// share sets the rates of the twins. It returns what those of unknown size leave, and
// the time until the next one ends.
func (n *node) share() (k, next float64) {
	k, next = n.pool, math.Inf(1)
	for i, rate := range n.divide(n.pool, (*job).cap, func(j *job) bool { return j.twin > 0 }) {
		j := &n.jobs[i]
		j.rate = rate
		if !j.known {
			k -= rate
		} else if rate > 0 {
			next = min(next, j.twin/rate)
		}
	}
	return max(k, 0), next
}

// pass lets the twins run.
func (n *node) pass(seconds float64) {
	for i := range n.jobs {
		if j := &n.jobs[i]; j.known {
			j.twin = after(j.twin, j.rate, seconds)
		}
	}
}

// after returns what is left of an amount.
func after(amount, rate, seconds float64) float64 {
	if rest := amount - rate*seconds; rest > amount*rounding {
		return some(rest)
	}
	return 0
}

// some returns an amount; one for which no time is short enough is 0.
func some(amount float64) float64 {
	if amount < 1e-290 {
		return 0
	}
	return amount
}

// lasts returns how long an amount lasts.
func lasts(amount, rate float64) float64 {
	if amount == 0 {
		return 0
	}
	return amount / rate
}

// foresee lets all twins of known size run to their end, which gives order, work and
// behind, and takes them back to the start.
func (n *node) foresee() {
	var rest []*job
	for i := range n.jobs {
		if j := &n.jobs[i]; j.known {
			rest = append(rest, j)
		}
	}
	slices.SortFunc(rest, func(a, b *job) int { return cmp.Compare(a.id, b.id) })
	for now, work := 0.0, 0.0; ; {
		behind := 0.0
		for _, j := range rest {
			if !j.ended {
				behind += j.size - j.twin
			}
		}
		running := rest[:0]
		for _, j := range rest {
			if j.twin > 0 {
				running = append(running, j)
				continue
			}
			if !j.ended {
				behind -= j.size
			}
			j.due = now
			n.order, n.work, n.behind = append(n.order, j), append(n.work, work), append(n.behind, behind)
		}
		if rest = running; len(rest) == 0 {
			break
		}
		k, next := n.share()
		n.pass(next)
		now, work = now+next, work+k*next
	}
	for _, j := range n.order {
		j.twin = j.size
	}
}

// rooms returns the slack of each prefix of order.
func (n *node) rooms() []float64 {
	out := make([]float64, len(n.order))
	left := 0.0
	for k, j := range n.order {
		if !j.done {
			left += j.left
		}
		out[k] = n.work[k] - n.spent - left - n.params.Floor*n.behind[k]
		if left == 0 {
			out[k] = math.Inf(1) // nothing can be late any more
		}
	}
	behind := 0.0 // what the twins behind have had of it already
	for k := len(n.order) - 1; k >= 0; k-- {
		out[k] += n.params.Floor * behind
		if j := n.order[k]; !j.ended {
			behind += j.size - j.twin
		}
	}
	return out
}

// slack returns the least slack of the prefixes that leave a task out.
func (n *node) slack() policy.CPUSeconds {
	out := math.Inf(1)
	last := len(n.order) - 1
	for last > 0 && n.order[last].done {
		last--
	}
	for k, room := range n.rooms() {
		if k < last && n.order[k].twin > 0 {
			out = min(out, room)
		}
	}
	if math.IsInf(out, 1) {
		return 0
	}
	return policy.CPUSeconds(out)
}

// serve sets the rates of the tasks such that the guard holds for a time.
func (n *node) serve(seconds float64) {
	// A late task has no twin any more, but it needs CPU as well.
	fair := n.divide(n.pool, (*job).cap, func(j *job) bool { return j.twin > 0 || j.late() })
	free := n.pool
	for i := range n.jobs {
		j := &n.jobs[i]
		j.real = 0
		switch {
		case !j.known:
			j.rule, j.rate = RuleUnknown, fair[i]
			n.give(j, fair[i], &free)
		case j.done:
			j.rule = RuleGhost
		case j.late():
			j.rule = RuleLate
		default:
			j.rule = RuleWait
			n.give(j, n.params.Floor*fair[i], &free)
		}
	}
	n.spread(&free, (*job).late)
	n.serveCapped(&free, seconds)
	n.serveKnown(&free, seconds)
	// What is left is of no use to those in front.
	for _, j := range n.order {
		if !j.done && n.give(j, free, &free) > 0 && j.rule == RuleWait {
			j.rule = RuleSpare
		}
	}
	n.spread(&free, func(j *job) bool { return !j.known })
}

// give raises the rate of a task, up to its cap, and takes it from what is free.
func (n *node) give(j *job, cores float64, free *float64) float64 {
	cores = max(min(cores, j.room(), *free), 0)
	j.real += cores
	*free -= cores
	return cores
}

// spread raises the rates of those that take part by entitlement.
func (n *node) spread(free *float64, part func(*job) bool) {
	for i, cores := range n.divide(*free, (*job).room, part) {
		n.give(&n.jobs[i], cores, free)
	}
}

// serveCapped has a task run as fast as it can once it must, to end by d. The slack of
// its prefix does not show that.
func (n *node) serveCapped(free *float64, seconds float64) {
	for _, j := range n.order {
		if j.done || j.late() || j.most == n.pool {
			continue
		}
		spare := j.most*(j.due-n.now) - j.left
		if n.give(j, j.most-spare/min(seconds, j.due)-j.real, free) > 0 {
			j.rule = RuleGuard
		}
	}
}

// serveKnown gives what is free in the order of preference, as far as the guard allows.
func (n *node) serveKnown(free *float64, seconds float64) {
	rooms := n.rooms()
	preferred := make([]int, 0, len(n.order))
	for p, j := range n.order {
		if !j.done && !j.late() {
			preferred = append(preferred, p)
		}
	}
	slices.SortStableFunc(preferred, func(a, b int) int { return n.params.Prefer.compare(n.order[a], n.order[b]) })
	n.prefer(preferred, rooms, free, seconds, true)
	n.prefer(preferred, rooms, free, seconds, false)
}

// portion is the part of the pool that is meant for the i-th of m tasks in front: of all
// divisions the one with the least mean completion, if a task on k cores is k^p times as
// fast as on one (heSRPT: Berg, Vesilo and Harchol-Balter, Performance Evaluation 2020).
// With p = 1 the first one has all.
func (p Params) portion(i, m int) float64 {
	behind := func(i int) float64 {
		if i == m || p.Scaling == 1 && i > 0 {
			return 0
		}
		return math.Pow(float64(m-i)/float64(m), 1/(1-p.Scaling))
	}
	return behind(i) - behind(i+1)
}

// wholeCore is what a task in front is given before the next one is: threads that take
// turns on a core lose nothing.
const wholeCore = 1

// prefer gives what is free to the tasks at these places of order, one after the other:
// each its portion if there are any, else all.
func (n *node) prefer(preferred []int, rooms []float64, free *float64, seconds float64, portions bool) {
	guarded, pool := false, *free
	for i, p := range preferred {
		if *free <= n.pool*rounding {
			break
		}
		j := n.order[p]
		cores := *free
		if portions {
			cores = min(cores, max(wholeCore, pool*n.params.portion(i, len(preferred))))
		}
		meant := cores
		for k, front := range n.order[:p] {
			if rooms[k] < j.left && front.twin > 0 {
				cores = min(cores, max(rooms[k], 0)/min(seconds, front.due))
			}
		}
		held := cores < meant
		if cores = n.give(j, cores, free); cores > 0 {
			if j.rule != RulePreferred && guarded && !held {
				j.rule = RuleGuard
			} else {
				j.rule = RulePreferred
			}
		}
		guarded = guarded || held
		for k, front := range n.order[:p] {
			rooms[k] -= min(j.left, cores*min(seconds, front.due))
		}
	}
}

// run takes the decision, and lets time pass until all tasks are expected to have ended if
// they are not too many.
func (n *node) run(interval float64) {
	for first := true; ; first = false {
		k, next := n.share()
		step := next
		if first && interval > 0 {
			step = interval
		}
		n.serve(step)
		if first {
			n.decided = slices.Clone(n.jobs)
			if len(n.jobs) > mostForeseen {
				return
			}
		}
		step = min(step, next)
		running := false
		for _, j := range n.order {
			if !j.done {
				running = true
				step = min(step, lasts(j.left, j.real))
				if j.way > 0 {
					step = min(step, j.way/j.real)
				}
			}
		}
		if !running || math.IsInf(step, 1) {
			return
		}
		for _, j := range n.order {
			if j.done {
				continue
			}
			j.left, j.way = after(j.left, j.real, step), after(j.way, j.real, step)
			if j.left == 0 {
				j.done, j.end = true, n.now+step
			}
		}
		n.pass(step)
		n.now, n.spent = n.now+step, n.spent+k*step
	}
}
