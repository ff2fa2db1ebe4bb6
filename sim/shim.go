// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/shim/migration"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/rebalance"
	"github.com/ebbtide/ebbtide/shim/relocate"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

// shimInterval is the time between two passes of the shim, in seconds: its default.
const shimInterval = 30

// shim places and moves jobs: Nomad's scheduler and Ebbtide's shim.
type shim struct {
	r     *rand.Rand // of failures
	dice  *rand.Rand // of placement
	nodes []*node    // shuffled
}

// placementStream is the first random stream of placement; draws have one each.
const placementStream = 1 << 34

func (h *shim) begin(s *simulation, seed uint64, draw int) {
	h.r = rand.New(rand.NewPCG(seed, 11))
	h.dice, h.nodes = rand.New(rand.NewPCG(seed, placementStream+uint64(draw))), slices.Clone(s.nodes)
	if s.v.specon || s.v.placement == scenario.Relocate && len(s.nodes) > 1 {
		s.timeline.push(event{at: shimInterval, kind: shimDue})
	}
	for _, n := range s.nodes {
		h.nextFailure(s, n)
	}
}

func (h *shim) nextFailure(s *simulation, n *node) {
	if f := s.sc.Failures; f != nil {
		s.timeline.push(event{at: s.now + 2*h.r.Float64()*f.EveryS, kind: nodeFails, id: n.index})
	}
}

// room reports whether Nomad would place the task on the node.
func (n *node) room(t *task) bool {
	return !n.down && n.asked+t.AskCores <= n.cores*(1+rounding)
}

// choose returns the node for a task, nil to queue it.
func (h *shim) choose(s *simulation, t *task) *node {
	if n := t.bound; n != nil {
		t.bound = nil
		n.inbound = slices.DeleteFunc(n.inbound, func(o *task) bool { return o == t })
		if n.room(t) {
			return n
		}
	}
	if s.v.placement == scenario.Alg4 {
		return s.byGrowth(t)
	}
	return h.byLot(s, t)
}

// byLot is Nomad's scheduler: it shuffles the nodes and scores the first ones with room, two for
// a batch job (feasible.GenericStack), with the task on them. Tasks without a request count equally.
func (h *shim) byLot(s *simulation, t *task) *node {
	limit := 2
	if t.Service != nil {
		limit = max(limit, bits.Len(uint(len(h.nodes)-1))) // log2, rounded up
	}
	var best *node
	least := 0.0
	for i := 0; i < len(h.nodes) && limit > 0; i++ {
		j := i + h.dice.IntN(len(h.nodes)-i)
		h.nodes[i], h.nodes[j] = h.nodes[j], h.nodes[i]
		n := h.nodes[i]
		if !n.room(t) {
			continue
		}
		limit--
		part := (n.asked + t.AskCores) / n.cores
		if t.AskCores == 0 {
			part = float64(len(n.tasks)+1) / n.cores
		}
		if s.v.placement == scenario.Binpack {
			part = -part
		}
		if best == nil || part < least {
			best, least = n, part
		}
	}
	return best
}

// byGrowth is FlowCon's Algorithm 4.
func (s *simulation) byGrowth(t *task) *node {
	loads := make([]placement.Load, 0, len(s.nodes))
	byID := make(map[string]*node, len(s.nodes))
	for _, n := range s.nodes {
		if !n.room(t) {
			continue
		}
		in := placement.Node{ID: n.id, PoolCores: n.cores}
		for _, o := range n.tasks {
			if o.Service != nil {
				continue
			}
			task := placement.Task{Category: o.decision.Category}
			if e := o.follower.estimate; e.Measured || e.Diverged {
				growth := e.Growth * n.cores
				task.Growth = &growth
			}
			in.Tasks = append(in.Tasks, task)
		}
		loads = append(loads, in.Load())
		byID[n.id] = n
	}
	return byID[placement.Choose(loads, placement.Params{CapacityAware: !s.v.published}).Node]
}

// sort runs SpeCon's Algorithm 1.
func (n *node) sort(s *simulation) {
	n.nextSort = s.now + s.v.sortS
	in := specon.Input{Params: s.v.sorting}
	var tasks []*task
	for _, t := range n.tasks {
		if t.follower == nil {
			continue
		}
		t.look(s.now)
		gain, previous := t.follower.meter.Close()
		in.Tasks = append(in.Tasks, specon.Task{
			ID: t.ID, Category: t.sorting.category, Gain: gain, PreviousGain: previous, Migrated: t.sorting.marked != nil,
		})
		tasks = append(tasks, t)
	}
	for i, d := range specon.Decide(in).Tasks {
		was := &tasks[i].sorting
		switch was.category, was.asked = d.Category, d.RequestMove; {
		case d.Category != specon.CC:
			was.converged = nil
		case was.converged == nil:
			was.converged = new(s.now)
		}
	}
}

// cooldown is the least time between moves of a task, in seconds: the shim's default.
const cooldown = 600

// remaining returns the driver's last estimate less the CPU used since, nil without one.
func (t *task) remaining() *float64 {
	if t.known == nil {
		return nil
	}
	left := max(float64(*t.known)-(t.used-t.knownAt), 0)
	return &left
}

// relocate moves tasks that would finish much sooner elsewhere, at most one per four nodes.
func (h *shim) relocate(s *simulation) error {
	for range 1 + len(s.nodes)/4 {
		in := relocate.Input{Params: relocate.DefaultParams()}
		in.Params.CostS = s.sc.MoveS
		byID := make(map[string]*task)
		for _, n := range s.nodes {
			if n.down {
				continue
			}
			n.advance(s)
			node := relocate.Node{ID: n.id, PoolCores: n.cores}
			for _, t := range append(n.tasks[:len(n.tasks):len(n.tasks)], n.inbound...) {
				switch left := t.remaining(); {
				case t.Service != nil:
				case left == nil:
					node.Unknown++
				default:
					node.Known++
					node.LeftCPUS += *left
					if t.node != nil && (t.m.Moves == 0 || s.now-t.movedAt >= cooldown) {
						in.Tasks = append(in.Tasks, s.candidate(t, *left))
						byID[t.ID] = t
					}
				}
			}
			in.Nodes = append(in.Nodes, node)
		}
		out := relocate.Decide(in)
		if out.Task == "" {
			return nil
		}
		if err := s.move(byID[out.Task], s.byID(out.To)); err != nil {
			return err
		}
	}
	return nil
}

func (s *simulation) candidate(t *task, left float64) relocate.Task {
	out := relocate.Task{ID: t.ID, Node: t.node.id, LeftCPUS: left, CapCores: t.cap(s), To: []string{}}
	if fair := t.decision.Fair; fair != nil && fair.FinishS != nil {
		in := max(*fair.FinishS-s.now, 0)
		out.InS = &in
	}
	for _, n := range s.nodes {
		if n != t.node && n.room(t) {
			out.To = append(out.To, n.id)
		}
	}
	return out
}

func (h *shim) run(s *simulation) error {
	s.timeline.push(event{at: s.now + shimInterval, kind: shimDue})
	if s.v.placement == scenario.Relocate {
		if err := h.relocate(s); err != nil {
			return err
		}
	}
	if !s.v.specon {
		return nil
	}
	for _, t := range s.tasks[:s.arrived] {
		if t.node == nil || !t.sorting.asked || t.sorting.marked != nil {
			continue
		}
		in := migration.Input{Task: t.ID, From: t.node.id, Params: migration.DefaultParams()}
		for _, n := range s.nodes {
			if n == t.node || n.room(t) {
				in.Nodes = append(in.Nodes, n.counts())
			}
		}
		out := migration.Decide(in)
		now := s.now
		t.sorting.marked = &now
		if !out.Move {
			continue
		}
		if err := s.move(t, s.byID(out.To)); err != nil {
			return err
		}
	}
	return h.rebalance(s)
}

// counts returns the node's input to SpeCon's Algorithm 2.
func (n *node) counts() migration.Node {
	out := migration.Node{ID: n.id}
	for _, t := range n.tasks {
		switch t.sorting.category {
		case specon.WC:
			out.Counts.WC++
		case specon.CC:
			out.Counts.CC++
		default:
			out.Counts.PC++
		}
		out.Use += t.rate / n.cores
	}
	return out
}

// rebalance runs SpeCon's Algorithm 3.
func (h *shim) rebalance(s *simulation) error {
	in := rebalance.Input{NowS: s.now}
	byID := make(map[string]*task)
	for _, n := range s.nodes {
		if n.down {
			continue
		}
		node := rebalance.Node{ID: n.id, Tasks: []rebalance.Task{}}
		for _, t := range n.tasks {
			if t.follower != nil {
				node.Tasks = append(node.Tasks, rebalance.Task{ID: t.ID, MarkedS: cmp.Or(t.sorting.marked, t.sorting.converged), Rebalanced: t.sorting.rebalanced})
				byID[t.ID] = t
			}
		}
		in.Nodes = append(in.Nodes, node)
	}
	for _, m := range rebalance.Decide(in).Moves {
		t := byID[m.Task]
		t.sorting.rebalanced = true
		if err := s.move(t, s.byID(m.To)); err != nil {
			return err
		}
	}
	return nil
}

func (s *simulation) byID(id string) *node {
	return s.nodes[slices.IndexFunc(s.nodes, func(n *node) bool { return n.id == id })]
}

func (s *simulation) move(t *task, to *node) error {
	from := t.node
	from.advance(s)
	from.remove(t, false)
	t.saved, t.bound, t.movedAt = t.work, to, s.now
	to.inbound = append(to.inbound, t)
	t.m.Moves++
	s.timeline.push(event{at: s.now + s.sc.MoveS, kind: taskBack, id: t.index})
	if err := from.decide(s, policy.EventLeave); err != nil {
		return err
	}
	s.schedule(from)
	return nil
}
