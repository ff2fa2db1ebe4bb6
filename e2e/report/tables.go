// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

var times = []string{metrics.Completion, metrics.Makespan, "quality_50", metrics.Quality95}

const timesHeader = "completion, %|makespan, %|50 % quality, %|95 % quality, %|worst job|slower, %"

func cells(s metrics.Summary, times []string) []string {
	var out []string
	for _, name := range times {
		out = append(out, change(s.Time(name).Ratio))
	}
	return append(out, fmt.Sprintf("%.2f (%s)", s.Ratio.Max, s.WorstJob), fmt.Sprintf("%.0f", 100*s.Slower))
}

func notRun(what string) string {
	return fmt.Sprintf("Not run: there is no `%s/%s.json` (`make bench BENCH='-what %s'`).", results, what, what)
}

func originOf(x result.Experiment) string {
	var list []string
	for _, s := range result.Seeds(x.Runs, func(result.Run) bool { return true }) {
		list = append(list, fmt.Sprint(s))
	}
	return fmt.Sprintf("%s; Nomad %s; commit %s; seeds %s; `%s`.",
		x.Machine, x.Nomad, x.Commit, strings.Join(list, ", "), strings.Join(x.Commands, "`, `"))
}

// real renders the table of real training jobs.
func (e allResults) real(what string) (string, error) {
	x, ok := e.bench[what]
	if !ok {
		return notRun(what), nil
	}
	header, names := timesHeader+"|CPU time, %", times
	if what == result.TRADL {
		header = strings.NewReplacer("completion", "objective", "50 % quality", "acceptable", "|95 % quality, %", "").Replace(timesHeader)
		names = []string{metrics.Completion, metrics.Makespan, "acceptable"}
	}
	var rows [][]string
	for _, mode := range result.Modes(x.Runs, x.What) {
		all, err := x.Summaries(mode)
		if err != nil {
			return "", err
		}
		for _, s := range all {
			if s.Policy == s.Base {
				continue
			}
			kase := strings.TrimPrefix(strings.TrimSuffix(s.Scenario, ", mode "+mode), x.What+", ")
			row := append([]string{strings.TrimPrefix(kase+", "+mode, ", "), fmt.Sprintf("%s × %d", s.Policy, s.Runs)}, cells(s, names)...)
			if what != result.TRADL {
				row = append(row, points(stat.Mean(x.CPU(kase, mode, s.Policy), nil)))
			}
			rows = append(rows, row)
		}
	}
	out := originOf(x) + "\n\n" + table(append([]string{"jobs, mode", "policy × seeds"}, strings.Split(header, "|")...), rows)
	for _, line := range x.Disturbed() {
		out += "\n\n" + line
	}
	return out, nil
}

func (e allResults) served() string {
	x, ok := e.bench[result.DQoES]
	if !ok {
		return notRun(result.DQoES)
	}
	out := originOf(x)
	for _, mode := range result.Modes(x.Runs, result.DQoES) {
		for _, t := range result.ServiceTables(x, mode) {
			out += "\n\n" + columns(t, 0, 1, 2, 3, 5)
		}
	}
	return out
}

func (e allResults) mixed() string {
	x, ok := e.bench[result.Auto]
	if !ok {
		return notRun(result.Auto)
	}
	out := originOf(x)
	for _, mode := range result.Modes(x.Runs, result.Auto) {
		for i, t := range result.MixTables(x, mode) {
			out += "\n\n" + columns(t, [][]int{{0, 1, 2, 3, 4}, {0, 1, 4}}[i]...)
		}
	}
	return out
}

func columns(t result.Table, which ...int) string {
	pick := func(row []string) []string {
		var out []string
		for _, i := range which {
			out = append(out, row[i])
		}
		return out
	}
	var rows [][]string
	for _, r := range t.Rows {
		rows = append(rows, pick(r))
	}
	return t.Title + ":\n\n" + table(pick(t.Header), rows)
}

func (e allResults) demoTable() (string, error) {
	if e.demo == nil {
		return "", nil
	}
	all, err := metrics.Summarize(e.demo.Runs(), metrics.DefaultBase, 1)
	if err != nil {
		return "", err
	}
	var rows [][]string
	for _, s := range all {
		if s.Policy != s.Base {
			rows = append(rows, append([]string{fmt.Sprintf("%s × %d", s.Policy, s.Runs)}, cells(s, times)...))
		}
	}
	var list []string
	for _, p := range e.demo.Pairs {
		list = append(list, fmt.Sprint(p.Seed))
	}
	origin := fmt.Sprintf("%g cores; Nomad %s; Ebbtide %s; %s; mode %s; seeds %s; `go run ./e2e/demo`.",
		e.demo.Cores, e.demo.Nomad, e.demo.Version, e.demo.Time.Format("2006-01-02"), e.demo.Mode, strings.Join(list, ", "))
	return origin + "\n\n" + table(append([]string{"policy × seeds"}, strings.Split(timesHeader, "|")...), rows), nil
}

// sets are the simulated scenarios, without published runs.
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
	return fmt.Sprintf("%s; commit %s; seeds 1 to %d", e.sim.Machine, e.sim.Commit, e.sim.Seeds)
}

// simulated renders the scenarios under fair finish.
func (e allResults) simulated() (string, error) {
	header := append([]string{"scenario", "policy"}, strings.Split(timesHeader+"|of `srpt`, %|sizes known: completion, %|worst job|of `srpt`, %", "|")...)
	var rows [][]string
	for _, set := range e.sets() {
		for _, policy := range []string{"auto", "fsp-completion"} {
			s, err := e.simOf(set+" estimated", policy)
			if err != nil && policy != "auto" {
				continue // with services only auto applies
			}
			if err != nil {
				return "", err
			}
			exact, err := e.simOf(set+" exact", policy)
			if err != nil {
				return "", err
			}
			row := append([]string{set, policy}, cells(s, times)...)
			row[len(row)-2] = fmt.Sprintf("%.2f", s.Ratio.Max) // the name is meaningless here
			rows = append(rows, append(row, e.bound(set+" estimated", s), change(exact.Time(metrics.Completion).Ratio), fmt.Sprintf("%.2f", exact.Ratio.Max), e.bound(set+" exact", exact)))
		}
	}
	return table(header, rows), nil
}

// bound is the fraction of SRPT's gain.
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
	var policies []string
	for _, r := range e.sim.Runs {
		for _, s := range r.Summaries {
			if s.Policy != s.Base && s.Policy != "auto" && s.Policy != "fsp-completion" && !slices.Contains(policies, s.Policy) {
				policies = append(policies, s.Policy)
			}
		}
	}
	var rows [][]string
	for _, policy := range policies {
		row := []string{policy}
		for _, set := range sets {
			cell := ""
			if s, err := e.simOf(set+" estimated", policy); err == nil {
				cell = fmt.Sprintf("%s; %.2f; %.0f", points(s.Time(metrics.Completion).Ratio.Mean), s.Ratio.Max, 100*s.Slower)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return table(append([]string{"policy"}, sets...), rows)
}
