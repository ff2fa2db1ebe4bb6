// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package migration

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func node(id string, pc, wc, cc int, use float64) Node {
	return Node{ID: id, Counts: Counts{PC: pc, WC: wc, CC: cc}, Use: use}
}

func input(from string, nodes ...Node) Input {
	return Input{Task: "c", From: from, Nodes: nodes, Params: DefaultParams()}
}

func TestDecide(t *testing.T) {
	for _, tc := range []struct {
		name   string
		in     Input
		move   bool
		to     string
		scores map[string]float64
		rule   string
	}{
		{
			"SpeCon, §VI-C: Job-14 on Worker-2, scores 63, 88, 92, 72",
			input("w2", node("w1", 31, 0, 1, 1), node("w2", 40, 4, 2, 1), node("w3", 46, 0, 0, 1), node("w4", 30, 6, 3, 1)),
			true, "w1", map[string]float64{"w1": 63, "w2": 88, "w3": 92, "w4": 72}, RuleLeast,
		}, {
			"its own node has the least",
			input("a", node("a", 0, 1, 1, 1), node("b", 2, 0, 0, 0)),
			false, "a", map[string]float64{"a": 2.5, "b": 4}, RuleStay,
		}, {
			"its own node is among those with the least, however little others are used",
			input("a", node("a", 0, 0, 2, 1), node("b", 1, 0, 0, 0)),
			false, "a", map[string]float64{"a": 2, "b": 2}, RuleStay,
		}, {
			"of several the one that is used least",
			input("a", node("a", 0, 0, 3, 1), node("b", 1, 0, 0, 0.5), node("c", 0, 0, 2, 0.25)),
			true, "c", map[string]float64{"a": 3, "b": 2, "c": 2}, RuleUse,
		}, {
			"used alike: by ID",
			input("a", node("c", 1, 0, 0, 0.5), node("b", 1, 0, 0, 0.5), node("a", 0, 0, 3, 1)),
			true, "b", map[string]float64{"a": 3, "b": 2, "c": 2}, RuleUse,
		}, {
			"nowhere to go",
			input("a", node("a", 5, 5, 5, 1)),
			false, "a", map[string]float64{"a": 22.5}, RuleStay,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			out := Decide(tc.in)
			must.Eq(t, tc.move, out.Move)
			must.Eq(t, tc.to, out.To)
			must.Eq(t, tc.scores, out.Scores)
			must.Eq(t, tc.rule, out.Rule)
		})
	}
	// Rounding does not matter: 3·0.1 = 0.30000000000000004.
	in := input("a", node("a", 3, 0, 0, 1), node("b", 1, 0, 0, 1))
	in.Params.Weights = Weights{PC: 0.1}
	in.Nodes[1].Counts = Counts{PC: 3}
	must.False(t, Decide(in).Move)
}

func TestDecide_why(t *testing.T) {
	for _, tc := range []struct {
		in   Input
		want string
	}{
		{input("a", node("a", 1, 0, 0, 1)), "a has the lowest score of 1, 2: c stays"},
		{input("a", node("a", 0, 0, 1, 1), node("b", 1, 0, 0, 1)), "a has the lowest score of 2, 1: c stays"},
		{input("b", node("a", 0, 0, 1, 1), node("b", 1, 0, 0, 1)), "a has the lowest score of 2, 1; b has 2"},
		{input("b", node("a", 0, 0, 1, 0.2), node("c", 0, 0, 1, 0.1), node("b", 1, 0, 0, 1)), "2 nodes have the lowest score, 1, and of them c is used least, 0.1; b has 2"},
	} {
		must.Eq(t, tc.want, Decide(tc.in).Why)
	}
}

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	weighted := func(w Weights) Input {
		in := input("a", node("a", 1, 1, 1, 1))
		in.Params.Weights = w
		return in
	}
	unnamed := input("a", node("a", 1, 1, 1, 1))
	unnamed.Task = ""
	for want, in := range map[string]Input{
		"task: must not be empty":                                      unnamed,
		`from: must be the id of one of nodes, got "x"`:                input("x", node("a", 1, 1, 1, 1)),
		`nodes[1].id: must be unique, "a" is the id of nodes[0] too`:   input("a", node("a", 1, 1, 1, 1), node("a", 1, 1, 1, 1)),
		"nodes[0].counts.WC: must be ≥ 0, got -1":                      input("a", node("a", 1, -1, 1, 1)),
		"nodes[0].use: must be ≥ 0, got NaN":                           input("a", node("a", 1, 1, 1, math.NaN())),
		"params.weights.PC: must be > 0, got 0":                        weighted(Weights{}),
		"params.weights.WC: must be from 0 to that of PC, 1, got 2":    weighted(Weights{PC: 1, WC: 2, CC: 1}),
		"params.weights.CC: must be from 0 to that of WC, 0.5, got -1": weighted(Weights{PC: 1, WC: 0.5, CC: -1}),
	} {
		must.EqError(t, in.Validate(), want)
	}
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := input("node-0")
		count := func() int { return rapid.IntRange(0, 3).Draw(t, "count") }
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			in.Nodes = append(in.Nodes, node(fmt.Sprintf("node-%d", i), count(), count(), count(), rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "use")))
		}
		must.NoError(t, in.Validate())
		out := Decide(in)
		_, err := json.Marshal(out)
		must.NoError(t, err)
		must.Eq(t, out.Move, out.To != in.From)
		must.Eq(t, !out.Move, out.Rule == RuleStay)
		for id, s := range out.Scores {
			must.LessEq(t, s, out.Scores[out.To], must.Sprint(id))
		}
		if out.Move {
			must.Less(t, out.Scores[in.From], out.Scores[out.To])
		}
		slices.Reverse(in.Nodes)
		must.Eq(t, out, Decide(in), must.Sprint("the order of nodes decides nothing"))
	})
}
