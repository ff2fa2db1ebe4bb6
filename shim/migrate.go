// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
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

// migrate runs SpeCon's Algorithm 2 for the tasks that have asked to be moved, those that
// wait longest first.
func (t *term) migrate(ctx context.Context, c config.Config, summaries func() map[string]Summary) {
	var asking []*cluster.Alloc
	for _, a := range t.state.Allocs {
		if a.Asked.IsZero() {
			continue
		}
		if _, ok := t.group(a); ok && t.remembered(c, a.Job).Marked.IsZero() {
			asking = append(asking, a)
		}
	}
	if len(asking) == 0 {
		return
	}
	slices.SortFunc(asking, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.Asked.Compare(b.Asked), strings.Compare(a.ID, b.ID))
	})
	nodes := summaries()
	for _, a := range asking {
		t.migrateOne(ctx, c, a, nodes)
	}
}

// migrateOne decides about one task.
func (t *term) migrateOne(ctx context.Context, c config.Config, a *cluster.Alloc, nodes map[string]Summary) {
	group, _ := t.group(a)
	if _, ok := nodes[a.Node]; !ok {
		t.say(a, "nothing is known of its node")
		return
	}
	if closed := t.gate.Closed(time.Now(), a.Job, a.Node, ""); closed != "" {
		t.say(a, closed)
		return
	}
	st, err := t.nomad.Status(ctx, stub(a), a.Task)
	switch {
	case err != nil:
		t.say(a, "its status cannot be read: "+err.Error())
		return
	case !st.SpeCon.RequestMove:
		t.say(a, "it does not ask any more: "+st.SpeCon.Why)
		return
	}
	in := migration.Input{Task: a.Job.ID, From: a.Node, Params: migration.Params{Weights: c.Migration.Weights}}
	j := t.state.Jobs[a.Job]
	for id, n := range nodes {
		if id != a.Node && !t.feasible(t.state.Nodes[id], j, group, a.Uses) {
			continue
		}
		in.Nodes = append(in.Nodes, migration.Node{
			ID: id, Use: max(0, known(n.Use)),
			Counts: migration.Counts{PC: n.SpeCon["PC"] + n.SpeCon[""], WC: n.SpeCon["WC"], CC: n.SpeCon["CC"]},
		})
	}
	slices.SortFunc(in.Nodes, func(a, b migration.Node) int { return strings.Compare(a.ID, b.ID) })
	if err := in.Validate(); err != nil {
		t.log.Error("nothing was decided: the input is not valid", "error", err)
		return
	}
	out := migration.Decide(in)
	for range tries {
		if !out.Move || t.accepts(ctx, a, out.To) {
			break
		}
		in.Nodes = slices.DeleteFunc(in.Nodes, func(n migration.Node) bool { return n.ID == out.To })
		out = migration.Decide(in)
	}
	if !out.Move {
		if unknown := t.unknown(nodes); unknown != "" {
			t.say(a, "it would stay, but nothing is known of node "+t.name(unknown))
			return // it is asked again
		}
		t.mark(ctx, c, a.Job, false)
		t.log.Info("a converged task stays", "job", a.Job.ID, "namespace", a.Job.Namespace, "alloc_id", a.ID, "why", t.readable(out.Why))
		return
	}
	t.begin(ctx, c, a, out.To, memory.Entry{Policy: policies.SpeConMigrate, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)})
}

// unknown is a node that takes allocations and of whose tasks nothing is known; "" if
// there is none.
func (t *term) unknown(nodes map[string]Summary) string {
	for _, id := range slices.Sorted(maps.Keys(t.state.Nodes)) {
		n := t.state.Nodes[id]
		if _, ok := nodes[id]; !ok && n.Takes && n.PoolCores > 0 {
			return id
		}
	}
	return ""
}

// rebalance runs SpeCon's Algorithm 3 over the jobs that let themselves be moved.
func (t *term) rebalance(ctx context.Context, c config.Config, summaries func() map[string]Summary) {
	in, byTask := t.spread(c, time.Now(), summaries())
	if err := in.Validate(); err != nil {
		t.log.Error("nothing was decided: the input is not valid", "error", err)
		return
	}
	for left := tries - 1; left >= 0; left-- {
		out := rebalance.Decide(in)
		refused := make(map[string]bool)
		for i, m := range out.Moves {
			a := byTask[m.Task]
			// More do not begin at a time: Nomad is asked about these.
			if !t.takes(a, m.To) || i < c.Limits.InFlight && !t.accepts(ctx, a, m.To) {
				refused[m.Task] = true
				t.say(a, fmt.Sprintf("node %s would be short of tasks, but cannot take it", t.name(m.To)))
			}
		}
		if len(refused) == 0 || left == 0 {
			for _, m := range out.Moves {
				if !refused[m.Task] {
					t.begin(ctx, c, byTask[m.Task], m.To, memory.Entry{Policy: policies.SpeConRebalance, Rule: out.Rule, Why: out.Why})
				}
			}
			return
		}
		// Another task may fit.
		for i := range in.Nodes {
			for j := range in.Nodes[i].Tasks {
				k := &in.Nodes[i].Tasks[j]
				k.Rebalanced = k.Rebalanced || refused[k.ID]
			}
		}
	}
}

// takes says whether a node could take an allocation, as far as that is known here.
func (t *term) takes(a *cluster.Alloc, node string) bool {
	group, _ := t.group(a)
	return t.feasible(t.state.Nodes[node], t.state.Jobs[a.Job], group, a.Uses)
}

// spread is what rebalance decides on: the tasks of all nodes that could take some and have
// said how many they have, and the allocations of those that let themselves be moved.
func (t *term) spread(c config.Config, now time.Time, nodes map[string]Summary) (in rebalance.Input, byTask map[string]*cluster.Alloc) {
	in.NowS = seconds(now)
	byTask = make(map[string]*cluster.Alloc)
	for _, id := range slices.Sorted(maps.Keys(t.state.Nodes)) {
		node := t.state.Nodes[id]
		said, ok := nodes[id]
		if node.PoolCores == 0 || !node.Takes || !ok {
			continue
		}
		n := rebalance.Node{ID: id, Tasks: []rebalance.Task{}}
		allocs := t.state.On(id)
		for _, allocID := range slices.Sorted(maps.Keys(allocs)) {
			a := allocs[allocID]
			if _, ok := t.group(a); !ok {
				continue
			}
			j := t.remembered(c, a.Job)
			task := rebalance.Task{ID: allocID, Rebalanced: j.Rebalanced}
			if marked := j.Marked; !marked.IsZero() {
				task.MarkedS = new(min(seconds(marked), in.NowS))
			}
			byTask[allocID] = a
			n.Tasks = append(n.Tasks, task)
		}
		for i := len(n.Tasks); i < said.Tasks; i++ { // others, which stay
			n.Tasks = append(n.Tasks, rebalance.Task{ID: fmt.Sprint(id, "/", i), MarkedS: new(in.NowS), Rebalanced: true})
		}
		in.Nodes = append(in.Nodes, n)
	}
	return in, byTask
}
