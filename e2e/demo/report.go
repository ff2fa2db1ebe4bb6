// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/demo/chart"
	"github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/e2e/demo/view"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

func (d *demo) report(e result.Experiment) error {
	if err := os.MkdirAll(d.out, 0o755); err != nil {
		return fmt.Errorf("making the directory of the results: %w", err)
	}
	data, err := json.MarshalIndent(e, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	path := filepath.Join(d.out, "demo.json")
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	if err := d.show(e); err != nil {
		return err
	}
	d.screen.Logf("Figures: %s", path)
	return nil
}

// again prints an earlier run's results.
func (d *demo) again() error {
	data, err := os.ReadFile(d.from)
	if err != nil {
		return fmt.Errorf("reading earlier results: %w", err)
	}
	var e result.Experiment
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("reading earlier results from %s: %w", d.from, err)
	}
	if len(e.Pairs) == 0 {
		return fmt.Errorf("%s holds no runs", d.from)
	}
	d.seeds = len(e.Pairs)
	return d.show(e)
}

// published are the project's own runs, below its root.
const published = "docs/results/demo.json"

// expected says what earlier runs of the same jobs have shown, "" if the file has none.
func expected(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var e result.Experiment
	if err := json.Unmarshal(data, &e); err != nil {
		return ""
	}
	var means []float64
	for _, p := range e.Pairs {
		if c, err := result.Compare(p, e.Cores); err == nil && len(c.With.Jobs) == jobCount {
			means = append(means, c.Summary.Time(metrics.Completion).Ratio.Mean)
		}
	}
	if len(means) < 2 {
		return ""
	}
	slices.Sort(means)
	return fmt.Sprintf(": %d seeds changed the mean time to end by %s to %s", len(means), view.Change(means[0]), view.Change(means[len(means)-1]))
}

// show prints the summary of the last pair, and of all if there are several, and draws the first
// pair.
func (d *demo) show(e result.Experiment) error {
	last := e.Pairs[len(e.Pairs)-1]
	c, err := result.Compare(last, e.Cores)
	if err != nil {
		return fmt.Errorf("comparing the runs of seed %d: %w", last.Seed, err)
	}
	d.screen.Logf("\nThe same %d jobs with seed %d, without Ebbtide's limits (none) and with them (%s):\n\n%s",
		len(last.With.Jobs), last.Seed, last.With.Policy, view.Summary(c, d.screen.Look()))
	all, err := metrics.Summarize(e.Runs(), none, last.Seed)
	if err != nil {
		return fmt.Errorf("comparing the runs of all seeds: %w", err)
	}
	d.outcome = view.Outcome(all[len(all)-1])
	if len(e.Pairs) > 1 {
		var b strings.Builder
		if err := metrics.WriteTable(&b, all); err != nil {
			return err
		}
		d.screen.Logf("%s", b.String())
	} else if d.seeds == 1 {
		root, _ := harness.FindRoot() // without it nothing is expected
		d.screen.Logf("This is one run with one seed; others come out differently%s. For distributions: go run ./e2e/demo -seeds 10", expected(filepath.Join(root, published)))
	}
	picture, err := chart.Draw(e.Pairs[0], e)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.out, 0o755); err != nil {
		return fmt.Errorf("making the directory of the picture: %w", err)
	}
	path := filepath.Join(d.out, "demo.png")
	if err := os.WriteFile(path, picture, 0o644); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	d.screen.Logf("Picture: %s", path)
	return nil
}
