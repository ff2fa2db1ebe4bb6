// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

func TestPolicy_checks(t *testing.T) {
	must.NoError(t, of().check())

	for _, tc := range []struct {
		name   string
		change func(*input)
		want   string // "" = valid
	}{
		{"state", func(in *input) { in.Snapshot.State = dqoes.State{QGood: -1, Satisfied: -1}.Encode() },
			"state.q_good: must be ≥ 0, got -1\nstate.satisfied: must be ≥ 0, got -1"},
		{"interval", func(in *input) { in.IntervalS = 0 }, `interval_s: must be > 0, got 0`},
		{"initial interval", func(in *input) { in.InitialIntervalS = 0 }, `initial_interval_s: must be > 0, got 0`},
		{"max interval", func(in *input) { in.MaxIntervalS = 10 }, `max_interval_s: must be ≥ initial_interval_s = 20, got 10`},
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
