// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

func TestPolicy_checks(t *testing.T) {
	must.NoError(t, (input{Snapshot: Example(), Params: DefaultParams()}).check())
	must.NoError(t, of().check())

	for _, tc := range []struct {
		name   string
		change func(*input)
		want   string // "" = valid
	}{
		{"id empty", func(in *input) { in.Tasks[1].ID = "" }, `tasks[1].id: must not be empty`},
		{"id repeated", func(in *input) { in.Tasks[2].ID = "vgg" }, `tasks[2].id: must be unique, "vgg" is the id of tasks[0] too`},
		{"objective 0", func(in *input) { in.Tasks[0].ObjectiveS = num(0) }, `tasks[0].objective_s: must be > 0, got 0`},
		{"objective NaN", func(in *input) { in.Tasks[0].ObjectiveS = num(math.NaN()) }, `tasks[0].objective_s: must be > 0, got NaN`},
		{"objective Inf", func(in *input) { in.Tasks[0].ObjectiveS = num(math.Inf(1)) }, `tasks[0].objective_s: must be > 0, got +Inf`},
		{"response", func(in *input) { in.Tasks[0].ResponseS = num(-1) }, `tasks[0].response_s: must be ≥ 0, got -1`},
		{"response NaN", func(in *input) { in.Tasks[0].ResponseS = num(math.NaN()) }, `tasks[0].response_s: must be ≥ 0, got NaN`},
		{"response 0", func(in *input) { in.Tasks[0].ResponseS = num(0) }, ``},
		{"use", func(in *input) { in.Tasks[0].Use = -0.1 }, `tasks[0].use: must be ≥ 0, got -0.1`},
		{"use above the pool", func(in *input) { in.Tasks[0].Use = 1.2 }, ``},
		{"limit 0", func(in *input) { in.Tasks[0].Limit = 0 }, ``},
		{"limit too large", func(in *input) { in.Tasks[0].Limit = 1.5 }, `tasks[0].limit: must be > 0 and ≤ 1, or 0 for none yet, got 1.5`},
		{"q_good", func(in *input) { in.State = State{QGood: -1}.Encode() }, `state.q_good: must be ≥ 0, got -1`},
		{"q_bad", func(in *input) { in.State = State{QBad: 1}.Encode() }, `state.q_bad: must be ≤ 0, got 1`},
		{"satisfied", func(in *input) { in.State = State{Satisfied: -1}.Encode() }, `state.satisfied: must be ≥ 0, got -1`},
		{"trend", func(in *input) { in.State = State{Trend: -1}.Encode() }, `state.trend: must be ≥ 0, got -1`},
		{"state at the start", func(in *input) { in.State = nil }, ``},
		{"state of another kind", func(in *input) { in.State = json.RawMessage(`[]`) }, `state: must be an object, got a list`},
		{"interval", func(in *input) { in.IntervalS = 0 }, `interval_s: must be > 0, got 0`},
		{"initial interval", func(in *input) { in.InitialIntervalS = -1 }, `initial_interval_s: must be ≥ 0, got -1`},
		{"max interval", func(in *input) { in.MaxIntervalS = math.Inf(1) }, `max_interval_s: must be ≥ 0, got +Inf`},
		{"max below initial", func(in *input) { in.MaxIntervalS = 10 }, `max_interval_s: must be ≥ initial_interval_s = 20, got 10`},
		{"alpha", func(in *input) { in.Params.Alpha = 0 }, `alpha: must be > 0 and < 1, got 0`},
		{"alpha 1", func(in *input) { in.Params.Alpha = 1 }, `alpha: must be > 0 and < 1, got 1`},
		{"beta", func(in *input) { in.Params.Beta = 1.1 }, `beta: must be > 0 and ≤ 1, got 1.1`},
		{"beta NaN", func(in *input) { in.Params.Beta = math.NaN() }, `beta: must be > 0 and ≤ 1, got NaN`},
		{"step", func(in *input) { in.Params.Step = "fast" }, `step: must be one of "published", "proportional", got "fast"`},
		{"no step", func(in *input) { in.Params.Step = "" }, `step: must be one of "published", "proportional", got ""`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input{Snapshot: Example(), Params: DefaultParams()}
			tc.change(&in)
			if tc.want == "" {
				must.NoError(t, in.check())
			} else {
				must.EqError(t, in.check(), tc.want)
			}
		})
	}
}

// The example shows the rules of a node with something to take.
func TestExample(t *testing.T) {
	var rules []string
	for _, d := range Decide(Example(), DefaultParams()).Tasks {
		rules = append(rules, d.Rule)
	}
	must.Eq(t, []string{RuleGood, RuleGood, RuleSatisfied, RuleBad, RuleUnmeasured}, rules)
}

// The agent's options are the policy's parameters, and what is refused is what the policy
// does not accept.
func TestPolicy_Configure(t *testing.T) {
	for _, tc := range []struct{ values, want string }{
		{`{}`, `{"alpha":0.1,"beta":0.1,"headroom":true,"step":"proportional"}`},
		{`{"dqoes_step": "published", "dqoes_headroom": false}`, `{"alpha":0.1,"beta":0.1,"headroom":false,"step":"published"}`},
		{`{"dqoes_alpha": 1}`, "dqoes_alpha: must be > 0 and < 1, got 1"},
		{`{"dqoes_beta": 0, "dqoes_step": ""}`, "dqoes_beta: must be > 0 and ≤ 1, got 0\ndqoes_step: must be one of \"published\", \"proportional\", got \"\""},
	} {
		var values map[string]json.RawMessage
		must.NoError(t, json.Unmarshal([]byte(tc.values), &values))
		if d, err := Policy().Configure(values); err != nil {
			must.EqError(t, err, tc.want)
		} else {
			must.Eq(t, tc.want, string(d.Params))
		}
	}
}
