// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"fmt"
	"math"
	"strings"
)

// settling is the number of windows after a join in which the policy adapts.
const settling = 5

// Mixed is the result of a run of all kinds.
type Mixed struct {
	// Fractions of windows in which a service met its target: before the join, after it, and
	// from the sixth window on.
	Before, After, Later []float64
	// Response times relative to the objective, from the sixth window on.
	Response []float64
	// Fractions of the pool after the join: per training, in total, and of the silent task.
	Training           []float64
	TrainingSum, Quiet float64
	// Idle fraction of the pool while a task was limited, mean and worst; NaN if none was.
	Idle, IdleWorst float64
	Throttled       int // windows with a limited task
	Windows         int // after the join
}

// Mix evaluates a run of all kinds.
func Mix(r Run, cores float64) Mixed {
	m := Mixed{Idle: math.NaN(), IdleWorst: math.NaN(), Quiet: math.NaN()}
	join := len(r.Samples)
	for k, s := range r.Samples {
		// A window across the join is ignored.
		if s.T-s.Seconds >= float64(r.Joined) {
			join = k
			break
		}
	}
	n := len(r.Samples)
	before := join
	for before > 0 && r.Samples[before-1].T > r.firstJoin() {
		before--
	}
	m.Windows = n - join
	later := min(n, join+settling)
	for i, t := range r.Tasks {
		switch t.Kind {
		case Service:
			o := float64(t.Objective)
			m.Before = append(m.Before, r.met(i, 0, before))
			m.After = append(m.After, r.met(i, join, n))
			m.Later = append(m.Later, r.met(i, later, n))
			m.Response = append(m.Response, r.response(i, later, n)/o)
		case Training:
			got := r.cpu(i, join, n) / cores
			m.Training = append(m.Training, got)
			m.TrainingSum += got
		case Quiet:
			m.Quiet = r.cpu(i, join, n) / cores
		}
	}
	var idle, length float64
	for _, s := range r.Samples {
		if !r.limited(s) {
			continue
		}
		m.Throttled++
		part := math.Max(0, 1-s.Busy/cores)
		idle += part * s.Seconds
		length += s.Seconds
		if !(part <= m.IdleWorst) {
			m.IdleWorst = part
		}
	}
	if length > 0 {
		m.Idle = idle / length
	}
	return m
}

// firstJoin returns the time of the first later submission.
func (r Run) firstJoin() float64 {
	first := float64(r.Joined)
	for _, t := range r.Tasks {
		if t.Kind == Training && float64(t.Submitted) < first {
			first = float64(t.Submitted)
		}
	}
	return first
}

// limited reports whether a task has less than its entitlement.
func (r Run) limited(s Sample) bool {
	for i, t := range s.Tasks {
		if t.Limited(r.Tasks[i].Base) {
			return true
		}
	}
	return false
}

// met returns the fraction of windows a to b with answers in which a service met its objective; NaN
// without any.
func (r Run) met(task, a, b int) float64 {
	var met, all float64
	for w := a; w < b; w++ {
		switch class(r.response(task, w, w+1), float64(r.Tasks[task].Objective)) {
		case "":
			continue
		case "S", "G":
			met++
		}
		all++
	}
	return met / all
}

func MixTables(e Experiment, mode string) []Table {
	names := variants(e.Runs, Auto, "", mode)
	if len(names) == 0 {
		return nil
	}
	t := Table{Header: []string{"policy", "service", "target met before", "after the join", "from the 6th window on", "response : target"}}
	u := Table{Header: []string{"policy", "training jobs together", "each", "without progress", "idle while a task is limited", "worst window", "windows with limits"}}
	seeds := 0
	for _, v := range names {
		var runs []Mixed
		var services []string
		for _, r := range e.Runs {
			if r.What == Auto && r.Variant == v && (r.Mode == mode || r.Mode == "") {
				runs = append(runs, Mix(r, e.Cores))
				services = nil
				for _, i := range r.services() {
					services = append(services, r.Tasks[i].Name)
				}
			}
		}
		seeds = max(seeds, len(runs))
		for i, name := range services {
			of := func(get func(Mixed) []float64) []float64 {
				var out []float64
				for _, m := range runs {
					out = append(out, get(m)[i])
				}
				return out
			}
			t.Rows = append(t.Rows, []string{
				v, name,
				spread(of(func(m Mixed) []float64 { return m.Before }), more, percent),
				spread(of(func(m Mixed) []float64 { return m.After }), more, percent),
				spread(of(func(m Mixed) []float64 { return m.Later }), more, percent),
				spread(of(func(m Mixed) []float64 { return m.Response }), less, func(x float64) string { return fmt.Sprintf("%.2f", x) }),
			})
		}
		var sum, quiet, idle, worst []float64
		var each []string
		throttled, windows := 0, 0
		for i := range runs[0].Training {
			var got []float64
			for _, m := range runs {
				got = append(got, m.Training[i])
			}
			each = append(each, spread(got, more, percent))
		}
		for _, m := range runs {
			sum, quiet = append(sum, m.TrainingSum), append(quiet, m.Quiet)
			if !math.IsNaN(m.Idle) {
				idle, worst = append(idle, m.Idle), append(worst, m.IdleWorst)
			}
			throttled += m.Throttled
			windows += m.Windows
		}
		u.Rows = append(u.Rows, []string{
			v, spread(sum, more, percent), strings.Join(each, "; "), spread(quiet, more, percent),
			spread(idle, less, fine), spread(worst, less, fine), fmt.Sprintf("%d (%d after the join)", throttled, windows),
		})
	}
	t.Title = fmt.Sprintf("All kinds on one node, mode %s, seeds: up to %d; windows in which services meet their targets; median (best … worst)", mode, seeds)
	u.Title = fmt.Sprintf("The same: parts of the pool after the join, mode %s; median (most … least; of idle CPU: least … most)", mode)
	return []Table{t, u}
}

func Tables(e Experiment) []Table {
	var all []Table
	for _, what := range []string{TRADL, DQoES, Auto} {
		for _, mode := range Modes(e.Runs, what) {
			switch what {
			case TRADL:
				all = append(all, TrainingTables(e, mode)...)
			case DQoES:
				all = append(all, ServiceTables(e, mode)...)
			case Auto:
				all = append(all, MixTables(e, mode)...)
			}
		}
	}
	return all
}
