// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/internal/strictjson"
)

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	must.NoError(t, Input{IntervalS: 1, InitialIntervalS: 1, MaxIntervalS: 1, Params: DefaultParams()}.Validate())

	// tasks[0] is a service, tasks[2] trains.
	for _, tc := range []struct {
		name   string
		change func(*Input)
		want   string // "" = valid
	}{
		{"id empty", func(in *Input) { in.Tasks[1].ID = "" }, `tasks[1].id: must not be empty`},
		{"id repeated", func(in *Input) { in.Tasks[2].ID = "resnet-api" }, `tasks[2].id: must be unique, "resnet-api" is the id of tasks[0] too`},
		{"kind", func(in *Input) { in.Tasks[2].Kind = "batch" }, `tasks[2].kind: must be one of "training", "service", got "batch"`},
		{"kind empty", func(in *Input) { in.Tasks[0].Kind = "" }, `tasks[0].kind: must be one of "training", "service", got ""`},
		{"use", func(in *Input) { in.Tasks[0].Use = -0.1 }, `tasks[0].use: must be ≥ 0, got -0.1`},
		{"use NaN", func(in *Input) { in.Tasks[2].Use = math.NaN() }, `tasks[2].use: must be ≥ 0, got NaN`},
		{"use above the pool", func(in *Input) { in.Tasks[2].Use = 1.2 }, ``},
		{"limit too large", func(in *Input) { in.Tasks[0].Limit = 1.5 }, `tasks[0].limit: must be > 0 and ≤ 1, or 0 for none yet, got 1.5`},
		{"limit 0 of a service", func(in *Input) { in.Tasks[0].Limit = 0 }, ``},
		{"limit 0 of a training task", func(in *Input) { in.Tasks[2].Limit = 0 }, ``},
		{"limit negative", func(in *Input) { in.Tasks[2].Limit = -1 }, `tasks[2].limit: must be > 0 and ≤ 1, or 0 for none yet, got -1`},
		{"limit NaN", func(in *Input) { in.Tasks[2].Limit = math.NaN() }, `tasks[2].limit: must be > 0 and ≤ 1, or 0 for none yet, got NaN`},

		{"category", func(in *Input) { in.Tasks[2].Category = "nl" },
			`tasks[2].category: must be one of "NL", "WL", "CL" or "" for a new task, got "nl"`},
		{"growth", func(in *Input) { in.Tasks[2].Growth = num(-1) }, `tasks[2].growth: must be ≥ 0, got -1`},
		{"progress", func(in *Input) { in.Tasks[2].Progress = num(math.Inf(1)) }, `tasks[2].progress: must be ≥ 0, got +Inf`},
		{"value", func(in *Input) { in.Tasks[2].Value = num(math.NaN()) }, `tasks[2].value: must be a finite number, got NaN`},
		{"goal", func(in *Input) { in.Tasks[2].Goal = "down" }, `tasks[2].goal: must be "min" or "max", got "down"`},
		{"targets", func(in *Input) { in.Tasks[2].Objective = num(130) },
			`tasks[2].objective: must be ≤ acceptable = 120, because goal is "min": lower values are better; got 130, which is easier`},
		{"acceptable", func(in *Input) { in.Tasks[2].Acceptable = num(math.Inf(-1)) }, `tasks[2].acceptable: must be a finite number, got -Inf`},
		{"state", func(in *Input) { in.Tasks[2].State = "done" },
			`tasks[2].state: must be one of "training", "acceptable", "objective", got "done"`},
		{"a training task with a response", func(in *Input) { in.Tasks[2].ObjectiveS, in.Tasks[2].ResponseS = 1, num(2) },
			"tasks[2].objective_s: is for services only, got 1 for a training task\n" +
				"tasks[2].response_s: is for services only, got 2 for a training task"},

		{"objective 0", func(in *Input) { in.Tasks[0].ObjectiveS = 0 }, `tasks[0].objective_s: must be > 0, got 0`},
		{"objective Inf", func(in *Input) { in.Tasks[0].ObjectiveS = math.Inf(1) }, `tasks[0].objective_s: must be > 0, got +Inf`},
		{"response", func(in *Input) { in.Tasks[0].ResponseS = num(-1) }, `tasks[0].response_s: must be ≥ 0, got -1`},
		{"a service with growth", func(in *Input) { in.Tasks[0].Growth = num(1) },
			`tasks[0].growth: is for training tasks only, must not be given for a service`},
		{"a service with targets", func(in *Input) {
			in.Tasks[0].Goal, in.Tasks[0].State, in.Tasks[0].Tracked = tradl.GoalMin, tradl.StateTraining, true
		}, "tasks[0].goal: is for training tasks only, must not be given for a service\n" +
			"tasks[0].state: is for training tasks only, must not be given for a service\n" +
			"tasks[0].tracked: is for training tasks only, must not be given for a service"},

		{"services", func(in *Input) { in.Services.QGood, in.Services.Satisfied = -1, -1 },
			"services.q_good: must be ≥ 0, got -1\nservices.satisfied: must be ≥ 0, got -1"},
		{"interval", func(in *Input) { in.IntervalS = 0 }, `interval_s: must be > 0, got 0`},
		{"initial interval", func(in *Input) { in.InitialIntervalS = math.Inf(1) }, `initial_interval_s: must be > 0, got +Inf`},
		{"max interval", func(in *Input) { in.MaxIntervalS = 10 }, `max_interval_s: must be ≥ initial_interval_s = 20, got 10`},
		{"gone", func(in *Input) { in.Gone = -1 }, `gone: must be ≥ 0, got -1`},
		{"event", func(in *Input) { in.Event = "jion" }, `event: must be one of "", "join", "leave", got "jion"`},

		{"alpha", func(in *Input) { in.Params.Flowcon.Alpha = flowcon.FixedAlpha(-1) },
			`params.flowcon.alpha: must be "adaptive" or a number ≥ 0, got -1`},
		{"beta", func(in *Input) { in.Params.Flowcon.Beta = 0.5 }, `params.flowcon.beta: must be ≥ 1, got 0.5`},
		{"full", func(in *Input) { in.Params.Tradl.Full = 1.1 }, `params.tradl.full: must be > 0 and ≤ 1, got 1.1`},
		{"tolerance", func(in *Input) { in.Params.Dqoes.Alpha = 1 }, `params.dqoes.alpha: must be > 0 and < 1, got 1`},
		{"step", func(in *Input) { in.Params.Dqoes.Step = "big" },
			`params.dqoes.step: must be one of "published", "proportional", got "big"`},
		{"what follows from the node", func(in *Input) { in.Params.Dqoes.Tasks, in.Params.Dqoes.Others, in.Params.Dqoes.Extra = 7, 0.3, 0.1 },
			"params.dqoes.n: must be 0: it follows from the node's tasks\n" +
				"params.dqoes.others: must be 0: it follows from the node's tasks\n" +
				"params.dqoes.extra: must be 0: it follows from the node's tasks"},
		{"service share", func(in *Input) { in.Params.ServiceShare = 0 }, `params.service_share: must be > 0 and ≤ 1, got 0`},
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
		in := Input{Tasks: []Task{{Limit: 2, Use: -1}, {Kind: KindService, Limit: 3}}, Event: "?"}
		// id, kind, use, limit; id, objective_s, limit; three intervals, α, β, event; β, full, share.
		must.Len(t, 16, strings.Split(in.Validate().Error(), "\n"))
	})
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
	in := Input{Params: DefaultParams()}
	must.NoError(t, strictjson.Decode("snapshot", []byte(doc), &in))
	want := DefaultParams()
	want.Dqoes.Step = dqoes.StepPublished
	must.Eq(t, want, in.Params)
	must.Eq(t, []Task{
		{ID: "api", Kind: KindService, ObjectiveS: 0.1, Use: 0.2},
		{ID: "vae", Kind: KindTraining, Use: 0.2},
	}, in.Tasks)

	// The example survives the way through JSON.
	data, err := json.Marshal(Example())
	must.NoError(t, err)
	var back Input
	must.NoError(t, strictjson.Decode("snapshot", data, &back))
	must.Eq(t, Example(), back)

	err = strictjson.Decode("snapshot", []byte(strings.Replace(doc, `"kind": "service", `, "", 1)), &in)
	must.ErrorContains(t, err, "tasks[0].kind: is missing")
	must.ErrorContains(t, strictjson.Decode("snapshot", []byte(strings.Replace(doc, "0.1", "-0.1", 1)), &in),
		"tasks[0].objective_s: must be > 0, got -0.1")
}
