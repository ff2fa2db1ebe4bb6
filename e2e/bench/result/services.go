// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

const (
	// tolerance is DQoES's α.
	tolerance = 0.1
	// tail is the number of windows evaluated at a run's end.
	tail = 5
	// smooth is the number of windows per class during a run.
	smooth = 3
)

// class compares a response time with an objective; "" if unknown.
func class(response, objective float64) string {
	switch {
	case math.IsNaN(response):
		return ""
	case response < (1-tolerance)*objective:
		return "G"
	case response > (1+tolerance)*objective:
		return "B"
	}
	return "S"
}

// response returns the mean over windows a to b.
func (r Run) response(task, a, b int) float64 {
	var sum, n float64
	for _, s := range r.Samples[max(0, a):b] {
		if task < len(s.Tasks) && s.Tasks[task].Answers > 0 {
			sum += float64(s.Tasks[task].Response) * float64(s.Tasks[task].Answers)
			n += float64(s.Tasks[task].Answers)
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return sum / n
}

// cpu returns the mean use over windows a to b, in cores.
func (r Run) cpu(task, a, b int) float64 {
	var used, all float64
	for _, s := range r.Samples[max(0, a):b] {
		all += s.Seconds
		if task < len(s.Tasks) {
			used += s.Tasks[task].Cores * s.Seconds
		}
	}
	return used / all
}

func (r Run) services() []int {
	var is []int
	for i, t := range r.Tasks {
		if t.Kind == Service {
			is = append(is, i)
		}
	}
	return is
}

// Equal returns the mean response of all services in the first half of a run with equal shares.
func (r Run) Equal() float64 {
	var sum, n float64
	for _, i := range r.services() {
		if p := r.response(i, 0, len(r.Samples)/2); !math.IsNaN(p) {
			sum += p
			n++
		}
	}
	return sum / n
}

// Served is the result of a run of services.
type Served struct {
	S, G, B, Unknown int
	Classes          string // a letter per service
	// Stable is the window from which the number of satisfied services stays within one of its
	// final value; NaN if it never does.
	Stable float64
	// Tightest means that the service with the hardest objective had the most CPU in the second
	// half.
	Tightest bool
	// Relative excess of the largest over the smallest limit at the end, and CPU use in the
	// second half, as ten seconds are noisy.
	LimitSpread, CPUSpread float64
	CPUPerAnswer           float64 // CPU-seconds
}

func Serve(r Run) Served {
	var o Served
	n := len(r.Samples)
	services := r.services()
	if n == 0 || len(services) == 0 {
		return o
	}
	var limits, cpus []float64
	tightest, most := services[0], services[0]
	var used, answers float64
	for _, i := range services {
		c := class(r.response(i, n-tail, n), float64(r.Tasks[i].Objective))
		switch c {
		case "S":
			o.S++
		case "G":
			o.G++
		case "B":
			o.B++
		default:
			o.Unknown++
			c = "–"
		}
		o.Classes += c
		cpus = append(cpus, r.cpu(i, n/2, n))
		if r.Tasks[i].Objective < r.Tasks[tightest].Objective {
			tightest = i
		}
		if r.cpu(i, n/2, n) > r.cpu(most, n/2, n) {
			most = i
		}
		if last := r.Samples[n-1]; i < len(last.Tasks) {
			limit := float64(last.Tasks[i].Shares)
			if r.Mode == "quota" {
				limit = last.Tasks[i].Quota
			}
			limits = append(limits, limit)
		}
		for _, s := range r.Samples {
			if i < len(s.Tasks) {
				used += s.Tasks[i].Cores * s.Seconds
				answers += float64(s.Tasks[i].Answers)
			}
		}
	}
	o.Tightest = tightest == most
	o.LimitSpread, o.CPUSpread = excess(limits), excess(cpus)
	o.CPUPerAnswer = used / answers
	o.Stable = r.stable(o.S)
	return o
}

// stable returns the window from which the number of satisfied services is stable.
func (r Run) stable(final int) float64 {
	n := len(r.Samples)
	from := n
	for w := n; w >= smooth; w-- {
		satisfied := 0
		for _, i := range r.services() {
			if class(r.response(i, w-smooth, w), float64(r.Tasks[i].Objective)) == "S" {
				satisfied++
			}
		}
		if satisfied < final-1 || satisfied > final+1 {
			break
		}
		from = w - smooth + 1
	}
	if from > n-tail {
		return math.NaN()
	}
	return float64(from)
}

// excess returns the relative excess of the largest over the smallest.
func excess(values []float64) float64 {
	if len(values) == 0 || !(slices.Min(values) > 0) {
		return math.NaN()
	}
	return slices.Max(values)/slices.Min(values) - 1
}

// ServiceTables returns DQoES's tables in one mode, one per case.
func ServiceTables(e Experiment, mode string) []Table {
	var tables []Table
	for _, kase := range []string{Varied, Reachable, Unreachable} {
		names := variants(e.Runs, DQoES, kase, mode)
		if len(names) == 0 {
			continue
		}
		t := Table{
			Header: []string{"variant", "satisfied (S)", "better (G)", "worse (B)", "S or G", "stable after, windows", "hardest has most CPU", "limits differ by", "CPU of the second half differs by", "classes of each seed"},
		}
		seeds := 0
		for _, v := range names {
			var s, g, b, met, stable, limits, cpus []float64
			var classes []string
			tightest := 0
			for _, r := range e.Runs {
				if r.What != DQoES || r.Case != kase || r.Variant != v || r.Mode != mode && r.Mode != "" {
					continue
				}
				o := Serve(r)
				s, g, b = append(s, float64(o.S)), append(g, float64(o.G)), append(b, float64(o.B))
				met = append(met, float64(o.S+o.G))
				stable = append(stable, o.Stable)
				limits, cpus = append(limits, o.LimitSpread), append(cpus, o.CPUSpread)
				classes = append(classes, o.Classes)
				if o.Tightest {
					tightest++
				}
			}
			seeds = max(seeds, len(s))
			most := fmt.Sprintf("%d of %d", tightest, len(s))
			if kase != Varied {
				most = "–"
			}
			t.Rows = append(t.Rows, []string{
				v, spread(s, more, count), spread(g, more, count), spread(b, less, count), spread(met, more, count),
				settled(stable), most, spread(limits, less, fine), spread(cpus, less, fine), strings.Join(classes, " "),
			})
		}
		t.Title = fmt.Sprintf("DQoES, %s objectives, mode %s, seeds: up to %d; 10 services, over the last %d windows of %g s; median (best … worst)", kase, mode, seeds, tail, e.Interval)
		t.Notes = serviceNotes(e, kase, mode)
		tables = append(tables, t)
	}
	return tables
}

// settled renders when runs became stable, and how many did not.
func settled(windows []float64) string {
	never := 0
	var known []float64
	for _, w := range windows {
		if math.IsNaN(w) {
			never++
			continue
		}
		known = append(known, w)
	}
	switch {
	case len(known) == 0:
		return "not stable"
	case never > 0:
		return spread(known, less, count) + fmt.Sprintf(", not in %d of %d", never, len(windows))
	}
	return spread(known, less, count)
}

// serviceNotes returns objectives, run lengths and the cost of a batch.
func serviceNotes(e Experiment, kase, mode string) []string {
	var notes []string
	windows := make(map[string]int)
	costs := make(map[string][]float64)
	for _, r := range e.Runs {
		if r.What != DQoES || r.Case != kase || r.Mode != mode && r.Mode != "" {
			continue
		}
		windows[fmt.Sprint(len(r.Samples))]++
		costs[r.Variant] = append(costs[r.Variant], Serve(r).CPUPerAnswer)
	}
	notes = append(notes, "Windows a run: "+byCount(windows)+".")
	var text []string
	for _, v := range variants(e.Runs, DQoES, kase, mode) {
		text = append(text, v+" "+spread(costs[v], less, func(s float64) string { return fmt.Sprintf("%.1f ms", 1000*s) }))
	}
	return append(notes, "CPU time of a batch, which no policy changes: "+strings.Join(text, ", ")+".")
}

// byCount renders counts, largest first.
func byCount(counts map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if d := counts[b] - counts[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var out []string
	for _, k := range keys {
		name := k
		if name == "" {
			name = "none yet"
		}
		out = append(out, fmt.Sprintf("%s (%d ×)", name, counts[k]))
	}
	return strings.Join(out, ", ")
}
