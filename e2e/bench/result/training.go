// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/mix"
)

// Target returns the lowest value up to a fraction of the steps, and the fraction at which it is
// first reached.
func Target(curve mix.Curve, part float64) (value, at float64) {
	value, at = math.NaN(), math.NaN()
	if len(curve) == 0 {
		return value, at
	}
	last := curve[len(curve)-1].Step
	for _, p := range curve {
		if p.Step > part*last {
			break
		}
		if !(p.Value >= value) {
			value, at = p.Value, p.Step/last
		}
	}
	return value, at
}

// toAcceptable and toObjective count from the submission.
func (t Task) toAcceptable() float64 { return float64(t.AcceptableAt - t.Submitted) }
func (t Task) toObjective() float64  { return float64(t.ObjectiveAt - t.Submitted) }

// Makespan returns when all training jobs have reached their objectives.
func (r Run) Makespan() float64 {
	end := math.NaN()
	for _, t := range r.Tasks {
		if t.Kind == Training && !(float64(t.ObjectiveAt) <= end) {
			end = float64(t.ObjectiveAt)
		}
	}
	return end
}

// BusyBy returns the mean fraction of the pool used by the tasks, and by the machine.
func (r Run) BusyBy(cores float64) (tasks, machine float64) {
	var all, own, busy float64
	for _, s := range r.Samples {
		all += s.Seconds * cores
		busy += s.Seconds * s.Busy
		for _, t := range s.Tasks {
			own += s.Seconds * t.Cores
		}
	}
	return own / all, busy / all
}

// TrainingTables returns TRADL's tables in one mode, compared with policy none, which also acts on
// targets, and with no targets, the paper's "NA".
func TrainingTables(e Experiment, mode string) []Table {
	var tables []Table
	names := variants(e.Runs, TRADL, "", mode)
	for _, base := range []string{None, NoTargets} {
		seeds := Seeds(e.Runs, func(r Run) bool { return r.What == TRADL && r.Variant == base })
		if len(seeds) == 0 {
			continue
		}
		t := Table{
			Title:  fmt.Sprintf("TRADL, mode %s, seeds: %d; time to the targets from submission; change against %q, median (best … worst)", mode, len(seeds), base),
			Header: []string{"job", "target", "under " + base},
		}
		var compared []string
		for _, v := range names {
			if rank(v) > rank(base) {
				compared = append(compared, v)
				t.Header = append(t.Header, v)
			}
		}
		first, _ := find(e.Runs, TRADL, "", base, mode, seeds[0])
		row := func(name, target string, of func(Run) float64) {
			cells := []string{name, target}
			var under []float64
			for _, seed := range seeds {
				r, _ := find(e.Runs, TRADL, "", base, mode, seed)
				under = append(under, of(r))
			}
			cells = append(cells, spread(under, less, seconds))
			for _, v := range compared {
				var changes []float64
				for i, seed := range seeds {
					if r, ok := find(e.Runs, TRADL, "", v, mode, seed); ok {
						changes = append(changes, Change(under[i], of(r)))
					}
				}
				cells = append(cells, spread(changes, less, change))
			}
			t.Rows = append(t.Rows, cells)
		}
		for i, task := range first.Tasks {
			name := task.Name
			if task.About != "" {
				name += " (" + task.About + ")"
			}
			row(name, "acceptable", func(r Run) float64 { return r.Tasks[i].toAcceptable() })
			row("", "objective", func(r Run) float64 { return r.Tasks[i].toObjective() })
		}
		row("mean of all", "acceptable", func(r Run) float64 { return mean(r, Task.toAcceptable) })
		row("", "objective", func(r Run) float64 { return mean(r, Task.toObjective) })
		row("all have reached it", "objective", Run.Makespan)
		t.Notes = trainingNotes(e, mode, append([]string{base}, compared...))
		tables = append(tables, t)
	}
	return tables
}

func mean(r Run, of func(Task) float64) float64 {
	var sum, n float64
	for _, t := range r.Tasks {
		if t.Kind == Training {
			sum += of(t)
			n++
		}
	}
	return sum / n
}

// trainingNotes returns the pool's use, the delay of Ebbtide's markers, and acceptable tasks' CPU
// by rule.
func trainingNotes(e Experiment, mode string, names []string) []string {
	var busy, rules []string
	var lags []float64
	for _, v := range names {
		var own, machine []float64
		counts := make(map[string]int)
		for _, r := range e.Runs {
			if r.What != TRADL || r.Variant != v || r.Mode != mode && r.Mode != "" {
				continue
			}
			o, m := r.BusyBy(e.Cores)
			own, machine = append(own, o), append(machine, m)
			for _, t := range r.Tasks {
				lags = append(lags, float64(t.AcceptableMark-t.AcceptableAt), float64(t.ObjectiveMark-t.ObjectiveAt))
			}
			for _, s := range r.Samples {
				for _, t := range s.Tasks {
					if t.Alive && t.State == "acceptable" {
						counts[t.Rule]++
					}
				}
			}
		}
		busy = append(busy, fmt.Sprintf("%s %s (with all else on the machine %s)", v, percent(SpreadOf(own).Median), percent(SpreadOf(machine).Median)))
		if text := byCount(counts); text != "" {
			rules = append(rules, v+": "+text)
		}
	}
	notes := []string{"Pool in use by the jobs, median: " + strings.Join(busy, ", ") + "."}
	if s := SpreadOf(lags); s.N > 0 {
		notes = append(notes, fmt.Sprintf("From a report's being written to Ebbtide's marker: median %.2f s, longest %.2f s.", s.Median, s.Max))
	}
	if len(rules) > 0 {
		notes = append(notes, "Rules in force for acceptable tasks, windows: "+strings.Join(rules, "; ")+".")
	}
	return notes
}
