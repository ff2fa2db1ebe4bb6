// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
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

// task is a job that has been submitted, and what the driver knows of it.
type task struct {
	workload.Job
	index int
	node  *node // nil while it waits, moves, or has ended
	bound *node // where it is to go on
	base  limits.Limits

	// What is true.
	work    float64    // done, in CPU-seconds that nobody disturbs
	used    float64    // CPU-seconds
	saved   float64    // work that a failure leaves
	rate    float64    // cores
	quota   float64    // cores; +Inf without
	reached bool       // it has reached its objective
	marks   [3]float64 // work at which it has 50, 90 and 95 % of its quality
	good    float64    // work at which its model is good enough
	until   float64    // work at which it ends: all, or that at which it reaches its objective
	m       metrics.Job

	// What it reports.
	r       *rand.Rand
	slope   float64 // how the price of a step changes
	point   int     // next one of the curve
	line    int     // next line that tells the step
	pending []report

	// What the driver has measured.
	follows                 *follower // nil for a service
	intervalAt, intervalCPU float64
	use                     float64 // cores, over the last interval
	response                *float64

	// What was decided.
	decision policy.Decision
	decided  uint64 // epoch that the category was decided on
	fair     policy.CPUSeconds

	// What the driver has told the shim: what was left, and the CPU-seconds used then.
	known   *policy.CPUSeconds
	knownAt float64
	movedAt float64

	sorting sorting
}

// sorting is what SpeCon knows of a task.
type sorting struct {
	category   specon.Category
	asked      bool
	marked     *float64 // since when it counts as migrated
	rebalanced bool
}

// follower is what the driver makes of a task's reports: the observer of package measure,
// without its goroutine and its files.
type follower struct {
	estimator growth.Estimator // nil if nobody looks at it
	estimate  growth.Estimate
	work      *remaining.Estimator
	meter     growth.Gain
	watcher   *target.Watcher // nil without targets
	reached   policy.TargetState
	epoch     uint64
	reports   int     // of the estimate, at the last epoch
	cpu       float64 // at the last epoch
	value     *float64
}

// report is what the driver finds in a task's output at a poll.
type report struct {
	at          float64 // seconds
	cpu         float64 // that it had used then; NaN: not yet known
	value, step float64 // NaN: not in it
	n           float64 // values of which it is the mean
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
	t.follows = &follower{work: remaining.New(remaining.Declared{}, remaining.State{}), reached: policy.InTraining}
	if v.learn {
		var err error
		if t.follows.estimator, err = growth.New(v.estimator, growth.Goal(j.Curve.Goal)); err != nil {
			return nil, err
		}
	}
	if j.Acceptable != nil || j.Objective != nil {
		t.follows.watcher = target.NewWatcher(metric, j.Curve.Goal, target.Targets{Acceptable: j.Acceptable, Objective: j.Objective, Hold: 1})
	}
	return t, nil
}

const (
	// maxSlope is by how much the price of a step may be off at the beginning, and in the
	// other direction at the end: steps are not alike (data, caches, phases).
	maxSlope = 0.1
	// lines is how often a job says what step it is at.
	lines = 100
	// rounding is the relative error that sums may have.
	rounding = 1e-9
)

// left is the work that is left, in CPU-seconds.
func (t *task) left() float64 { return max(t.WorkCPUS-t.work, 0) }

// done says whether all work is.
func (t *task) done() bool { return t.Service == nil && t.left() <= t.WorkCPUS*rounding }

// most is the most that it can use of a pool.
func (t *task) most(pool float64) float64 {
	if t.CapCores > 0 {
		return min(t.CapCores, pool)
	}
	return pool
}

// steps returns the step at which the job is after a part of its work.
func (t *task) steps(x float64) float64 {
	return math.Round(float64(t.Steps) * (x + float64(t.slope*x*(1-x))))
}

// run lets the task run from one moment to another, at its rate; in a second so much work as
// pace gets done. Reports are found at the polls of the driver.
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

// next is where the next report comes, as a part of the work, and whether it has a value.
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

// report adds a report to those that wait for the driver. Those of one poll are one.
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

// fail takes a task back to its last checkpoint, of those that it writes after so many
// CPU-seconds of work each; 0 = none.
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

// look takes over what the task has reported until now.
func (t *task) look(now float64) {
	f := t.follows
	if f == nil {
		return
	}
	taken := 0
	for _, r := range t.pending {
		if r.at > now || math.IsNaN(r.cpu) {
			break
		}
		taken++
		f.work.Add(remaining.Point{CPU: r.cpu, Step: r.step, Total: float64(t.Steps)})
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

// measure closes a measurement interval of the estimators.
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

// closeInterval ends a measurement interval.
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
	if t.follows != nil {
		t.follows.measure(t.used)
	}
}

// qoeTolerance is by how much a response time may be longer than asked (DQoES: α).
const qoeTolerance = 0.1

// snapshot is the task as a policy sees it.
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
	f := t.follows
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
	t.known, t.knownAt = p.RemainingCPUS, t.used
	return p
}

// cap is the most that the task is known to be able to use; 0 = all. The kernel tells the
// driver how many threads run or wait, once they have.
func (t *task) cap(s *simulation) float64 {
	if t.used == 0 && !s.v.true_ && s.sc.Sizes != scenario.Exact {
		return 0
	}
	return t.CapCores
}

// sizes is what is known of what the task will still use.
func (t *task) sizes(s *simulation) (left, quality *policy.CPUSeconds) {
	f := t.follows
	switch {
	case s.v.true_ || s.sc.Sizes == scenario.Exact:
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

// accept takes a decision over.
func (t *task) accept(d policy.Decision) {
	if t.Service == nil && d.Category == policy.New {
		d.Category = t.decision.Category
	}
	t.decision = d
	if t.follows != nil {
		t.decided = t.follows.epoch
	}
}
