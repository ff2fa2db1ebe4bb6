// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package fsp divides a node's CPU by fair finish: tasks are served one after the other, and none
// ends later than under fair sharing. It is the Fair Sojourn Protocol (Friedman and Henderson,
// SIGMETRICS 2003) with the weights and late jobs of PSBS (Dell'Amico et al., IEEE Trans. Computers
// 2016) and an order of preference.
//
// Each task has a twin, which receives what fair sharing would have given the task:
//
//	f  service of the twin      S = a + r  size (a: CPU time used, r: remaining)
//	v = S − f  remaining work of the twin
//	d  end of the twin if no task joins
//
// An ended task stays as a ghost until its twin ends. Tasks of unknown size run at their twin's
// rate; K cores are left for the others.
//
// The guard. In the order of d, the prefix up to task k has the slack
//
//	slack_k = K·(d_k − now) − Σ_{j ≤ k} r_j − φ·Σ_{j > k} (service of twin j until d_k)
//
// where the last sum excludes ghosts, and φ = Params.Floor. K changes as twins end, so K·(d_k −
// now) stands for its integral. While every slack is ≥ 0, all r_k can be served by d_k with each
// task at φ times its twin's rate or more. Service beyond that floor reduces the slack of the
// prefixes without the task; neither time nor a joining task reduces a slack. Without caps the
// order of two twins' ends is independent of joins, so when a task n joins
//
//	before k    K·(d_k − now) grows by v_n = r_n
//	after k     it grows by the service of twin n until then, of which φ is the floor's
//	slack_n     is at least that of its predecessor
//
// So with exact sizes, without caps and with fluid CPU no task ends later than its twin, for every
// order, every floor, and every interval in which no task joins or ends unnoticed.
package fsp

import (
	"cmp"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

const (
	// RulePreferred: served in order of preference.
	RulePreferred = "fsp.preferred"
	// RuleGuard: served to keep every task on time.
	RuleGuard = "fsp.guard"
	// RuleWait: others come first; the task has its floor.
	RuleWait = "fsp.wait"
	// RuleSpare: others come first, but cannot use all CPU.
	RuleSpare = "fsp.spare"
	// RuleLate: its twin has ended.
	RuleLate = "fsp.late"
	// RuleUnknown: size unknown: its fair share.
	RuleUnknown = "fsp.unknown"
	// RuleGhost: the task has ended, its twin has not.
	RuleGhost = "fsp.ghost"
	// RuleService: a service; others get what it does not use.
	RuleService = "fsp.service"
)

const (
	// rounding is the relative rounding error of sums.
	rounding = 1e-12
	// maxForecast is the maximum number of tasks whose ends are predicted: 100 tasks take 10 ms,
	// ten times as many a hundred times as long.
	maxForecast = 100
	// least is the minimum limit, as 0 would mean none, and the minimum fraction of the pool left
	// by services.
	least = 1e-9
)

// Decide divides the pool on a valid snapshot.
//
// The guard holds until the next decision: for Snapshot.IntervalS or, if 0, until a task joins or
// leaves or a twin ends. A task that could exhaust a slack before then gets only a fraction of the
// rate, so no timer is needed.
//
// After unknown tasks and floors, late tasks are served first. CPU that the first tasks cannot use
// because of their caps goes to the next task despite the guard, as idle CPU would help no task. No
// hysteresis is needed: served tasks stay first, and with estimates off by 7 % the first task
// changes two to three times per task instead of twice.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	n := newNode(s, p)
	n.forecast()
	slack := n.slack()
	n.run(s.IntervalS)
	out := policy.Outcome{Tasks: make([]policy.Decision, len(s.Tasks)), Floor: p.Floor, SlackCPUS: &slack}
	for i, t := range s.Tasks {
		// Without a limit it keeps its entitlement.
		out.Tasks[i] = policy.Decision{ID: t.ID, Kind: policy.Service, Unknown: true, Rule: RuleService, Why: whyService(t), Fair: &policy.Fair{}}
	}
	// CPU that no task is known to be able to use limits no task.
	spare, weights := n.pool, 0.0
	for _, j := range n.decided {
		if spare -= j.served; !j.ended {
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
			limit := policy.Share(min(max((j.served+spare*j.weight/weights)/float64(s.PoolCores), least), 1))
			d.Limit = &limit
			if n.jobs[i].done {
				d.FinishS = later(s.NowS, n.jobs[i].end)
			}
		}
		d.PastQuality = !j.ended && t.QualityCPUS != nil && *t.QualityCPUS == 0
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
	task         int     // index in the snapshot
	id           string  // breaks ties
	weight, most float64 // entitlement relative to the largest; cap
	known, ended bool

	size float64 // v at the start
	due  float64 // d

	// Changed by the simulation.
	twin, rate      float64 // v, and the twin's rate
	left, toQuality float64 // r, and its part up to the quality point
	toFirst         float64 // and up to the first results
	served          float64 // the task's rate
	whole           float64 // cores that pay for it, before the next one gets any; 0 if unknown
	done            bool
	rule            string
	end             float64 // time of its end
}

func (j *job) late() bool { return j.known && j.twin == 0 && !j.done }

// cap returns the maximum rate; room is the unused part of it.
func (j *job) cap() float64  { return j.most }
func (j *job) room() float64 { return j.most - j.served }

type node struct {
	params Params
	pool   float64 // cores left by services
	jobs   []job
	order  []*job // of known size, by d
	// For each prefix of order: the integral of K until its d, and the service of later twins until
	// then, without ghosts.
	work, behind []float64
	now, spent   float64 // time, and the integral of K until it
	decided      []job   // jobs as of the decision
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
			weight: max(t.Entitlement/heaviest, rounding), // times must not overflow
			most:   n.pool, twin: math.Inf(1), left: math.Inf(1),
		}
		if t.CapCores > 0 {
			j.most = min(n.pool, float64(t.CapCores))
		}
		if j.known {
			j.left = 0
			if !t.Ended {
				j.left = flushTiny(float64(*t.RemainingCPUS))
			}
			j.twin = flushTiny(float64(t.CPUS-t.FairCPUS) + j.left)
		}
		if j.toQuality = j.left; t.QualityCPUS != nil {
			j.toQuality = min(j.left, flushTiny(float64(*t.QualityCPUS)))
		}
		if j.known {
			j.toFirst = toFirst(t)
		}
		j.size = j.twin
		n.jobs = append(n.jobs, j)
	}
	n.whole(s.Tasks)
	return n
}

// capacity returns the cores left by services to the other tasks. A service holds its use up to its
// limit; use beyond that is borrowed. The others keep at least their floor.
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

// divide splits cores by entitlement among the jobs selected by part, each up to most.
func (n *node) divide(cores float64, most func(*job) float64, part func(*job) bool) []float64 {
	claims := make([]waterfill.Claim, len(n.jobs))
	for i := range n.jobs {
		if j := &n.jobs[i]; part(j) {
			claims[i] = waterfill.Claim{Weight: j.weight, Max: most(j)}
		}
	}
	return waterfill.Divide(cores, claims)
}

// share sets the twins' rates. It returns the cores left by twins of unknown size, and the time
// until the next known twin ends.
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

func (n *node) advance(seconds float64) {
	for i := range n.jobs {
		if j := &n.jobs[i]; j.known {
			j.twin = after(j.twin, j.rate, seconds)
		}
	}
}

func after(amount, rate, seconds float64) float64 {
	if rest := amount - rate*seconds; rest > amount*rounding {
		return flushTiny(rest)
	}
	return 0
}

// flushTiny returns 0 for amounts that would break time steps.
func flushTiny(amount float64) float64 {
	if amount < 1e-290 {
		return 0
	}
	return amount
}

func duration(amount, rate float64) float64 {
	if amount == 0 {
		return 0
	}
	return amount / rate
}

// forecast runs all twins of known size to their end to set order, work and behind, then resets
// them.
func (n *node) forecast() {
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
		n.advance(next)
		now, work = now+next, work+k*next
	}
	for _, j := range n.order {
		j.twin = j.size
	}
}

func (n *node) slacks() []float64 {
	out := make([]float64, len(n.order))
	left := 0.0
	for k, j := range n.order {
		if !j.done {
			left += j.left
		}
		out[k] = n.work[k] - n.spent - left - n.params.Floor*n.behind[k]
		if left == 0 {
			out[k] = math.Inf(1) // no task can be late
		}
	}
	behind := 0.0 // service that later twins have already received
	for k := len(n.order) - 1; k >= 0; k-- {
		out[k] += n.params.Floor * behind
		if j := n.order[k]; !j.ended {
			behind += j.size - j.twin
		}
	}
	return out
}

// slack returns the least slack of the prefixes that exclude a task.
func (n *node) slack() policy.CPUSeconds {
	out := math.Inf(1)
	last := len(n.order) - 1
	for last > 0 && n.order[last].done {
		last--
	}
	for k, room := range n.slacks() {
		if k < last && n.order[k].twin > 0 {
			out = min(out, room)
		}
	}
	if math.IsInf(out, 1) {
		return 0
	}
	return policy.CPUSeconds(out)
}

// serve sets the tasks' rates such that the guard holds for the given time.
func (n *node) serve(seconds float64) {
	// A late task has no twin, but still needs CPU.
	fair := n.divide(n.pool, (*job).cap, func(j *job) bool { return j.twin > 0 || j.late() })
	free := n.pool
	for i := range n.jobs {
		j := &n.jobs[i]
		j.served = 0
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
	// The first tasks cannot use the rest.
	for _, j := range n.order {
		if !j.done && n.give(j, free, &free) > 0 && j.rule == RuleWait {
			j.rule = RuleSpare
		}
	}
	n.spread(&free, func(j *job) bool { return !j.known })
}

// give raises a task's rate from the free cores, up to its cap.
func (n *node) give(j *job, cores float64, free *float64) float64 {
	cores = max(min(cores, j.room(), *free), 0)
	j.served += cores
	*free -= cores
	return cores
}

// spread raises the rates of the jobs selected by part, by entitlement.
func (n *node) spread(free *float64, part func(*job) bool) {
	for i, cores := range n.divide(*free, (*job).room, part) {
		n.give(&n.jobs[i], cores, free)
	}
}

// serveCapped runs a task at its cap as soon as ending by d requires it, which the slack of its
// prefix does not account for.
func (n *node) serveCapped(free *float64, seconds float64) {
	for _, j := range n.order {
		if j.done || j.late() || j.most == n.pool {
			continue
		}
		spare := j.most*(j.due-n.now) - j.left
		if n.give(j, j.most-spare/min(seconds, j.due)-j.served, free) > 0 {
			j.rule = RuleGuard
		}
	}
}

func (n *node) serveKnown(free *float64, seconds float64) {
	rooms := n.slacks()
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

// pays is what a further core must add to a task's speed, in cores' worth, to be given to it before
// the next task gets one.
const pays = 0.7

// wholeCores returns how many whole cores of the pool pay for a task with that overhead. Threads that
// take turns on a core lose nothing, so one always does.
func wholeCores(overhead, pool float64) float64 {
	const linear = 1e-3
	if overhead < linear {
		return pool
	}
	speed := func(k float64) float64 { return k / (1 + overhead*(k-1)) }
	k := 1.0
	for k < pool && speed(k+1)-speed(k) >= pays {
		k++
	}
	return k
}

// whole sets how many whole cores each task has before the next one in order gets any. The overhead of
// a task that has not shown it is the median of those that have.
func (n *node) whole(tasks []policy.Task) {
	var known []float64
	for _, t := range tasks {
		if t.Overhead != nil && !t.Ended {
			known = append(known, *t.Overhead)
		}
	}
	slices.Sort(known)
	for i := range n.jobs {
		j := &n.jobs[i]
		switch own := tasks[j.task].Overhead; {
		case own != nil:
			j.whole = wholeCores(*own, n.pool)
		case len(known) > 0:
			j.whole = wholeCores(known[len(known)/2], n.pool)
		}
	}
}

// portion returns the part of the pool for the i-th of m tasks in order of preference whose overhead is
// unknown: the division with the least mean completion if k cores are √k times as fast as one
// (heSRPT: Berg, Vesilo and Harchol-Balter, Performance Evaluation 2020), which is between those that
// scale and those that do not.
func portion(i, m int) float64 {
	behind := func(i int) float64 { return float64((m-i)*(m-i)) / float64(m*m) }
	return behind(i) - behind(i+1)
}

// prefer gives the free cores to the preferred tasks, indices in order, in turn: to each its whole
// cores or an equal part, whichever is more; if unknown, a core or its portion; or all.
func (n *node) prefer(preferred []int, rooms []float64, free *float64, seconds float64, parts bool) {
	guarded, all := false, *free
	for i, p := range preferred {
		if *free <= n.pool*rounding {
			break
		}
		j := n.order[p]
		cores := *free
		if parts {
			part := max(j.whole, all/float64(len(preferred)))
			if j.whole == 0 {
				part = max(1, all*portion(i, len(preferred)))
			}
			cores = min(cores, part)
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

// run decides, then simulates to the end of all tasks unless there are too many.
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
			if len(n.jobs) > maxForecast {
				return
			}
		}
		step = min(step, next)
		running := false
		for _, j := range n.order {
			if !j.done {
				running = true
				step = min(step, duration(j.left, j.served))
				for _, way := range []float64{j.toQuality, j.toFirst} {
					if way > 0 {
						step = min(step, way/j.served)
					}
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
			for _, way := range []*float64{&j.left, &j.toQuality, &j.toFirst} {
				*way = after(*way, j.served, step)
			}
			if j.left == 0 {
				j.done, j.end = true, n.now+step
			}
		}
		n.advance(step)
		n.now, n.spent = n.now+step, n.spent+k*step
	}
}
