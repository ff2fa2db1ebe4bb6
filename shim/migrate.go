// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/migration"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
)

// requesting returns the allocations with undecided move requests.
func (t *term) requesting(c config.Config) (requesting []*cluster.Alloc) {
	if !c.Migration.Enabled {
		return nil
	}
	for _, a := range t.state.Allocs {
		if a.MoveRequested.IsZero() {
			continue
		}
		if _, ok := t.group(a, policies.SpeConMigrate); ok && t.journal.of(c, a.Job).Marked.IsZero() {
			requesting = append(requesting, a)
		}
	}
	return requesting
}

// migrate runs SpeCon's Algorithm 2 for the tasks that request a move, oldest request first.
func (t *term) migrate(c config.Config, asking []*cluster.Alloc, nodes map[string]Summary) {
	slices.SortFunc(asking, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.MoveRequested.Compare(b.MoveRequested), strings.Compare(a.ID, b.ID))
	})
	var all []reading
	for _, a := range asking {
		if _, ok := nodes[a.Node]; !ok {
			t.explainSkip(a, "its node has no summary")
		} else if closed := t.blocked(a, ""); closed != "" {
			t.explainSkip(a, closed)
		} else if len(all) < candidates {
			all = append(all, reading{alloc: a, task: a.Task})
		} else {
			t.explainStay(a, othersFirst)
		}
	}
	if len(all) == 0 {
		return
	}
	t.fetch(func() func() {
		t.read(all)
		return func() {
			for _, r := range all {
				t.enqueue(func() { t.migrateOne(c, r, nodes) })
			}
		}
	})
}

func (t *term) migrateOne(c config.Config, r reading, nodes map[string]Summary) {
	a := t.state.Allocs[r.alloc.ID]
	if a == nil {
		return
	}
	group, ok := t.group(a, policies.SpeConMigrate)
	switch {
	case !ok:
		return
	case r.err != nil:
		t.explainSkip(a, "cannot read its status: "+r.err.Error())
		return
	case !r.status.SpeCon.RequestMove:
		t.explainSkip(a, "its move request was withdrawn: "+r.status.SpeCon.Why)
		return
	}
	in := migration.Input{Task: a.Job.ID, From: a.Node, Params: migration.Params{Weights: c.Migration.Weights}}
	j := t.state.Jobs[a.Job]
	for id, n := range nodes {
		if id != a.Node && (t.isRejected(a.Job, id) || !t.feasible(t.state.Nodes[id], j, group, a.Allocated)) {
			continue
		}
		in.Nodes = append(in.Nodes, migration.Node{
			ID: id, Use: max(0, known(n.Use)),
			Counts: migration.Counts{PC: n.SpeCon["PC"] + n.SpeCon[""], WC: n.SpeCon["WC"], CC: n.SpeCon["CC"]},
		})
	}
	slices.SortFunc(in.Nodes, func(a, b migration.Node) int { return strings.Compare(a.ID, b.ID) })
	if err := in.Validate(); err != nil {
		t.log.Error("skipping the decision: invalid input", "error", err)
		return
	}
	out := migration.Decide(in)
	if !out.Move {
		if unknown := t.unknown(nodes); unknown != "" {
			t.explainSkip(a, "it would stay, but there is no summary of node "+t.name(unknown))
			return // retried on the next pass
		}
		t.journal.mark(c, a.Job, false)
		t.explainSkip(a, "it has converged, but stays: "+t.readable(out.Why))
		return
	}
	t.startMove(c, a, out.To, memory.Entry{Policy: policies.SpeConMigrate, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)}, r)
}

// unknown returns a schedulable node without a summary, "" if there is none.
func (t *term) unknown(nodes map[string]Summary) string {
	for _, id := range slices.Sorted(maps.Keys(t.state.Nodes)) {
		n := t.state.Nodes[id]
		if _, ok := nodes[id]; !ok && n.Schedulable && n.PoolCores > 0 {
			return id
		}
	}
	return ""
}

// rebalance runs SpeCon's Algorithm 3 over the jobs that allow it.
func (t *term) rebalance(c config.Config, nodes map[string]Summary) {
	t.rebalancing.done()
	in, byTask := rebalance.Input{NowS: seconds(time.Now())}, make(map[string]*cluster.Alloc)
	t.eachNodeChunk(func(ids []string) { t.rebalanceInput(c, ids, nodes, &in, byTask) }, func() { t.rebalanceOver(c, in, byTask, maxAttempts) })
}

// rebalanceOver decides, and repeats the decision without a task whose target cannot take it, up to
// attempts times.
func (t *term) rebalanceOver(c config.Config, in rebalance.Input, byTask map[string]*cluster.Alloc, attempts int) {
	t.fetch(func() func() {
		if err := in.Validate(); err != nil {
			t.log.Error("skipping the decision: invalid input", "error", err)
			return func() {}
		}
		out := rebalance.Decide(in) // slow for a large cluster, so off the loop
		return func() {
			refused := make(map[string]bool)
			for _, m := range out.Moves {
				a := byTask[m.Task]
				if !t.canTake(a, m.To, policies.SpeConRebalance) {
					refused[m.Task] = true
					t.explainSkip(a, fmt.Sprintf("node %s is short of tasks, but cannot take it", t.name(m.To)))
				}
			}
			if len(refused) > 0 && attempts > 1 {
				for i := range in.Nodes {
					for j := range in.Nodes[i].Tasks {
						k := &in.Nodes[i].Tasks[j]
						k.Rebalanced = k.Rebalanced || refused[k.ID]
					}
				}
				t.rebalanceOver(c, in, byTask, attempts-1)
				return
			}
			for _, m := range out.Moves {
				if a := t.state.Allocs[m.Task]; a != nil && !refused[m.Task] {
					t.startMove(c, a, m.To, memory.Entry{Policy: policies.SpeConRebalance, Rule: out.Rule, Why: out.Why})
				}
			}
		}
	})
}

// canTake reports whether a node could take the allocation, as far as the shim knows.
func (t *term) canTake(a *cluster.Alloc, node, policy string) bool {
	group, ok := t.group(a, policy)
	return ok && !t.isRejected(a.Job, node) && t.feasible(t.state.Nodes[node], t.state.Jobs[a.Job], group, a.Allocated)
}

// rebalanceInput adds the given nodes, if schedulable and known, and their movable tasks to in and
// byTask.
func (t *term) rebalanceInput(c config.Config, ids []string, nodes map[string]Summary, in *rebalance.Input, byTask map[string]*cluster.Alloc) {
	for _, id := range ids {
		node := t.state.Nodes[id]
		summary, ok := nodes[id]
		if node == nil || node.PoolCores == 0 || !node.Schedulable || !ok {
			continue
		}
		n := rebalance.Node{ID: id, Tasks: []rebalance.Task{}}
		allocs := t.state.On(id)
		for _, allocID := range slices.Sorted(maps.Keys(allocs)) {
			a := allocs[allocID]
			if _, ok := t.group(a, policies.SpeConRebalance); !ok {
				continue
			}
			j := t.journal.of(c, a.Job)
			task := rebalance.Task{ID: allocID, Rebalanced: j.Rebalanced}
			if marked := j.Marked; !marked.IsZero() {
				task.MarkedS = new(min(seconds(marked), in.NowS))
			}
			byTask[allocID] = a
			n.Tasks = append(n.Tasks, task)
		}
		for i := len(n.Tasks); i < summary.Tasks; i++ { // tasks that cannot move
			n.Tasks = append(n.Tasks, rebalance.Task{ID: fmt.Sprint(id, "/", i), MarkedS: new(in.NowS), Rebalanced: true})
		}
		in.Nodes = append(in.Nodes, n)
	}
}
