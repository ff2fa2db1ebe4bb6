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

func TestExample(t *testing.T) {
	var rules []string
	for _, d := range Decide(Example(), DefaultParams()).Tasks {
		rules = append(rules, d.Rule)
	}
	must.Eq(t, []string{RuleGood, RuleGood, RuleSatisfied, RuleBad, RuleUnmeasured}, rules)
}

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
