// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// Snapshots of the reference documentation, without optional fields.
const (
	tradlSnapshot = `{
  "tasks": [
    {"id": "vae", "goal": "min", "value": 131.5, "acceptable": 120, "objective": 110, "use": 0.3, "limit": 1},
    {"id": "mnist", "goal": "min", "value": 0.28, "acceptable": 0.3, "objective": 0.25, "use": 0.3, "limit": 1},
    {"id": "gru", "goal": "min", "value": 0.0091, "acceptable": 0.01, "objective": null, "use": 0.15, "limit": 0.1},
    {"id": "rnn", "goal": "max", "value": 0.94, "acceptable": null, "objective": 0.93, "use": 0.2, "limit": 1},
    {"id": "lstm", "goal": "min", "value": null, "acceptable": 0.02, "objective": 0.015, "use": 0.05, "limit": 1}
  ]
}`
	dqoesSnapshot = `{
  "tasks": [
    {"id": "vgg", "objective_s": 75, "response_s": 31.6, "use": 0.2, "limit": 0.2},
    {"id": "nasnet", "objective_s": 53, "response_s": 51, "use": 0.2, "limit": 0.2},
    {"id": "resnet", "objective_s": 5, "response_s": 15.8, "use": 0.4, "limit": 0.4},
    {"id": "xception", "objective_s": 25, "response_s": null, "use": 0, "limit": 1}
  ],
  "state": {"q_good": 44, "q_bad": -11, "satisfied": 1, "trend": 2},
  "interval_s": 20, "initial_interval_s": 20, "max_interval_s": 160
}`
)

func TestDecide_targets(t *testing.T) {
	decidesAs(t, "tradl", tradlSnapshot)
	decidesAs(t, "dqoes", dqoesSnapshot)
}

// decidesAs compares a decision with the policy's golden file.
func decidesAs(t *testing.T, policy, snapshot string) {
	t.Helper()
	t.Run(policy, func(t *testing.T) {
		status, stdout, stderr := ebbtide(snapshot, "decide", "--policy", policy)
		must.Eq(t, "", stderr)
		must.Eq(t, exitOK, status)
		want, err := os.ReadFile("testdata/" + policy + ".json")
		must.NoError(t, err)
		must.Eq(t, string(want), stdout)
	})
}

func TestDecide_targetParams(t *testing.T) {
	change := func(doc, old, new string) string {
		must.StrContains(t, doc, old)
		return strings.Replace(doc, old, new, 1)
	}
	run := func(policy, doc string) string {
		status, stdout, stderr := ebbtide(doc, "decide", "--policy", policy)
		must.Eq(t, "", stderr)
		must.Eq(t, exitOK, status)
		return stdout
	}
	tradl, dqoes := run("tradl", tradlSnapshot), run("dqoes", dqoesSnapshot)
	must.Eq(t, tradl, run("tradl", change(tradlSnapshot, "{\n", `{"params": {}, `)))
	must.Eq(t, tradl, run("tradl", change(tradlSnapshot, "{\n", `{"params": {"full": 0.9}, `)))
	must.Eq(t, tradl, run("tradl", change(tradlSnapshot, `"goal"`, `"state": "training", "tracked": false, "goal"`)))
	must.StrContains(t, run("tradl", change(tradlSnapshot, `"use": 0.3`, `"use": 0.1`)), `"tradl.not-full"`)
	must.Eq(t, dqoes, run("dqoes", change(dqoesSnapshot, "{\n", `{"params": {}, `)))
	must.Eq(t, dqoes, run("dqoes", change(dqoesSnapshot, "{\n", `{"params": {"alpha": 0.1, "beta": 0.1, "headroom": true, "step": "published"}, `)))
	limit := func(stdout string) float64 {
		var out struct{ Tasks []struct{ Limit float64 } }
		must.NoError(t, json.Unmarshal([]byte(stdout), &out))
		return out.Tasks[2].Limit
	}
	// R_G is 0.2, and 0.2 is idle.
	must.InDelta(t, 0.4*1.04, limit(dqoes), 1e-12)
	must.InDelta(t, 0.4*1.02, limit(run("dqoes", change(dqoesSnapshot, "{\n", `{"params": {"headroom": false}, `))), 1e-12)
	must.InDelta(t, 0.4*1.2, limit(run("dqoes", change(dqoesSnapshot, "{\n", `{"params": {"beta": 0.5}, `))), 1e-12)
}

func TestDecide_badTargets(t *testing.T) {
	for _, tc := range []struct {
		policy, doc string
		want        []string
	}{
		{"tradl", `{"tasks": [{"id": "a", "goal": "min", "value": 1, "acceptable": 0.25, "objective": 0.3, "use": 0, "limit": 1}]}`,
			[]string{`tasks[0].objective: must be ≤ acceptable = 0.25, because goal is "min": lower values are better; got 0.3, which is easier`}},
		{"tradl", `{"tasks": [{"id": "", "goal": "down", "value": NaN, "acceptable": "0.3", "objective": 0.25, "use": -1, "limit": null, "x": 1}], "params": {"full": 0}}`,
			[]string{
				`tasks[0].limit: must be a number, got null`,
				`tasks[0].value: must be a finite number, got NaN`,
				`tasks[0].acceptable: must be a number or null, got a string "0.3"`,
				`tasks[0].x: unknown field, must be one of: ` + taskFields,
				`tasks[0].id: must not be empty`,
				`tasks[0].use: must be ≥ 0, got -1`,
				`tasks[0].goal: must be "min" or "max", got "down"`,
				`params.full: must be > 0 and ≤ 1, got 0`,
			}},
		{"tradl", `{"tasks": [{}]}`,
			[]string{
				`tasks[0].id: is missing`, `tasks[0].limit: is missing`, `tasks[0].use: is missing`, `tasks[0].goal: is missing`,
				`tasks[0].value: is missing`, `tasks[0].acceptable: is missing`, `tasks[0].objective: is missing`,
			}},
		{"dqoes", `{"tasks": [{"id": "a", "objective_s": 0, "response_s": -1, "use": 0, "limit": 2}], "state": {"q_good": -1, "q_bad": 1, "satisfied": 0.5, "t": 1}, "interval_s": 20, "initial_interval_s": 20, "max_interval_s": 10, "params": {"alpha": 1, "Beta": 1}}`,
			[]string{
				`tasks[0].limit: must be > 0 and ≤ 1, or 0 for none yet, got 2`,
				`tasks[0].objective_s: must be > 0, got 0`,
				`tasks[0].response_s: must be ≥ 0, got -1`,
				`max_interval_s: must be ≥ initial_interval_s = 20, got 10`,
				`state.satisfied: must be a whole number, got 0.5`,
				`state.trend: is missing`,
				`state.t: unknown field, must be one of: q_good, q_bad, satisfied, trend`,
				`state.q_good: must be ≥ 0, got -1`,
				`state.q_bad: must be ≤ 0, got 1`,
				`params.Beta: unknown field, must be one of: alpha, beta, headroom, step`,
				`params.alpha: must be > 0 and < 1, got 1`,
			}},
		{"dqoes", `{"tasks": [{}]}`,
			[]string{
				`interval_s: is missing`, `initial_interval_s: is missing`, `max_interval_s: is missing`,
				`tasks[0].id: is missing`, `tasks[0].limit: is missing`, `tasks[0].use: is missing`,
				`tasks[0].objective_s: is missing`, `tasks[0].response_s: is missing`,
			}},
	} {
		status, stdout, stderr := ebbtide(tc.doc, "decide", "--policy", tc.policy)
		must.Eq(t, strings.Join(tc.want, "\n")+"\n", unexplained(stderr))
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", stdout)
	}
}
