// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	must.NoError(t, input().Validate())

	for _, tc := range []struct {
		name   string
		change func(*Input)
		want   string // "" = valid
	}{
		{"id empty", func(in *Input) { in.Tasks[1].ID = "" }, `tasks[1].id: must not be empty`},
		{"id repeated", func(in *Input) { in.Tasks[2].ID = "vgg" }, `tasks[2].id: must be unique, "vgg" is the id of tasks[0] too`},
		{"objective 0", func(in *Input) { in.Tasks[0].ObjectiveS = 0 }, `tasks[0].objective_s: must be > 0, got 0`},
		{"objective NaN", func(in *Input) { in.Tasks[0].ObjectiveS = math.NaN() }, `tasks[0].objective_s: must be > 0, got NaN`},
		{"objective Inf", func(in *Input) { in.Tasks[0].ObjectiveS = math.Inf(1) }, `tasks[0].objective_s: must be > 0, got +Inf`},
		{"response", func(in *Input) { in.Tasks[0].ResponseS = num(-1) }, `tasks[0].response_s: must be ≥ 0, got -1`},
		{"response NaN", func(in *Input) { in.Tasks[0].ResponseS = num(math.NaN()) }, `tasks[0].response_s: must be ≥ 0, got NaN`},
		{"response 0", func(in *Input) { in.Tasks[0].ResponseS = num(0) }, ``},
		{"use", func(in *Input) { in.Tasks[0].Use = -0.1 }, `tasks[0].use: must be ≥ 0, got -0.1`},
		{"use above the pool", func(in *Input) { in.Tasks[0].Use = 1.2 }, ``},
		{"limit 0", func(in *Input) { in.Tasks[0].Limit = 0 }, `tasks[0].limit: must be > 0 and ≤ 1, got 0`},
		{"limit too large", func(in *Input) { in.Tasks[0].Limit = 1.5 }, `tasks[0].limit: must be > 0 and ≤ 1, got 1.5`},
		{"q_good", func(in *Input) { in.State.QGood = -1 }, `state.q_good: must be ≥ 0, got -1`},
		{"q_bad", func(in *Input) { in.State.QBad = 1 }, `state.q_bad: must be ≤ 0, got 1`},
		{"q_bad NaN", func(in *Input) { in.State.QBad = math.NaN() }, `state.q_bad: must be ≤ 0, got NaN`},
		{"q_bad -Inf", func(in *Input) { in.State.QBad = math.Inf(-1) }, `state.q_bad: must be ≤ 0, got -Inf`},
		{"satisfied", func(in *Input) { in.State.Satisfied = -1 }, `state.satisfied: must be ≥ 0, got -1`},
		{"trend", func(in *Input) { in.State.Trend = -1 }, `state.trend: must be ≥ 0, got -1`},
		{"state at the start", func(in *Input) { in.State = State{} }, ``},
		{"interval", func(in *Input) { in.IntervalS = 0 }, `interval_s: must be > 0, got 0`},
		{"initial interval", func(in *Input) { in.InitialIntervalS = -1 }, `initial_interval_s: must be > 0, got -1`},
		{"max interval", func(in *Input) { in.MaxIntervalS = math.Inf(1) }, `max_interval_s: must be > 0, got +Inf`},
		{"max below initial", func(in *Input) { in.MaxIntervalS = 10 }, `max_interval_s: must be ≥ initial_interval_s = 20, got 10`},
		{"alpha", func(in *Input) { in.Params.Alpha = 0 }, `params.alpha: must be > 0 and < 1, got 0`},
		{"alpha 1", func(in *Input) { in.Params.Alpha = 1 }, `params.alpha: must be > 0 and < 1, got 1`},
		{"beta", func(in *Input) { in.Params.Beta = 1.1 }, `params.beta: must be > 0 and ≤ 1, got 1.1`},
		{"beta NaN", func(in *Input) { in.Params.Beta = math.NaN() }, `params.beta: must be > 0 and ≤ 1, got NaN`},
		{"step", func(in *Input) { in.Params.Step = "fast" }, `params.step: must be one of "published", "proportional", got "fast"`},
		{"no step", func(in *Input) { in.Params.Step = "" }, ``},
		{"n", func(in *Input) { in.Params.Tasks = 3 }, `params.n: must be 0 or ≥ the number of tasks, 5, got 3`},
		{"n negative", func(in *Input) { in.Tasks, in.Params.Tasks = nil, -1 }, `params.n: must be 0 or ≥ the number of tasks, 0, got -1`},
		{"n of more", func(in *Input) { in.Params.Tasks = 7 }, ``},
		{"others", func(in *Input) { in.Params.Others = -1 }, `params.others: must be ≥ 0, got -1`},
		{"extra", func(in *Input) { in.Params.Extra = math.Inf(1) }, `params.extra: must be ≥ 0, got +Inf`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Example()
			tc.change(&in)
			if tc.want == "" {
				must.NoError(t, in.Validate())
			} else {
				must.EqError(t, in.Validate(), tc.want)
			}
		})
	}

	t.Run("all at once", func(t *testing.T) {
		in := Input{
			Tasks:  []Task{{ResponseS: num(-1), Use: -1}},
			State:  State{QGood: -1, QBad: 1, Satisfied: -1, Trend: -1},
			Params: Params{Step: "?", Tasks: -1, Others: -1, Extra: -1},
		}
		must.Len(t, 18, strings.Split(in.Validate().Error(), "\n"))
	})
}

// The example shows the rules of a node with something to take.
func TestExample(t *testing.T) {
	var rules []string
	for _, d := range Decide(Example()).Tasks {
		rules = append(rules, d.Rule)
	}
	must.Eq(t, []string{RuleGood, RuleGood, RuleSatisfied, RuleBad, RuleUnmeasured}, rules)
}
