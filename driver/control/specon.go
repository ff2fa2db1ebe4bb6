// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"time"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/status"
)

// speconState is a task's state in SpeCon's Algorithm 1. It serves the shim's moves and does not
// affect CPU limits.
type speconState struct {
	interval uint64 // of the measured gain that decided the category
	category specon.Category
	request  bool
	since    time.Time // start of this category
	why      string
}

func (c *Controller) categorise(now time.Time) {
	c.nextSpeCon = now.Add(c.opts.SpeConInterval)
	in := specon.Input{Params: c.opts.SpeCon}
	var tasks []*task
	for _, t := range c.tasks {
		t.refresh(now)
		if !t.Limited || t.cgroup == nil || t.kind() != policy.Training || t.m.Gain.Interval == t.specon.interval {
			continue // not limited, or its observer is late
		}
		if g := t.gpu; g != nil && (g.State != handoff.Running || now.Sub(g.Since) < c.opts.SpeConInterval) {
			continue // it could not train all the time
		}
		t.specon.interval = t.m.Gain.Interval
		tasks = append(tasks, t)
		in.Tasks = append(in.Tasks, specon.Task{ID: t.ID, Category: t.specon.category, Gain: t.m.Gain.Value, PreviousGain: t.m.Gain.Previous})
	}
	if err := in.Validate(); err != nil {
		// A bug. The categories stay as they are.
		c.log.Error("skipping the categorisation: invalid input", "error", err)
		return
	}
	for i, d := range specon.Decide(in).Tasks {
		t := tasks[i]
		v := &t.specon
		if d.Category != v.category {
			v.since = now
		}
		if d.RequestMove && !v.request && t.Movable {
			t.show.Enqueue("move", "requests a move to another node: "+d.Why)
		}
		v.category, v.request, v.why = d.Category, d.RequestMove, d.Why
		t.show.Changed(false)
	}
}

func (t *task) speconStatus() status.SpeCon {
	return status.SpeCon{
		Category: string(t.specon.category), Since: t.specon.since,
		Gain: number(t.m.Gain.Value), PreviousGain: number(t.m.Gain.Previous),
		RequestMove: t.specon.request, Why: t.specon.why,
	}
}
