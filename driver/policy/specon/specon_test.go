// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package specon

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func num(x float64) *float64 { return &x }

// task has a gain and a previous one; negative is none.
func task(id string, c Category, gain, previous float64) Task {
	t := Task{ID: id, Category: c}
	if gain >= 0 {
		t.Gain = num(gain)
	}
	if previous >= 0 {
		t.PreviousGain = num(previous)
	}
	return t
}

func (t Task) migrated() Task {
	t.Migrated = true
	return t
}

func input(tasks ...Task) Input { return Input{Tasks: tasks, Params: DefaultParams()} }

type shown struct {
	Category Category
	Request  bool
	Rule     string
}

func show(out Output) []shown {
	var all []shown
	for _, d := range out.Tasks {
		all = append(all, shown{d.Category, d.RequestMove, d.Rule})
	}
	return all
}

func TestDecide(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Input
		want []shown
	}{
		{"no tasks", input(), nil},
		{
			"below the threshold and falling: one down",
			input(task("a", PC, 0.008, 0.02), task("b", WC, 0.008, 0.009), task("c", CC, 0.008, 0.009)),
			[]shown{{WC, false, RuleSlowing}, {CC, false, RuleSlowing}, {CC, false, RuleConverged}},
		}, {
			"a new one is in PC",
			input(task("a", New, 0.008, 0.02), task("b", New, -1, -1)),
			[]shown{{WC, false, RuleSlowing}, {PC, false, RuleUnmeasured}},
		}, {
			"below the threshold, not falling: stays",
			input(task("a", PC, 0.008, 0.008), task("b", WC, 0.008, 0.007), task("c", CC, 0.008, 0)),
			[]shown{{PC, false, RuleBouncing}, {WC, false, RuleBouncing}, {CC, false, RuleBouncing}},
		}, {
			"from the threshold on: progressing, whatever it was",
			input(task("a", PC, 0.01, 0.02), task("b", WC, 0.01, 0.02), task("c", CC, 0.5, -1)),
			[]shown{{PC, false, RuleProgressing}, {PC, false, RuleProgressing}, {PC, false, RuleProgressing}},
		}, {
			"nothing to compare with: stays",
			input(task("a", WC, -1, 0.02), task("b", WC, 0.005, -1)),
			[]shown{{WC, false, RuleUnmeasured}, {WC, false, RuleUnmeasured}},
		}, {
			"a converged one requests a move while more than one still learn",
			input(task("a", CC, 0.001, 0.002), task("b", PC, 0.5, 0.5), task("c", WC, 0.009, 0.001)),
			[]shown{{CC, true, RuleRequest}, {PC, false, RuleProgressing}, {WC, false, RuleBouncing}},
		}, {
			"counted after this run: one that converges now no longer learns",
			input(task("a", CC, 0.001, 0.002), task("b", PC, 0.5, 0.5), task("c", WC, 0.001, 0.009)),
			[]shown{{CC, false, RuleConverged}, {PC, false, RuleProgressing}, {CC, false, RuleSlowing}},
		}, {
			"and one that slows down does",
			input(task("a", CC, 0.001, 0.002), task("b", PC, 0.5, 0.5), task("c", PC, 0.001, 0.009)),
			[]shown{{CC, true, RuleRequest}, {PC, false, RuleProgressing}, {WC, false, RuleSlowing}},
		}, {
			"once only",
			input(task("a", CC, 0.001, 0.002).migrated(), task("b", PC, 0.5, 0.5), task("c", PC, 0.5, 0.5)),
			[]shown{{CC, false, RuleConverged}, {PC, false, RuleProgressing}, {PC, false, RuleProgressing}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			must.Eq(t, tc.want, show(Decide(tc.in)))
		})
	}
	in := input(task("a", PC, 0.3, 0.4))
	in.Params.Alpha = 0.5
	must.Eq(t, WC, Decide(in).Tasks[0].Category)
	must.Eq(t, PC, Decide(Input{Tasks: in.Tasks}).Tasks[0].Category, must.Sprint("Params{} has the default"))
}

// One sentence of each kind.
func TestDecide_why(t *testing.T) {
	learn := []Task{task("x", PC, 0.5, 0.5), task("y", PC, 0.5, 0.5)}
	for _, tc := range []struct {
		in   Input
		want string // of the first task
	}{
		{input(task("a", New, -1, -1)), "no gain was measured: stays in PC"},
		{input(task("a", CC, 0.02, 0.01)), "gain 0.02 reaches the threshold 0.01: CC → PC"},
		{input(task("a", PC, 0.002, -1)), "gain 0.002 is below the threshold 0.01, but there is none before it: stays in PC"},
		{input(task("a", WC, 0.002, 0.001)), "gain 0.002 is below the threshold 0.01, but does not fall, it was 0.001: stays in WC"},
		{input(task("a", PC, 0.002, 0.003)), "gain 0.002 is below the threshold 0.01 and falls, it was 0.003: PC → WC"},
		{input(task("a", CC, 0.002, 0.003)), "gain 0.002 is below the threshold 0.01 and falls, it was 0.003: stays in CC; at most one task on this node is still learning (0)"},
		{input(append([]Task{task("a", CC, 0.002, 0.003)}, learn...)...), "gain 0.002 is below the threshold 0.01 and falls, it was 0.003: stays in CC and requests a move: 2 tasks on this node are still learning"},
		{input(append([]Task{task("a", CC, 0.002, 0.003).migrated()}, learn...)...), "gain 0.002 is below the threshold 0.01 and falls, it was 0.003: stays in CC; already moved"},
	} {
		must.Eq(t, tc.want, Decide(tc.in).Tasks[0].Why)
	}
}

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	alpha := input()
	alpha.Params.Alpha = 0
	for want, in := range map[string]Input{
		"tasks[0].id: must not be empty":                                                    input(task("", PC, 1, 1)),
		`tasks[1].id: must be unique, "a" is the id of tasks[0] too`:                        input(task("a", PC, 1, 1), task("a", PC, 1, 1)),
		`tasks[0].category: must be one of "PC", "WC", "CC" or "" for a new task, got "CL"`: input(task("a", "CL", 1, 1)),
		"tasks[0].gain: must be ≥ 0, got -1":                                                input(Task{ID: "a", Gain: num(-1)}),
		"tasks[0].gain: must be ≥ 0, got NaN":                                               input(Task{ID: "a", Gain: num(math.NaN())}),
		"tasks[0].previous_gain: must be ≥ 0, got +Inf":                                     input(Task{ID: "a", PreviousGain: num(math.Inf(1))}),
		"params.alpha: must be > 0, got 0":                                                  alpha,
	} {
		must.EqError(t, in.Validate(), want)
	}
}

func TestDecide_properties(t *testing.T) {
	gains := rapid.OneOf(rapid.Just[*float64](nil), rapid.Map(rapid.OneOf(
		rapid.SampledFrom([]float64{0, 0.01, 1e308}), rapid.Float64Range(0, 0.03),
	), num))
	rapid.Check(t, func(t *rapid.T) {
		in := input()
		in.Tasks = make([]Task, rapid.IntRange(0, 10).Draw(t, "tasks"))
		for i := range in.Tasks {
			in.Tasks[i] = Task{
				ID:       fmt.Sprintf("task-%d", i),
				Category: rapid.SampledFrom([]Category{New, PC, WC, CC}).Draw(t, "category"),
				Gain:     gains.Draw(t, "gain"), PreviousGain: gains.Draw(t, "previous"),
				Migrated: rapid.Bool().Draw(t, "migrated"),
			}
		}
		must.NoError(t, in.Validate())
		out := Decide(in)
		_, err := json.Marshal(out)
		must.NoError(t, err)

		learn := 0
		for _, d := range out.Tasks {
			if d.Category != CC {
				learn++
			}
		}
		rank := map[Category]int{New: 0, PC: 0, WC: 1, CC: 2}
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			must.Eq(t, was.ID, d.ID)
			must.NotEq(t, New, d.Category)
			must.LessEq(t, rank[was.Category]+1, rank[d.Category], must.Sprint("one down at most"))
			must.Eq(t, d.RequestMove, d.Rule == RuleRequest)
			if d.RequestMove {
				must.Eq(t, CC, was.Category)
				must.Eq(t, CC, d.Category)
				must.False(t, was.Migrated)
				must.Greater(t, 1, learn)
			}
		}

		reversed := in
		reversed.Tasks = slices.Clone(in.Tasks)
		slices.Reverse(reversed.Tasks)
		other := show(Decide(reversed))
		slices.Reverse(other)
		must.Eq(t, show(out), other)
	})
}
