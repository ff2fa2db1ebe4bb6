// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	demo "github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

//go:embed evaluation.tmpl.md
var text string

// allResults holds the results of all experiments.
type allResults struct {
	sim   simulations
	bench map[string]result.Experiment // by experiment
	demo  *demo.Experiment             // nil if not run
}

// render returns the documents by name.
func render(root string) (map[string][]byte, error) {
	e, err := load(filepath.Join(root, results))
	if err != nil {
		return nil, err
	}
	t, err := template.New("evaluation").Funcs(template.FuncMap{
		"goals": e.goals, "trained": e.trained, "targeted": e.targeted, "served": e.served, "mixed": e.mixed, "simulated": e.simulated,
		"compared": e.compared, "published": e.published, "demo": e.demoResult, "ran": func() bool { return e.demo != nil }, "origin": e.simOrigin, "machine": func() string { return e.sim.Machine }, "gains": e.gains, "fairness": e.fairness,
		"measured": func() (bool, error) { found, _, err := e.measured(); return len(found) > 0, err },
		"has":      func(what string) bool { _, ok := e.bench[what]; return ok },
		"change": func(set, policy, time string) (string, error) {
			s, err := e.simOf(set, policy)
			return percent(s.Time(time).Ratio.Mean), err
		},
		"worst": func(set, policy string) (string, error) {
			s, err := e.simOf(set, policy)
			return fmt.Sprintf("%.2f", s.Ratio.Max), err
		},
		"idle": func(set, policy string) (string, error) {
			s, err := e.simOf(set, policy)
			return fmt.Sprintf("%.0f %%", 100*s.Idle), err
		},
	}).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("reading the template: %w", err)
	}
	var page, part bytes.Buffer
	if err := t.Execute(&page, nil); err != nil {
		return nil, fmt.Errorf("making %s: %w", evaluation, err)
	}
	if err := t.ExecuteTemplate(&part, "readme", nil); err != nil {
		return nil, fmt.Errorf("making a part of %s: %w", readme, err)
	}
	drawn, err := e.picture()
	if err != nil {
		return nil, err
	}
	whole, err := os.ReadFile(filepath.Join(root, readme))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", readme, err)
	}
	const begin, end = "<!-- gains: made by go run ./e2e/report -->\n", "<!-- end of gains -->"
	before, rest, ok := strings.Cut(string(whole), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return nil, fmt.Errorf("%s: must have %q and %q, which are around what is made", readme, begin, end)
	}
	return map[string][]byte{
		evaluation:  page.Bytes(),
		pictureFile: []byte(drawn),
		readme:      []byte(before + begin + part.String() + end + after),
	}, nil
}

// load reads the results; real runs may be missing.
func load(dir string) (allResults, error) {
	e := allResults{bench: make(map[string]result.Experiment)}
	if _, err := read(filepath.Join(dir, "sim.json"), &e.sim, true); err != nil {
		return e, err
	}
	for _, what := range append(result.All(), quota) {
		var x result.Experiment
		ok, err := read(filepath.Join(dir, what+".json"), &x, false)
		if err != nil {
			return e, err
		}
		if ok {
			for i, r := range x.Runs {
				if what == result.TRADL {
					x.Runs[i].Jobs = jobsOf(r)
				}
			}
			e.bench[what] = x
		}
	}
	var d demo.Experiment
	ok, err := read(filepath.Join(dir, "demo.json"), &d, false)
	if ok {
		e.demo = &d
	}
	return e, err
}

// read decodes a file, and reports whether it exists.
func read(path string, into any, must bool) (bool, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !must {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading results: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("reading results from %s: %w", path, err)
	}
	return true, nil
}

// jobsOf returns a run's training jobs with targets, which end at their objective.
func jobsOf(r result.Run) []metrics.Job {
	known := func(x result.Number) *float64 {
		if f := float64(x); f == f {
			return &f
		}
		return nil
	}
	var jobs []metrics.Job
	for _, t := range r.Tasks {
		if t.Kind == result.Training {
			jobs = append(jobs, metrics.Job{
				ID: t.Name, Kind: t.About, ArriveS: float64(t.Submitted), StartS: known(t.Started), EndS: known(t.ObjectiveAt),
				AcceptableS: known(t.AcceptableAt), ObjectiveS: known(t.ObjectiveAt), CPUS: float64(t.CPU),
			})
		}
	}
	return jobs
}

func (e allResults) simOf(set, policy string) (metrics.Summary, error) {
	for _, r := range e.sim.Runs {
		if r.Name == set {
			if s, ok := of(r.Summaries, policy); ok {
				return s, nil
			}
		}
	}
	return metrics.Summary{}, fmt.Errorf("sim.json has no policy %q in %q", policy, set)
}

func of(all []metrics.Summary, policy string) (metrics.Summary, bool) {
	for _, s := range all {
		if s.Policy == policy {
			return s, true
		}
	}
	return metrics.Summary{}, false
}

func (e allResults) realOf(what, kase, mode, variant string) (metrics.Summary, bool, error) {
	x, ok := e.bench[what]
	if !ok {
		return metrics.Summary{}, false, nil
	}
	all, err := x.Summaries(mode)
	for _, s := range all {
		if s.Policy == variant && strings.HasPrefix(s.Scenario, fmt.Sprintf("%s, %s,", what, kase)) {
			return s, true, err
		}
	}
	return metrics.Summary{}, false, err
}

// points formats a ratio as a change in percent; percent adds the unit.
func points(ratio float64) string  { return minus(fmt.Sprintf("%+.1f", 100*(ratio-1))) }
func percent(ratio float64) string { return points(ratio) + " %" }

func minus(s string) string { return strings.ReplaceAll(s, "-", "−") }

func change(i metrics.Interval) string {
	switch i.N {
	case 0:
		return "–"
	case 1:
		return points(i.Mean)
	}
	return minus(fmt.Sprintf("%+.1f [%+.1f…%+.1f]", 100*(i.Mean-1), 100*(i.Low-1), 100*(i.High-1)))
}

func table(header []string, rows [][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat(" --- |", len(header)))
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
	}
	return strings.TrimSuffix(b.String(), "\n")
}
