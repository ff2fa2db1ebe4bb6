// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
	"github.com/ebbtide/ebbtide/shim/store"
)

// rebalancing gives idle nodes a converged task (SpeCon, Algorithm 3). It repeats the decision without
// the tasks whose targets cannot take them. Whether a task has converged that Algorithm 2 has not
// decided on is only read once the task could move.
func (s *snapshot) rebalancing() (p plan) {
	p.policy = policies.SpeConRebalance
	in, open := s.rebalanceInput(time.Now())
	for left := candidates; ; {
		if err := in.Validate(); err != nil {
			p.fail("SpeCon's rebalancing", err)
			return p
		}
		out := rebalance.Decide(in)
		refused, unread := make(map[string]bool), []reading(nil)
		for _, m := range out.Moves {
			switch a := s.Alloc(m.Task); {
			case !s.canTake(a, m.To, policies.SpeConRebalance):
				refused[m.Task] = true
				p.explainSkip(a, fmt.Sprintf("node %s is short of tasks, but cannot take it", s.name(m.To)))
			case open[m.Task]:
				group, _ := s.group(a, policies.SpeConRebalance)
				unread = append(unread, tasksOf(a, group)...)
			}
		}
		left -= len(refused) + len(unread)
		if len(refused)+len(unread) == 0 || left < 0 {
			for _, m := range out.Moves {
				if !refused[m.Task] && !open[m.Task] {
					p.move(s, s.Alloc(m.Task), m.To, store.Entry{Policy: policies.SpeConRebalance, Rule: out.Rule, Why: out.Why})
				}
			}
			return p
		}
		s.read(unread)
		converged := make(map[string]*float64)
		for tasks := range tasksByAlloc(unread) {
			delete(open, tasks[0].alloc.ID)
			converged[tasks[0].alloc.ID] = s.converged(tasks, in.NowS)
		}
		for i := range in.Nodes {
			for j := range in.Nodes[i].Tasks {
				k := &in.Nodes[i].Tasks[j]
				k.Rebalanced = k.Rebalanced || refused[k.ID]
				if since, ok := converged[k.ID]; ok {
					k.MarkedS = since
				}
			}
		}
	}
}

// converged returns when the last of an allocation's tasks converged, at the latest now; nil if one
// has not, or cannot be read.
func (s *snapshot) converged(tasks []reading, now float64) *float64 {
	last := math.Inf(-1)
	for _, r := range tasks {
		if r.err != nil || r.status.Alloc != r.alloc.ID || r.status.SpeCon.Category != string(specon.CC) {
			return nil
		}
		last = max(last, seconds(r.status.SpeCon.Since))
	}
	return new(min(last, now))
}

// rebalanceInput are the schedulable nodes with a summary, and their tasks. open are those of which it
// is not known whether they have converged: they count as if just now.
func (s *snapshot) rebalanceInput(now time.Time) (in rebalance.Input, open map[string]bool) {
	in, open = rebalance.Input{NowS: seconds(now)}, make(map[string]bool)
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
			task.MarkedS = new(in.NowS)
			if open[a.ID] = j.Marked.IsZero(); !open[a.ID] {
				task.MarkedS = new(min(seconds(j.Marked), in.NowS))
			}
			n.Tasks = append(n.Tasks, task)
		}
		for i := len(n.Tasks); i < summary.Tasks; i++ { // tasks that cannot move
			n.Tasks = append(n.Tasks, rebalance.Task{ID: fmt.Sprint(node.ID, "/", i), MarkedS: new(in.NowS), Rebalanced: true})
		}
		in.Nodes = append(in.Nodes, n)
	}
	return in, open
}
