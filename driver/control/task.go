// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/enforce"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// task is the loop's state of a task. The loop owns it.
type task struct {
	Task
	log             hclog.Logger
	show            *publish.Task
	start           time.Time // in this loop
	began           time.Time // start of the task's run, under any process
	noProgressAfter time.Duration
	gone            bool

	// Measurements.
	observer  *measure.Observer
	m         measure.Measurement // last adopted
	usage     limits.Usage
	counted   counted
	interval  interval
	cores     policy.Cores
	response  *float64 // response time of a service over the last interval, in seconds; nil = none
	lastKnown *float64 // last non-nil response
	resources resources
	fair      fair
	gpu       *handoff.Report // nil = no report
	turn      turn            // on its card

	// Decisions.
	decision policy.Decision
	modest   policy.Cores // its fair share, if it could use no more than that; else 0
	decided  uint64       // epoch of the category's measurement
	since    time.Time    // start of the category or class
	reached  policy.TargetState
	specon   speconState

	// Limits.
	cgroup   Cgroup                 // nil until located
	located  atomic.Pointer[Cgroup] // cgroup, for the observer
	limiter  *enforce.Limiter
	base     limits.Limits // set by Nomad
	enforced enforce.State // as last published

	move     status.Move
	reported reportedState
	restored *resume      // state of this run; nil = none
	earlier  *policy.Task // the previous run, as a ghost, if its end was missed
}

type interval struct {
	at        time.Time
	cpu       float64 // CPU-seconds
	responses float64
	sum       float64
}

func (c *Controller) newTask(ctx context.Context, t Task) *task {
	now := time.Now()
	s := &task{
		Task: t, log: c.log.With("task", t.Name, "alloc_id", t.AllocID),
		start: now, began: now, since: now, noProgressAfter: c.opts.NoProgressAfter, interval: interval{at: now},
		resources: newResources(), move: status.Move{Step: status.Unknown()}, reached: policy.InTraining,
	}
	s.show = publish.New(publish.Target{
		Event:     publish.Event{TaskID: t.ID, AllocID: t.AllocID, TaskName: t.Name},
		SharedDir: t.SharedDir, Private: t.Private, Plots: c.plots, Emit: c.opts.Emit,
	}, s.log)
	if t.Watcher != nil {
		s.reached = t.Watcher.State()
	}
	resume := s.restore()
	var threads func() limits.Threads
	if s.hasTwin() {
		threads = s.threads
	}
	s.observer = measure.Observe(ctx, measure.Config{
		Open:      t.Open,
		CPU:       s.cpu,
		Threads:   threads,
		Estimator: c.opts.Estimator,
		Service:   t.kind() == policy.Service,
		Targets:   t.Watcher,
		Work:      t.Work,
		Every:     c.tickEvery(),
		Resume:    resume,
	})
	s.m = s.observer.Latest()
	s.counted.reports = s.m.Reports
	return s
}

var errNotLocated = errors.New("the task's cgroup has not been found yet")

func (t *task) cpu() (float64, error) {
	cg := t.located.Load()
	if cg == nil {
		return 0, errNotLocated
	}
	u, err := (*cg).Usage()
	return u.CPUSeconds, err
}

// threads reads the task's threads; none before its cgroup is found.
func (t *task) threads() limits.Threads {
	if cg := t.located.Load(); cg != nil {
		return (*cg).Threads()
	}
	return nil
}

func (c *Controller) attach(t *task, cg Cgroup) {
	if t.restored != nil {
		cg.SetConversion(t.restored.Conversion)
	}
	changed := func() {
		c.opts.Metrics.LimitWrites.Count(t.limiter.State().Err)
		c.post(func(context.Context) { t.refreshLimits() })
	}
	var err error
	if t.limiter, err = enforce.New(cg, changed); err != nil {
		t.log.Warn("cannot read the task's limits", "error", err)
	}
	t.enforced = t.limiter.State()
	if t.base == (limits.Limits{}) {
		t.base = t.enforced.InForce
	}
	if t.base.Shares == 0 {
		t.base.Shares = max(t.Shares, limits.MinShares)
	}
	if u, err := cg.Usage(); err == nil {
		t.usage = u
		t.interval = interval{at: time.Now(), cpu: u.CPUSeconds, responses: t.m.Responses, sum: t.m.ResponseSum}
		if t.restored == nil {
			t.fair.cpu, t.fair.used = policy.CPUSeconds(u.CPUSeconds), policy.CPUSeconds(u.CPUSeconds)
		}
		if t.Recovered {
			t.counted.usage = u // counted by an earlier process
		}
	}
	t.cgroup = cg
	t.located.Store(&cg)
	t.show.Changed(false)
}

func (t *task) refresh(now time.Time) {
	t.show.Flush(now)
	was, m := t.m, t.observer.Latest()
	t.m = m
	if m.CPU > t.usage.CPUSeconds {
		t.usage.CPUSeconds = m.CPU
	}
	if m.Reports != was.Reports {
		t.show.Changed(true)
	}
	for _, r := range m.Reached[len(was.Reached):] {
		t.targetReached(r, now)
	}
	t.reportProgress(was, now)
	t.refreshLimits()
}

func (t *task) readUsage() {
	if t.cgroup == nil {
		return
	}
	if u, err := t.cgroup.Usage(); err == nil {
		t.usage = u
	}
}

func (t *task) refreshLimits() {
	if t.limiter == nil {
		return
	}
	was := t.enforced
	t.enforced = t.limiter.State()
	if t.enforced.InForce != was.InForce {
		t.show.Changed(true)
	}
	t.reportLimits(was.Err)
}

func (t *task) closeInterval(now time.Time, nodeMemory float64) {
	was := t.interval
	dt := now.Sub(was.at).Seconds()
	if dt <= 0.05 {
		return
	}
	t.readUsage()
	t.interval = interval{at: now, cpu: t.usage.CPUSeconds, responses: t.m.Responses, sum: t.m.ResponseSum}
	t.cores = policy.Cores(max(t.usage.CPUSeconds-was.cpu, 0) / dt)
	t.response = nil
	if n := t.m.Responses - was.responses; n > 0 {
		mean := (t.m.ResponseSum - was.sum) / n
		t.response, t.lastKnown = &mean, &mean
	}
	var progress *float64
	if t.measured() {
		progress = &t.m.Estimate.Progress
	}
	t.resources.close(t.cgroup.Resources(), dt, nodeMemory, progress)
}

func (t *task) measured() bool { return t.m.Estimate.Measured || t.m.Estimate.Diverged }

// growth returns G for a pool (FlowCon, eq. 2: P/R with R a fraction of the pool), and P; nil if
// unknown.
func (t *task) growth(pool policy.Cores) (g, p *float64) {
	if !t.measured() {
		return nil, nil
	}
	growth, progress := t.m.Estimate.Growth*float64(pool), t.m.Estimate.Progress
	return &growth, &progress
}

func (t *task) policyTask(use policy.Share, pool policy.Cores, event policy.Event) policy.Task {
	p := policy.Task{ID: t.ID, Kind: t.kind(), Use: use}
	if t.decision.Rule != "" {
		p.Limit = t.decision.Bound()
	}
	if p.Kind == policy.Service {
		p.ObjectiveS, p.ResponseS = &t.Targets.QoE, t.response
		if event != policy.EventNone {
			p.ResponseS = t.lastKnown
		}
		return p
	}
	p = t.withTwin(p)
	p.Epoch, p.CategoryEpoch, p.Category = t.m.Epoch, t.decided, t.decision.Category
	p.Growth, p.Progress = t.growth(pool)
	if t.m.Estimate.Diverged {
		p.Category = policy.CL // a diverged model counts as converged
	}
	if w := t.Watcher; w != nil {
		p.Goal, p.Acceptable, p.Objective = w.Goal(), t.Targets.Acceptable, t.Targets.Objective
		p.State, p.Tracked = t.reached, true
		if v := t.m.Report.Value; t.m.Paused == "" && fields.Finite(v) {
			p.Value = &v
		}
	}
	return p
}

func (t *task) accept(d policy.Decision, now time.Time) {
	was := t.decision
	t.reportPhase(d)
	if d.Fair != nil && d.PastQuality && (was.Fair == nil || !was.PastQuality) {
		t.reportQuality()
		t.show.Changed(true)
	}
	if d.Category != was.Category || d.Class != was.Class {
		t.since = now
		t.show.Changed(true)
	}
	if math.Abs(float64(d.Bound()-was.Bound())) > 1e-3 || d.Rule != was.Rule {
		t.show.Changed(true)
	}
	t.decision, t.decided = d, t.m.Epoch
	t.show.Changed(false)
	t.reportClass(d.Class)
}
