// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package relocate

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func x(v float64) *float64 { return &v }

func TestDecide(t *testing.T) {
	busy := Node{ID: "a", PoolCores: 2, LeftCPUS: 600, Known: 2}
	empty := Node{ID: "b", PoolCores: 2}
	short, long := Task{ID: "short", Node: "a", LeftCPUS: 200, InS: x(100)}, Task{ID: "long", Node: "a", LeftCPUS: 400, InS: x(300)}
	decide := func(p Params, to Node, tasks ...Task) Output {
		in := Input{Nodes: []Node{busy, to}, Tasks: tasks, Params: p}
		must.NoError(t, in.Validate())
		return Decide(in)
	}

	out := decide(DefaultParams(), empty, short, long)
	must.Eq(t, Output{
		Task: "long", From: "a", To: "b", SavedS: 300 - 205, Rule: RuleSooner,
		Why: "long would finish in 300 s on a, or in 205 s on b including the move",
	}, out)

	slow := long
	slow.CapCores = 1
	must.Eq(t, RuleStay, decide(DefaultParams(), empty, short, slow).Rule)
	must.Eq(t, "", decide(DefaultParams(), Node{ID: "b", PoolCores: 2, LeftCPUS: 350, Known: 1}, long).Task, must.Sprint("not half of it"))
	must.Eq(t, "", decide(DefaultParams(), Node{ID: "b", PoolCores: 2, Unknown: 2}, long).Task, must.Sprint("unknown ones count like the others"))
	must.Eq(t, "", decide(Params{CostS: 60, Margin: 0.2}, empty, long).Task)
	nowhere := long
	nowhere.To = []string{"c"}
	must.Eq(t, "", decide(DefaultParams(), empty, nowhere).Task)
	unforeseen := long
	unforeseen.InS = nil
	must.Eq(t, "long", decide(DefaultParams(), empty, unforeseen).Task, must.Sprint("after all else that is left there"))
}

func TestValidate(t *testing.T) {
	must.NoError(t, Example().Validate())
	must.Eq(t, "gru", Decide(Example()).Task)
	in := Input{
		Nodes:  []Node{{ID: "a"}, {ID: "a", PoolCores: 1, LeftCPUS: -1, Known: -1, Unknown: -1}},
		Tasks:  []Task{{ID: "t", Node: "b", LeftCPUS: math.NaN(), InS: x(-1), CapCores: -1}},
		Params: Params{CostS: -1, Margin: 1},
	}
	err := in.Validate()
	for _, field := range []string{
		"nodes[0].pool_cores", "nodes[1].id", "nodes[1].remaining_cpu_s", "nodes[1].known", "nodes[1].unknown",
		"tasks[0].node", "tasks[0].remaining_cpu_s", "tasks[0].finish_in_s", "tasks[0].cap_cores", "params.cost_s", "params.margin",
	} {
		must.ErrorContains(t, err, field)
	}
}

// A move saves enough, its target has less to do, and decisions are reproducible.
func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Params: DefaultParams()}
		ids := []string{"a", "b", "c", "d"}
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			n := Node{ID: ids[i], PoolCores: rapid.Float64Range(1, 16).Draw(t, "cores"), Unknown: rapid.IntRange(0, 2).Draw(t, "unknown")}
			for k, left := range rapid.SliceOfN(rapid.Float64Range(0, 1e4), 0, 4).Draw(t, "left") {
				n.LeftCPUS += left
				n.Known++
				in.Tasks = append(in.Tasks, Task{ID: n.ID + ids[k], Node: n.ID, LeftCPUS: left})
			}
			in.Nodes = append(in.Nodes, n)
		}
		must.NoError(t, in.Validate())
		out := Decide(in)
		must.Eq(t, out, Decide(in))
		if out.Task == "" {
			return
		}
		must.GreaterEq(t, 10, out.SavedS)
		work := map[string]float64{}
		for i, s := range Seconds(in.Nodes) {
			work[in.Nodes[i].ID] = s
		}
		must.Less(t, work[out.From]/2, work[out.To])
	})
}

// Whatever the figures, an input is invalid or its move gains time.
func TestDecide_anyFigures(t *testing.T) {
	figure := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1000), rapid.SampledFrom([]float64{
		math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 1.7e308, 5e-324, -5, 0, MinCores, MaxCores, MaxCPUS, MaxS,
	}))
	count := rapid.OneOf(rapid.Int(), rapid.IntRange(0, MaxTasks))
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Params: DefaultParams()}
		for _, id := range []string{"a", "b", "c"} {
			in.Nodes = append(in.Nodes, Node{
				ID: id, PoolCores: figure.Draw(t, "cores"), LeftCPUS: figure.Draw(t, "left"), Known: count.Draw(t, "known"), Unknown: count.Draw(t, "unknown"),
			})
			task := Task{ID: "task " + id, Node: id, LeftCPUS: figure.Draw(t, "task"), CapCores: figure.Draw(t, "cap"), CostS: figure.Draw(t, "cost")}
			if rapid.Bool().Draw(t, "foreseen") {
				task.InS = x(figure.Draw(t, "in"))
			}
			in.Tasks = append(in.Tasks, task)
		}
		out := Decide(in) // must not gain NaN even if it is invalid
		if out.Task == "" || in.Validate() != nil {
			must.False(t, math.IsNaN(out.SavedS))
			return
		}
		must.Positive(t, out.SavedS)
		must.Less(t, MaxS, out.SavedS)
		for _, s := range Seconds(in.Nodes) {
			must.False(t, math.IsNaN(s) || math.IsInf(s, 0))
		}
	})
}

// The sums of two nodes' figures are infinite, and the task's gain is NaN.
func TestDecide_hugeFigures(t *testing.T) {
	in := Input{
		Nodes:  []Node{{ID: "a", PoolCores: 2, LeftCPUS: 1.7e308, Known: 1}, {ID: "b", PoolCores: 2, LeftCPUS: 1.7e308, Known: 1, Unknown: 1}, {ID: "c", PoolCores: 2, Unknown: 1}},
		Tasks:  []Task{{ID: "t", Node: "a", LeftCPUS: 10, InS: x(5)}},
		Params: DefaultParams(),
	}
	must.ErrorContains(t, in.Validate(), "nodes[0].remaining_cpu_s: must be ≥ 0 and ≤ 1e+12, got 1.7e+308")
	must.Eq(t, "", Decide(in).Task)
}

// The task's own cost precedes the default.
func TestDecide_cost(t *testing.T) {
	in := Example()
	must.Eq(t, "gru", Decide(in).Task)
	in.Tasks[1].CostS = 200
	must.Eq(t, RuleStay, Decide(in).Rule)
	in.Tasks[1].CostS = -1
	must.ErrorContains(t, in.Validate(), "tasks[1].cost_s: must be ≥ 0 and ≤ 1e+12, got -1")
}

func TestPays(t *testing.T) {
	for name, tc := range map[string]struct {
		left, in, capCores float64
		to                 Node
		want               string
	}{
		"it gets more there":        {100, 100, 0, Node{PoolCores: 4, Unknown: 1}, ""},
		"it ends soon":              {5, 6, 0, Node{PoolCores: 4}, "it would finish in 6 s on its node, but in 6 s on the target, including 5 s for the move"},
		"it cannot use what it had": {100, 100, 1, Node{PoolCores: 4}, "it would finish in 100 s on its node, but in 105 s on the target"},
		"others are there":          {100, 100, 0, Node{PoolCores: 4, Known: 2, Unknown: 1}, "in 105 s on the target"},
		"others end soon":           {100, 100, 0, Node{PoolCores: 4, LeftCPUS: 12, Known: 3}, ""},
		"no pool is known":          {100, 1, 0, Node{}, ""},
	} {
		why := Pays(Task{LeftCPUS: tc.left, InS: &tc.in, CapCores: tc.capCores}, tc.to, 5)
		if tc.want == "" {
			must.Eq(t, "", why, must.Sprint(name))
		} else {
			must.StrContains(t, why, tc.want, must.Sprint(name))
		}
	}
	must.Eq(t, "", Pays(Task{LeftCPUS: 100}, Node{PoolCores: 1}, 5), must.Sprint("its end is unknown"))
}
