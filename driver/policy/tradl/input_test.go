// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

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
		{"id repeated", func(in *Input) { in.Tasks[2].ID = "vae" }, `tasks[2].id: must be unique, "vae" is the id of tasks[0] too`},
		{"goal", func(in *Input) { in.Tasks[0].Goal = "down" }, `tasks[0].goal: must be "min" or "max", got "down"`},
		{"goal missing", func(in *Input) { in.Tasks[0].Goal = "" }, `tasks[0].goal: must be "min" or "max", got ""`},
		{"goal missing, no target", func(in *Input) {
			in.Tasks[0].Goal, in.Tasks[0].Acceptable, in.Tasks[0].Objective = "", nil, nil
		}, ``},
		{"goal wrong, no target", func(in *Input) {
			in.Tasks[0].Goal, in.Tasks[0].Acceptable, in.Tasks[0].Objective = "MIN", nil, nil
		}, `tasks[0].goal: must be "min" or "max", got "MIN"`},
		{"value NaN", func(in *Input) { in.Tasks[2].Value = num(math.NaN()) }, `tasks[2].value: must be a finite number, got NaN`},
		{"value Inf", func(in *Input) { in.Tasks[2].Value = num(math.Inf(1)) }, `tasks[2].value: must be a finite number, got +Inf`},
		{"value negative", func(in *Input) { in.Tasks[2].Value = num(-1) }, ``},
		{"acceptable", func(in *Input) { in.Tasks[0].Acceptable = num(math.NaN()) }, `tasks[0].acceptable: must be a finite number, got NaN`},
		{"objective", func(in *Input) { in.Tasks[0].Objective = num(math.Inf(-1)) }, `tasks[0].objective: must be a finite number, got -Inf`},
		{"easier loss", func(in *Input) { in.Tasks[0].Objective = num(130) },
			`tasks[0].objective: must be ≤ acceptable = 120, because goal is "min": lower values are better; got 130, which is easier`},
		{"easier accuracy", func(in *Input) { in.Tasks[4].Acceptable = num(0.95) },
			`tasks[4].objective: must be ≥ acceptable = 0.95, because goal is "max": higher values are better; got 0.93, which is easier`},
		{"equal", func(in *Input) { in.Tasks[0].Objective = num(120) }, ``},
		{"state", func(in *Input) { in.Tasks[0].State = "CL" }, `tasks[0].state: must be one of "training", "acceptable", "objective", got "CL"`},
		{"state training", func(in *Input) { in.Tasks[0].State = StateTraining }, ``},
		{"use", func(in *Input) { in.Tasks[0].Use = -0.1 }, `tasks[0].use: must be ≥ 0, got -0.1`},
		{"use NaN", func(in *Input) { in.Tasks[0].Use = math.NaN() }, `tasks[0].use: must be ≥ 0, got NaN`},
		{"use Inf", func(in *Input) { in.Tasks[0].Use = math.Inf(1) }, `tasks[0].use: must be ≥ 0, got +Inf`},
		{"use above the pool", func(in *Input) { in.Tasks[0].Use = 1.2 }, ``},
		{"limit 0", func(in *Input) { in.Tasks[0].Limit = 0 }, `tasks[0].limit: must be > 0 and ≤ 1, got 0`},
		{"limit too large", func(in *Input) { in.Tasks[0].Limit = 1.5 }, `tasks[0].limit: must be > 0 and ≤ 1, got 1.5`},
		{"gone", func(in *Input) { in.Gone = -1 }, `gone: must be ≥ 0, got -1`},
		{"gone infinite", func(in *Input) { in.Gone = math.Inf(1) }, `gone: must be ≥ 0, got +Inf`},
		{"full", func(in *Input) { in.Params.Full = 0 }, `params.full: must be > 0 and ≤ 1, got 0`},
		{"full too large", func(in *Input) { in.Params.Full = 1.1 }, `params.full: must be > 0 and ≤ 1, got 1.1`},
		{"full NaN", func(in *Input) { in.Params.Full = math.NaN() }, `params.full: must be > 0 and ≤ 1, got NaN`},
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
		in := Input{Tasks: []Task{{
			Goal: "?", Value: num(math.NaN()), Acceptable: num(math.NaN()), Objective: num(math.NaN()), State: "?", Use: -1,
		}}}
		must.Len(t, 9, strings.Split(in.Validate().Error(), "\n"))
	})
}

// The example shows the rules of a full node.
func TestExample(t *testing.T) {
	var rules []string
	for _, d := range Decide(Example()).Tasks {
		rules = append(rules, d.Rule)
	}
	must.Eq(t, []string{RuleTraining, RuleHalf, RuleEven, RuleObjective, RuleTraining, RuleUnmeasured}, rules)
}
