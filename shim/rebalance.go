// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
)

// rebalancer gives idle nodes a converged task (SpeCon, Algorithm 3).
type rebalancer struct {
	*term
	schedule
}

// rebalance runs SpeCon's Algorithm 3 over the jobs that allow it.
func (b *rebalancer) rebalance(c config.Config, nodes map[string]Summary) {
	b.done()
	in, byTask := rebalance.Input{NowS: seconds(time.Now())}, make(map[string]*cluster.Alloc)
	b.eachNodeChunk(func(ids []string) { b.rebalanceInput(c, ids, nodes, &in, byTask) }, func() { b.rebalanceOver(c, in, byTask, maxAttempts) })
}

// rebalanceOver decides, and repeats the decision without a task whose target cannot take it, up to
// attempts times.
func (b *rebalancer) rebalanceOver(c config.Config, in rebalance.Input, byTask map[string]*cluster.Alloc, attempts int) {
	b.fetch(func() func() {
		if err := in.Validate(); err != nil {
			b.log.Error("skipping the decision: invalid input", "error", err)
			return func() {}
		}
		out := rebalance.Decide(in) // slow for a large cluster, so off the loop
		return func() {
			refused := make(map[string]bool)
			for _, m := range out.Moves {
				a := byTask[m.Task]
				if !b.canTake(a, m.To, policies.SpeConRebalance) {
					refused[m.Task] = true
					b.explainSkip(a, fmt.Sprintf("node %s is short of tasks, but cannot take it", b.name(m.To)))
				}
			}
			if len(refused) > 0 && attempts > 1 {
				for i := range in.Nodes {
					for j := range in.Nodes[i].Tasks {
						k := &in.Nodes[i].Tasks[j]
						k.Rebalanced = k.Rebalanced || refused[k.ID]
					}
				}
				b.rebalanceOver(c, in, byTask, attempts-1)
				return
			}
			for _, m := range out.Moves {
				if a := b.state.Allocs[m.Task]; a != nil && !refused[m.Task] {
					b.startMove(c, a, m.To, memory.Entry{Policy: policies.SpeConRebalance, Rule: out.Rule, Why: out.Why})
				}
			}
		}
	})
}

// rebalanceInput adds the given nodes, if schedulable and known, and their movable tasks to in and
// byTask.
func (b *rebalancer) rebalanceInput(c config.Config, ids []string, nodes map[string]Summary, in *rebalance.Input, byTask map[string]*cluster.Alloc) {
	for _, id := range ids {
		node := b.state.Nodes[id]
		summary, ok := nodes[id]
		if node == nil || node.PoolCores == 0 || !node.Schedulable || !ok {
			continue
		}
		n := rebalance.Node{ID: id, Tasks: []rebalance.Task{}}
		allocs := b.state.On(id)
		for _, allocID := range slices.Sorted(maps.Keys(allocs)) {
			a := allocs[allocID]
			if _, ok := b.group(a, policies.SpeConRebalance); !ok {
				continue
			}
			j := b.journal.of(c, a.Job)
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
