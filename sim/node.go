// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"encoding/json"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/none"
	"github.com/ebbtide/ebbtide/driver/twin"
	"github.com/ebbtide/ebbtide/internal/waterfill"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

// node is a node with its driver: package control's loop in simulated time.
type node struct {
	index int
	id    string
	cores float64
	down  bool

	tasks   []*task // in order of arrival
	ghosts  []*task // finished, but their twins are not
	inbound []*task // moving here
	asked   float64 // requested cores

	at       float64 // simulated until then
	speed    float64 // work per CPU-second
	interval float64
	nextRun  float64
	nextSort float64 // SpeCon's next interval
	state    json.RawMessage
	gone     float64 // cores of tasks that left since the last periodic run
	damper   *plan.Damper
	twins    []policy.Task // of the last decision, with FairCPUS advanced
	tracked  []*task       // the twins' tasks
	version  uint64        // invalidates queued events
}

func (n *node) advance(s *simulation) {
	dt := s.now - n.at
	if dt <= 0 {
		return
	}
	for _, t := range n.tasks {
		t.run(n.at, s.now, n.pace(t), s.poll)
		s.used += t.rate * dt
	}
	n.at = s.now
	if s.v.twin {
		twin.Advance(n.twins, policy.Cores(n.forTwins()), dt)
		for i, t := range n.tracked {
			was := t.fair
			t.fair = n.twins[i].FairCPUS
			// A ghost stops at the CPU used, which may be rounded down.
			if size := policy.CPUSeconds(t.WorkCPUS * (1 - 2*rounding)); was < size && size <= t.fair {
				at := s.now - dt*float64((t.fair-size)/(t.fair-was))
				t.m.TwinEndS = &at
			}
		}
	}
}

// pace returns a task's work per second; threads wait for each other, so each further core adds
// less.
func (n *node) pace(t *task) float64 {
	pace := t.rate * n.speed
	if t.rate > 1 {
		pace /= 1 + float64(t.Overhead*(t.rate-1))
	}
	return pace
}

// forTwins returns the pool without services.
func (n *node) forTwins() float64 {
	cores := n.cores
	for _, t := range n.tasks {
		if t.Service != nil {
			cores -= t.rate
		}
	}
	return max(cores, 0)
}

// due returns the time of the node's next event.
func (n *node) due(s *simulation) float64 {
	next := math.Inf(1)
	if len(n.tasks) == 0 {
		return next
	}
	if !s.v.once {
		next = n.nextRun
	}
	if s.v.specon {
		next = min(next, n.nextSort)
	}
	for _, t := range n.tasks {
		if t.Service != nil {
			next = min(next, t.ArriveS+t.Service.ForS)
			continue
		}
		if t.reached {
			return n.at
		}
		if pace := n.pace(t); pace > 0 {
			next = min(next, n.at+t.left()/pace)
			if t.watched() { // it may reach a target with its next report
				if x, _, ok := t.next(); ok {
					next = min(next, n.at+max(x*t.WorkCPUS-t.work, 0)/pace+s.poll)
				}
			}
		}
		if t.watched() && len(t.pending) > 0 {
			next = min(next, max(t.pending[0].at, n.at+s.poll))
		}
	}
	return next
}

func (n *node) step(s *simulation) error {
	n.advance(s)
	left, reached := false, false
	for _, t := range slices.Clone(n.tasks) {
		if t.watched() {
			was := t.follower.reached
			t.look(s.now)
			reached = reached || t.follower.reached != was
		}
		switch {
		case t.done(), t.reached:
			s.end(t)
		case t.Service != nil && s.now >= t.ArriveS+t.Service.ForS-rounding*s.now:
			s.end(t)
		default:
			continue
		}
		left = true
	}
	if left {
		if err := n.decide(s, policy.EventLeave); err != nil {
			return err
		}
	} else if reached {
		if err := n.decide(s, policy.EventTarget); err != nil {
			return err
		}
	}
	if len(n.tasks) > 0 && s.now >= n.nextRun && !s.v.once {
		if err := n.decide(s, policy.EventNone); err != nil {
			return err
		}
	}
	if s.v.specon && s.now >= n.nextSort {
		n.sort(s)
	}
	return nil
}

func (n *node) add(s *simulation, t *task) {
	n.advance(s)
	t.node, t.rate, t.quota = n, 0, math.Inf(1)
	t.decision, t.decided = policy.Decision{Category: t.decision.Category}, 0
	t.intervalAt, t.intervalCPU, t.use = s.now, t.used, 0
	if t.m.StartS == nil {
		at := s.now
		t.m.StartS = &at
	}
	if len(n.tasks) == 0 {
		n.nextSort = s.now + s.v.sortS
	}
	n.tasks = append(n.tasks, t)
	n.asked += t.AskCores
}

// remove takes a task off the node; its twin continues if ghost.
func (n *node) remove(t *task, ghost bool) {
	n.gone += t.use
	n.asked -= t.AskCores
	n.tasks = slices.DeleteFunc(n.tasks, func(o *task) bool { return o == t })
	if len(n.tasks) == 0 {
		n.asked = 0 // no rounding error remains
	}
	t.node, t.rate = nil, 0
	if ghost {
		n.ghosts = append(n.ghosts, t)
	}
}

// decide goes from a snapshot to rates.
func (n *node) decide(s *simulation, event policy.Event) error {
	if len(n.tasks) == 0 {
		n.interval = s.sc.IntervalS
	}
	for _, t := range n.tasks {
		t.look(s.now)
		if event == policy.EventNone || t.use == 0 {
			t.closeInterval(s.now)
		}
	}
	snapshot := n.take(s, event)
	if event == policy.EventNone {
		n.gone = 0
	}
	if len(snapshot.Tasks) > 0 {
		if err := s.v.decider.Check(snapshot); err != nil {
			return fmt.Errorf("policy %s on node %s at %v s: the snapshot is not valid: %w", s.v.Name, n.id, s.now, err)
		}
		out := s.v.decider.Decide(snapshot)
		if s.v.placement == scenario.Alg4 {
			flowcon.Categorise(snapshot, &out)
		}
		s.decisions++
		n.accept(s, out)
	}
	if next := s.now + n.interval; event == policy.EventNone || n.nextRun <= s.now || next < n.nextRun {
		n.nextRun = next
	}
	return nil
}

func (n *node) take(s *simulation, event policy.Event) policy.Snapshot {
	out := policy.Snapshot{
		Node: n.id, NowS: s.now, Policy: s.v.decider.Name, PoolCores: policy.Cores(n.cores), Event: event,
		IntervalS: n.interval, InitialIntervalS: s.sc.IntervalS, MaxIntervalS: s.sc.MaxS,
		Gone: policy.Share(n.gone / n.cores), State: n.state,
		Tasks: make([]policy.Task, len(n.tasks), len(n.tasks)+len(n.ghosts)),
	}
	for i, t := range n.tasks {
		out.Tasks[i] = t.snapshot(n, s)
	}
	if !s.v.twin {
		return out
	}
	ghosts := n.ghosts[:0]
	for _, t := range n.ghosts {
		g := policy.Task{
			ID: t.ID, Kind: policy.Training, Entitlement: float64(limits.Identity.Weight(t.base.Shares)), CapCores: policy.Cores(t.cap(s)),
			CPUS: policy.CPUSeconds(t.used), FairCPUS: t.fair, RemainingCPUS: new(policy.CPUSeconds), Ended: true,
		}
		if twin.Left(g) > 0 {
			ghosts = append(ghosts, t)
			out.Tasks = append(out.Tasks, g)
		}
	}
	n.ghosts = ghosts
	n.twins = out.Tasks
	n.tracked = append(append(n.tracked[:0], n.tasks...), n.ghosts...)
	return out
}

func (n *node) accept(s *simulation, out policy.Outcome) {
	n.state = out.State
	if out.IntervalS > 0 {
		n.interval = min(out.IntervalS, s.sc.MaxS)
	}
	claims := make([]waterfill.Claim, len(n.tasks))
	reqs := make([]plan.Request, len(n.tasks))
	for i, t := range n.tasks {
		d := out.Tasks[i]
		t.accept(d)
		reqs[i] = plan.Request{ID: t.ID, Limit: d.Bound(), Keeps: d.Unknown, Demand: policy.Cores(t.cap(s)), Base: t.base}
		claims[i] = waterfill.Claim{Weight: float64(d.Bound()), Max: t.most(n.cores)}
		if s.v.hard {
			t.quota = float64(d.Bound()) * n.cores
			claims[i].Max = min(claims[i].Max, t.quota)
		}
	}
	if !s.v.ideal {
		mode := s.v.mode
		if s.v.decider.Name == none.Name {
			mode = plan.ModeNone
		}
		plan.Modest(policy.Cores(n.cores), reqs, limits.Identity)
		want := plan.Limits(mode, policy.Cores(n.cores), reqs, plan.Options{Floor: out.Floor, QuotaMinCores: s.v.quotaMin, Conversion: limits.Identity})
		n.damper.Immediate = out.SlackCPUS != nil
		n.damper.Interval = time.Duration(n.interval * float64(time.Second))
		for i, l := range n.damper.Next(time.Unix(0, int64(s.now*1e9)), reqs, want) {
			t := n.tasks[i]
			t.quota = math.Inf(1)
			if l.QuotaCores > 0 {
				t.quota = l.QuotaCores
			}
			claims[i] = waterfill.Claim{Weight: float64(limits.Identity.Weight(l.Shares)), Max: min(t.most(n.cores), t.quota)}
		}
	}
	sum, squares := 0.0, 0.0
	for i, rate := range waterfill.Divide(n.cores, claims) {
		n.tasks[i].rate = rate
		sum += rate
		squares += float64(rate * rate)
	}
	// The effective number of concurrent tasks: one with a tiny share disturbs little.
	n.speed = 1
	if squares > 0 {
		n.speed = 1 / (1 + float64(s.sc.Contention*(sum*sum/squares-1)))
	}
}
