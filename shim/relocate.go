// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

// Bounds of a look, so that it takes no longer in a large cluster: tasks that are asked,
// those of the busiest nodes first, and nodes that may be their targets, those with the
// least to do.
const (
	candidates = 32
	targets    = 64
)

// askEach bounds how often nodes are asked: all of them at a look.
const askEach = 10 * time.Millisecond

// relocate moves tasks that would end much sooner on another node, one for four nodes at
// most.
func (t *term) relocate(ctx context.Context, c config.Config, summaries func() map[string]Summary) {
	every := max(c.Relocation.Interval, time.Duration(len(t.state.Nodes))*askEach)
	if time.Since(t.relocated) < every {
		return
	}
	t.relocated = time.Now()
	if !t.anyMovable() {
		return
	}
	in := relocate.Input{Nodes: t.backlogs(summaries()), Params: relocate.DefaultParams()}
	in.Params.Margin = c.Relocation.Margin
	byTask := t.relocatable(ctx, &in)
	if err := in.Validate(); err != nil {
		t.log.Error("nothing was decided: the input is not valid", "error", err)
		return
	}
	moves, refusals := 1+len(in.Nodes)/4, tries
	for moves > 0 && refusals > 0 {
		out := relocate.Decide(in)
		if out.Task == "" {
			t.log.Debug("no task is relocated", "nodes", len(in.Nodes), "candidates", len(in.Tasks), "why", out.Why)
			return
		}
		k := slices.IndexFunc(in.Tasks, func(x relocate.Task) bool { return x.ID == out.Task })
		a := byTask[out.Task]
		if !t.accepts(ctx, a, out.To) {
			in.Tasks[k].To = slices.DeleteFunc(in.Tasks[k].To, func(id string) bool { return id == out.To })
			refusals--
			continue
		}
		t.begin(ctx, c, a, out.To, memory.Entry{Policy: policies.Relocate, Rule: out.Rule, Why: strings.ReplaceAll(out.Why, out.Task, a.Job.ID)})
		moves--
		for i := range in.Nodes {
			switch n := &in.Nodes[i]; n.ID {
			case out.From:
				n.LeftCPUS, n.Known = max(0, n.LeftCPUS-in.Tasks[k].LeftCPUS), max(0, n.Known-1)
			case out.To:
				n.LeftCPUS, n.Known = n.LeftCPUS+in.Tasks[k].LeftCPUS, n.Known+1
			}
		}
		in.Tasks = slices.Delete(in.Tasks, k, k+1)
	}
}

// anyMovable says whether there is an allocation that may move.
func (t *term) anyMovable() bool {
	for _, a := range t.state.Allocs {
		if _, ok := t.group(a); ok {
			return true
		}
	}
	return false
}

// backlogs are the nodes of which it is known what they have to do. What has been placed
// there since, or is on its way, counts as of unknown size.
func (t *term) backlogs(nodes map[string]Summary) []relocate.Node {
	out := make([]relocate.Node, 0, len(nodes))
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		node, sum := t.state.Nodes[id], nodes[id]
		if node == nil || node.PoolCores == 0 {
			continue
		}
		training := 0
		for _, n := range sum.Counts {
			training += n
		}
		out = append(out, relocate.Node{
			ID: id, PoolCores: node.PoolCores, LeftCPUS: max(0, known(sum.RemainingCPUS)), Known: sum.Sized,
			Unknown: max(0, training-sum.Sized) + max(t.begun(node, sum.At), t.inbound[id]),
		})
	}
	return out
}

// relocatable asks the tasks of the busiest nodes that may move how much they have left,
// and puts those that know it into in.
func (t *term) relocatable(ctx context.Context, in *relocate.Input) map[string]*cluster.Alloc {
	byTask := make(map[string]*cluster.Alloc)
	work := relocate.Seconds(in.Nodes)
	order := make([]int, len(work))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(work[b], work[a]) })
	least := order[max(0, len(order)-targets):]
	asked := 0
	for _, i := range order {
		if len(least) == 0 || work[least[len(least)-1]] >= work[i]/2 {
			return byTask // nor is there a target for the less busy ones
		}
		allocs := t.state.On(in.Nodes[i].ID)
		for _, id := range slices.Sorted(maps.Keys(allocs)) {
			a := allocs[id]
			group, ok := t.group(a)
			if !ok || len(group.Tasks) == 0 || t.gate.Closed(time.Now(), a.Job, a.Node, "") != "" {
				continue
			}
			if asked++; asked > candidates {
				return byTask
			}
			to := []string{}
			for _, k := range least {
				id := in.Nodes[k].ID
				if work[k] < work[i]/2 && t.feasible(t.state.Nodes[id], t.state.Jobs[a.Job], group, a.Uses) {
					to = append(to, id)
				}
			}
			if len(to) == 0 {
				continue
			}
			st, err := t.nomad.Status(ctx, stub(a), group.Tasks[0])
			if err != nil || !st.Fair.RemainingCPUS.Known() {
				continue
			}
			task := relocate.Task{ID: a.ID, Node: a.Node, LeftCPUS: max(0, float64(st.Fair.RemainingCPUS)), CapCores: max(0, known(st.Fair.CapCores)), To: to}
			if !st.Fair.Finish.IsZero() {
				in := max(0, time.Until(st.Fair.Finish).Seconds())
				task.InS = &in
			}
			in.Tasks, byTask[a.ID] = append(in.Tasks, task), a
		}
	}
	return byTask
}
