// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/none"
	"github.com/ebbtide/ebbtide/driver/status"
)

// decide takes a snapshot, evaluates the policy for the tasks that are located and limited, and
// enforces its outcome.
func (c *Controller) decide(ctx context.Context, event policy.Event) {
	now := time.Now()
	c.cpus = c.sharedCPUs()
	c.pool = c.poolCores()
	var tasks []*task
	outside := c.leftCores
	for _, t := range c.tasks {
		if t.cgroup == nil {
			continue
		}
		t.refresh(now)
		if event == policy.EventNone || t.cores == 0 {
			// A join or leave does not close the others' interval, which may have just begun.
			t.closeInterval(now, c.opts.NodeMemory)
		} else {
			t.readUsage()
		}
		switch {
		case t.Limited:
			tasks = append(tasks, t)
		case t.Pinned == 0: // unlimited, but running in the pool
			outside += t.cores
		}
	}
	s := c.takeSnapshot(tasks, outside, event, now)
	c.advanceTwins(&s, tasks, outside-c.leftCores, now)
	if event == policy.EventNone {
		// It was used during the interval, so it counts in this run.
		c.leftCores = 0
	}
	if err := c.opts.Policy.Check(s); err != nil {
		// A bug. The limits stay as they are.
		c.opts.Metrics.DecisionErrors.Inc()
		c.log.Error("skipping the decision: invalid snapshot", "policy", c.opts.Policy.Name, "error", err)
	} else {
		out := c.opts.Policy.Decide(s)
		flowcon.Categorise(s, &out)
		c.accept(tasks, out, now)
	}
	c.snapshot.keep(s)
	if next := now.Add(c.interval); event == policy.EventNone || !c.nextRun.After(now) || next.Before(c.nextRun) {
		c.nextRun = next // frequent joins must not postpone it
	}
	c.enforce(ctx, tasks, now)
	c.decided = now
	c.opts.Metrics.Decide.Observe(time.Since(now).Seconds())
}

func (c *Controller) takeSnapshot(tasks []*task, outside policy.Cores, event policy.Event, now time.Time) policy.Snapshot {
	s := policy.Snapshot{
		NowS:             float64(now.UnixMilli()) / 1e3,
		Policy:           c.opts.Policy.Name,
		PoolCores:        c.pool,
		Event:            event,
		IntervalS:        c.interval.Seconds(),
		InitialIntervalS: c.opts.Interval.Seconds(),
		MaxIntervalS:     c.opts.MaxInterval.Seconds(),
		Gone:             c.share(outside),
		State:            c.state,
		Tasks:            make([]policy.Task, len(tasks)),
		Policies:         c.opts.Policies,
	}
	if c.opts.Node != nil {
		s.Node = c.opts.Node()
	}
	for i, t := range tasks {
		s.Tasks[i] = t.policyTask(c.share(t.cores), c.pool, event)
		s.Tasks[i].Entitlement = t.entitlement()
	}
	s.Tasks = append(s.Tasks, c.twins.ghosts...)
	return s
}

func (c *Controller) share(cores policy.Cores) policy.Share { return policy.Share(cores / c.pool) }

func (c *Controller) accept(tasks []*task, out policy.Outcome, now time.Time) {
	c.alpha, c.state, c.floor, c.guarded = math.NaN(), out.State, out.Floor, out.SlackCPUS != nil
	if out.Alpha != nil {
		c.alpha = *out.Alpha
	}
	if out.IntervalS > 0 {
		c.interval = time.Duration(min(out.IntervalS, c.opts.MaxInterval.Seconds()) * float64(time.Second))
	}
	if len(tasks) == 0 {
		c.interval = c.opts.Interval
	}
	for i, t := range tasks { // ghosts follow them
		t.accept(out.Tasks[i], now)
		c.opts.Metrics.Decisions.WithLabelValues(c.opts.Policy.Name, out.Tasks[i].Rule).Inc()
	}
}

func (c *Controller) mode() plan.Mode {
	if c.opts.Policy.Name == none.Name {
		return plan.ModeNone
	}
	return c.opts.Mode
}

func (c *Controller) enforce(ctx context.Context, tasks []*task, now time.Time) {
	reqs := make([]plan.Request, len(tasks))
	for i, t := range tasks {
		reqs[i] = plan.Request{
			ID: t.ID, Limit: t.decision.Bound(), Keeps: t.decision.Unknown || t.decision.Rule == "", Demand: t.demand().Least, Base: t.base,
		}
	}
	conversion := limits.Identity
	if len(tasks) > 0 {
		conversion = tasks[0].cgroup.Conversion()
	}
	for i, share := range plan.Modest(c.pool, reqs, conversion) {
		tasks[i].modest = share
	}
	want := plan.Limits(c.mode(), c.pool, reqs, plan.Options{
		Floor: c.floor, QuotaMinCores: c.opts.QuotaMinCores, Conversion: conversion,
	})
	c.damper.Interval, c.damper.Immediate = c.interval, c.guarded
	for i, l := range c.damper.Next(now, reqs, want) {
		if tasks[i].move.State == status.MoveSaving {
			l = tasks[i].base
		}
		tasks[i].limiter.Set(ctx, l)
	}
}

func (c *Controller) sharedCPUs() []int {
	if c.opts.SharedCPUs == nil {
		return nil
	}
	cpus, err := c.opts.SharedCPUs()
	if err != nil {
		return nil // Nomad has not written it yet
	}
	return cpus
}

// poolCores returns the pool less the cores that tasks own (`cores`), including other drivers'
// tasks where Nomad's cpuset shows them, and at most the plugin's own quota.
func (c *Controller) poolCores() policy.Cores {
	pool := c.opts.PoolCores
	if c.opts.PoolFixed {
		return pool
	}
	for _, t := range c.tasks {
		pool -= policy.Cores(t.Pinned)
	}
	if n := len(c.cpus); n > 0 {
		pool = min(pool, policy.Cores(n))
	}
	if c.opts.OwnQuota != nil {
		if quota, err := c.opts.OwnQuota(); err == nil && quota > 0 {
			pool = min(pool, policy.Cores(quota))
		}
	}
	return max(pool, plan.HardMinQuotaCores)
}
