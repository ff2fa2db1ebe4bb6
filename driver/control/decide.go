// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/status"
)

// decide runs the policy over the tasks that are known and limited, turns its
// decisions into limits and sets those that have changed.
func (c *Controller) decide(ctx context.Context, event flowcon.Event) {
	now := c.now()
	var tasks []*state
	for _, s := range c.tasks {
		if s.cgroup == nil {
			continue
		}
		if event == flowcon.EventNone || s.use == 0 {
			// A join or a leave does not close the others' measurement interval:
			// it may come a moment after the last one.
			s.measure(now)
		}
		if s.Limited {
			tasks = append(tasks, s)
		}
	}

	c.pool = c.poolCores()
	c.ask(tasks, event)
	if event == flowcon.EventNone {
		// It counted in this run, too: a part of the interval was theirs.
		c.gone = 0
	}
	if next := now.Add(c.interval); event == flowcon.EventNone || !c.nextRun.After(now) || next.Before(c.nextRun) {
		c.nextRun = next // joins that come faster than the interval do not put it off for ever
	}
	c.enforce(ctx, tasks, now)
}

// decided takes a decision over.
func (s *state) decided(v verdict, now time.Time) {
	d := v.Decision
	if v.class != s.class {
		s.since, s.rowDue = now, true
	}
	if d.Category != s.category {
		s.categoryEvent(d)
		s.since = now
		s.rowDue = true
	}
	if math.Abs(d.Limit-s.limit) > 1e-3 || d.Rule != s.rule {
		s.rowDue = true
	}
	s.category, s.limit, s.rule, s.why = d.Category, d.Limit, d.Rule, d.Why
	s.fair, s.dirty = v.fair, true
	s.classified(v.class)
}

// categoryEvent says what a person cares about: converged, and growing again.
func (s *state) categoryEvent(d policy.Decision) {
	const kind = "category"
	limit := fmt.Sprintf("it may use %.0f %% of the pool", 100*d.Limit)
	if d.Limit == 1 {
		limit = "it is not limited, for nobody else is growing"
	}
	switch {
	case d.Category == policy.CL && !s.estimate.Diverged:
		s.speak.say(fmt.Sprintf("converged: %s = %.4g hardly improves any more; %s", s.metric(), s.last.Value, limit), kind)
		s.happened("converged")
	case s.category == policy.CL && d.Category == policy.NL:
		if d.Limit == 1 {
			limit = "it is not limited"
		}
		s.speak.say(fmt.Sprintf("growing again: %s = %.4g; %s", s.metric(), s.last.Value, limit), kind)
		s.happened("growing again")
	default:
		s.speak.drop(kind)
	}
}

// enforce turns decisions into limits and sets those that differ from what the
// kernel has.
func (c *Controller) enforce(ctx context.Context, tasks []*state, now time.Time) {
	reqs := make([]limits.Request, len(tasks))
	for i, s := range tasks {
		reqs[i] = limits.Request{
			ID:             s.ID,
			Limit:          s.limit,
			Unmeasured:     s.fair,
			BaseShares:     s.base.Shares,
			BaseQuotaCores: s.base.QuotaCores,
		}
	}
	plan := limits.Plan(c.mode(), c.pool, reqs, limits.Options{
		// FlowCon's floor; with β = 1 it would leave nothing to decide.
		Floor:         min(1/c.opts.Params.Flowcon.Beta, limits.DefaultFloor),
		QuotaMinCores: c.opts.QuotaMinCores,
		Conversion:    conversion(tasks),
	})
	c.damper.Interval = c.interval
	for i, want := range c.damper.Next(now, reqs, plan) {
		tasks[i].want = want
		if tasks[i].move.State == status.MoveSaving {
			tasks[i].want = tasks[i].base
		}
	}
	for _, s := range tasks {
		c.apply(ctx, s, now)
	}
	if c.opts.IOWeight && c.mode() != limits.ModeNone {
		c.weighIO(tasks)
	}
}

// weighIO gives the tasks weights for block I/O in the proportions of their CPU. A
// kernel without such a weight is told once.
func (c *Controller) weighIO(tasks []*state) {
	fractions := make([]float64, len(tasks))
	for i, s := range tasks {
		if fractions[i] = s.limit; s.fair {
			fractions[i] = math.NaN()
		}
	}
	for i, weight := range limits.PlanIOWeights(fractions) {
		s := tasks[i]
		if s.ioFailed || weight == s.ioWeight {
			continue
		}
		if err := s.cgroup.SetIOWeight(weight); err != nil {
			s.ioFailed = true
			s.log.Info("the task has no weight for block I/O; its CPU is limited all the same", "error", err)
			continue
		}
		s.ioWeight = weight
	}
}

// mode is how limits are enforced.
func (c *Controller) mode() limits.Mode {
	if c.opts.Policy == policies.None {
		return limits.ModeNone
	}
	return c.opts.Mode
}

// conversion is how shares reach the kernel on this node.
func conversion(tasks []*state) limits.Conversion {
	if len(tasks) > 0 {
		return tasks[0].cgroup.Conversion()
	}
	return limits.Identity
}

// poolCores is the pool less the cores that tasks own (`cores`): ours, and those
// of other drivers as far as Nomad's cpuset shows them.
func (c *Controller) poolCores() float64 {
	pool := c.opts.PoolCores
	if c.opts.PoolFixed {
		return pool
	}
	for _, s := range c.tasks {
		pool -= s.Pinned
	}
	if c.opts.SharedCores != nil {
		if n, err := c.opts.SharedCores(); err == nil && n > 0 {
			pool = min(pool, float64(n))
		}
	}
	return max(pool, limits.LeastQuotaCores)
}

// apply sets a task's limits beside the loop, where the kernel has others, and
// reads them back. What fails is tried again, ever more slowly.
func (c *Controller) apply(ctx context.Context, s *state, now time.Time) {
	if s.applying || now.Before(s.limitNext) {
		return
	}
	in, err := s.cgroup.Read()
	if err == nil {
		s.inForce = in
	}
	if s.agrees() {
		return
	}
	s.applying = true
	want, cg := s.want, s.cgroup
	go func() {
		err := s.Apply(ctx, cg, want)
		got, readErr := cg.Read()
		c.post(func(ctx context.Context) {
			s.applying = false
			if s.gone {
				return
			}
			now := c.now()
			if readErr == nil {
				s.inForce = got
			}
			if err == nil && readErr == nil && !cg.InForce(want, got) {
				err = fmt.Errorf("the kernel has shares %d and a quota of %.2f cores instead of %d and %.2f",
					got.Shares, got.QuotaCores, want.Shares, want.QuotaCores)
			}
			s.limitFailed(err, now)
			s.dirty, s.rowDue = true, true
			if err == nil {
				c.apply(ctx, s, now) // the plan may have moved on meanwhile
			}
		})
	}()
}

// agrees says whether the kernel has the limits that we want.
func (s *state) agrees() bool { return s.cgroup.InForce(s.want, s.inForce) }

// limitFailed notes that a limit could not be set, once, and that it can again.
func (s *state) limitFailed(err error, now time.Time) {
	if err == nil {
		if s.limitErr != "" {
			s.log.Info("the task's limits can be set again")
		}
		s.limitErr, s.limitBack, s.limitNext = "", 0, time.Time{}
		return
	}
	s.limitBack = min(max(2*s.limitBack, time.Second), time.Minute)
	s.limitNext = now.Add(s.limitBack)
	if s.limitErr == "" {
		s.log.Warn("cannot set the task's limits; it runs on with those it has", "error", err)
		s.happened("limit failed")
		s.speak.say("its CPU limit could not be set; the task runs on with the one it has: "+err.Error(), "limit-failed")
	}
	s.limitErr = err.Error()
}
