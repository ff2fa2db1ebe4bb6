// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/relocate"
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

// relocator moves tasks to nodes where they finish sooner.
type relocator struct {
	*term
	schedule
}

// relocate moves tasks that would finish much sooner on another node, at most one per four nodes.
func (l *relocator) relocate(c config.Config, nodes map[string]Summary) {
	l.done()
	in := relocate.Input{Params: relocate.DefaultParams()}
	in.Params.Margin = c.Relocation.Margin
	l.eachNodeChunk(func(ids []string) { in.Nodes = append(in.Nodes, l.backlogs(ids, nodes)...) }, func() {
		all, to := l.relocatable(in.Nodes)
		costs := make(map[string]float64)
		for _, r := range all {
			group, _ := l.group(r.alloc, policies.Relocate)
			costs[r.alloc.ID] = l.costOf(r.alloc.Job, group)
		}
		l.fetch(func() func() {
			l.read(all)
			unknown := make(map[*cluster.Alloc]string)
			for group := range tasksByAlloc(all) {
				a := group[0].alloc
				task, why := estimate(group, nodes[a.Node].At)
				if why != "" {
					unknown[a] = why
					continue
				}
				task.To, task.CostS = to[a.ID], costs[a.ID]
				in.Tasks = append(in.Tasks, task)
			}
			if err := in.Validate(); err != nil {
				l.log.Error("skipping the decision: invalid input", "error", err)
				return func() {}
			}
			return func() {
				for a, why := range unknown {
					l.explainStay(a, why)
				}
				l.relocateOne(c, in, 1+len(in.Nodes)/4)
			}
		})
		l.explainOthers(in.Nodes, to)
	})
}

// explainOthers explains the tasks that relocatable has not considered.
func (l *relocator) explainOthers(nodes []relocate.Node, considered map[string][]string) {
	seconds, least := make(map[string]float64, len(nodes)), math.Inf(1)
	for i, work := range relocate.Seconds(nodes) {
		seconds[nodes[i].ID], least = work, min(least, work)
	}
	l.eachNodeChunk(func(ids []string) {
		for _, id := range ids {
			work, ok := seconds[id]
			why := othersFirst
			switch {
			case !ok:
				why = l.noSummary(id)
			case least >= work/2:
				why = "no node has less than half as much work per core as its own"
			}
			for _, a := range l.state.On(id) {
				if _, done := considered[a.ID]; done {
					continue
				}
				if _, ok := l.group(a, policies.Relocate); ok {
					l.explainStay(a, why)
				}
			}
		}
	}, func() {})
}

// relocateOne moves the task that gains most, then the next, up to limit tasks.
func (l *relocator) relocateOne(c config.Config, in relocate.Input, limit int) {
	out := relocate.Decide(in)
	if out.Task == "" {
		l.explainTasks(in.Tasks, "it would not finish sufficiently sooner on another node")
		return
	}
	k := slices.IndexFunc(in.Tasks, func(x relocate.Task) bool { return x.ID == out.Task })
	tasks := 1
	if a := l.state.Allocs[out.Task]; a != nil && l.canTake(a, out.To, policies.Relocate) {
		group, _ := l.group(a, policies.Relocate)
		tasks = len(group.Tasks)
		l.startMove(c, a, out.To, memory.Entry{Policy: policies.Relocate, Rule: out.Rule, Why: strings.ReplaceAll(out.Why, out.Task, a.Job.ID)})
	}
	for i := range in.Nodes {
		switch n := &in.Nodes[i]; n.ID {
		case out.From:
			n.LeftCPUS, n.Known = max(0, n.LeftCPUS-in.Tasks[k].LeftCPUS), max(0, n.Known-tasks)
		case out.To:
			n.LeftCPUS, n.Known = n.LeftCPUS+in.Tasks[k].LeftCPUS, n.Known+tasks
		}
	}
	in.Tasks = slices.Delete(in.Tasks, k, k+1)
	if limit > 1 {
		l.enqueue(func() { l.relocateOne(c, in, limit-1) })
	} else {
		l.explainTasks(in.Tasks, othersFirst)
	}
}

func (l *relocator) explainTasks(tasks []relocate.Task, why string) {
	for _, x := range tasks {
		if a := l.state.Allocs[x.ID]; a != nil {
			l.explainStay(a, why)
		}
	}
}

func (l *relocator) anyMovable() bool {
	for _, a := range l.state.Allocs {
		if _, ok := l.group(a, policies.Relocate); ok {
			return true
		}
	}
	return false
}

// relocatable returns the movable tasks of the busiest nodes and, by considered allocation, the
// nodes that could take it.
func (l *relocator) relocatable(nodes []relocate.Node) (all []reading, to map[string][]string) {
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
		allocs := l.state.On(nodes[i].ID)
		for _, id := range slices.Sorted(maps.Keys(allocs)) {
			a := allocs[id]
			group, ok := l.group(a, policies.Relocate)
			if !ok || len(group.Tasks) == 0 || l.busy[a.Job] {
				continue
			}
			if why := l.blocked(a, ""); why != "" {
				to[id] = nil
				l.skip(hclog.Debug, a, why)
				continue
			}
			if asked++; asked > candidates {
				return all, to
			}
			to[id] = nil
			for _, k := range least {
				if node := nodes[k].ID; work[k] < work[i]/2 && l.canTake(a, node, policies.Relocate) {
					to[id] = append(to[id], node)
				}
			}
			if len(to[id]) > 0 {
				all = append(all, tasksOf(a, group)...)
			} else {
				l.skip(hclog.Debug, a, "no node with less than half as much work per core can take it")
			}
		}
	}
	return all, to
}
