// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// check is what the policy reports of the input.
func (in input) check() error { return errors.Join(in.Validate(), CheckParams(in.Params)) }

func TestPolicy_checks(t *testing.T) {
	must.NoError(t, Example().Validate())

	for _, tc := range []struct {
		name   string
		change func(*input)
		want   string // "" = valid
	}{
		{"id empty", func(in *input) { in.Tasks[1].ID = "" }, `tasks[1].id: must not be empty`},
		{"id repeated", func(in *input) { in.Tasks[2].ID = "vae" }, `tasks[2].id: must be unique, "vae" is the id of tasks[0] too`},
		{"goal", func(in *input) { in.Tasks[0].Goal = "down" }, `tasks[0].goal: must be "min" or "max", got "down"`},
		{"goal missing", func(in *input) { in.Tasks[0].Goal = "" }, `tasks[0].goal: must be "min" or "max", got ""`},
		{"goal missing, no target", func(in *input) {
			in.Tasks[0].Goal, in.Tasks[0].Acceptable, in.Tasks[0].Objective = "", nil, nil
		}, ``},
		{"goal wrong, no target", func(in *input) {
			in.Tasks[0].Goal, in.Tasks[0].Acceptable, in.Tasks[0].Objective = "MIN", nil, nil
		}, `tasks[0].goal: must be "min" or "max", got "MIN"`},
		{"value NaN", func(in *input) { in.Tasks[2].Value = num(math.NaN()) }, `tasks[2].value: must be a finite number, got NaN`},
		{"value Inf", func(in *input) { in.Tasks[2].Value = num(math.Inf(1)) }, `tasks[2].value: must be a finite number, got +Inf`},
		{"value negative", func(in *input) { in.Tasks[2].Value = num(-1) }, ``},
		{"acceptable", func(in *input) { in.Tasks[0].Acceptable = num(math.NaN()) }, `tasks[0].acceptable: must be a finite number, got NaN`},
		{"objective", func(in *input) { in.Tasks[0].Objective = num(math.Inf(-1)) }, `tasks[0].objective: must be a finite number, got -Inf`},
		{"easier loss", func(in *input) { in.Tasks[0].Objective = num(130) },
			`tasks[0].objective: must be ≤ acceptable = 120, because goal is "min": lower values are better; got 130, which is easier`},
		{"easier accuracy", func(in *input) { in.Tasks[4].Acceptable = num(0.95) },
			`tasks[4].objective: must be ≥ acceptable = 0.95, because goal is "max": higher values are better; got 0.93, which is easier`},
		{"equal", func(in *input) { in.Tasks[0].Objective = num(120) }, ``},
		{"state", func(in *input) { in.Tasks[0].State = "CL" }, `tasks[0].state: must be one of "training", "acceptable", "objective", got "CL"`},
		{"state training", func(in *input) { in.Tasks[0].State = policy.InTraining }, ``},
		{"use", func(in *input) { in.Tasks[0].Use = -0.1 }, `tasks[0].use: must be ≥ 0, got -0.1`},
		{"use NaN", func(in *input) { in.Tasks[0].Use = policy.Share(math.NaN()) }, `tasks[0].use: must be ≥ 0, got NaN`},
		{"use Inf", func(in *input) { in.Tasks[0].Use = policy.Share(math.Inf(1)) }, `tasks[0].use: must be ≥ 0, got +Inf`},
		{"use above the pool", func(in *input) { in.Tasks[0].Use = 1.2 }, ``},
		{"limit 0", func(in *input) { in.Tasks[0].Limit = 0 }, ``},
		{"limit too large", func(in *input) { in.Tasks[0].Limit = 1.5 }, `tasks[0].limit: must be > 0 and ≤ 1, or 0 for none yet, got 1.5`},
		{"gone", func(in *input) { in.Gone = -1 }, `gone: must be ≥ 0, got -1`},
		{"gone infinite", func(in *input) { in.Gone = policy.Share(math.Inf(1)) }, `gone: must be ≥ 0, got +Inf`},
		{"full", func(in *input) { in.Params.Full = 0 }, `full: must be > 0 and ≤ 1, got 0`},
		{"full too large", func(in *input) { in.Params.Full = 1.1 }, `full: must be > 0 and ≤ 1, got 1.1`},
		{"full NaN", func(in *input) { in.Params.Full = math.NaN() }, `full: must be > 0 and ≤ 1, got NaN`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input{Example(), DefaultParams()}
			tc.change(&in)
			if tc.want == "" {
				must.NoError(t, in.check())
			} else {
				must.EqError(t, in.check(), tc.want)
			}
		})
	}
}

// The example shows the rules of a full node.
func TestExample(t *testing.T) {
	var rules []string
	for _, d := range Decide(Example(), DefaultParams()).Tasks {
		rules = append(rules, d.Rule)
	}
	must.Eq(t, []string{RuleTraining, RuleHalf, RuleEven, RuleObjective, RuleTraining, RuleUnmeasured}, rules)
}

// The agent's option is the policy's parameter.
func TestPolicy_Configure(t *testing.T) {
	d, err := Policy().Configure(nil)
	must.NoError(t, err)
	must.Eq(t, `{"full":0.9}`, string(d.Params))
	_, err = Policy().Configure(map[string]json.RawMessage{"tradl_full": json.RawMessage("1.1")})
	must.EqError(t, err, "tradl_full: must be > 0 and ≤ 1, got 1.1")
}
