// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/sim/baseline"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

// order decides which tasks have the cores that they ask for.
type order struct {
	decide func(queue.Input) queue.Output
	exact  bool // knows true sizes
}

func orders() map[string]*order {
	return map[string]*order{
		scenario.Queue:   {decide: queue.Decide},
		scenario.Turns:   {decide: turns},
		scenario.Fifo:    {decide: baseline.Fifo},
		scenario.Dynamic: {decide: baseline.Dynamic},
		scenario.EASY:    {decide: baseline.EASY},
		scenario.LAS:     {decide: baseline.LeastAttained},
		scenario.SRTF:    {decide: baseline.SRTF, exact: true},
	}
}

// turns is fair finish for jobs that cannot be suspended.
func turns(in queue.Input) queue.Output {
	for i := range in.Jobs {
		in.Jobs[i].Suspendable = false
	}
	return queue.Decide(in)
}

// placesInterval is the time between decisions without an event, in seconds: the shim's default.
const placesInterval = 60

// places is the state of the order.
type places struct {
	stale bool    // something has happened since the last decision
	at    float64 // of the last decision
	twins []*task // ended, but their twins have not
}

// place is a task's state in the order.
type place struct {
	node  string  // the latest
	since float64 // it runs
	fair  float64 // seconds that its twin has had
	guess float64 // known size relative to the true one
	size  float64 // work, by the driver's last estimate; 0 for none
}

func (p *places) begin(s *simulation) error {
	asks := false
	for i, t := range s.tasks {
		if s.v.order != nil && t.AskCores == 0 {
			return fields.Errors{{Path: "placement", Problem: fmt.Sprintf("%s is for jobs that ask for cores (asks), and job %s does not", s.v.placement, t.ID)}}
		}
		asks = asks || t.AskCores > 0
		r := rand.New(rand.NewPCG(uint64(i)+1<<33, math.Float64bits(t.WorkCPUS)))
		if t.place.guess = 1; s.sc.SizeError != nil {
			t.place.guess = math.Exp2(float64(*s.sc.SizeError * r.NormFloat64()))
		}
	}
	if !asks {
		return nil
	}
	s.fairEnds()
	if s.v.order != nil {
		s.timeline.push(event{at: placesInterval, kind: placesDue})
	}
	return nil
}

// fairEnds finds when each job would end with its fair share of the cluster.
func (s *simulation) fairEnds() {
	in := queue.Input{Nodes: s.capacity(true)}
	var tasks []*task
	now := 0.0
	advance := func(by float64) {
		for i, at := range in.Advance(by) {
			if !math.IsInf(at, 1) && tasks[i].m.FairEndS == nil {
				end := now + at
				tasks[i].m.FairEndS = &end
			}
		}
		now += by
		done := func(i int) bool { return tasks[i].m.FairEndS != nil }
		jobs, rest := in.Jobs[:0], tasks[:0]
		for i := range in.Jobs {
			if !done(i) {
				jobs, rest = append(jobs, in.Jobs[i]), append(rest, tasks[i])
			}
		}
		in.Jobs, tasks = jobs, rest
	}
	for _, t := range s.tasks {
		if t.AskCores == 0 {
			continue
		}
		advance(t.ArriveS - now)
		left := t.WorkCPUS / t.AskCores
		in.Jobs = append(in.Jobs, queue.Job{ID: t.ID, Needs: queue.Resources{cores: t.AskCores}, RemainingS: &left})
		tasks = append(tasks, t)
	}
	advance(math.Inf(1))
}

// cores is the only resource.
const cores = "cores"

func (s *simulation) capacity(all bool) []queue.Node {
	var out []queue.Node
	for _, n := range s.nodes {
		if all || !n.down {
			out = append(out, queue.Node{ID: n.id, Capacity: queue.Resources{cores: n.cores}})
		}
	}
	return out
}

func (p *places) ended(t *task) {
	p.stale = true
	p.twins = append(p.twins, t)
}

// order decides, suspends and starts.
func (s *simulation) order() error {
	s.places.stale = false
	for _, n := range s.nodes {
		n.advance(s)
	}
	in, tasks := s.input()
	in.Advance(s.now - s.places.at)
	s.places.at = s.now
	for i, j := range in.Jobs {
		tasks[i].place.fair = j.FairS
	}
	s.places.twins = slices.DeleteFunc(s.places.twins, func(t *task) bool { return t.place.fair >= t.WorkCPUS/t.AskCores*(1-rounding) })
	out := s.v.order.decide(in)
	byID := make(map[string]*task, len(tasks))
	for i, j := range in.Jobs {
		byID[j.ID] = tasks[i]
	}
	for _, d := range out.Jobs {
		if t := byID[d.ID]; t.node != nil && d.Node == "" {
			if err := s.suspend(t); err != nil {
				return err
			}
		}
	}
	for _, d := range out.Jobs {
		if t := byID[d.ID]; t.node == nil && d.Node != "" {
			s.queued = slices.DeleteFunc(s.queued, func(o *task) bool { return o == t })
			t.place.since, t.place.node = s.now, d.Node
			if err := s.start(t, s.byID(d.Node)); err != nil {
				return err
			}
		}
	}
	return nil
}

// input is what the shim would see.
func (s *simulation) input() (queue.Input, []*task) {
	in := queue.Input{NowS: s.now, Nodes: s.capacity(false), Params: queue.DefaultParams()}
	in.Params.CostS = s.sc.MoveS
	var tasks []*task
	add := func(t *task, ended bool) {
		j := queue.Job{
			ID: t.ID, Needs: queue.Resources{cores: t.AskCores}, SubmittedS: t.ArriveS, SinceS: t.place.since,
			ServedS: t.work / t.AskCores, FairS: t.place.fair, Suspendable: true, Local: s.sc.Local, Ended: ended,
		}
		if t.node != nil {
			j.Node = t.node.id
		} else if s.sc.Local && t.place.node != "" {
			if j.Feasible = []string{}; !s.byID(t.place.node).down {
				j.Feasible = []string{t.place.node}
			}
		}
		if left := t.placeLeft(s); left != nil && !ended {
			j.RemainingS = left
		}
		in.Jobs, tasks = append(in.Jobs, j), append(tasks, t)
	}
	for _, t := range s.queued {
		add(t, false)
	}
	for _, n := range s.nodes {
		for _, t := range n.tasks {
			add(t, false)
		}
	}
	for _, t := range s.places.twins {
		add(t, true)
	}
	return in, tasks
}

// placeLeft is what is known of the time that the task still needs its place, in seconds.
func (t *task) placeLeft(s *simulation) *float64 {
	if t.node != nil && s.sc.Sizes == scenario.Estimated {
		t.look(s.now)
		if cpu, _ := t.sizes(s); cpu != nil {
			t.place.size = t.work + float64(*cpu)
		}
	}
	left := t.WorkCPUS*t.place.guess - t.work
	switch {
	case s.v.order.exact:
		left = t.left()
	case t.place.size > t.work:
		left = t.place.size - t.work
	case s.sc.Sizes == scenario.Unknown, left <= 0, s.sc.Sizes == scenario.Estimated && s.sc.SizeError == nil:
		return nil
	}
	left /= t.AskCores
	return &left
}

// suspend takes the task's cores. Saving, restoring and lost work cost it MoveS.
func (s *simulation) suspend(t *task) error {
	n := t.node
	n.advance(s)
	t.saved = max(t.work-s.sc.MoveS*t.AskCores, 0)
	t.fail(0)
	n.remove(t, false)
	s.queued = append(s.queued, t)
	t.m.Moves++
	if err := n.decide(s, policy.EventLeave); err != nil {
		return err
	}
	s.schedule(n)
	return nil
}
