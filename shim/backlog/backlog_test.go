// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package backlog

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func x(v float64) *float64 { return &v }

func has(id string, cores float64, left ...float64) Node {
	n := Node{ID: id, PoolCores: cores}
	for _, l := range left {
		t := Task{ID: id + "-task", Movable: true}
		if !math.IsNaN(l) {
			t.LeftCPUS = x(l)
		}
		n.Tasks = append(n.Tasks, t)
	}
	return n
}

func TestPlace(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name  string
		nodes []Node
		want  string
	}{
		{"none", nil, ""},
		{"least", []Node{has("a", 4, 100), has("b", 4, 60, 30)}, "b"},
		{"for its cores", []Node{has("a", 2, 100), has("b", 8, 300)}, "b"},
		{"empty: the larger one", []Node{has("a", 2), has("b", 8), has("c", 4)}, "b"},
		{"tie: where fewer share", []Node{has("a", 4, 50, 50), has("b", 4, 100)}, "b"},
		{"tie: by ID", []Node{has("b", 4, 100), has("a", 4, 100)}, "a"},
		{"unknown ones count like the others", []Node{has("a", 4, nan), has("b", 4, 100, 100)}, "a"},
		{"nothing known: tasks", []Node{has("a", 4, nan, nan), has("b", 4, nan)}, "b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := Place(tc.nodes)
			must.Eq(t, tc.want, out.Node)
			must.NotEq(t, "", out.Why)
		})
	}
}

func TestMove(t *testing.T) {
	everywhere := func(string, string) bool { return true }
	busy := has("a", 2, 200, 400)
	busy.Tasks[0].ID, busy.Tasks[1].ID = "short", "long"
	busy.Tasks[0].InS, busy.Tasks[1].InS = x(100), x(300)

	out := Move([]Node{busy, has("b", 2)}, everywhere, DefaultParams())
	must.Eq(t, "long", out.Task)
	must.Eq(t, "b", out.To)
	must.Eq(t, 300-205, out.SavedS)
	must.StrContains(t, out.Why, "in 300 s on a, and in 205 s on b")

	slow := busy // one thread
	slow.Tasks = append([]Task(nil), busy.Tasks...)
	slow.Tasks[1].CapCores = 1
	must.Eq(t, "", Move([]Node{slow, has("b", 2)}, everywhere, DefaultParams()).Task)
	must.Eq(t, "", Move([]Node{busy, has("b", 2, 350)}, everywhere, DefaultParams()).Task) // not half of it
	must.Eq(t, "", Move([]Node{busy, has("b", 2)}, everywhere, Params{CostS: 60, Margin: 0.2}).Task)
	must.Eq(t, "", Move([]Node{busy, has("b", 2)}, func(string, string) bool { return false }, DefaultParams()).Task)
	still := busy
	still.Tasks = []Task{{ID: "unknown", InS: x(300), Movable: true}, {ID: "pinned", LeftCPUS: x(400), InS: x(300)}}
	must.Eq(t, RuleStay, Move([]Node{still, has("b", 2)}, everywhere, DefaultParams()).Rule)
}

// A move saves what it must, on a node with less to do, and the same input gives the same.
func TestMove_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []Node
		ids := []string{"a", "b", "c", "d"}
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			n := has(ids[i], rapid.Float64Range(1, 16).Draw(t, "cores"), rapid.SliceOfN(rapid.Float64Range(0, 1e4), 0, 4).Draw(t, "left")...)
			for k := range n.Tasks {
				n.Tasks[k].ID += ids[k]
			}
			nodes = append(nodes, n)
		}
		everywhere := func(string, string) bool { return true }
		out := Move(nodes, everywhere, DefaultParams())
		must.Eq(t, out, Move(nodes, everywhere, DefaultParams()))
		if out.Task == "" {
			return
		}
		must.GreaterEq(t, 10, out.SavedS)
		seconds := make(map[string]float64)
		for _, n := range nodes {
			seconds[n.ID] = n.seconds(1)
		}
		must.Less(t, seconds[out.From]/2+1e-9, seconds[out.To])
	})
}
