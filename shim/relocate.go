// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/relocate"
	"github.com/ebbtide/ebbtide/shim/store"
)

// Bounds of a pass: tasks whose status is read, from the busiest nodes, and target nodes, the least
// busy.
const (
	candidates = 32
	targets    = 64
)

const othersFirst = "other tasks come first"

// surveyPerNode times the number of nodes is the minimum time between two surveys for relocation: a
// survey costs some 0.15 ms of CPU per node, which is then 0.5 % of a core.
const surveyPerNode = 30 * time.Millisecond

// relocations moves tasks that would finish much sooner on another node, at most one per four nodes.
func (s *snapshot) relocations() (p plan) {
	p.policy = policies.Relocate
	in := relocate.Input{Params: relocate.DefaultParams()}
	in.Params.Margin = s.config.Relocation.Margin
	for node := range s.Nodes() {
		if backlog, ok := s.backlog(node); ok {
			in.Nodes = append(in.Nodes, backlog)
		}
	}
	all, to := s.relocatable(&p, in.Nodes)
	s.explainOthers(&p, in.Nodes, to)
	s.read(all)
	for group := range tasksByAlloc(all) {
		a := group[0].alloc
		task, why := estimate(group, s.summaries[a.Node].At)
		if why != "" {
			p.explainStay(s, a, why)
			continue
		}
		g, _ := s.group(a, policies.Relocate)
		task.To, task.CostS = to[a.ID], s.costOf(a.Job, g)
		in.Tasks = append(in.Tasks, task)
	}
	if err := in.Validate(); err != nil {
		p.fail("relocation", err)
		return p
	}
	why := othersFirst
	for range 1 + len(in.Nodes)/4 {
		if !s.relocateOne(&p, &in) {
			why = "it would not finish sufficiently sooner on another node"
			break
		}
	}
	for _, x := range in.Tasks {
		p.explainStay(s, s.Alloc(x.ID), why)
	}
	return p
}

// explainOthers explains the tasks that relocatable has not considered.
func (s *snapshot) explainOthers(p *plan, nodes []relocate.Node, considered map[string][]string) {
	seconds, least := make(map[string]float64, len(nodes)), math.Inf(1)
	for i, work := range relocate.Seconds(nodes) {
		seconds[nodes[i].ID], least = work, min(least, work)
	}
	for a := range s.movable(policies.Relocate) {
		if _, done := considered[a.ID]; done {
			continue
		}
		why := othersFirst
		if work, ok := seconds[a.Node]; !ok {
			why = s.noSummary(a.Node)
		} else if least >= work/2 {
			why = "no node has less than half as much work per core as its own"
		}
		p.explainStay(s, a, why)
	}
}

// relocateOne moves the task that gains most, removes it from the input, and reports whether there is
// one.
func (s *snapshot) relocateOne(p *plan, in *relocate.Input) bool {
	out := relocate.Decide(*in)
	if out.Task == "" {
		return false
	}
	k := slices.IndexFunc(in.Tasks, func(x relocate.Task) bool { return x.ID == out.Task })
	a := s.Alloc(out.Task)
	group, _ := s.group(a, policies.Relocate)
	if s.canTake(a, out.To, policies.Relocate) {
		p.move(s, a, out.To, store.Entry{Policy: policies.Relocate, Rule: out.Rule, Why: strings.ReplaceAll(out.Why, out.Task, a.Job.ID)})
	}
	for i := range in.Nodes {
		switch n := &in.Nodes[i]; n.ID {
		case out.From:
			n.LeftCPUS, n.Known = max(0, n.LeftCPUS-in.Tasks[k].LeftCPUS), max(0, n.Known-len(group.Tasks))
		case out.To:
			n.LeftCPUS, n.Known = n.LeftCPUS+in.Tasks[k].LeftCPUS, n.Known+len(group.Tasks)
		}
	}
	in.Tasks = slices.Delete(in.Tasks, k, k+1)
	return true
}

// anyMovable reports whether relocation may move a task.
func (s *snapshot) anyMovable() bool {
	for range s.movable(policies.Relocate) {
		return true
	}
	return false
}

// relocatable returns the movable tasks of the busiest nodes and, by considered allocation, the
// nodes that could take it.
func (s *snapshot) relocatable(p *plan, nodes []relocate.Node) (all []reading, to map[string][]string) {
	to = make(map[string][]string)
	work := relocate.Seconds(nodes)
	order := make([]int, len(work))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(work[b], work[a]) })
	least := order[max(0, len(order)-targets):]
	asked := 0
	for _, i := range order {
		if len(least) == 0 || work[least[len(least)-1]] >= work[i]/2 {
			return all, to // less busy nodes have no target either
		}
		for a := range s.On(nodes[i].ID) {
			group, ok := s.group(a, policies.Relocate)
			if !ok || len(group.Tasks) == 0 || s.busy[a.Job] {
				continue
			}
			if why := s.blocked(a, ""); why != "" {
				to[a.ID] = nil
				p.note(note{key: a.Job, level: hclog.Debug, reason: skipped(a, why), weak: true})
				continue
			}
			if asked++; asked > candidates {
				return all, to
			}
			to[a.ID] = nil
			for _, k := range least {
				if node := nodes[k].ID; work[k] < work[i]/2 && s.canTake(a, node, policies.Relocate) {
					to[a.ID] = append(to[a.ID], node)
				}
			}
			if len(to[a.ID]) > 0 {
				all = append(all, tasksOf(a, group)...)
			} else {
				p.note(note{key: a.Job, level: hclog.Debug, reason: skipped(a, "no node with less than half as much work per core can take it"), weak: true})
			}
		}
	}
	return all, to
}
