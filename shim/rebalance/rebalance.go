// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package rebalance spreads converged tasks by SpeCon's Algorithm 3: Algorithm 2 decides on each once,
// and nodes whose tasks finish stay idle. With the balance factor bf = ⌊Σ|w| / |W|⌋ and d, the time
// since a task was marked as migrated:
//
//	with idle nodes:  each takes the task with the least d
//	otherwise:        each node with |w| < bf − 1 takes the task with the least d
//
// from nodes with tasks to spare, each task at most once. The task with the least d converged last
// and has the most work left.
//
// The paper's text has it run once all tasks are marked, its pseudo-code and its evaluation (Fig. 9:
// 20 s after the last submission) have not. Algorithm 2 is only asked while another task of the node
// learns, so the last ones of a node are never marked. Here tasks that converged or were marked can
// move, and the others count.
package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	// RuleIdle: idle nodes take tasks.
	RuleIdle = "specon.alg3.idle"
	// RuleShort: nodes with too few tasks take some.
	RuleShort = "specon.alg3.short"
	// RuleBalanced: nothing to move.
	RuleBalanced = "specon.alg3.balanced"
)

type Move struct {
	Task string `json:"task"`
	From string `json:"from"` // node ID
	To   string `json:"to"`   // node ID
}

type Output struct {
	// Moves are in any order. A moved task counts as rebalanced.
	Moves []Move `json:"moves"`
	// BalanceFactor is bf, in tasks per node.
	BalanceFactor int `json:"balance_factor"`
	// Rule is stable.
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// Decide runs Algorithm 3 on a valid input, which it does not change, in O(n log n) of tasks and
// nodes.
//
// Sources keep at least bf tasks, and at least one: as published, a node may be emptied for
// another, and moving a lone task to an idle node gains nothing. In the second branch short nodes
// are not sources.
//
// Targets take one task per run; the next run sees the result. In the first branch the pseudo-code
// requires |w| < bf, so with fewer tasks than nodes (bf = 0) two tasks would share a node while
// others are idle: here idle nodes take tasks in that case too.
//
// Ties of d are resolved by task ID; nodes take tasks in the order of their IDs.
func Decide(in Input) Output {
	out := Output{Moves: []Move{}}
	var tasks []candidate
	total := 0
	for i, n := range in.Nodes {
		total += len(n.Tasks)
		for _, t := range n.Tasks {
			if t.MarkedS != nil && !t.Rebalanced {
				tasks = append(tasks, candidate{id: t.ID, node: i, marked: *t.MarkedS})
			}
		}
	}
	if len(in.Nodes) > 0 {
		out.BalanceFactor = total / len(in.Nodes)
	}
	slices.SortFunc(tasks, candidate.compare)

	c := cluster{in: in, tasks: tasks, left: make([]int, len(in.Nodes)), keep: max(1, out.BalanceFactor)}
	var idle, short []int
	for i, n := range in.Nodes {
		c.left[i] = len(n.Tasks)
		switch {
		case len(n.Tasks) == 0:
			idle = append(idle, i)
		case len(n.Tasks) < out.BalanceFactor-1:
			short = append(short, i)
		}
	}
	takers, name := idle, "idle"
	out.Rule = RuleIdle
	if len(idle) == 0 {
		takers, name = short, "short of tasks"
		out.Rule = RuleShort
	}
	out.Moves = c.move(takers)
	if len(out.Moves) == 0 {
		out.Rule = RuleBalanced
		out.Why = fmt.Sprintf("%d tasks on %d nodes, balance factor %d: %s", total, len(in.Nodes), out.BalanceFactor, c.nothing(len(takers), name))
		return out
	}
	out.Why = fmt.Sprintf("%d tasks on %d nodes, balance factor %d: %d nodes are %s; moving the %d tasks that converged last",
		total, len(in.Nodes), out.BalanceFactor, len(takers), name, len(out.Moves))
	return out
}

type candidate struct {
	id     string
	node   int     // index of its node
	marked float64 // time of the mark, in s
}

// compare orders by d, the least first.
func (c candidate) compare(o candidate) int {
	return cmp.Or(cmp.Compare(o.marked, c.marked), strings.Compare(c.id, o.id))
}

// cluster is the state of one run.
type cluster struct {
	in    Input
	tasks []candidate
	left  []int // tasks left per node
	keep  int   // minimum number of tasks a source keeps
}

// move gives each taker one task while there are tasks.
func (c *cluster) move(takers []int) []Move {
	moves := []Move{}
	taking := make(map[int]bool, len(takers))
	for _, i := range takers {
		taking[i] = true
	}
	slices.SortFunc(takers, func(a, b int) int { return strings.Compare(c.in.Nodes[a].ID, c.in.Nodes[b].ID) })
	next := 0
	for _, to := range takers {
		// A source's count only decreases, so a skipped task stays skipped.
		for next < len(c.tasks) && (taking[c.tasks[next].node] || c.left[c.tasks[next].node] <= c.keep) {
			next++
		}
		if next == len(c.tasks) {
			break
		}
		t := c.tasks[next]
		next++
		c.left[t.node]--
		moves = append(moves, Move{Task: t.id, From: c.in.Nodes[t.node].ID, To: c.in.Nodes[to].ID})
	}
	return moves
}

// nothing explains RuleBalanced.
func (c *cluster) nothing(takers int, name string) string {
	if takers == 0 {
		return "no node is idle or short of tasks"
	}
	return fmt.Sprintf("%d nodes are %s, but no other has a task to spare that has converged and has not been moved for balance before", takers, name)
}
