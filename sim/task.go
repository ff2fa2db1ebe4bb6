// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
	"github.com/ebbtide/ebbtide/sim/workload"
)

// task is a submitted job, and what the driver knows of it.
type task struct {
	workload.Job
	index int
	node  *node // nil while it is queued, moving or finished
	bound *node // target of its move
	base  limits.Limits

	work    float64    // done, in undisturbed CPU-seconds
	used    float64    // CPU-seconds
	saved   float64    // work that survives a failure
	rate    float64    // cores
	quota   float64    // cores; +Inf without one
	reached bool       // its objective
	marks   [3]float64 // work for 50, 90 and 95 % of its quality
	good    float64    // work for a good enough model
	until   float64    // work at which it ends, by completion or objective
	m       metrics.Job

	r       *rand.Rand
	slope   float64 // drift of the cost per step
	point   int     // next point of the curve
	line    int     // next line with a step
	pending []report

	// The driver's measurements.
	follower                *follower // nil for a service
	intervalAt, intervalCPU float64
	use                     float64 // cores, over the last interval
	response                *float64

	decision policy.Decision
	decided  uint64 // epoch of the category
	fair     policy.CPUSeconds

	// What the shim knows: the remaining work, and the CPU-seconds used at that time.
	known   *policy.CPUSeconds
	knownAt float64
	movedAt float64

	sorting sorting
	place   place
}

// sorting is SpeCon's state of a task.
type sorting struct {
	category   specon.Category
	asked      bool
	converged  *float64 // since when it is in category CC; nil if it is not
	marked     *float64 // since when it counts as migrated
	rebalanced bool
}

// follower is package measure's observer without goroutine and files.
type follower struct {
	estimator growth.Estimator // nil if unused
	estimate  growth.Estimate
	work      *remaining.Estimator
	pace      remaining.Pace
	meter     growth.Gain
	watcher   *target.Watcher // nil without targets
	reached   policy.TargetState
	epoch     uint64
	reports   int     // of the estimate at the last epoch
	cpu       float64 // at the last epoch
	value     *float64
}

// report is what the driver finds in a task's output in one poll.
type report struct {
	at          float64 // seconds
	cpu         float64 // used by then; NaN if not yet known
	value, step float64 // NaN if absent
	n           float64 // number of values averaged
}

const metric = "loss"

func newTask(j workload.Job, index int, seed uint64, v Variant) (*task, error) {
	t := &task{
		Job: j, index: index, r: rand.New(rand.NewPCG(seed, uint64(index)+1<<32)), quota: math.Inf(1),
		base: limits.Limits{Shares: limits.ClampShares(uint64(1000 * j.Weight))},
		m:    metrics.Job{ID: j.ID, Kind: j.Kind, ArriveS: j.ArriveS, CapCores: j.CapCores},
	}
	if j.Service != nil {
		return t, nil
	}
	for i, q := range []float64{0.5, 0.9, 0.95} {
		t.marks[i] = j.Curve.Reach(q) * j.WorkCPUS
	}
	t.good, t.until = t.marks[2], j.WorkCPUS
	if j.Acceptable != nil {
		t.good = j.Curve.Passes(*j.Acceptable) * j.WorkCPUS
	}
	if j.Objective != nil {
		t.until = j.Curve.Passes(*j.Objective) * j.WorkCPUS
	}
	t.slope = maxSlope * (2*t.r.Float64() - 1)
	t.point, t.line = 1, 1
	t.follower = &follower{work: remaining.New(remaining.Declared{}, remaining.State{}), reached: policy.InTraining}
	if v.learn {
		var err error
		if t.follower.estimator, err = growth.New(v.estimator, growth.Goal(j.Curve.Goal)); err != nil {
			return nil, err
		}
	}
	if j.Acceptable != nil || j.Objective != nil {
		t.follower.watcher = target.NewWatcher(metric, j.Curve.Goal, target.Targets{Acceptable: j.Acceptable, Objective: j.Objective, Hold: 1})
	}
	return t, nil
}

const (
	// maxSlope bounds the deviation of a step's cost at the beginning, with the opposite sign
	// at the end: steps differ (data, caches, phases).
	maxSlope = 0.1
	// lines is the number of times a job prints its step.
	lines = 100
	// rounding is the relative error of sums.
	rounding = 1e-9
)

func (t *task) left() float64 { return max(t.WorkCPUS-t.work, 0) }

func (t *task) done() bool { return t.Service == nil && t.left() <= t.WorkCPUS*rounding }

// watched reports whether the task has targets yet to reach.
func (t *task) watched() bool {
	return t.Objective != nil || t.Acceptable != nil && t.follower.reached.Rank() < policy.Acceptable.Rank()
}

// most returns the most cores it can use of a pool.
func (t *task) most(pool float64) float64 {
	if t.CapCores > 0 {
		return min(t.CapCores, pool)
	}
	return pool
}

// steps returns the step after a fraction of the work.
func (t *task) steps(x float64) float64 {
	return math.Round(float64(t.Steps) * (x + float64(t.slope*x*(1-x))))
}

// run advances the task by work of pace per second. Reports appear at the driver's polls.
func (t *task) run(from, to, pace, poll float64) {
	dt := to - from
	was := t.work
	t.used += t.rate * dt
	t.m.CPUS += t.rate * dt
	if t.rate >= t.quota && t.most(math.Inf(1)) > t.quota {
		t.m.ThrottledS += dt * (1 - t.quota/t.most(t.node.cores))
	}
	if t.Service != nil || t.rate <= 0 {
		return
	}
	t.work = min(was+pace*dt, t.WorkCPUS)
	if t.done() {
		t.work = t.WorkCPUS
	}
	for i := range t.pending {
		if p := &t.pending[i]; math.IsNaN(p.cpu) && p.at <= to {
			p.cpu = t.used - t.rate*(to-p.at)
		}
	}
	when := func(work float64) float64 { return min(from+(work-was)/pace, to) }
	for i, moment := range []**float64{&t.m.Quality50S, &t.m.Quality90S, &t.m.Quality95S} {
		if *moment == nil && t.work >= t.marks[i] {
			at := max(when(t.marks[i]), t.ArriveS)
			*moment = &at
		}
	}
	for {
		x, value, ok := t.next()
		if !ok || x*t.WorkCPUS > t.work {
			break
		}
		at := when(x * t.WorkCPUS)
		r := report{at: math.Ceil(at/poll) * poll, cpu: math.NaN(), value: math.NaN(), step: t.steps(x)}
		if r.at <= to {
			r.cpu = t.used - t.rate*(to-r.at)
		}
		if value {
			r.value = t.Curve.Y[t.point] + t.Noise*t.Curve.Span()*workload.Normal(t.r)
			r.n = 1
			t.point++
		} else {
			t.line++
		}
		t.report(r)
	}
}

// next returns the next report's position, as a fraction of the work, and whether it has a
// value.
func (t *task) next() (x float64, value, ok bool) {
	x = math.Inf(1)
	if t.point < len(t.Curve.X) {
		x, value, ok = t.Curve.X[t.point], true, true
	}
	if l := float64(t.line) / lines; t.line <= lines && l < x {
		x, value, ok = l, false, true
	}
	return x, value, ok
}

// report queues a report, merging those of one poll.
func (t *task) report(r report) {
	n := len(t.pending)
	if n == 0 || t.pending[n-1].at != r.at {
		t.pending = append(t.pending, r)
		return
	}
	last := &t.pending[n-1]
	last.step = r.step
	switch {
	case r.n == 0:
	case last.n == 0:
		last.value, last.n = r.value, 1
	default:
		last.value += (r.value - last.value) / (last.n + 1)
		last.n++
	}
}

// fail resets a task to its last checkpoint, one per `every` CPU-seconds of work; 0 for none.
func (t *task) fail(every float64) {
	if every > 0 {
		t.saved = max(t.saved, math.Floor(t.work/every)*every)
	}
	t.m.LostCPUS += t.work - t.saved
	t.work = t.saved
	if t.Service != nil {
		return
	}
	for t.point > 1 && t.Curve.X[t.point-1]*t.WorkCPUS > t.work {
		t.point--
	}
	for t.line > 1 && float64(t.line-1)/lines*t.WorkCPUS > t.work {
		t.line--
	}
	t.pending = t.pending[:0]
}

func (t *task) look(now float64) {
	f := t.follower
	if f == nil {
		return
	}
	taken := 0
	for _, r := range t.pending {
		if r.at > now || math.IsNaN(r.cpu) {
			break
		}
		taken++
		f.pace.Add(r.at, r.cpu, r.step)
		f.work.Add(remaining.Point{CPU: r.cpu, Step: r.step, Total: cmp.Or(t.Total, float64(t.Steps))})
		if r.n > 0 {
			value := r.value
			f.value = &value
			f.meter.Add(value)
			if f.estimator != nil {
				f.estimator.Add(growth.Point{T: r.at, CPU: r.cpu, Value: value, Step: r.step})
			}
		}
		if f.watcher == nil || r.n == 0 {
			continue
		}
		for _, reached := range f.watcher.Observe([]progress.Report{{Metric: metric, Value: r.value, Step: r.step, Time: time.Unix(0, 0)}}) {
			f.reached = reached.State
			at := max(r.at, t.ArriveS)
			if t.m.AcceptableS == nil && t.Acceptable != nil {
				t.m.AcceptableS = &at
			}
			if reached.State == policy.Objective {
				t.m.ObjectiveS = &at
				t.reached = true
			}
		}
	}
	t.pending = append(t.pending[:0], t.pending[taken:]...)
}

func (f *follower) measure(cpu float64) {
	if f.estimator == nil {
		return
	}
	f.estimate = f.estimator.Measure()
	if f.estimate.Reports != f.reports && cpu != f.cpu {
		f.reports, f.cpu = f.estimate.Reports, cpu
		f.epoch++
	}
}

func (t *task) closeInterval(now float64) {
	dt := now - t.intervalAt
	if dt <= 0.05 {
		return
	}
	used := t.used - t.intervalCPU
	t.use, t.intervalAt, t.intervalCPU = used/dt, now, t.used
	if s := t.Service; s != nil {
		t.response = nil
		if used > 0 {
			response := s.BatchCPUS * dt / used
			t.response = &response
			t.m.QoEChecks++
			if response <= s.ObjectiveS*(1+qoeTolerance) {
				t.m.QoEHits++
			}
		}
	}
	if t.follower != nil {
		t.follower.measure(t.used)
	}
}

// qoeTolerance is the tolerated relative excess of the response time (DQoES: α).
const qoeTolerance = 0.1

func (t *task) snapshot(n *node, s *simulation) policy.Task {
	pool := n.cores
	p := policy.Task{
		ID: t.ID, Kind: policy.Training, Use: policy.Share(t.use / pool), Entitlement: float64(limits.Identity.Weight(t.base.Shares)),
		CapCores: policy.Cores(t.cap(s)), CPUS: policy.CPUSeconds(t.used), FairCPUS: t.fair,
	}
	if t.decision.Rule != "" {
		p.Limit = t.decision.Bound()
	}
	if t.Service != nil {
		p.Kind, p.ObjectiveS, p.ResponseS = policy.Service, &t.Service.ObjectiveS, t.response
		p.CPUS, p.FairCPUS = 0, 0
		return p
	}
	f := t.follower
	p.Epoch, p.CategoryEpoch, p.Category = f.epoch, t.decided, t.decision.Category
	if e := f.estimate; e.Measured || e.Diverged {
		growth, progress := e.Growth*pool, e.Progress
		p.Growth, p.Progress = &growth, &progress
		if e.Diverged {
			p.Category = policy.CL
		}
	}
	if f.watcher != nil {
		p.Goal, p.Acceptable, p.Objective = t.Curve.Goal, t.Acceptable, t.Objective
		p.State, p.Tracked, p.Value = f.reached, true, f.value
	}
	p.RemainingCPUS, p.QualityCPUS = t.sizes(s)
	switch {
	case s.v.exactSizes || s.sc.Sizes == scenario.Exact:
		p.Overhead = &t.Overhead
	case t.follower != nil:
		p.Overhead = t.follower.pace.Overhead()
	}
	t.known, t.knownAt = p.RemainingCPUS, t.used
	return p
}

// cap returns the number of cores the task is known to use at most, 0 if unknown: the kernel counts
// threads once they have run.
func (t *task) cap(s *simulation) float64 {
	if t.used == 0 && !s.v.exactSizes && s.sc.Sizes != scenario.Exact {
		return 0
	}
	return t.CapCores
}

// sizes is what is known of the remaining work.
func (t *task) sizes(s *simulation) (left, quality *policy.CPUSeconds) {
	f := t.follower
	switch {
	case s.v.exactSizes || s.sc.Sizes == scenario.Exact:
		end, way := policy.CPUSeconds(max(t.until-t.work, 0)), policy.CPUSeconds(max(t.good-t.work, 0))
		return &end, &way
	case s.sc.Sizes == scenario.Unknown:
		return nil, nil
	}
	c := remaining.Curve{Fit: f.estimate.Fit, Plateau: f.estimate.Plateau}
	if f.watcher != nil {
		c.Acceptable, c.Objective = f.watcher.Targets()
		c.Passed = f.reached.Rank() >= policy.Acceptable.Rank()
	}
	e := f.work.Estimate(t.used, c)
	return e.CPUS, e.QualityCPUS
}

func (t *task) accept(d policy.Decision) {
	if t.Service == nil && d.Category == policy.New {
		d.Category = t.decision.Category
	}
	t.decision = d
	if t.follower != nil {
		t.decided = t.follower.epoch
	}
}
