// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/sim"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

const fiveJobs = "node \"a\" { cores = 2 }\nworkload \"generated\" { jobs = 5 }\n"

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "five.hcl")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestSim(t *testing.T) {
	path := write(t, fiveJobs)
	table, plot := filepath.Join(t.TempDir(), "jobs.csv"), filepath.Join(t.TempDir(), "ratios.svg")
	status, stdout, stderr := ebbtide("", "sim", "-scenario", path, "-policy", "srpt, none,fsp-completion", "-seeds", "3", "-csv", table, "-plot", plot)
	must.Eq(t, "", stderr)
	must.Eq(t, exitOK, status)
	lines := strings.Split(stdout, "\n")
	must.Eq(t, "five: 15 jobs, 3 runs, against none", lines[0])
	for i, name := range []string{"none", "srpt", "fsp-completion"} {
		must.StrHasPrefix(t, name+" ", lines[2+i])
	}
	_, again, _ := ebbtide("", "sim", "-scenario="+path, "-policy=srpt,fsp-completion", "-seeds=3", "-workers=1")
	must.Eq(t, stdout, again)

	text, err := os.ReadFile(table)
	must.NoError(t, err)
	must.Eq(t, 1+3*3*5+1, len(strings.Split(string(text), "\n")))
	drawn, err := os.ReadFile(plot)
	must.NoError(t, err)
	must.NoError(t, xml.Unmarshal(drawn, new(struct{})))

	status, stdout, _ = ebbtide("", "sim", "-scenario", path, "-jobs", "7", "-sizes", "exact")
	must.Eq(t, exitOK, status)
	must.StrHasPrefix(t, "five, 7 jobs, exact: 7 jobs, 1 runs", stdout)

	status, stdout, _ = ebbtide("", "sim", "-scenario", path, "-policy", "fsp-completion", "-json")
	must.Eq(t, exitOK, status)
	var all []metrics.Summary
	must.NoError(t, json.Unmarshal([]byte(stdout), &all))
	must.Len(t, 2, all)
	must.Eq(t, 5, all[1].Jobs)
	must.Less(t, 1, all[1].Time(metrics.Completion).Ratio.Mean)
}

func TestSim_errors(t *testing.T) {
	good := write(t, fiveJobs)
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no scenario", nil, "-scenario: must be given, a file in HCL"},
		{"no file", []string{"-scenario", "nowhere.hcl"}, "nowhere.hcl: no such file"},
		{"argument", []string{"-scenario", good, "x"}, `unexpected argument "x"`},
		{"flag", []string{"-speed", "9"}, "allowed are -csv, -data, -jobs, -json, -plot, -policy, -scenario, -seeds, -sizes, -workers"},
		{"seeds", []string{"-scenario", good, "-seeds", "0"}, "-seeds: must be from 1 to 10000, got 0"},
		{"workers", []string{"-scenario", good, "-workers", "0"}, "-workers: must be ≥ 1, got 0"},
		{"policy", []string{"-scenario", good, "-policy", "best"}, "policy: must be one of auto, "},
		{"empty policy", []string{"-scenario", good, "-policy", "none,"}, `got ""`},
		{"lacks", []string{"-scenario", good, "-policy", "tradl"}, `policy: "tradl" needs jobs with targets`},
		{"zero jobs", []string{"-scenario", write(t, strings.Replace(fiveJobs, "5", "0", 1))}, "workload generated.jobs: must be from 1 to 1000000, got 0"},
		{"unknown field", []string{"-scenario", write(t, fiveJobs+"spede = 1\n")}, "spede: is unknown (line 3), must be one of "},
		{"jobs", []string{"-scenario", good, "-jobs", "-1"}, "workload generated.jobs: must be from 1 to 1000000, got -1"},
		{"sizes", []string{"-scenario", good, "-sizes", "big"}, `sizes: must be one of exact, estimated, unknown, got "big"`},
		{"options", []string{"-scenario", write(t, fiveJobs+"options = { floor = 1 }\n")}, "options.floor: must be one of alpha, beta, "},
		{"a wrong option", []string{"-scenario", write(t, fiveJobs+"options = { fsp_floor = 7 }\n"), "-policy", "fsp"}, "options: policy fsp: fsp_floor: must be > 0 and ≤ 1, got 7"},
		{"a wrong word", []string{"-scenario", write(t, fiveJobs+"options = { fsp_floor = \"low\" }\n"), "-policy", "fsp"}, "fsp_floor: must be a number"},
		{"a weight", []string{"-scenario", write(t, strings.Replace(fiveJobs, "jobs = 5", "\njobs = 5\nweights = [0]\n", 1))}, "workload generated.weights[0]: must be ≥ 0.01 and ≤ 100, got 0"},
		{"no data", []string{"-scenario", write(t, strings.Replace(fiveJobs, "generated", "alibaba", 1))}, "no directory is named (-data, or data in the scenario)"},
		{"missing data", []string{"-scenario", write(t, strings.Replace(fiveJobs, "generated", "alibaba", 1)), "-data", t.TempDir()}, "there is no file curves/*.csv"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, stdout, stderr := ebbtide("", append([]string{"sim"}, tc.args...)...)
			must.Eq(t, exitUsage, status)
			must.Eq(t, "", stdout)
			must.StrContains(t, stderr, tc.want)
			must.StrHasPrefix(t, "ebbtide sim: ", stderr)
		})
	}
	status, _, _ := ebbtide("", "sim", "-scenario", good, "-csv", filepath.Join(t.TempDir(), "no", "where"))
	must.Eq(t, exitError, status)
}

func TestSim_docs(t *testing.T) {
	text, err := os.ReadFile("../docs/sim.md")
	must.NoError(t, err)
	names := append(sim.Names(), scenario.Placements()...)
	for _, like := range []any{scenario.Scenario{}, scenario.Node{}, scenario.Workload{}, scenario.Service{}, scenario.Failures{}} {
		schema, _ := gohcl.ImpliedBodySchema(like)
		for _, a := range schema.Attributes {
			names = append(names, a.Name)
		}
	}
	for _, name := range names {
		must.StrContains(t, string(text), "`"+name+"`")
	}
}

func TestProgressBar(t *testing.T) {
	var w bytes.Buffer
	b := progressBar{to: &w, began: time.Now()}
	b.show(0.5)
	b.clear()
	must.Eq(t, "", w.String()) // a short run shows none
	b.began = time.Now().Add(-time.Minute)
	b.show(0.5)
	b.show(0.6)
	b.clear()
	must.StrContains(t, w.String(), strings.Repeat("#", 20)+strings.Repeat(".", 20)+"]  50 %, 1m0s left")
	must.StrNotContains(t, w.String(), "60 %")
	must.StrHasSuffix(t, "\r\x1b[K", w.String())
}
