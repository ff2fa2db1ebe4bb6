// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package placement

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

func task(c policy.Category, growth float64) Task { return Task{Category: c, Growth: &growth} }

func node(id string, pool float64, tasks ...Task) Node {
	return Node{ID: id, PoolCores: pool, Tasks: tasks}
}

func (n Node) pending(tasks int) Node {
	n.Pending = tasks
	return n
}

// input makes all nodes feasible.
func input(nodes ...Node) Input {
	in := Input{Nodes: nodes}
	for _, n := range nodes {
		in.Feasible = append(in.Feasible, n.ID)
	}
	return in
}

func (in Input) aware() Input {
	in.Params.CapacityAware = true
	return in
}

func TestDecide(t *testing.T) {
	const nl, wl, cl = policy.NL, policy.WL, policy.CL
	for _, tc := range []struct {
		name   string
		in     Input
		node   string
		scores map[string]float64
		rule   string
	}{
		{"no nodes", input(), "", map[string]float64{}, RuleNone},
		{"none feasible", Input{Nodes: []Node{node("a", 1)}}, "", map[string]float64{}, RuleNone},
		{
			"the score, as published",
			input(
				node("a", 2, task(nl, 0.5), task(nl, 0.3), task(wl, 0.1), task(cl, 0.02), task(cl, 0.01)),
				node("b", 8, task(nl, 0.9)),
			),
			"b", map[string]float64{"a": 3*0.8 + 1*0.1 + 2*0.03, "b": 2 * 0.9}, RuleLeast,
		}, {
			"for its pool",
			input(node("a", 2, task(nl, 0.8)), node("b", 8, task(nl, 0.9))).aware(),
			"b", map[string]float64{"a": 2 * 0.8 / 2, "b": 2 * 0.9 / 8}, RuleLeast,
		}, {
			"an empty node has all its tasks in CL",
			input(node("a", 2, task(wl, 0.001)), node("b", 2)),
			"b", map[string]float64{"a": 0.001, "b": 0}, RuleAllCL,
		}, {
			"all in CL: the fewest tasks, not the least growth",
			input(node("a", 2, task(cl, 0.001), task(cl, 0.001)), node("b", 2, task(cl, 0.9)), node("c", 2, task(wl, 0))),
			"b", map[string]float64{"a": 2 * 0.002, "b": 0.9, "c": 0}, RuleAllCL,
		}, {
			"all in CL, as published: a small node counts like a large one",
			input(node("a", 2), node("b", 64, task(cl, 0.1))),
			"a", map[string]float64{"a": 0, "b": 0.1}, RuleAllCL,
		}, {
			"all in CL, for its pool",
			input(node("a", 2), node("b", 64, task(cl, 0.1))).aware(),
			"b", map[string]float64{"a": 0, "b": 0.1 / 64}, RuleAllCL,
		}, {
			"both empty: the larger one",
			input(node("a", 2), node("b", 64)).aware(),
			"b", map[string]float64{"a": 0, "b": 0}, RuleAllCL,
		}, {
			"only the feasible ones",
			Input{Nodes: []Node{node("a", 2), node("b", 2, task(nl, 1))}, Feasible: []string{"b"}},
			"b", map[string]float64{"b": 2}, RuleLeast,
		}, {
			"pending: in NL from the moment of the decision",
			input(node("a", 2, task(nl, 0.5)).pending(2), node("b", 2, task(nl, 0.6))),
			"b", map[string]float64{"a": 4 * 0.5, "b": 2 * 0.6}, RuleLeast,
		}, {
			"pending: an empty node is no longer empty",
			input(node("a", 2).pending(1), node("b", 2, task(cl, 0.5))),
			"b", map[string]float64{"a": 2 * 1, "b": 0.5}, RuleAllCL,
		}, {
			"unknown growth: the mean of what is known elsewhere",
			input(node("a", 2, Task{}, Task{Category: nl}).pending(1), node("b", 2, task(nl, 0.2), task(nl, 0.4), Task{Category: nl})),
			"b", map[string]float64{"a": 4 * 3 * 0.3, "b": 4 * 0.6}, RuleLeast,
		}, {
			"unknown growth in WL and CL counts 0",
			input(node("a", 2, Task{Category: wl}, Task{Category: cl}), node("b", 2, task(wl, 0.1))),
			"a", map[string]float64{"a": 0, "b": 0.1}, RuleLeast,
		}, {
			"a tie: the fewest tasks, whatever the last bit of a sum",
			input(node("a", 2, task(wl, 0.1), task(wl, 0.2)), node("b", 2, task(wl, 0.6))), // 2·(0.1 + 0.2) = 0.6000000000000001
			"b", map[string]float64{"a": 0.6, "b": 0.6}, RuleLeast,
		}, {
			"a tie in all: by ID",
			input(node("c", 2, task(nl, 0.3)), node("b", 2, task(nl, 0.3)), node("d", 2, task(nl, 0.3))),
			"b", map[string]float64{"b": 0.6, "c": 0.6, "d": 0.6}, RuleLeast,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			out := Decide(tc.in)
			must.Eq(t, tc.node, out.Node, must.Sprint(out.Why))
			must.Eq(t, tc.rule, out.Rule)
			must.Eq(t, len(tc.scores), len(out.Scores))
			for id, want := range tc.scores {
				must.InDelta(t, want, out.Scores[id], 1e-12, must.Sprint(id))
			}
		})
	}
}

func TestDecide_why(t *testing.T) {
	for _, tc := range []struct {
		in   Input
		want string
	}{
		{input(), "no node is feasible: Nomad's placement stands"},
		{input(node("a", 2)), "a is empty: fewest tasks among 1 such nodes"},
		{input(node("a", 2, task(policy.CL, 1)), node("b", 2, task(policy.CL, 1), task(policy.CL, 1))).aware(),
			"all 1 tasks of a are in CL: fewest tasks per core (2 cores) among 2 such nodes"},
		{input(node("a", 2, task(policy.NL, 0.5), task(policy.WL, 0.1))).aware(),
			"no node has all its tasks in CL; a has the lowest S of 1: (|NL|+1)·D_NL + |WL|·D_WL + |CL|·D_CL = 2·0.5 + 1·0.1 + 0·0, for 2 cores = 0.55"},
	} {
		must.Eq(t, tc.want, Decide(tc.in).Why)
	}
}

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	for want, in := range map[string]Input{
		"nodes[0].id: must not be empty":                                                            {Nodes: []Node{node("", 1)}},
		`nodes[1].id: must be unique, "a" is the id of nodes[0] too`:                                {Nodes: []Node{node("a", 1), node("a", 1)}},
		"nodes[0].pool_cores: must be > 0, got 0":                                                   {Nodes: []Node{node("a", 0)}},
		"nodes[0].pool_cores: must be > 0, got +Inf":                                                {Nodes: []Node{node("a", math.Inf(1))}},
		"nodes[0].pending: must be ≥ 0, got -1":                                                     {Nodes: []Node{node("a", 1).pending(-1)}},
		`nodes[0].tasks[0].category: must be one of "NL", "WL", "CL" or "" for a new task, got "X"`: {Nodes: []Node{node("a", 1, task("X", 1))}},
		"nodes[0].tasks[1].growth: must be ≥ 0, got -1":                                             {Nodes: []Node{node("a", 1, Task{}, task("NL", -1))}},
		`feasible[0]: must be the id of one of nodes, got "b"`:                                      {Nodes: []Node{node("a", 1)}, Feasible: []string{"b"}},
		`feasible[1]: must be unique, "a" is feasible[0] too`:                                       {Nodes: []Node{node("a", 1)}, Feasible: []string{"a", "a"}},
	} {
		must.EqError(t, in.Validate(), want)
	}
}

func inputs() *rapid.Generator[Input] {
	growths := rapid.OneOf(rapid.Just[*float64](nil), rapid.Map(rapid.OneOf(
		rapid.SampledFrom([]float64{0, 0.1, 1, 1e308, 5e-324}), rapid.Float64Range(0, 1),
	), func(x float64) *float64 { return &x }))
	return rapid.Custom(func(t *rapid.T) Input {
		in := Input{Nodes: make([]Node, rapid.IntRange(0, 8).Draw(t, "nodes")), Feasible: []string{}}
		in.Params.CapacityAware = rapid.Bool().Draw(t, "aware")
		for i := range in.Nodes {
			n := Node{
				ID:        fmt.Sprintf("node-%d", i),
				PoolCores: rapid.SampledFrom([]float64{0.5, 2, 2, 64}).Draw(t, "pool"),
				Pending:   rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "pending"),
				Tasks:     make([]Task, rapid.IntRange(0, 5).Draw(t, "tasks")),
			}
			for j := range n.Tasks {
				n.Tasks[j] = Task{
					Category: rapid.SampledFrom([]policy.Category{policy.New, policy.NL, policy.WL, policy.CL}).Draw(t, "category"),
					Growth:   growths.Draw(t, "growth"),
				}
			}
			in.Nodes[i] = n
			if rapid.Bool().Draw(t, "feasible") {
				in.Feasible = append(in.Feasible, n.ID)
			}
		}
		must.NoError(t, in.Validate())
		return in
	})
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := policytest.Decide(t, Decide, in)

		// Order does not matter.
		slices.Reverse(in.Feasible)
		slices.Reverse(in.Nodes)
		for _, n := range in.Nodes {
			slices.Reverse(n.Tasks)
		}
		other := Decide(in)
		must.Eq(t, out.Node, other.Node)
		must.Eq(t, out.Rule, other.Rule)

		must.Eq(t, len(in.Feasible), len(out.Scores))
		if len(in.Feasible) == 0 {
			must.Eq(t, "", out.Node)
			return
		}
		must.SliceContains(t, in.Feasible, out.Node)
		chosen := out.Scores[out.Node]
		var idle bool
		for _, n := range in.Nodes {
			l := n.Load()
			if !slices.Contains(in.Feasible, n.ID) {
				continue
			}
			idle = idle || l.tasks() == l.CL.Tasks
			if out.Rule == RuleLeast {
				must.LessEq(t, out.Scores[n.ID]*(1+1e-8), chosen)
			}
		}
		must.Eq(t, idle, out.Rule == RuleAllCL)
	})
}

// FlowCon, TCC 2022, §6.4: Job-5 comes 13 s after Job-4, before the next report. A pending task makes
// its node no better for the next one.
func TestDecide_pendingCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		first := Decide(in)
		for i := range in.Nodes {
			if in.Nodes[i].ID == first.Node {
				in.Nodes[i].Pending++
			}
		}
		second := Decide(in)
		must.GreaterEq(t, first.Scores[first.Node]*(1-1e-9), second.Scores[first.Node])
	})
}

// A burst of a hundred tasks spreads over equal empty nodes.
func TestDecide_burst(t *testing.T) {
	in := input().aware()
	for i := range 20 {
		n := node(fmt.Sprintf("node-%02d", i), 4)
		in.Nodes, in.Feasible = append(in.Nodes, n), append(in.Feasible, n.ID)
	}
	for range 100 {
		chosen := Decide(in).Node
		for i := range in.Nodes {
			if in.Nodes[i].ID == chosen {
				in.Nodes[i].Pending++
			}
		}
	}
	for _, n := range in.Nodes {
		must.Eq(t, 5, n.Pending, must.Sprint(n.ID))
	}
}

// Cost of a decision over 10,000 nodes: see docs/evaluation.md.
func BenchmarkChoose(b *testing.B) {
	for _, count := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			loads := make([]Load, count)
			for i := range loads {
				loads[i] = Load{
					ID: fmt.Sprintf("node-%05d", i), PoolCores: 16,
					NL: Group{Tasks: 3, Measured: 3, Growth: 1 + float64(i%97)/97}, WL: Group{Tasks: 2, Measured: 2, Growth: 0.1}, CL: Group{Tasks: 5, Measured: 5, Growth: 0.05},
				}
			}
			for b.Loop() {
				Choose(loads, DefaultParams())
			}
		})
	}
}
