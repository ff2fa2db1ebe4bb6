// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package rebalance spreads tasks anew once all of them have converged, as SpeCon does
// (Algorithm 3): by then Algorithm 2 moves nothing any more, and nodes whose tasks end
// stay idle. With the balance factor bf = ⌊Σ|w| / |W|⌋ and d, the time since a task was
// marked as migrated:
//
//	there are idle nodes:  each of them takes the task with the least d
//	otherwise:             each node with |w| < bf − 1 takes the task with the least d
//
// from nodes that have enough, each task at most once. The least d is that of the task
// that converged last, and has most to do.
package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The rules that an Output can name.
const (
	// RuleUnmarked: a task has not been marked as migrated yet, so it is too early.
	RuleUnmarked = "specon.alg3.unmarked"
	// RuleIdle: idle nodes take tasks.
	RuleIdle = "specon.alg3.idle"
	// RuleShort: nodes with too few tasks take some.
	RuleShort = "specon.alg3.short"
	// RuleBalanced: there is nothing to move.
	RuleBalanced = "specon.alg3.balanced"
)

// Move is a task that is to move.
type Move struct {
	Task string `json:"task"`
	From string `json:"from"` // ID of the node on which it runs
	To   string `json:"to"`   // ID of the node to which it goes
}

// Output is what Decide decides.
type Output struct {
	// Moves are to be carried out in any order. A task that moves counts as rebalanced
	// from now on.
	Moves []Move `json:"moves"`
	// BalanceFactor is bf, in tasks per node.
	BalanceFactor int `json:"balance_factor"`
	// Rule is the stable name of the rule that fired.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Decide runs Algorithm 3 on a valid input. It does not change the input. The result is
// O(n log n) in tasks and nodes.
//
// Who gives. A node gives while it keeps bf tasks, and one at least: published, a node
// may be drained for another; and to move a lone task from one node to an idle one
// would change nothing. In the second branch givers are the nodes that are not short.
//
// Who takes. One task for each node and run; the next run sees what came of it. In the
// first branch the pseudo-code asks for |w| < bf, so with fewer tasks than nodes, bf = 0,
// two tasks that share one node would stay there beside idle ones: we let idle nodes
// take in that case, too.
//
// Ties of d go by the task's ID, nodes take in the order of their IDs.
func Decide(in Input) Output {
	out := Output{Moves: []Move{}}
	var tasks []candidate
	total := 0
	for i, n := range in.Nodes {
		total += len(n.Tasks)
		for _, t := range n.Tasks {
			if t.MarkedS == nil {
				out.Rule = RuleUnmarked
				out.Why = fmt.Sprintf("%s on %s has not been marked as migrated yet: Algorithm 2 goes on", t.ID, n.ID)
				return out
			}
			if !t.Rebalanced {
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
	out.Why = fmt.Sprintf("%d tasks on %d nodes, balance factor %d: %d nodes are %s, %d tasks that converged last move",
		total, len(in.Nodes), out.BalanceFactor, len(takers), name, len(out.Moves))
	return out
}

// candidate is a task that may move.
type candidate struct {
	id     string
	node   int     // index of the node on which it runs
	marked float64 // when it was marked
}

// compare orders candidates by d, the least first.
func (c candidate) compare(o candidate) int {
	return cmp.Or(cmp.Compare(o.marked, c.marked), strings.Compare(c.id, o.id))
}

// cluster is the state of one run.
type cluster struct {
	in    Input
	tasks []candidate // in the order of d
	left  []int       // how many tasks each node has left
	keep  int         // how many of them it keeps at least
}

// move gives each taker a task, as long as there are some.
func (c *cluster) move(takers []int) []Move {
	moves := []Move{}
	taking := make(map[int]bool, len(takers))
	for _, i := range takers {
		taking[i] = true
	}
	slices.SortFunc(takers, func(a, b int) int { return strings.Compare(c.in.Nodes[a].ID, c.in.Nodes[b].ID) })
	next := 0
	for _, to := range takers {
		// A node that cannot give does not get able to: what is passed over stays so.
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

// nothing says why nothing moves.
func (c *cluster) nothing(takers int, name string) string {
	if takers == 0 {
		return "no node is idle or short of tasks"
	}
	return fmt.Sprintf("%d nodes are %s, but no other has a task to spare that has not been moved for balance before", takers, name)
}
