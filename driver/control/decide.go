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
	"github.com/ebbtide/ebbtide/driver/policy/none"
	"github.com/ebbtide/ebbtide/driver/status"
)

// decide takes the node from a snapshot to limits in the kernel: it asks the policy
// about the tasks that are known and limited, plans, and sets what has changed.
func (c *Controller) decide(ctx context.Context, event policy.Event) {
	now := time.Now()
	c.pool = c.poolCores()
	var tasks []*task
	outside := c.gone
	for _, t := range c.tasks {
		if t.cgroup == nil {
			continue
		}
		t.look(now)
		if event == policy.EventNone || t.cores == 0 {
			// A join or a leave does not close the others' interval: it may come a
			// moment after the last one.
			t.closeInterval(now, c.opts.NodeMemory)
		} else {
			t.readUsage()
		}
		switch {
		case t.Limited:
			tasks = append(tasks, t)
		case t.Pinned == 0: // its CPU comes out of the pool all the same
			outside += t.cores
		}
	}
	s := c.take(tasks, outside, event, now)
	c.advanceTwins(&s, tasks, outside-c.gone, now)
	if event == policy.EventNone {
		// It counted in this run, too: a part of the interval was theirs.
		c.gone = 0
	}
	if err := c.opts.Policy.Check(s); err != nil {
		// Our own fault; the limits stay as they are.
		c.log.Error("the policy was not asked: the snapshot is not valid", "policy", c.opts.Policy.Name, "error", err)
	} else {
		c.accept(tasks, c.opts.Policy.Decide(s), now)
	}
	c.snapshot.keep(s)
	if next := now.Add(c.interval); event == policy.EventNone || !c.nextRun.After(now) || next.Before(c.nextRun) {
		c.nextRun = next // joins that come faster than the interval do not put it off for ever
	}
	c.enforce(ctx, tasks, now)
}

// take makes a snapshot of the node.
func (c *Controller) take(tasks []*task, outside policy.Cores, event policy.Event, now time.Time) policy.Snapshot {
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

// share is an amount of CPU as a fraction of the pool: the same pool of which limits are
// fractions.
func (c *Controller) share(cores policy.Cores) policy.Share { return policy.Share(cores / c.pool) }

// accept takes an outcome over.
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
	for i, t := range tasks { // ghosts come after them
		t.accept(out.Tasks[i], now)
	}
}

// mode is how limits are enforced.
func (c *Controller) mode() plan.Mode {
	if c.opts.Policy.Name == none.Name {
		return plan.ModeNone
	}
	return c.opts.Mode
}

// enforce turns decisions into limits and sees that the kernel has them.
func (c *Controller) enforce(ctx context.Context, tasks []*task, now time.Time) {
	reqs := make([]plan.Request, len(tasks))
	for i, t := range tasks {
		reqs[i] = plan.Request{ID: t.ID, Limit: t.decision.Bound(), Unknown: t.decision.Unknown || t.decision.Rule == "", Base: t.base}
	}
	conversion := limits.Identity
	if len(tasks) > 0 {
		conversion = tasks[0].cgroup.Conversion()
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
	if !c.opts.IOWeight || c.mode() == plan.ModeNone {
		return
	}
	for i, weight := range plan.IOWeights(reqs) {
		tasks[i].setIOWeight(weight)
	}
}

// poolCores is the pool less the cores that tasks own (`cores`): ours, and those
// of other drivers as far as Nomad's cpuset shows them; and no more than the quota
// over the plugin itself.
func (c *Controller) poolCores() policy.Cores {
	pool := c.opts.PoolCores
	if c.opts.PoolFixed {
		return pool
	}
	for _, t := range c.tasks {
		pool -= policy.Cores(t.Pinned)
	}
	if c.opts.SharedCores != nil {
		if n, err := c.opts.SharedCores(); err == nil && n > 0 {
			pool = min(pool, policy.Cores(n))
		}
	}
	if c.opts.OwnQuota != nil {
		if quota, err := c.opts.OwnQuota(); err == nil && quota > 0 {
			pool = min(pool, policy.Cores(quota))
		}
	}
	return max(pool, plan.HardMinQuotaCores)
}
