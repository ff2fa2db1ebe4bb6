// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"math"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/metrics"
	"github.com/ebbtide/ebbtide/driver/policy"
)

// counted are the task's figures that the node's counters already include. The counters include
// ended tasks, so they are not sums over the running ones.
type counted struct {
	usage             limits.Usage
	reports, failures int64
	dropped           int // events
}

// count adds the increase of a task's figures to the node's counters.
func (c *Controller) count(t *task) {
	m, was := c.opts.Metrics, t.counted
	t.counted = counted{t.usage, t.m.Reports, t.m.Failures, t.show.Dropped()}
	metrics.Add(m.CPU, t.usage.CPUSeconds-was.usage.CPUSeconds)
	metrics.Add(m.Throttled, t.usage.ThrottledSeconds-was.usage.ThrottledSeconds)
	metrics.Add(m.Reports, float64(t.m.Reports-was.reports))
	metrics.Add(m.ReadErrors, float64(t.m.Failures-was.failures))
	metrics.Add(m.EventsDropped, float64(t.counted.dropped-was.dropped))
}

// publishMetrics replaces the node's state in the metrics.
func (c *Controller) publishMetrics() {
	n := &metrics.Node{PoolCores: float64(c.pool), Interval: c.interval, Decided: c.decided, Tasks: make([]metrics.Task, 0, len(c.tasks))}
	for _, t := range c.tasks {
		c.count(t)
		m := metrics.Task{
			AllocID: t.AllocID, Name: t.Name, Job: t.JobID,
			Kind: t.kind(), State: t.reached, Category: t.decision.Category, Class: t.decision.Class,
			Limit: float64(t.decision.Bound()), CPUSeconds: t.usage.CPUSeconds, ThrottledSeconds: t.usage.ThrottledSeconds,
			Ahead: math.NaN(), Value: math.NaN(), Response: float64(number(t.response)), Objective: math.NaN(),
			Growth: metrics.Growth{Memory: t.resources.memoryG, Block: t.resources.blockG, Network: t.resources.networkG},
		}
		g, p := t.growth(c.pool)
		m.Growth.CPU, m.Progress = float64(number(g)), float64(number(p))
		if t.kind() == policy.Service {
			m.Objective = t.Targets.QoE
		} else {
			m.Value = t.m.Report.Value
		}
		if t.hasTwin() {
			m.Ahead = float64(t.fair.used - t.fair.cpu)
			m.Silent, m.Sized = t.m.Reports == 0, t.m.Remaining.CPUS != nil
		}
		n.Tasks = append(n.Tasks, m)
	}
	c.opts.Metrics.Update(n)
}
