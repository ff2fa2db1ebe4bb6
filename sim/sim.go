// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package sim runs scenarios in simulated time, as a discrete-event simulation of fluid CPU.
// In: a Config of scenario, policy and seed. Out: metrics.Run. Decisions are made by the
// driver's and shim's code: policies, estimators, twins, planner, damper, targets, placement
// and moves. Trainers, the kernel and Nomad are simulated. Start with sim.go, then node.go.
//
// A run is a pure function of its Config. It needs a few hundred bytes per job, and about
// 10 kB per running job.
package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/twin"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
	"github.com/ebbtide/ebbtide/sim/workload"
)

type Config struct {
	Scenario scenario.Scenario
	Data     fs.FS // real curves and traces, may be nil
	Variant  Variant
	Seed     uint64
	Draw     int            // numbers runs that differ in the luck of Nomad's placement only
	Jobs     []workload.Job // in order of arrival; nil for the scenario's
	// Progress receives the numbers of finished and all jobs. May be nil.
	Progress func(ended, all int)
}

type simulation struct {
	sc   scenario.Scenario
	v    Variant
	poll float64 // seconds between the driver's polls

	now      float64
	nodes    []*node
	tasks    []*task
	timeline timeline
	arrived  int     // jobs submitted so far
	queued   []*task // for room, in order of arrival
	places   places
	ended    int
	shim     shim

	used      float64 // CPU-seconds, in total
	decisions int
}

func Run(ctx context.Context, c Config) (metrics.Run, error) {
	s := &simulation{sc: c.Scenario, v: c.Variant}
	if s.v.intervalS > 0 {
		s.sc.IntervalS, s.sc.MaxS = s.v.intervalS, max(s.sc.MaxS, s.v.intervalS)
	}
	s.poll = min(max(s.sc.IntervalS/10, 0.1), 1)
	if s.v.mode == "" {
		s.v.mode = plan.Mode(s.sc.Mode)
	}
	jobs := c.Jobs
	if jobs == nil {
		var err error
		if jobs, err = c.Scenario.Jobs(c.Data, c.Seed); err != nil {
			return metrics.Run{}, err
		}
	}
	for i, j := range jobs {
		t, err := newTask(j, i, c.Seed, s.v)
		if err != nil {
			return metrics.Run{}, fmt.Errorf("job %s: %w", j.ID, err)
		}
		s.tasks = append(s.tasks, t)
	}
	for _, kind := range s.sc.Nodes {
		for k := range kind.Count {
			id := kind.Name
			if kind.Count > 1 {
				id = fmt.Sprintf("%s-%0*d", kind.Name, len(fmt.Sprint(kind.Count-1)), k)
			}
			s.nodes = append(s.nodes, &node{
				index: len(s.nodes), id: id, cores: kind.Cores, speed: 1, interval: s.sc.IntervalS, damper: plan.NewDamper(0),
			})
		}
	}
	if err := s.possible(); err != nil {
		return metrics.Run{}, err
	}
	s.shim.begin(s, c.Seed, c.Draw)
	if err := s.places.begin(s); err != nil {
		return metrics.Run{}, err
	}
	if err := s.loop(ctx, c.Progress); err != nil {
		return metrics.Run{}, err
	}
	return s.result(c), nil
}

// patience bounds a run, relative to the time of all jobs in sequence. Jobs that always fail
// before their first checkpoint never finish.
const patience = 20

func (s *simulation) limit() float64 {
	sum, slowest := 0.0, math.Inf(1)
	for _, n := range s.nodes {
		slowest = min(slowest, n.cores)
	}
	last := 0.0
	for _, t := range s.tasks {
		last = t.ArriveS
		if t.Service != nil {
			sum += t.Service.ForS
			continue
		}
		sum += t.WorkCPUS/t.most(slowest) + s.sc.MoveS
	}
	return last + patience*sum*(1+s.sc.Contention*float64(len(s.tasks)))
}

// loop handles events until all jobs have finished or the limit is reached.
func (s *simulation) loop(ctx context.Context, progress func(ended, all int)) error {
	const often = 4096
	limit := s.limit()
	for events := 0; s.ended < len(s.tasks) && s.now < limit; events++ {
		if err := ctx.Err(); err != nil { // a decision about a large cluster may take a second
			return err
		}
		if events%often == 0 && progress != nil {
			progress(s.ended, len(s.tasks))
		}
		e, some := s.timeline.peek()
		if s.arrived < len(s.tasks) && (!some || s.tasks[s.arrived].ArriveS <= e.at) {
			t := s.tasks[s.arrived]
			s.arrived++
			s.now = max(s.now, t.ArriveS)
			if err := s.submit(t); err != nil {
				return err
			}
			continue
		}
		s.timeline.pop()
		s.now = max(s.now, e.at)
		if err := s.handle(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *simulation) handle(e event) error {
	switch e.kind {
	case nodeDue:
		n := s.nodes[e.id]
		if e.version != n.version {
			return nil // outdated
		}
		if err := n.step(s); err != nil {
			return err
		}
		s.schedule(n)
		return s.admit()
	case taskBack:
		return s.submit(s.tasks[e.id])
	case nodeFails:
		return s.fail(s.nodes[e.id])
	case nodeBack:
		s.nodes[e.id].down, s.places.stale = false, true
		s.shim.nextFailure(s, s.nodes[e.id])
		return s.admit()
	case shimDue:
		return s.shim.run(s)
	case placesDue:
		s.timeline.push(event{at: s.now + placesInterval, kind: placesDue})
		return s.order()
	}
	return nil
}

// schedule queues the node's next event.
func (s *simulation) schedule(n *node) {
	n.version++
	if len(n.tasks) > 0 {
		s.timeline.push(event{at: n.due(s), kind: nodeDue, id: n.index, version: n.version})
	}
}

// possible reports a job that would wait forever.
func (s *simulation) possible() error {
	most := 0.0
	for _, n := range s.nodes {
		most = max(most, n.cores)
	}
	for _, t := range s.tasks {
		if t.AskCores > most*(1+rounding) {
			var errs fields.Errors
			errs.Add("node", "one must have the %v cores that job %s asks for; it would wait forever", t.AskCores, t.ID)
			return errs
		}
	}
	return nil
}

// submit places a task or queues it.
func (s *simulation) submit(t *task) error {
	s.queued = append(s.queued, t)
	s.places.stale = true
	return s.admit()
}

// admit places queued tasks: by the order, or as Nomad does those that fit.
func (s *simulation) admit() error {
	if s.v.order != nil {
		if !s.places.stale {
			return nil
		}
		return s.order()
	}
	waiting := s.queued[:0]
	for _, t := range s.queued {
		ok, err := s.place(t)
		if err != nil {
			return err
		}
		if !ok {
			waiting = append(waiting, t)
		}
	}
	s.queued = waiting
	return nil
}

func (s *simulation) place(t *task) (bool, error) {
	n := s.shim.choose(s, t)
	if n == nil {
		return false, nil
	}
	return true, s.start(t, n)
}

func (s *simulation) start(t *task, n *node) error {
	n.add(s, t)
	if err := n.decide(s, policy.EventJoin); err != nil {
		return err
	}
	s.schedule(n)
	return nil
}

// end removes a task whose work is done or objective reached.
func (s *simulation) end(t *task) {
	at := s.now
	if t.Service == nil {
		t.m.EndS = &at
	}
	t.node.remove(t, s.v.twin && t.Service == nil)
	t.follower, t.pending, t.Curve = nil, nil, nil
	s.ended++
	s.places.ended(t)
}

// fail stops a node; its tasks restart elsewhere from their last checkpoints.
func (s *simulation) fail(n *node) error {
	n.advance(s)
	n.down = true
	tasks := n.tasks
	n.tasks, n.ghosts, n.twins, n.tracked, n.asked, n.state = nil, nil, nil, nil, 0, nil
	s.schedule(n)
	for _, t := range tasks {
		t.fail(s.sc.Failures.CheckpointS)
		t.node, t.rate = nil, 0
	}
	s.timeline.push(event{at: s.now + s.sc.Failures.RepairS, kind: nodeBack, id: n.index})
	for _, t := range tasks {
		s.timeline.push(event{at: s.now + s.sc.MoveS, kind: taskBack, id: t.index})
	}
	return nil
}

func (s *simulation) result(c Config) metrics.Run {
	run := metrics.Run{
		Scenario: s.sc.Name, Policy: s.v.Name, Seed: c.Seed, PoolCores: s.sc.PoolCores(), Jobs: make([]metrics.Job, len(s.tasks)),
	}
	for _, n := range s.nodes {
		for i, t := range n.tracked {
			if t.m.TwinEndS == nil && t.m.EndS != nil {
				at := n.at + twin.Due(n.twins, i, policy.Cores(n.cores))
				t.m.TwinEndS = &at
			}
		}
	}
	for i, t := range s.tasks {
		run.Jobs[i] = t.m
	}
	run.IdleCPUS = max(run.PoolCores*present(s.tasks)-s.used, 0)
	return run
}

// present returns the time with at least one job, in seconds.
func present(tasks []*task) float64 {
	sum, until := 0.0, 0.0
	for _, t := range tasks { // in order of arrival
		end := t.ArriveS
		switch {
		case t.m.EndS != nil:
			end = *t.m.EndS
		case t.Service != nil:
			end += t.Service.ForS
		}
		sum += max(end-max(t.ArriveS, until), 0)
		until = max(until, end)
	}
	return sum
}

// Input reports whether the scenario or data caused the error.
func Input(err error) bool {
	var errs fields.Errors
	return errors.As(err, &errs) || errors.Is(err, workload.ErrData)
}
