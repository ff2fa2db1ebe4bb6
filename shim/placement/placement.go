// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package placement chooses the node on which a new task can learn fastest (FlowCon, TCC 2022,
// §5.5, Algorithm 4):
//
//	nodes whose tasks are all in CL, or empty:  the one with the fewest tasks
//	otherwise:  the lowest  S = (|NL|+1)·D_NL + |WL|·D_WL + |CL|·D_CL
//
// D_X is the sum of growth efficiencies in category X. Where the paper is ambiguous, the choice is
// documented at the rule.
package placement

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
)

const (
	// RuleAllCL: all tasks of the node are in CL, or it is empty.
	RuleAllCL = "flowcon.alg4.all-cl"
	// RuleLeast: the node has the lowest score.
	RuleLeast = "flowcon.alg4.least"
	// RuleNone: no node is feasible.
	RuleNone = "flowcon.alg4.none"
)

type Output struct {
	// Node is the chosen ID, "" if no node is feasible.
	Node string `json:"node"`
	// Scores are S by feasible node ID; lower is better.
	Scores map[string]float64 `json:"scores"`
	// Rule is stable.
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// Load is a node's task counts and growth sums by category.
type Load struct {
	ID         string
	PoolCores  float64 // > 0
	NL, WL, CL Group
	// Pending counts tasks placed on the node that it has not reported yet.
	Pending int
}

// Group summarises the tasks of a category.
type Group struct {
	Tasks    int     // all
	Measured int     // with known growth
	Growth   float64 // D, the sum of their growth
}

func (g *Group) add(t Task) {
	g.Tasks++
	if t.Growth != nil {
		g.Measured++
		g.Growth = math.Min(g.Growth+*t.Growth, math.MaxFloat64) // JSON has no infinity
	}
}

func (n Node) Load() Load {
	l := Load{ID: n.ID, PoolCores: n.PoolCores, Pending: n.Pending}
	for _, t := range n.Tasks {
		switch t.Category {
		case policy.WL:
			l.WL.add(t)
		case policy.CL:
			l.CL.add(t)
		default:
			l.NL.add(t)
		}
	}
	return l
}

// tasks returns the number of tasks, including pending ones.
func (l Load) tasks() int { return l.NL.Tasks + l.WL.Tasks + l.CL.Tasks + l.Pending }

// Decide runs Algorithm 4 on a valid input, which it does not change.
func Decide(in Input) Output {
	feasible := make(map[string]bool, len(in.Feasible))
	for _, id := range in.Feasible {
		feasible[id] = true
	}
	var loads []Load
	for _, n := range in.Nodes {
		if feasible[n.ID] {
			loads = append(loads, n.Load())
		}
	}
	return Choose(loads, in.Params)
}

// Choose runs Algorithm 4 over feasible nodes, in any order.
//
// Pending tasks count in |NL| from their placement on; otherwise tasks seconds apart would all be
// placed on the node that has not reported the first one. If no NL task of a node is measured, each
// counts in D_NL with the mean growth of all nodes' measured NL tasks, or 1: a sum of 0 would make
// the node look empty.
//
// Capacity: in the published algorithm 64 cores count like 2. With Params.CapacityAware S is
// divided by the pool's cores; among nodes with all tasks in CL the one with the fewest tasks per
// core wins, including the new task, so the larger of two empty nodes.
//
// Ties are resolved by the fewest tasks, then by ID, so decisions are reproducible.
func Choose(nodes []Load, params Params) Output {
	out := Output{Scores: make(map[string]float64, len(nodes)), Rule: RuleNone}
	if len(nodes) == 0 {
		out.Why = "no node is feasible: Nomad's placement stands"
		return out
	}
	assumed := assumedGrowth(nodes)
	var done, all best
	for i := range nodes {
		n := &nodes[i]
		c := candidate{load: n, rank: n.score(assumed)}
		if params.CapacityAware {
			c.rank /= n.PoolCores
		}
		c.rank = math.Min(c.rank, math.MaxFloat64)
		out.Scores[n.ID] = c.rank
		all.add(c)
		if crowd, ok := n.Crowd(params); ok {
			c.rank = crowd
			done.add(c)
		}
	}
	if done.of > 0 {
		out.Node, out.Rule = done.load.ID, RuleAllCL
		out.Why = whyDone(done, params)
		return out
	}
	out.Node, out.Rule = all.load.ID, RuleLeast
	out.Why = whyLeast(all, assumed, params)
	return out
}

// Crowd returns the rank of a node whose tasks are all in CL, lower is better; ok is false for
// other nodes.
func (l Load) Crowd(params Params) (float64, bool) {
	if params.CapacityAware {
		return float64(l.CL.Tasks+1) / l.PoolCores, l.tasks() == l.CL.Tasks
	}
	return float64(l.CL.Tasks), l.tasks() == l.CL.Tasks
}

// assumedGrowth returns the growth of an NL task on a node without measured ones.
func assumedGrowth(nodes []Load) float64 {
	var all Group
	for _, n := range nodes {
		all.Measured += n.NL.Measured
		all.Growth = math.Min(all.Growth+n.NL.Growth, math.MaxFloat64)
	}
	if all.Measured == 0 {
		return 1
	}
	return all.Growth / float64(all.Measured)
}

// growing returns |NL| and D_NL with pending tasks.
func (l Load) growing(assumed float64) (tasks int, growth float64) {
	tasks, growth = l.NL.Tasks+l.Pending, l.NL.Growth
	if l.NL.Measured == 0 {
		growth = assumed * float64(tasks)
	}
	return tasks, growth
}

func (l Load) score(assumed float64) float64 {
	tasks, growth := l.growing(assumed)
	return float64(tasks+1)*growth + float64(l.WL.Tasks)*l.WL.Growth + float64(l.CL.Tasks)*l.CL.Growth
}

// candidate is a feasible node; lower ranks are better.
type candidate struct {
	load *Load
	rank float64
}

// best is the best of a number of candidates.
type best struct {
	candidate
	of int
}

func (b *best) add(c candidate) {
	if b.of++; b.of == 1 || c.compare(b.candidate) < 0 {
		b.candidate = c
	}
}

// rounding is the relative difference at which ranks tie: the order of a sum must not matter.
const rounding = 1e-9

func (c candidate) compare(o candidate) int {
	switch {
	case c.rank < o.rank*(1-rounding):
		return -1
	case o.rank < c.rank*(1-rounding):
		return 1
	case c.load.tasks() != o.load.tasks():
		return c.load.tasks() - o.load.tasks()
	}
	return strings.Compare(c.load.ID, o.load.ID)
}

// whyDone explains RuleAllCL.
func whyDone(best best, params Params) string {
	tasks := fmt.Sprintf("all %d tasks of %s are in CL", best.load.CL.Tasks, best.load.ID)
	if best.load.CL.Tasks == 0 {
		tasks = best.load.ID + " is empty"
	}
	if !params.CapacityAware {
		return fmt.Sprintf("%s: fewest tasks among %d such nodes", tasks, best.of)
	}
	return fmt.Sprintf("%s: fewest tasks per core (%.4g cores) among %d such nodes", tasks, best.load.PoolCores, best.of)
}

// whyLeast explains RuleLeast.
func whyLeast(best best, assumed float64, params Params) string {
	l := best.load
	tasks, growth := l.growing(assumed)
	why := fmt.Sprintf("no node has all its tasks in CL; %s has the lowest S of %d: (|NL|+1)·D_NL + |WL|·D_WL + |CL|·D_CL = %d·%.4g + %d·%.4g + %d·%.4g",
		l.ID, best.of, tasks+1, growth, l.WL.Tasks, l.WL.Growth, l.CL.Tasks, l.CL.Growth)
	if params.CapacityAware {
		why += fmt.Sprintf(", for %.4g cores", l.PoolCores)
	}
	return fmt.Sprintf("%s = %.4g", why, best.rank)
}
