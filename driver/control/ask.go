// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/none"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/driver/target"
)

// answer is what any policy decides, in the loop's terms.
type answer struct {
	tasks    []verdict
	alpha    float64
	interval float64 // seconds; 0 = as it is
	services dqoes.State
}

// verdict is a policy's decision for one task.
type verdict struct {
	policy.Decision
	class dqoes.Class
	fair  bool // the task is unmeasured: its fair share, whatever the limit says
}

// ask asks the policy and takes its decisions over.
func (c *Controller) ask(tasks []*state, event flowcon.Event) {
	if len(tasks) == 0 {
		c.interval, c.alpha, c.services = c.opts.Interval, noAlpha, dqoes.State{}
		return
	}
	var out answer
	var err error
	switch c.opts.Policy {
	case policies.TRADL:
		out, err = c.askTRADL(tasks, event)
	case policies.DQoES:
		out, err = c.askDQoES(tasks, event)
	case policies.Auto:
		out, err = c.askAuto(tasks, event)
	default:
		out, err = c.askFlowCon(tasks, event)
	}
	if err != nil {
		// Our own fault; the limits stay as they are.
		c.log.Error("the policy was not run: its input is not valid", "error", err)
		return
	}
	c.alpha, c.services = out.alpha, out.services
	if out.interval > 0 {
		c.interval = min(time.Duration(math.Min(out.interval, c.opts.MaxInterval.Seconds())*float64(time.Second)), c.opts.MaxInterval)
	}
	for i, v := range out.tasks {
		tasks[i].decided(v, c.now())
	}
}

// askFlowCon asks policy flowcon, or none, which takes the same input.
func (c *Controller) askFlowCon(tasks []*state, event flowcon.Event) (answer, error) {
	in := flowcon.Input{
		IntervalS:        c.interval.Seconds(),
		InitialIntervalS: c.opts.Interval.Seconds(),
		Event:            event,
		Params:           c.opts.Params.Flowcon,
	}
	for _, s := range tasks {
		growth, progress, category := s.grown(event)
		in.Tasks = append(in.Tasks, flowcon.Task{ID: s.ID, Category: category, Growth: growth, Progress: progress, Limit: s.limit, Use: s.use})
	}
	if err := in.Validate(); err != nil {
		return answer{}, err
	}
	decide := flowcon.Decide
	if c.opts.Policy == policies.None {
		decide = none.Decide
	}
	out := decide(in)
	a := answer{alpha: out.Alpha, interval: out.IntervalS}
	for i, d := range out.Tasks {
		a.tasks = append(a.tasks, verdict{Decision: d, fair: tasks[i].growth == nil && d.Category != policy.WL && d.Category != policy.CL})
	}
	return a, nil
}

// grown is a task's growth as FlowCon's Algorithm 1 takes it.
func (s *state) grown(event flowcon.Event) (growth, progress *float64, category policy.Category) {
	switch {
	case s.estimate.Diverged:
		// A diverged model is treated as converged, at once.
		zero := 0.0
		return &zero, &zero, policy.CL
	case s.use == 0 && event == flowcon.EventNone:
		return nil, nil, s.category // G is undefined without use
	}
	return s.growth, s.progress, s.category
}

// askTRADL asks policy tradl. A join or a leave is an interval like any other.
func (c *Controller) askTRADL(tasks []*state, event flowcon.Event) (answer, error) {
	in := tradl.Input{Gone: c.gone, Params: c.opts.Params.Tradl}
	for _, s := range tasks {
		t := tradl.Task{ID: s.ID, State: s.reached, Tracked: true, Use: s.use, Limit: s.limit}
		t.Goal, t.Value = s.position()
		t.Acceptable, t.Objective = s.Targets.Acceptable, s.Targets.Objective
		in.Tasks = append(in.Tasks, t)
	}
	if err := in.Validate(); err != nil {
		return answer{}, err
	}
	a := answer{alpha: noAlpha, interval: c.opts.Interval.Seconds()}
	for i, d := range tradl.Decide(in).Tasks {
		v := verdict{Decision: policy.Decision{ID: d.ID, Category: tasks[i].category, Limit: 1, Rule: d.Rule, Why: d.Why}}
		if d.Limit != nil {
			v.Limit = *d.Limit
		}
		a.tasks = append(a.tasks, v)
	}
	return a, nil
}

// position is where a task stands on the way to its targets: the direction, and
// the last value, for people. The Watcher decides what is reached.
func (s *state) position() (goal target.Goal, value *float64) {
	if s.Watch == nil {
		return "", nil
	}
	if v := s.last.Value; s.Watch.Paused() == "" && !math.IsNaN(v) && !math.IsInf(v, 0) {
		value = &v
	}
	return s.Watch.Goal(), value
}

// askDQoES asks policy dqoes about the services; other tasks are not limited.
func (c *Controller) askDQoES(tasks []*state, event flowcon.Event) (answer, error) {
	in := dqoes.Input{
		State:            c.services,
		IntervalS:        c.interval.Seconds(),
		InitialIntervalS: c.opts.Interval.Seconds(),
		MaxIntervalS:     c.opts.MaxInterval.Seconds(),
		Params:           c.opts.Params.Dqoes,
	}
	if event != flowcon.EventNone {
		in.IntervalS = in.InitialIntervalS
	}
	in.Params.Tasks = len(tasks)
	for _, s := range tasks {
		if s.Targets.QoE == 0 {
			in.Params.Others += s.use
		}
	}
	a := answer{alpha: noAlpha, tasks: make([]verdict, len(tasks))}
	var index []int
	for i, s := range tasks {
		if s.Targets.QoE == 0 {
			a.tasks[i] = verdict{Decision: policy.Decision{ID: s.ID, Category: s.category, Limit: 1, Rule: "dqoes.no-service", Why: "the task has no ebbtide_qoe_target: policy dqoes does not limit it"}}
			continue
		}
		index = append(index, i)
		in.Tasks = append(in.Tasks, dqoes.Task{ID: s.ID, ObjectiveS: s.Targets.QoE, ResponseS: s.service.response, Use: s.use, Limit: s.limit})
	}
	if err := in.Validate(); err != nil {
		return answer{}, err
	}
	out := dqoes.Decide(in)
	a.interval, a.services = out.IntervalS, out.State
	for k, d := range out.Tasks {
		a.tasks[index[k]] = verdict{Decision: policy.Decision{ID: d.ID, Limit: d.Limit, Rule: d.Rule, Why: d.Why}, class: d.Class}
	}
	return a, nil
}

// askAuto asks policy auto about all of them.
func (c *Controller) askAuto(tasks []*state, event flowcon.Event) (answer, error) {
	in := auto.Input{
		Services:         c.services,
		IntervalS:        c.interval.Seconds(),
		InitialIntervalS: c.opts.Interval.Seconds(),
		MaxIntervalS:     c.opts.MaxInterval.Seconds(),
		Event:            event,
		Gone:             c.gone,
		Params:           c.opts.Params,
	}
	for _, s := range tasks {
		t := auto.Task{ID: s.ID, Kind: s.kind(), Use: s.use, Limit: s.limit}
		if s.rule == "" {
			t.Limit = 0 // nothing was decided for it yet
		}
		if t.Kind == auto.KindService {
			t.ObjectiveS, t.ResponseS = s.Targets.QoE, s.service.response
			if event != flowcon.EventNone {
				t.ResponseS = s.service.last
			}
		} else {
			t.Growth, t.Progress, t.Category = s.grown(event)
			t.Goal, t.Value = s.position()
			t.Acceptable, t.Objective = s.Targets.Acceptable, s.Targets.Objective
			t.State, t.Tracked = s.reached, true
		}
		in.Tasks = append(in.Tasks, t)
	}
	if err := in.Validate(); err != nil {
		return answer{}, err
	}
	out := auto.Decide(in)
	a := answer{alpha: out.Alpha, interval: out.IntervalS, services: out.Services}
	for _, d := range out.Tasks {
		a.tasks = append(a.tasks, verdict{
			Decision: policy.Decision{ID: d.ID, Category: d.Category, Limit: d.Limit, Rule: d.Rule, Why: d.Why},
			class:    d.Class, fair: d.Unmeasured,
		})
	}
	return a, nil
}

// kind is what a task is to policy auto.
func (s *state) kind() auto.Kind {
	if s.Targets.QoE > 0 {
		return auto.KindService
	}
	return auto.KindTraining
}
