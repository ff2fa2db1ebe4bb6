// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

func TestPolicy_checks(t *testing.T) {
	must.NoError(t, of().check())

	// tasks[0] is a service, tasks[2] trains.
	for _, tc := range []struct {
		name   string
		change func(*input)
		want   string // "" = valid
	}{
		{"id empty", func(in *input) { in.Tasks[1].ID = "" }, `tasks[1].id: must not be empty`},
		{"id repeated", func(in *input) { in.Tasks[2].ID = "resnet-api" }, `tasks[2].id: must be unique, "resnet-api" is the id of tasks[0] too`},
		{"kind", func(in *input) { in.Tasks[2].Kind = "batch" }, `tasks[2].kind: must be one of "training", "service", got "batch"`},
		{"kind by the objective", func(in *input) { in.Tasks[0].Kind = "" }, ``},
		{"use", func(in *input) { in.Tasks[0].Use = -0.1 }, `tasks[0].use: must be ≥ 0, got -0.1`},
		{"use NaN", func(in *input) { in.Tasks[2].Use = policy.Share(math.NaN()) }, `tasks[2].use: must be ≥ 0, got NaN`},
		{"use above the pool", func(in *input) { in.Tasks[2].Use = 1.2 }, ``},
		{"limit too large", func(in *input) { in.Tasks[0].Limit = 1.5 }, `tasks[0].limit: must be > 0 and ≤ 1, or 0 for none yet, got 1.5`},
		{"limit 0 of a service", func(in *input) { in.Tasks[0].Limit = 0 }, ``},
		{"limit 0 of a training task", func(in *input) { in.Tasks[2].Limit = 0 }, ``},
		{"limit negative", func(in *input) { in.Tasks[2].Limit = -1 }, `tasks[2].limit: must be > 0 and ≤ 1, or 0 for none yet, got -1`},
		{"limit NaN", func(in *input) { in.Tasks[2].Limit = policy.Share(math.NaN()) }, `tasks[2].limit: must be > 0 and ≤ 1, or 0 for none yet, got NaN`},

		{"category", func(in *input) { in.Tasks[2].Category = "nl" },
			`tasks[2].category: must be one of "NL", "WL", "CL" or "" for a new task, got "nl"`},
		{"growth", func(in *input) { in.Tasks[2].Growth = num(-1) }, `tasks[2].growth: must be ≥ 0, got -1`},
		{"progress", func(in *input) { in.Tasks[2].Progress = num(math.Inf(1)) }, `tasks[2].progress: must be ≥ 0, got +Inf`},
		{"value", func(in *input) { in.Tasks[2].Value = num(math.NaN()) }, `tasks[2].value: must be a finite number, got NaN`},
		{"goal", func(in *input) { in.Tasks[2].Goal = "down" }, `tasks[2].goal: must be "min" or "max", got "down"`},
		{"targets", func(in *input) { in.Tasks[2].Objective = num(130) },
			`tasks[2].objective: must be ≤ acceptable = 120, because goal is "min": lower values are better; got 130, which is easier`},
		{"acceptable", func(in *input) { in.Tasks[2].Acceptable = num(math.Inf(-1)) }, `tasks[2].acceptable: must be a finite number, got -Inf`},
		{"state", func(in *input) { in.Tasks[2].State = "done" },
			`tasks[2].state: must be one of "training", "acceptable", "objective", got "done"`},
		{"a training task with an objective_s", func(in *input) { in.Tasks[2].ObjectiveS = num(1) },
			"tasks[2].objective_s: is for services only, got 1 for a training task"},

		{"objective 0", func(in *input) { in.Tasks[0].ObjectiveS = num(0) }, `tasks[0].objective_s: must be > 0, got 0`},
		{"objective Inf", func(in *input) { in.Tasks[0].ObjectiveS = num(math.Inf(1)) }, `tasks[0].objective_s: must be > 0, got +Inf`},
		{"response", func(in *input) { in.Tasks[0].ResponseS = num(-1) }, `tasks[0].response_s: must be ≥ 0, got -1`},
		{"a service with targets", func(in *input) { in.Tasks[0].Goal, in.Tasks[0].Acceptable = policy.GoalMin, num(1) },
			"tasks[0].kind: a service has no acceptable or objective"},

		{"state", func(in *input) { in.Snapshot.State = dqoes.State{QGood: -1, Satisfied: -1}.Encode() },
			"state.q_good: must be ≥ 0, got -1\nstate.satisfied: must be ≥ 0, got -1"},
		{"interval", func(in *input) { in.IntervalS = 0 }, `interval_s: must be > 0, got 0`},
		{"initial interval", func(in *input) { in.InitialIntervalS = 0 }, `initial_interval_s: must be > 0, got 0`},
		{"max interval", func(in *input) { in.MaxIntervalS = 10 }, `max_interval_s: must be ≥ initial_interval_s = 20, got 10`},
		{"gone", func(in *input) { in.Gone = -1 }, `gone: must be ≥ 0, got -1`},
		{"event", func(in *input) { in.Event = "jion" }, `event: must be one of "", "join", "leave", got "jion"`},

		{"alpha", func(in *input) { in.Params.Flowcon.Alpha = flowcon.FixedAlpha(-1) },
			`flowcon.alpha: must be "adaptive" or a number ≥ 0, got -1`},
		{"beta", func(in *input) { in.Params.Flowcon.Beta = 0.5 }, `flowcon.beta: must be ≥ 1, got 0.5`},
		{"full", func(in *input) { in.Params.Tradl.Full = 1.1 }, `tradl.full: must be > 0 and ≤ 1, got 1.1`},
		{"tolerance", func(in *input) { in.Params.Dqoes.Alpha = 1 }, `dqoes.alpha: must be > 0 and < 1, got 1`},
		{"step", func(in *input) { in.Params.Dqoes.Step = "big" },
			`dqoes.step: must be one of "published", "proportional", got "big"`},
		{"service share", func(in *input) { in.Params.ServiceShare = 0 }, `service_share: must be > 0 and ≤ 1, got 0`},
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

// What may be left out of a snapshot.
func TestInput_json(t *testing.T) {
	const doc = `{
	  "tasks": [
	    {"id": "api", "kind": "service", "objective_s": 0.1, "use": 0.2, "limit": 0},
	    {"id": "vae", "kind": "training", "use": 0.2, "limit": 0}
	  ],
	  "interval_s": 20, "initial_interval_s": 20, "max_interval_s": 160, "event": "join",
	  "params": {"dqoes": {"step": "published"}}
	}`
	left, err := Policy().Query.Decide([]byte(doc))
	must.NoError(t, err)
	given, err := Policy().Query.Decide([]byte(strings.Replace(doc, `"use": 0.2`,
		`"category": "", "growth": null, "value": null, "goal": "", "state": "", "entitlement": 1, "use": 0.2`, 2)))
	must.NoError(t, err)
	must.Eq(t, left, given)
	must.StrContains(t, fmt.Sprint(given), "begins with the fair share")

	_, err = Policy().Query.Decide([]byte(strings.Replace(doc, `"kind": "service", `, "", 1)))
	must.EqError(t, err, "tasks[0].kind: is missing")
	_, err = Policy().Query.Decide([]byte(strings.Replace(doc, "0.1", "-0.1", 1)))
	must.EqError(t, err, "tasks[0].objective_s: must be > 0, got -0.1")
}

// The agent's options are the parameters of all three policies.
func TestPolicy_Configure(t *testing.T) {
	d, err := Policy().Configure(nil)
	must.NoError(t, err)
	want, err := json.Marshal(DefaultParams())
	must.NoError(t, err)
	must.Eq(t, string(want), string(d.Params))

	_, err = Policy().Configure(map[string]json.RawMessage{
		"alpha": json.RawMessage(`"x"`), "dqoes_alpha": json.RawMessage("1"), "service_share": json.RawMessage("0"),
	})
	must.EqError(t, err, "alpha: must be \"adaptive\" or a number ≥ 0, got \"x\"\n"+
		"dqoes_alpha: must be > 0 and < 1, got 1\nservice_share: must be > 0 and ≤ 1, got 0")
}
