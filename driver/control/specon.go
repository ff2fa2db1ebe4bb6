// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/status"
)

// sorting is what SpeCon's Algorithm 1 knows about a task. It sorts tasks for the
// shim, which moves them; it has no part in how a node's CPU is divided.
type sorting struct {
	interval uint64 // of the gain that the category was decided on
	category specon.Category
	request  bool
	since    time.Time // in this category
	why      string
}

// sortForMoves runs SpeCon's Algorithm 1.
func (c *Controller) sortForMoves(now time.Time) {
	c.nextSpeCon = now.Add(c.opts.SpeConInterval)
	in := specon.Input{Params: c.opts.SpeCon}
	var tasks []*task
	for _, t := range c.tasks {
		t.look(now)
		if !t.Limited || t.cgroup == nil || t.kind() != policy.Training || t.m.Gain.Interval == t.specon.interval {
			continue // it takes no part, or its observer is late
		}
		t.specon.interval = t.m.Gain.Interval
		tasks = append(tasks, t)
		in.Tasks = append(in.Tasks, specon.Task{ID: t.ID, Category: t.specon.category, Gain: t.m.Gain.Value, PreviousGain: t.m.Gain.Previous})
	}
	if err := in.Validate(); err != nil {
		// Our own fault; the categories stay as they are.
		c.log.Error("the tasks were not sorted: the input is not valid", "error", err)
		return
	}
	for i, d := range specon.Decide(in).Tasks {
		t := tasks[i]
		v := &t.specon
		if d.Category != v.category {
			v.since = now
		}
		if d.RequestMove && !v.request && t.Movable {
			t.show.Enqueue("move", "asks to be moved to another node: "+d.Why)
		}
		v.category, v.request, v.why = d.Category, d.RequestMove, d.Why
		t.show.Changed(false)
	}
}

// speconStatus is what is shown of it.
func (t *task) speconStatus() status.SpeCon {
	return status.SpeCon{
		Category: string(t.specon.category), Since: t.specon.since,
		Gain: number(t.m.Gain.Value), PreviousGain: number(t.m.Gain.Previous),
		RequestMove: t.specon.request, Why: t.specon.why,
	}
}
