// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// All kinds of tasks, without optional fields: a service worse than its target and one better,
// a training task that grows, an acceptable one, a successful one, an unknown one.
const autoSnapshot = `{
  "tasks": [
    {"id": "resnet-api", "kind": "service", "objective_s": 0.05, "response_s": 0.065, "use": 0.25, "limit": 0.25},
    {"id": "nasnet-api", "kind": "service", "objective_s": 0.4, "response_s": 0.25, "use": 0.2, "limit": 0.2},
    {"id": "vae", "kind": "training", "use": 0.2, "limit": 0.2,
      "cpu_s": 60, "fair_cpu_s": 50, "remaining_cpu_s": 500, "quality_cpu_s": 90},
    {"id": "mnist", "kind": "training", "goal": "min", "value": 0.28, "acceptable": 0.3, "objective": 0.25, "use": 0.15, "limit": 0.15,
      "cpu_s": 110, "fair_cpu_s": 120, "remaining_cpu_s": 200, "quality_cpu_s": 0},
    {"id": "rnn", "kind": "training", "goal": "max", "value": 0.94, "objective": 0.93, "use": 0.1, "limit": 0.1},
    {"id": "preprocess", "kind": "training", "use": 0.1, "limit": 0}
  ],
  "now_s": 1700000000, "pool_cores": 4, "interval_s": 20, "event": ""
}`

func TestDecide_auto(t *testing.T) {
	run := func(doc string) string {
		status, stdout, stderr := ebbtide(doc, "decide", "--policy", "auto")
		must.Eq(t, "", stderr)
		must.Eq(t, exitOK, status)
		return stdout
	}
	want, err := os.ReadFile("testdata/auto.json")
	must.NoError(t, err)
	got := run(autoSnapshot)
	must.Eq(t, string(want), got)

	with := func(params string) string { return strings.Replace(autoSnapshot, "{\n", `{"params": `+params+", ", 1) }
	must.Eq(t, got, run(with(`{}`)))
	must.Eq(t, got, run(with(`{"fsp": {"prefer": "balanced", "floor": 0.1}, "service_share": 0.8, "tolerance": 0.1}`)))
	must.StrContains(t, run(with(`{"service_share": 0.3}`)), `"auto.service.bound"`)
	must.StrContains(t, run(with(`{"fsp": {"prefer": "completion"}}`)), `preferred: its twin has`)
}

func TestDecide_badAuto(t *testing.T) {
	for _, tc := range []struct {
		doc  string
		want []string
	}{
		{`{"tasks": [{}], "event": "x"}`, []string{
			`now_s: is missing`, `pool_cores: is missing`,
			`tasks[0].id: is missing`, `tasks[0].kind: is missing`, `tasks[0].limit: is missing`, `tasks[0].use: is missing`,
			`event: must be one of "", "join", "leave", "target", got "x"`,
		}},
		{strings.Replace(autoSnapshot, `"objective_s": 0.4`, `"objective_s": 0, "goal": "min", "acceptable": 0.3`, 1), []string{
			`tasks[1].objective_s: must be > 0, got 0`,
			`tasks[1].kind: a service has no acceptable or objective`,
		}},
		{strings.Replace(autoSnapshot, `"cpu_s": 60`, `"cpu_s": -1, "objective_s": 3`, 1), []string{
			`tasks[2].cpu_s: must be ≥ 0, got -1`,
			`tasks[2].objective_s: is for services only, got 3 for a training task`,
		}},
		{strings.Replace(autoSnapshot, "{\n", `{"params": {"fsp": {"n": 3, "floor": 2}, "tolerance": 1, "service_share": 2}, `, 1), []string{
			`params.fsp.n: unknown field, must be one of: prefer, floor`,
			`params.fsp.floor: must be > 0 and ≤ 1, got 2`,
			`params.service_share: must be > 0 and ≤ 1, got 2`,
			`params.tolerance: must be > 0 and < 1, got 1`,
		}},
	} {
		status, stdout, stderr := ebbtide(tc.doc, "decide", "--policy", "auto")
		must.Eq(t, strings.Join(tc.want, "\n")+"\n", unexplained(stderr))
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", stdout)
	}
}
