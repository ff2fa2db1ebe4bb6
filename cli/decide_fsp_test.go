// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// A late task, one near its quality point, one due, one unknown, one finished, a service.
const fspSnapshot = `{
  "now_s": 1700000000,
  "pool_cores": 4,
  "interval_s": 20,
  "tasks": [
    {"id": "rnn", "entitlement": 1000, "cap_cores": 1, "cpu_s": 900, "fair_cpu_s": 950, "remaining_cpu_s": 40, "quality_cpu_s": null},
    {"id": "vae", "entitlement": 1000, "cpu_s": 700, "fair_cpu_s": 100, "remaining_cpu_s": 300, "quality_cpu_s": 0},
    {"id": "gru", "entitlement": 2000, "cpu_s": 10, "fair_cpu_s": 100, "remaining_cpu_s": 1400, "quality_cpu_s": 50},
    {"id": "mnist", "entitlement": 1000, "cpu_s": 10, "fair_cpu_s": 540, "remaining_cpu_s": 720, "quality_cpu_s": 300},
    {"id": "preprocess", "entitlement": 1000, "cpu_s": 90, "fair_cpu_s": 90, "remaining_cpu_s": null, "quality_cpu_s": null},
    {"id": "lstm", "entitlement": 1000, "cpu_s": 200, "fair_cpu_s": 120, "remaining_cpu_s": 0, "quality_cpu_s": 0, "ended": true},
    {"id": "api", "entitlement": 500, "objective_s": 0.1, "response_s": null, "use": 0.2, "limit": 0.25,
      "cpu_s": 0, "fair_cpu_s": 0, "remaining_cpu_s": null, "quality_cpu_s": null}
  ]
}`

func TestDecide_fsp(t *testing.T) {
	decidesAs(t, "fsp", fspSnapshot)

	run := func(params string) string {
		status, stdout, stderr := ebbtide(strings.Replace(fspSnapshot, "{\n", `{"params": `+params+", ", 1), "decide", "--policy", "fsp")
		must.Eq(t, "", stderr)
		must.Eq(t, exitOK, status)
		return stdout
	}
	must.Eq(t, run(`{}`), run(`{"prefer": "balanced", "floor": 0.1}`))
	must.NotEq(t, run(`{}`), run(`{"prefer": "completion"}`))
	must.NotEq(t, run(`{}`), run(`{"floor": 0.5}`))
}

func TestDecide_badFSP(t *testing.T) {
	for _, tc := range []struct {
		doc  string
		want []string
	}{
		{`{"tasks": [{}]}`, []string{
			`now_s: is missing`, `pool_cores: is missing`, `tasks[0].id: is missing`,
			`tasks[0].cpu_s: is missing`, `tasks[0].fair_cpu_s: is missing`, `tasks[0].remaining_cpu_s: is missing`, `tasks[0].quality_cpu_s: is missing`,
		}},
		{`{"now_s": 0, "pool_cores": 0, "params": {"prefer": "fast", "floor": 0, "x": 1}, "tasks": [
			{"id": "a", "cpu_s": NaN, "fair_cpu_s": -1, "remaining_cpu_s": "1", "quality_cpu_s": 1e13, "cap_cores": -2, "entitlement": -1, "ended": 1},
			{"id": "a", "cpu_s": null, "fair_cpu_s": 0, "remaining_cpu_s": 5, "quality_cpu_s": null, "ended": true}]}`, []string{
			`tasks[0].cpu_s: must be a finite number, got NaN`,
			`tasks[0].remaining_cpu_s: must be a number or null, got a string "1"`,
			`tasks[0].ended: must be a bool, got a number 1`,
			`tasks[1].cpu_s: must be a number, got null`,
			`tasks[0].entitlement: must be > 0, got -1`,
			`tasks[0].cap_cores: must be ≥ 0, got -2`,
			`tasks[0].fair_cpu_s: must be ≥ 0, got -1`,
			`tasks[1].id: must be unique, "a" is the id of tasks[0] too`,
			`pool_cores: must be ≥ 0.001 and ≤ 1e+06, got 0`,
			`tasks[0].quality_cpu_s: must be ≥ 0 and ≤ 1e+12, got 1e+13`,
			`tasks[1].remaining_cpu_s: must be 0 or null for a task that has ended, got 5`,
			`params.x: unknown field, must be one of: prefer, floor`,
			`params.prefer: must be one of "balanced", "completion", "quality", got "fast"`,
			`params.floor: must be > 0 and ≤ 1, got 0`,
		}},
	} {
		status, stdout, stderr := ebbtide(tc.doc, "decide", "--policy", "fsp")
		must.Eq(t, strings.Join(tc.want, "\n")+"\n", unexplained(stderr))
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", stdout)
	}
}
