// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	demo "github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

const top = "../.."

// Committed documents match committed results.
func TestCommitted(t *testing.T) {
	files, err := render(top)
	must.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(top, name))
		must.NoError(t, err)
		must.True(t, bytes.Equal(want, got), must.Sprintf("%s is not what its results give: go run ./e2e/report", name))
	}
}

// The README's figures are all in the evaluation.
func TestCited(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, evaluation))
	must.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(top, readme))
	must.NoError(t, err)
	_, cited, _ := strings.Cut(string(text), "<!-- gains")
	cited, _, ok := strings.Cut(cited, "<!-- end of gains")
	must.True(t, ok)
	figures := regexp.MustCompile(`[−+]?\d+\.\d+`).FindAllString(cited, -1)
	must.True(t, len(figures) > 20)
	for _, f := range figures {
		must.StrContains(t, string(page), f)
	}
	rest := strings.Replace(string(text), cited, "", 1)
	must.Eq(t, nil, regexp.MustCompile(`\d ?%`).FindAllString(strings.ReplaceAll(strings.ReplaceAll(rest, "2 % longer", ""), "95 % intervals", ""), -1))
}

// copied returns a root with the committed simulations and a README.
func copied(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(root, results), 0o755))
	for _, name := range []string{results + "/sim.json", readme} {
		data, err := os.ReadFile(filepath.Join(top, name))
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(root, name), data, 0o644))
	}
	return root
}

func put(t *testing.T, root, name string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(root, results, name), data, 0o644))
}

func job(id string, end float64) metrics.Job {
	start, half := 0.0, end/2
	return metrics.Job{ID: id, StartS: &start, EndS: &end, Quality50S: &half, Quality95S: &half, CPUS: end}
}

func line(t *testing.T, text, begin string) string {
	t.Helper()
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, begin) {
			return l
		}
	}
	t.Fatalf("no line begins with %q", begin)
	return ""
}

// Goals are evaluated by real runs, and jobs that lose are listed.
func TestReal(t *testing.T) {
	root := copied(t)
	train := result.Experiment{
		Setting:  result.Setting{What: result.Train, Commit: "abc", Machine: "a machine", Cores: 2, Scale: 2},
		Commands: []string{"bench -what train"}, Nomad: "1.11.2",
		Runs: []result.Run{
			{What: result.Train, Case: "10 jobs", Variant: "none", Seed: 1, Jobs: []metrics.Job{job("a", 100), job("b", 100)}},
			{What: result.Train, Case: "10 jobs", Variant: "auto", Mode: "weight", Seed: 1, Jobs: []metrics.Job{job("a", 20), job("b", 110)}, Other: 50},
			{What: result.Train, Case: "10 jobs", Variant: "none", Seed: 2, Jobs: []metrics.Job{job("a", 100), job("b", 100)}},
		},
	}
	put(t, root, "train.json", train)
	put(t, root, "demo.json", demo.Experiment{Cores: 2, Pairs: []demo.Pair{{
		Seed: 3, None: demo.Run{Policy: "none", Jobs: []demo.Job{{Name: "x", Finished: 100}}},
		With: demo.Run{Policy: "auto", Jobs: []demo.Job{{Name: "x", Finished: 90}}},
	}}})
	tasks := func(at result.Number) []result.Task {
		return []result.Task{{Name: "job1", Kind: result.Training, AcceptableAt: at, ObjectiveAt: 2 * at, Finished: 2 * at}}
	}
	put(t, root, "tradl.json", result.Experiment{Setting: result.Setting{What: result.TRADL, Cores: 2}, Runs: []result.Run{
		{What: result.TRADL, Variant: "none", Seed: 1, Tasks: tasks(10)},
		{What: result.TRADL, Variant: "tradl", Mode: "weight", Seed: 1, Tasks: tasks(8)},
	}})
	must.Eq(t, 0, run(nil, root, os.Stderr))
	data, err := os.ReadFile(filepath.Join(root, evaluation))
	must.NoError(t, err)
	page := string(data)
	must.StrContains(t, page, "a machine; jobs of 40 to 160 s; Nomad 1.11.2; commit abc; seeds 1 to 2; [commands](results/train.json). In 1 of 3 runs other processes used over 7 %")
	must.StrContains(t, line(t, page, "| 10 jobs | "), "| 10 jobs | −35.0 | +10.0 | −35.0 | −35.0 | 1.10 | 50 |")
	must.StrContains(t, line(t, page, "Reached: "), "*real, 10 jobs: mean* ≤ −28 % (10 jobs: −35.0 %)")
	must.StrContains(t, line(t, page, "| real: worst job "), "10 jobs: 1.10 | Linux gives")
	must.StrContains(t, line(t, page, "| real, 5 jobs: mean "), "| not run |  |")
	must.StrContains(t, page, "95th percentile of 10 jobs: ")
	must.StrContains(t, line(t, page, "| tradl "), "| −20.0 | −20.0 | −20.0 |")
	must.StrContains(t, page, "mean end −10.0 %")
	data, err = os.ReadFile(filepath.Join(root, readme))
	must.NoError(t, err)
	must.StrContains(t, line(t, string(data), "| 10 jobs, one node "), "| −35.0 | +10.0 | −35.0 | 50 | 1.10 |")
	data, err = os.ReadFile(filepath.Join(root, pictureFile))
	must.NoError(t, err)
	must.StrContains(t, string(data), "10 jobs, one node: mean −35.0 %")
	must.Eq(t, 2, strings.Count(string(data), ` r="2.6"/>`))
}

func TestBadInput(t *testing.T) {
	root := copied(t)
	var errs bytes.Buffer
	must.Eq(t, 2, run([]string{"x"}, root, &errs))
	must.StrContains(t, errs.String(), `unexpected argument "x"`)

	must.NoError(t, os.WriteFile(filepath.Join(root, results, "train.json"), []byte("{"), 0o644))
	errs.Reset()
	must.Eq(t, 1, run(nil, root, &errs))
	must.StrContains(t, errs.String(), "train.json: unexpected end of JSON input")
	must.NoError(t, os.Remove(filepath.Join(root, results, "train.json")))

	must.NoError(t, os.WriteFile(filepath.Join(root, readme), []byte("# No place\n"), 0o644))
	_, err := render(root)
	must.ErrorContains(t, err, "README.md: must have")

	put(t, root, "sim.json", simulations{})
	_, err = render(root)
	must.ErrorContains(t, err, `sim.json has no policy "fsp-completion" in "jobs estimated"`)
	must.NoError(t, os.Remove(filepath.Join(root, results, "sim.json")))
	_, err = render(root)
	must.ErrorContains(t, err, "reading results")
}

// Each scenario has the inputs of its policies.
func TestPlan(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range plan() {
		must.False(t, seen[p.name], must.Sprint(p.name))
		seen[p.name] = true
		if p.scenario == "adaptdl" || p.scenario == "alibaba" {
			continue // their data is not in the repository
		}
		for _, policy := range p.policies {
			_, err := ebbtide("ebbtide sim -jobs 1 -scenario sim/scenarios/"+p.scenario+".hcl -policy "+policy, top, "")
			must.NoError(t, err)
		}
	}
}

func TestEncode(t *testing.T) {
	s := simulations{Commit: "abc", Seeds: 30, Runs: []simulation{{Name: "a", Summaries: []metrics.Summary{{Scenario: "a", Policy: "none", Idle: 0.1234567}, {Scenario: "a", Policy: "auto"}}}}}
	text, err := encode(s)
	must.NoError(t, err)
	must.Eq(t, 3, bytes.Count(text, []byte("\n")))
	must.StrContains(t, string(text), `"idle":0.12345,`)
	var back simulations
	must.NoError(t, json.Unmarshal(text, &back))
	must.Eq(t, "auto", back.Runs[0].Summaries[1].Policy)

	_, err = ebbtide("ebbtide sim -scenario sim/scenarios/none.hcl", top, "")
	must.ErrorContains(t, err, "ended with status 2")
}
