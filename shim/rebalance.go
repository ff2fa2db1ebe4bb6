// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
	"github.com/ebbtide/ebbtide/shim/store"
)

// rebalancing gives idle nodes a converged task (SpeCon, Algorithm 3). It repeats the decision without
// the tasks whose targets cannot take them.
func (s *snapshot) rebalancing() (p plan) {
	p.policy = policies.SpeConRebalance
	in := s.rebalanceInput(time.Now())
	for attempt := 1; ; attempt++ {
		if err := in.Validate(); err != nil {
			p.fail("SpeCon's rebalancing", err)
			return p
		}
		out := rebalance.Decide(in)
		refused := make(map[string]bool)
		for _, m := range out.Moves {
			if a := s.Alloc(m.Task); !s.canTake(a, m.To, policies.SpeConRebalance) {
				refused[m.Task] = true
				p.explainSkip(a, fmt.Sprintf("node %s is short of tasks, but cannot take it", s.name(m.To)))
			}
		}
		if len(refused) == 0 || attempt == maxAttempts {
			for _, m := range slices.DeleteFunc(out.Moves, func(m rebalance.Move) bool { return refused[m.Task] }) {
				p.move(s, s.Alloc(m.Task), m.To, store.Entry{Policy: policies.SpeConRebalance, Rule: out.Rule, Why: out.Why})
			}
			return p
		}
		for i := range in.Nodes {
			for j := range in.Nodes[i].Tasks {
				k := &in.Nodes[i].Tasks[j]
				k.Rebalanced = k.Rebalanced || refused[k.ID]
			}
		}
	}
}

// rebalanceInput are the schedulable nodes with a summary, and their tasks.
func (s *snapshot) rebalanceInput(now time.Time) rebalance.Input {
	in := rebalance.Input{NowS: seconds(now)}
	for node := range s.Nodes() {
		summary, ok := s.summaries[node.ID]
		if node.PoolCores == 0 || !node.Schedulable || !ok {
			continue
		}
		n := rebalance.Node{ID: node.ID, Tasks: []rebalance.Task{}}
		for a := range s.On(node.ID) {
			if _, ok := s.group(a, policies.SpeConRebalance); !ok {
				continue
			}
			j := s.jobs[a.Job]
			task := rebalance.Task{ID: a.ID, Rebalanced: j.Rebalanced}
			if !j.Marked.IsZero() {
				task.MarkedS = new(min(seconds(j.Marked), in.NowS))
			}
			n.Tasks = append(n.Tasks, task)
		}
		for i := len(n.Tasks); i < summary.Tasks; i++ { // tasks that cannot move
			n.Tasks = append(n.Tasks, rebalance.Task{ID: fmt.Sprint(node.ID, "/", i), MarkedS: new(in.NowS), Rebalanced: true})
		}
		in.Nodes = append(in.Nodes, n)
	}
	return in
}
