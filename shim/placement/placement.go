// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package placement chooses the node on which an incoming task can learn fastest, as
// FlowCon does (TCC 2022, §5.5, Algorithm 4):
//
//	a node whose tasks are all in CL, an empty one too:  the one with the fewest tasks
//	otherwise:  the node with the least  S = (|NL|+1)·D_NL + |WL|·D_WL + |CL|·D_CL
//
// D_X is the sum of the growth efficiencies in category X. Where the paper leaves
// something open, the choice is documented beside the rule.
package placement

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// The rules that an Output can name.
const (
	// RuleAllCL: all tasks of the node are in CL, or it has none.
	RuleAllCL = "flowcon.alg4.all-cl"
	// RuleLeast: the node has the least score.
	RuleLeast = "flowcon.alg4.least"
	// RuleNone: no node is feasible.
	RuleNone = "flowcon.alg4.none"
)

// Output is what Decide decides.
type Output struct {
	// Node is the chosen node's ID; "" if no node is feasible.
	Node string `json:"node"`
	// Scores are the S of the feasible nodes, by their ID: less is better.
	Scores map[string]float64 `json:"scores"`
	// Rule is the stable name of the rule that chose the node.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Load is what counts of a node: how many tasks it has in each category, and the sums
// of their growth efficiencies as far as they are known.
type Load struct {
	ID         string
	PoolCores  float64 // > 0
	NL, WL, CL Group
	// Pending counts tasks that were placed there and are not reported yet.
	Pending int
}

// Group is what is known about the tasks of one category.
type Group struct {
	Tasks    int     // all
	Measured int     // those whose growth is known
	Growth   float64 // D, the sum of theirs
}

// add counts a task.
func (g *Group) add(t Task) {
	g.Tasks++
	if t.Growth != nil {
		g.Measured++
		g.Growth = math.Min(g.Growth+*t.Growth, math.MaxFloat64) // JSON has no infinity
	}
}

// Load sums up a node.
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

// tasks is how many tasks the node has, with those that are on their way.
func (l Load) tasks() int { return l.NL.Tasks + l.WL.Tasks + l.CL.Tasks + l.Pending }

// Decide runs Algorithm 4 on a valid input. It does not change the input.
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

// Choose runs Algorithm 4 over the nodes that are feasible, in any order.
//
// Pending. A task that was placed counts in |NL| from that moment on: else two tasks
// that come seconds apart would land on the same node because it has not reported the
// first one yet. If nothing is known about the growth of any of a node's NL tasks, each
// of them, and each pending one, counts in D_NL with the mean growth of the measured NL
// tasks of all feasible nodes, or 1 if there are none: with a sum of 0 the node would
// look empty however many tasks are on their way to it.
//
// Capacity. Published, a node of 64 cores counts like one of 2. With
// Params.CapacityAware S is divided by the pool, in cores; and of the nodes whose tasks
// are all in CL, the one is taken that has the fewest tasks for its pool, the incoming
// one counted, so that of two empty nodes it is the larger one.
//
// Ties go to the node with the fewest tasks, then by ID: a decision can be repeated.
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

// Crowd is what counts of a node whose tasks are all in CL: less is better. It is false if
// they are not.
func (l Load) Crowd(params Params) (float64, bool) {
	if params.CapacityAware {
		return float64(l.CL.Tasks+1) / l.PoolCores, l.tasks() == l.CL.Tasks
	}
	return float64(l.CL.Tasks), l.tasks() == l.CL.Tasks
}

// assumedGrowth is what an NL task counts with about whose like its node knows
// nothing.
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

// growing is |NL| and D_NL with the tasks that are on their way.
func (l Load) growing(assumed float64) (tasks int, growth float64) {
	tasks, growth = l.NL.Tasks+l.Pending, l.NL.Growth
	if l.NL.Measured == 0 {
		growth = assumed * float64(tasks)
	}
	return tasks, growth
}

// score is S of Algorithm 4.
func (l Load) score(assumed float64) float64 {
	tasks, growth := l.growing(assumed)
	return float64(tasks+1)*growth + float64(l.WL.Tasks)*l.WL.Growth + float64(l.CL.Tasks)*l.CL.Growth
}

// candidate is a node that may be chosen; less rank is better.
type candidate struct {
	load *Load
	rank float64
}

// best is the best one of so many candidates.
type best struct {
	candidate
	of int
}

func (b *best) add(c candidate) {
	if b.of++; b.of == 1 || c.compare(b.candidate) < 0 {
		b.candidate = c
	}
}

// rounding is the relative difference of ranks that is none, so that the order of a
// sum decides nothing.
const rounding = 1e-9

// compare orders candidates, the best first.
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

// whyDone explains the choice among nodes whose tasks have all converged.
func whyDone(best best, params Params) string {
	tasks := fmt.Sprintf("all %d tasks of %s are in CL", best.load.CL.Tasks, best.load.ID)
	if best.load.CL.Tasks == 0 {
		tasks = best.load.ID + " is empty"
	}
	if !params.CapacityAware {
		return fmt.Sprintf("%s: fewest tasks of the %d such nodes", tasks, best.of)
	}
	return fmt.Sprintf("%s: fewest tasks for its %.4g cores of the %d such nodes", tasks, best.load.PoolCores, best.of)
}

// whyLeast explains the choice by the score.
func whyLeast(best best, assumed float64, params Params) string {
	l := best.load
	tasks, growth := l.growing(assumed)
	why := fmt.Sprintf("no node has all its tasks in CL; %s has the least S of %d: (|NL|+1)·D_NL + |WL|·D_WL + |CL|·D_CL = %d·%.4g + %d·%.4g + %d·%.4g",
		l.ID, best.of, tasks+1, growth, l.WL.Tasks, l.WL.Growth, l.CL.Tasks, l.CL.Growth)
	if params.CapacityAware {
		why += fmt.Sprintf(", for %.4g cores", l.PoolCores)
	}
	return fmt.Sprintf("%s = %.4g", why, best.rank)
}
