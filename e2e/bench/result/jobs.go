// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/sim/metrics"
)

// Metrics returns one mode's training runs for package metrics.
func (e Experiment) Metrics(mode string) []metrics.Run {
	var all []metrics.Run
	for _, r := range e.Runs {
		if len(r.Jobs) > 0 && (r.Mode == mode || r.Mode == "") {
			all = append(all, metrics.Run{
				Scenario: fmt.Sprintf("%s, %s, mode %s", r.What, r.Case, mode), Policy: r.Variant, Seed: r.Seed,
				PoolCores: e.Cores, IdleCPUS: r.Idle, Jobs: r.Jobs,
			})
		}
	}
	return all
}

// Summaries compares one mode's training runs with those under none, skipping runs without a
// counterpart.
func (e Experiment) Summaries(mode string) ([]metrics.Summary, error) {
	runs := e.Metrics(mode)
	type key struct {
		scenario string
		seed     uint64
	}
	base, other := make(map[key]bool), make(map[key]bool)
	for _, r := range runs {
		k := key{r.Scenario, r.Seed}
		base[k], other[k] = base[k] || r.Policy == None, other[k] || r.Policy != None
	}
	runs = slices.DeleteFunc(runs, func(r metrics.Run) bool { k := key{r.Scenario, r.Seed}; return !base[k] || !other[k] })
	return metrics.Summarize(runs, None, 1)
}

// CPU returns, per seed, the CPU time of a variant's jobs relative to none's. As the steps are
// the same, it reflects the machine's speed and the threads' losses.
func (e Experiment) CPU(kase, mode, variant string) (ratios []float64) {
	used := func(variant, mode string, seed uint64) (sum float64) {
		for _, r := range e.Runs {
			if r.Case == kase && r.Variant == variant && r.Mode == mode && r.Seed == seed {
				for _, j := range r.Jobs {
					sum += j.CPUS
				}
			}
		}
		return sum
	}
	for _, seed := range Seeds(e.Runs, func(Run) bool { return true }) {
		none, own := used(None, "", seed), used(variant, mode, seed)
		if none > 0 && own > 0 {
			ratios = append(ratios, own/none)
		}
	}
	return ratios
}

// Calm is the fraction of the jobs' CPU time that other processes may use in an undisturbed run.
// Nomad and the plugin themselves use half of it.
const Calm = 0.07

// Disturbed lists the runs in which other processes used more than Calm, one per line.
func (e Experiment) Disturbed() []string {
	var lines []string
	for _, r := range e.Runs {
		used := 0.0
		for _, j := range r.Jobs {
			used += j.CPUS
		}
		if used > 0 && r.Other > Calm*used {
			lines = append(lines, fmt.Sprintf("%s, %s, seed %d: something else used %.0f CPU-seconds in addition to the jobs' %.0f; the machine was not theirs alone.",
				r.Case, r.Variant, r.Seed, r.Other, used))
		}
	}
	return lines
}

// JobText renders the comparison of training jobs with none.
func JobText(e Experiment) (string, error) {
	var b strings.Builder
	for _, mode := range []string{"weight", "quota"} {
		all, err := e.Summaries(mode)
		if err != nil {
			return "", err
		}
		if err := metrics.WriteTable(&b, all); err != nil {
			return "", err
		}
	}
	for _, line := range e.Disturbed() {
		b.WriteString(line + "\n")
	}
	return b.String(), nil
}
