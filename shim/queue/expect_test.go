// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// With the sizes that were told and without other jobs, jobs start and end when that was expected.
func TestExpect_comesTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Params: DefaultParams()}
		for n := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			in.Nodes = append(in.Nodes, Node{ID: fmt.Sprint("n", n), Capacity: Resources{"gpu": float64(rapid.IntRange(1, 4).Draw(t, "gpus")), "mem": 10}})
		}
		var order []int
		for i := range rapid.IntRange(1, 15).Draw(t, "jobs") {
			left := rapid.Float64Range(1, 1000).Draw(t, "left") + float64(i)*1e-6 // no two end at once
			j := Job{ID: fmt.Sprint("j", i), RemainingS: &left, Needs: Resources{"gpu": float64(rapid.IntRange(1, 4).Draw(t, "gpu")), "mem": float64(rapid.IntRange(0, 6).Draw(t, "mem"))}}
			if rapid.IntRange(0, 3).Draw(t, "restricted") == 0 {
				j.Feasible = []string{in.Nodes[rapid.IntRange(0, len(in.Nodes)-1).Draw(t, "node")].ID}
			}
			in.Jobs, order = append(in.Jobs, j), append(order, i)
		}
		start, end := newCluster(in).place(order, Rules{}).expect(order)
		begun, over := make(map[int]float64), make(map[int]float64)
		for now := 0.0; ; {
			next := math.Inf(1)
			for i, p := range Place(in, order, Rules{}) {
				if _, done := over[i]; done {
					continue
				}
				if p.Node != "" && in.Jobs[i].Node == "" {
					in.Jobs[i].Node, begun[i] = p.Node, now
				}
				if at, runs := begun[i]; runs {
					next = min(next, at+*in.Jobs[i].RemainingS)
				}
			}
			if math.IsInf(next, 1) {
				break
			}
			for i := range in.Jobs {
				if at, runs := begun[i]; runs && at+*in.Jobs[i].RemainingS == next && in.Jobs[i].Node != "" {
					over[i] = next
					order = slices.DeleteFunc(order, func(o int) bool { return o == i })
					in.Jobs[i].Node = ""
				}
			}
			now = next
		}
		for i := range in.Jobs {
			at, started := begun[i]
			switch {
			case !started:
				must.True(t, math.IsInf(start[i], 1), must.Sprint(i))
			case at > 0:
				must.InDelta(t, at, start[i], 1e-6, must.Sprint(i))
				must.InDelta(t, over[i], end[i], 1e-6, must.Sprint(i))
			default:
				must.True(t, math.IsInf(start[i], 1), must.Sprint("it starts now"))
				must.InDelta(t, over[i], end[i], 1e-6, must.Sprint(i))
			}
		}
	})
}

// What depends on a job of unknown size is unknown; a node that is kept for a job is not given to
// others before it.
func TestExpect(t *testing.T) {
	s := func(x float64) *float64 { return &x }
	in := Input{NowS: 1000, Params: DefaultParams(), Nodes: []Node{{ID: "a", Capacity: Resources{"gpu": 2}}, {ID: "b", Capacity: Resources{"gpu": 1}}}}
	gpus := func(n float64) Resources { return Resources{"gpu": n} }
	in.Jobs = []Job{
		{ID: "short", Node: "a", Needs: gpus(1), RemainingS: s(100), ServedS: 50},
		{ID: "long", Node: "a", Needs: gpus(1), RemainingS: s(300), ServedS: 50},
		{ID: "unknown", Node: "b", Needs: gpus(1), ServedS: 50},
		{ID: "late", Needs: gpus(2), RemainingS: s(10), FairS: 10},
		{ID: "next", Needs: gpus(1), RemainingS: s(500)},
		{ID: "last", Needs: gpus(1), RemainingS: s(5000)},
		{ID: "on b", Needs: gpus(1), RemainingS: s(5), Feasible: []string{"b"}},
		{ID: "held", Needs: gpus(1), RemainingS: s(5), Hold: "by ada"},
		{ID: "large", Needs: gpus(3), RemainingS: s(5)},
	}
	must.NoError(t, in.Validate())
	got := make(map[string]string)
	for _, d := range Decide(in).Jobs {
		text := ""
		for _, at := range []*float64{d.StartS, d.EndS} {
			if at == nil {
				text += " -"
			} else {
				text += fmt.Sprintf(" %.0f", *at)
			}
		}
		got[d.ID] = text
	}
	must.Eq(t, map[string]string{
		"short": " - 1100", "long": " - 1300", "unknown": " - -", "late": " 1300 1310", "next": " 1310 1810", "last": " 1310 6310", "on b": " - -", "held": " - -", "large": " - -",
	}, got)
}
