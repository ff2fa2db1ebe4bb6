// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/status"
)

// converging is what SpeCon's Algorithm 1 knows about a task. It sorts tasks for the
// shim, which moves them; it has no part in how a node's CPU is divided.
type converging struct {
	meter          growth.Gain
	gain, previous *float64
	category       specon.Category
	request        bool
	since          time.Time // in this category
	why            string
}

// status is what is shown of it.
func (v converging) status() status.SpeCon {
	return status.SpeCon{
		Category: string(v.category), Since: v.since,
		Gain: number(v.gain), PreviousGain: number(v.previous),
		RequestMove: v.request, Why: v.why,
	}
}

// categorise runs SpeCon's Algorithm 1 when it is due.
func (c *Controller) categorise(now time.Time) {
	if now.Before(c.nextSpeCon) {
		return
	}
	first := c.nextSpeCon.IsZero()
	c.nextSpeCon = now.Add(c.opts.SpeConInterval)
	if first {
		return // no interval has passed
	}
	in := specon.Input{Params: c.opts.SpeCon}
	var tasks []*state
	for _, s := range c.tasks {
		if !s.Limited || s.cgroup == nil || s.kind() != auto.KindTraining {
			continue
		}
		v := &s.converging
		v.gain, v.previous = v.meter.Close()
		tasks = append(tasks, s)
		in.Tasks = append(in.Tasks, specon.Task{ID: s.ID, Category: v.category, Gain: v.gain, PreviousGain: v.previous})
	}
	if err := in.Validate(); err != nil {
		// Our own fault; the categories stay as they are.
		c.log.Error("the tasks were not sorted: the input is not valid", "error", err)
		return
	}
	for i, d := range specon.Decide(in).Tasks {
		s := tasks[i]
		v := &s.converging
		if d.Category != v.category {
			v.since = now
		}
		if d.RequestMove && !v.request && s.Movable {
			s.speak.say("asks to be moved to another node: "+d.Why, "move")
		}
		v.category, v.request, v.why = d.Category, d.RequestMove, d.Why
		s.dirty = true
	}
}
