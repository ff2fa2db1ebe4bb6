// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

var times = []string{metrics.Completion, metrics.Makespan, "quality_50", metrics.Quality95}

const timesHeader = "end, %|last end, %|50 % quality, %|95 % quality, %|worst|slower, %"

func cells(s metrics.Summary, times []string) []string {
	var out []string
	for _, name := range times {
		out = append(out, change(s.Time(name).Ratio))
	}
	return append(out, fmt.Sprintf("%.2f", s.Ratio.Max), fmt.Sprintf("%.0f", 100*s.Slower))
}

func notRun(what string) string {
	return fmt.Sprintf("Not run: there is no `%s/%s.json` (`make bench BENCH='-what %s'`).", results, what, what)
}

// originOf states where a real experiment was measured, and its machine unless it is the
// simulations'.
func (e allResults) originOf(x result.Experiment, file string) string {
	machine := ""
	if x.Machine != e.sim.Machine {
		machine = x.Machine + "; "
	}
	length := ""
	if x.Scale > 0 && (x.What == result.Train || x.What == result.Torch || x.What == result.Cluster) {
		length = fmt.Sprintf("jobs of %.0f to %.0f s; ", 20*x.Scale, 80*x.Scale)
	}
	return fmt.Sprintf("%s%sNomad %s; commit %.12s; seeds %d to %d; [commands](results/%s.json).",
		machine, length, x.Nomad, x.Commit, slices.Min(seedsOf(x)), slices.Max(seedsOf(x)), file)
}

func seedsOf(x result.Experiment) []uint64 {
	return result.Seeds(x.Runs, func(result.Run) bool { return true })
}

// disturbed counts the runs in which other processes used the machine.
func disturbed(x result.Experiment) string {
	lines := x.Disturbed()
	if len(lines) == 0 {
		return ""
	}
	return fmt.Sprintf(" In %d of %d runs other processes used over %.0f %% of the jobs' CPU time.", len(lines), len(x.Runs), 100*result.Calm)
}

// trained returns the table of real training jobs, with the origin of each row.
func (e allResults) trained() (string, error) {
	var (
		rows    [][]string
		origins string
	)
	for _, group := range []struct{ what, mode, name string }{
		{result.Train, "weight", ""}, {quota, "quota", ", mode `quota`"}, {result.Torch, "weight", ", PyTorch"}, {result.Cluster, "weight", ", four nodes"},
	} {
		x, ok := e.bench[group.what]
		if !ok {
			origins += "\n* " + notRun(group.what)
			continue
		}
		all, err := x.Summaries(group.mode)
		if err != nil {
			return "", err
		}
		slices.SortStableFunc(all, func(a, b metrics.Summary) int { return a.Jobs*b.Runs - b.Jobs*a.Runs })
		for _, s := range all {
			if s.Policy == s.Base || s.Policy == "auto completion" {
				continue
			}
			kase := strings.TrimPrefix(strings.TrimSuffix(s.Scenario, ", mode "+group.mode), x.What+", ")
			name := kase + group.name
			if s.Policy != "auto" {
				name += ", " + strings.TrimPrefix(s.Policy, "auto and ")
			}
			row := append(append([]string{name}, cells(s, times)...), points(stat.Mean(x.CPU(kase, group.mode, s.Policy), nil)), "–", "–")
			for _, c := range all {
				if c.Scenario == s.Scenario && c.Policy == "auto completion" && s.Policy == "auto" {
					row[8], row[9] = change(c.Time(metrics.Completion).Ratio), fmt.Sprintf("%.2f", c.Ratio.Max)
				}
			}
			rows = append(rows, row)
		}
		origins += "\n* " + cmp.Or(strings.TrimPrefix(group.name, ", "), "mode `weight`") + ": " + e.originOf(x, group.what) + disturbed(x)
	}
	return table(append([]string{"jobs"}, strings.Split(timesHeader+"|CPU, %|`completion`: end, %|worst", "|")...), rows) + "\n" + origins, nil
}

// fairness states how late the latest jobs of ten are, relative to their fair share.
func (e allResults) fairness() (string, error) {
	var out []string
	for _, policy := range []string{result.None, "auto"} {
		s, ok, err := e.realOf(result.Train, "10 jobs", "weight", policy)
		if err != nil || !ok {
			return "", err
		}
		out = append(out, fmt.Sprintf("%.2f under `%s`", s.Fairness.P95, policy))
	}
	return fmt.Sprintf(" Finish-time fairness ρ (Themis), 95th percentile of 10 jobs: %s.", strings.Join(out, ", ")), nil
}

// targeted returns the table of jobs with targets.
func (e allResults) targeted() (string, error) {
	x, ok := e.bench[result.TRADL]
	if !ok {
		return notRun(result.TRADL), nil
	}
	all, err := x.Summaries("weight")
	if err != nil {
		return "", err
	}
	var rows [][]string
	for _, s := range all {
		if s.Policy != s.Base {
			rows = append(rows, append([]string{s.Policy}, cells(s, []string{metrics.Completion, metrics.Makespan, "acceptable"})...))
		}
	}
	header := []string{"policy", "objective, %", "last end, %", "acceptable, %", "worst", "slower, %"}
	return e.originOf(x, result.TRADL) + "\n\n" + table(header, rows), nil
}

// served returns the table of services, one for all objectives.
func (e allResults) served() string {
	x, ok := e.bench[result.DQoES]
	if !ok {
		return notRun(result.DQoES)
	}
	var (
		header []string
		rows   [][]string
	)
	missed := ""
	for _, t := range result.ServiceTables(x, "weight") {
		header = append([]string{"objectives"}, pick(t.Header, 0, 1, 2, 3)...)
		kase, _, _ := strings.Cut(strings.TrimPrefix(t.Title, "DQoES, "), " objectives")
		if !slices.ContainsFunc(t.Rows, func(r []string) bool { return r[3] != "10" }) {
			missed += fmt.Sprintf(" With %s objectives all ten are worse under every policy.", kase)
			continue
		}
		for _, r := range t.Rows {
			rows = append(rows, append([]string{kase}, pick(r, 0, 1, 2, 3)...))
		}
	}
	return e.originOf(x, result.DQoES) + missed + " Medians (best…worst):\n\n" + dense(table(header, rows))
}

// mixed returns the table of all kinds on one node.
func (e allResults) mixed() string {
	x, ok := e.bench[result.Auto]
	if !ok {
		return notRun(result.Auto)
	}
	tables := result.MixTables(x, "weight")
	var rows [][]string
	for _, r := range tables[0].Rows { // one for each policy and service
		if last := len(rows) - 1; last >= 0 && rows[last][0] == r[0] {
			rows[last] = append(rows[last], r[4])
		} else {
			rows = append(rows, []string{r[0], r[4]})
		}
	}
	out := e.originOf(x, result.Auto) + "\n\n" + dense(table([]string{"policy", "service 1", "service 2"}, rows))
	var parts []string
	for _, r := range tables[1].Rows {
		parts = append(parts, "`"+r[0]+"` "+r[1])
	}
	return out + "\n\nThe training jobs' part of the pool meanwhile: " + dense(strings.Join(parts, ", ")) + "."
}

// dense writes ranges as elsewhere on the page.
func dense(s string) string { return strings.ReplaceAll(s, " … ", "…") }

// pick returns some cells of a row.
func pick(row []string, which ...int) []string {
	var out []string
	for _, i := range which {
		out = append(out, row[i])
	}
	return out
}

// demoResult states the demo's result in a sentence.
func (e allResults) demoResult() (string, error) {
	all, err := metrics.Summarize(e.demo.Runs(), metrics.DefaultBase, 1)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if s.Policy != s.Base {
			return fmt.Sprintf("`make demo`, %d jobs, %d seeds, Ebbtide %s, %s: mean end %s %%, last end %s %%, worst %.2f; %.0f %% of the jobs were slower.", len(e.demo.Pairs[0].With.Jobs), len(e.demo.Pairs), e.demo.Version,
				e.demo.Time.Format("2006-01-02"), change(s.Time(metrics.Completion).Ratio), change(s.Time(metrics.Makespan).Ratio), s.Ratio.Max, 100*s.Slower), nil
		}
	}
	return "", fmt.Errorf("demo.json has no run under another policy than %s", metrics.DefaultBase)
}

// sets returns the simulated scenarios, without published runs.
func (e allResults) sets() []string {
	var out []string
	for _, r := range e.sim.Runs {
		if name, ok := strings.CutSuffix(r.Name, " estimated"); ok && !strings.Contains(name, " ") {
			out = append(out, name)
		}
	}
	return out
}

func (e allResults) simOrigin() string {
	var later []string
	for _, r := range e.sim.Runs {
		scenario, _, _ := strings.Cut(r.Name, " ")
		if own := fmt.Sprintf(", `%s` %s", scenario, r.Commit); r.Commit != "" && !slices.Contains(later, own) {
			later = append(later, own)
		}
	}
	return fmt.Sprintf("Commit %s%s; seeds 1 to %d", e.sim.Commit, strings.Join(later, ""), e.sim.Seeds)
}

// simulated renders the scenarios under fair finish.
func (e allResults) simulated() (string, error) {
	header := []string{"scenario", "`auto`: end, %", "last end, %", "50 % quality, %", "worst", "slower, %", "`completion`: end, %", "worst", "true sizes, `auto`: end, %", "worst"}
	var rows [][]string
	for _, set := range e.sets() {
		s, err := e.simOf(set+" estimated", "auto")
		if err != nil {
			return "", err
		}
		exact, err := e.simOf(set+" exact", "auto")
		if err != nil {
			return "", err
		}
		row := []string{
			set, change(s.Time(metrics.Completion).Ratio), points(s.Time(metrics.Makespan).Ratio.Mean), points(s.Time("quality_50").Ratio.Mean),
			fmt.Sprintf("%.2f", s.Ratio.Max), fmt.Sprintf("%.0f", 100*s.Slower), "–", "–",
			points(exact.Time(metrics.Completion).Ratio.Mean), fmt.Sprintf("%.2f", exact.Ratio.Max),
		}
		// With services only auto runs.
		if s, err := e.simOf(set+" estimated", "fsp-completion"); err == nil {
			row[6], row[7] = change(s.Time(metrics.Completion).Ratio), fmt.Sprintf("%.2f", s.Ratio.Max)
		}
		rows = append(rows, row)
	}
	return table(header, rows), nil
}

// bound returns the fraction of SRPT's gain.
func (e allResults) bound(set string, s metrics.Summary) string {
	best, err := e.simOf(set, metrics.Bound)
	if err != nil {
		return "–"
	}
	return fmt.Sprintf("%.0f", 100*s.Gain()/best.Gain())
}

// compared renders the other policies.
func (e allResults) compared() string {
	sets := e.sets()
	// In the tables above and below, or the same as none.
	policies := []string{"none", "auto", "fsp-completion", "equal", "las", "auto@alg4", "flowcon@alg4", "specon"}
	elsewhere := len(policies)
	for _, r := range e.sim.Runs {
		for _, s := range r.Summaries {
			if !slices.Contains(policies, s.Policy) {
				policies = append(policies, s.Policy)
			}
		}
	}
	var rows [][]string
	var few []string // in too few scenarios for a row
	for _, policy := range policies[elsewhere:] {
		row := []string{policy}
		var in []string
		for _, set := range sets {
			cell := ""
			if s, err := e.simOf(set+" estimated", policy); err == nil {
				cell = fmt.Sprintf("%s; %.2f", points(s.Time(metrics.Completion).Ratio.Mean), s.Ratio.Max)
				in = append(in, cell+" in `"+set+"`")
			}
			row = append(row, cell)
		}
		switch {
		case len(in) == 0: // only in the papers' settings, below
		case len(in) < 3:
			few = append(few, "* `"+policy+"`: "+strings.Join(in, ", "))
		default:
			rows = append(rows, row)
		}
	}
	return table(append([]string{"policy"}, sets...), rows) + "\n\n" + strings.Join(few, "\n")
}
