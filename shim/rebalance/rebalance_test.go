// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package rebalance

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// task is marked at that time; negative for not yet.
func task(id string, marked float64) Task {
	if marked < 0 {
		return Task{ID: id}
	}
	return Task{ID: id, MarkedS: &marked}
}

func (t Task) rebalanced() Task {
	t.Rebalanced = true
	return t
}

func node(id string, tasks ...Task) Node { return Node{ID: id, Tasks: tasks} }

// full is a node with that many tasks, marked early and in order.
func full(id string, tasks int) Node {
	n := node(id)
	for i := range tasks {
		n.Tasks = append(n.Tasks, task(fmt.Sprintf("%s-%d", id, i), float64(i)))
	}
	return n
}

func input(nodes ...Node) Input { return Input{NowS: 1000, Nodes: nodes} }

func TestDecide(t *testing.T) {
	for _, tc := range []struct {
		name  string
		in    Input
		moves []Move
		bf    int
		rule  string
	}{
		{"no nodes", input(), []Move{}, 0, RuleBalanced},
		{"no tasks", input(node("a"), node("b")), []Move{}, 0, RuleBalanced},
		{
			"SpeCon, §V-C: of four converged tasks on two nodes, a node's two have ended",
			input(node("w1"), node("w2", task("c3", 10), task("c4", 20))),
			[]Move{{"c4", "w2", "w1"}}, 1, RuleIdle,
		}, {
			"those that learn count, but stay",
			input(node("w1"), node("w2", task("c3", 10), task("c4", -1))),
			[]Move{{"c3", "w2", "w1"}}, 1, RuleIdle,
		}, {
			"all learn",
			input(node("w1"), node("w2", task("c3", -1), task("c4", -1))),
			[]Move{}, 1, RuleBalanced,
		}, {
			"once only",
			input(node("w1"), node("w2", task("c3", 10), task("c4", 20).rebalanced())),
			[]Move{{"c3", "w2", "w1"}}, 1, RuleIdle,
		}, {
			"each idle node takes one: the least d first, by the order of IDs",
			input(node("d"), node("b"), full("a", 4), full("c", 4)), // bf = 2
			[]Move{{"a-3", "a", "b"}, {"c-3", "c", "d"}}, 2, RuleIdle,
		}, {
			"no node is drained below bf",
			input(node("a"), node("b"), node("c", task("x", 1), task("y", 2), task("z", 3)), node("d", task("v", 500), task("w", 600)), full("e", 3)), // 8 on 5: bf = 1
			[]Move{{"w", "d", "a"}, {"z", "c", "b"}}, 1, RuleIdle,
		}, {
			"nor for an idle one: a lone task stays",
			input(node("a"), node("b", task("x", 1)), node("c", task("y", 2))),
			[]Move{}, 0, RuleBalanced,
		}, {
			"fewer tasks than nodes: two on one node do not stay there",
			input(node("a"), node("b", task("x", 1), task("y", 2)), node("c")),
			[]Move{{"y", "b", "a"}}, 0, RuleIdle,
		}, {
			"idle ones first, short ones wait",
			input(node("a"), full("b", 1), full("c", 11)), // bf = 4
			[]Move{{"c-10", "c", "a"}}, 4, RuleIdle,
		}, {
			"without idle nodes: those with less than bf − 1",
			input(full("a", 1), full("b", 3), full("c", 8)), // bf = 4: a has 1 < 3
			[]Move{{"c-7", "c", "a"}}, 4, RuleShort,
		}, {
			"short ones give nothing, those at bf neither",
			input(full("a", 1), full("b", 2), full("c", 5), full("d", 6), full("e", 7)), // 21 on 5: bf = 4
			[]Move{{"e-6", "e", "a"}, {"d-5", "d", "b"}}, 4, RuleShort,
		}, {
			"balanced within one",
			input(full("a", 3), full("b", 4), full("c", 5)),
			[]Move{}, 4, RuleBalanced,
		}, {
			"equal times: by ID",
			input(node("a"), node("b", task("y", 5), task("x", 5), task("z", 5))),
			[]Move{{"x", "b", "a"}}, 1, RuleIdle,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			out := Decide(tc.in)
			must.Eq(t, tc.moves, out.Moves)
			must.Eq(t, tc.bf, out.BalanceFactor)
			must.Eq(t, tc.rule, out.Rule)
		})
	}
}

func TestDecide_why(t *testing.T) {
	for _, tc := range []struct {
		in   Input
		want string
	}{
		{input(node("a"), node("b", task("x", 1), task("y", 2))), "2 tasks on 2 nodes, balance factor 1: 1 nodes are idle; moving the 1 tasks that converged last"},
		{input(full("a", 1), full("b", 7)), "8 tasks on 2 nodes, balance factor 4: 1 nodes are short of tasks; moving the 1 tasks that converged last"},
		{input(full("a", 1), full("b", 1)), "2 tasks on 2 nodes, balance factor 1: no node is idle or short of tasks"},
		{input(node("a"), full("b", 1)), "1 tasks on 2 nodes, balance factor 0: 1 nodes are idle, but no other has a task to spare that has converged and has not been moved for balance before"},
	} {
		must.Eq(t, tc.want, Decide(tc.in).Why)
	}
}

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	for want, in := range map[string]Input{
		"now_s: must be a finite number, got NaN":                                      {NowS: math.NaN()},
		"nodes[0].id: must not be empty":                                               input(node("")),
		"nodes[0].tasks[0].id: must not be empty":                                      input(node("a", task("", 1))),
		`nodes[1].tasks[0].id: must be unique, "x" is the id of nodes[0].tasks[0] too`: input(node("a", task("x", 1)), node("b", task("x", 1))),
		"nodes[0].tasks[0].marked_s: must be ≤ now_s, 1000, got 1001":                  input(node("a", task("x", 1001))),
	} {
		must.EqError(t, in.Validate(), want)
	}
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := input()
		tasks := 0
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			n := node(fmt.Sprintf("node-%d", i))
			for range rapid.IntRange(0, 12).Draw(t, "tasks") {
				x := task(fmt.Sprintf("task-%d", tasks), rapid.SampledFrom([]float64{-1, 0, 1, 2, 500, 1000}).Draw(t, "marked"))
				x.Rebalanced = rapid.Bool().Draw(t, "rebalanced")
				n.Tasks = append(n.Tasks, x)
				tasks++
			}
			in.Nodes = append(in.Nodes, n)
		}
		must.NoError(t, in.Validate())
		out := Decide(in)
		_, err := json.Marshal(out)
		must.NoError(t, err)

		count, home := map[string]int{}, map[string]Node{}
		for _, n := range in.Nodes {
			count[n.ID] = len(n.Tasks)
			for _, x := range n.Tasks {
				home[x.ID] = n
				if x.Rebalanced || x.MarkedS == nil {
					home[x.ID] = Node{}
				}
			}
		}
		had := map[string]int{}
		for id, n := range count {
			had[id] = n
		}
		moved := map[string]bool{}
		for _, m := range out.Moves {
			must.Eq(t, home[m.Task].ID, m.From, must.Sprint("a task that runs there and has not been rebalanced"))
			must.NotEq(t, m.From, m.To)
			must.False(t, moved[m.Task])
			moved[m.Task] = true
			count[m.From]--
			count[m.To]++
		}
		for id, n := range count {
			switch {
			case n < had[id]:
				must.GreaterEq(t, max(1, out.BalanceFactor), n, must.Sprint("no node is drained"))
			case n > had[id]:
				must.Eq(t, had[id]+1, n, must.Sprint("one for each"))
				must.Less(t, max(1, out.BalanceFactor), had[id])
			}
		}

		// Order does not matter.
		slices.Reverse(in.Nodes)
		for _, n := range in.Nodes {
			slices.Reverse(n.Tasks)
		}
		must.Eq(t, out.Moves, Decide(in).Moves)
	})
}

// Repeated runs converge: every node reaches the target count, or every task has moved.
func TestDecide_converges(t *testing.T) {
	in := input(full("a", 40), node("b"), full("c", 3), node("d"), full("e", 1))
	for run := 0; ; run++ {
		must.Less(t, 50, run)
		out := Decide(in)
		if len(out.Moves) == 0 {
			break
		}
		for _, m := range out.Moves {
			for i := range in.Nodes {
				n := &in.Nodes[i]
				n.Tasks = slices.DeleteFunc(n.Tasks, func(x Task) bool { return x.ID == m.Task })
				if n.ID == m.To {
					n.Tasks = append(n.Tasks, task(m.Task, 0).rebalanced())
				}
			}
		}
	}
	for _, n := range in.Nodes { // 44 on 5: bf = 8
		must.GreaterEq(t, 7, len(n.Tasks), must.Sprint(n.ID))
	}
}

// Cost of a decision over a cluster: see docs/evaluation.md.
func BenchmarkDecide(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			in := input()
			for i := range nodes {
				in.Nodes = append(in.Nodes, full(fmt.Sprintf("node-%05d", i), (i*7)%21)) // 10 on average
			}
			for b.Loop() {
				Decide(in)
			}
		})
	}
}
