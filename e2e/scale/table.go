// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/scale/measure"
)

// target is a figure's target at 100 %.
type target struct {
	limit  float64
	atMost bool
	text   string
}

func (t target) met(v float64) bool {
	if t.atMost {
		return v < t.limit
	}
	return v >= t.limit
}

// row is a figure at all sizes.
type row struct {
	name   string
	target *target
	// of returns the figure and its text; NaN if not measured.
	of func(size) (float64, string)
}

// table lists all sizes, and missed targets.
func table(o options, sizes []size) result.Table {
	t := result.Table{
		Title: fmt.Sprintf("The shim on a simulated cluster, seed %d, %d cores, %s: median (least … most) unless it says otherwise",
			o.seed, runtime.NumCPU(), runtime.Version()),
		Header: []string{""},
	}
	for _, s := range sizes {
		t.Header = append(t.Header, fmt.Sprintf("%g %%", s.percent))
	}
	t.Header = append(t.Header, "target")
	full := slices.IndexFunc(sizes, func(s size) bool { return s.percent == 100 })
	var missed []string
	for _, r := range rows(o) {
		cells := []string{r.name}
		for i, s := range sizes {
			v, text := r.of(s)
			if math.IsNaN(v) {
				text = "–"
			}
			cells = append(cells, text)
			if i == full && r.target != nil && !math.IsNaN(v) && !r.target.met(v) {
				missed = append(missed, fmt.Sprintf("%s: %s, not %s", r.name, text, r.target.text))
			}
		}
		text := ""
		if r.target != nil {
			text = r.target.text
		}
		t.Rows = append(t.Rows, append(cells, text))
	}
	switch {
	case full < 0:
		t.Notes = append(t.Notes, "Targets are for 100 %, which was not measured.")
	case len(missed) == 0:
		t.Notes = append(t.Notes, "All targets are met.")
	default:
		t.Notes = append(t.Notes, "Missed: "+strings.Join(missed, "; ")+".")
	}
	return t
}

func rows(o options) []row {
	last := func(of func(measure.Report) (float64, string)) func(size) (float64, string) {
		return func(s size) (float64, string) { return of(s.lists[len(s.lists)-1]) }
	}
	lists := func(of func(measure.Report) float64, format string) func(size) (float64, string) {
		return func(s size) (float64, string) {
			var values []float64
			for _, r := range s.lists {
				values = append(values, of(r))
			}
			return slices.Max(values), spread(values, format)
		}
	}
	watches := func(of func(size) *watched, what func(watched) (float64, string)) func(size) (float64, string) {
		return func(s size) (float64, string) {
			if w := of(s); w != nil {
				return what(*w)
			}
			return math.NaN(), ""
		}
	}
	idle := func(s size) *watched { return s.idle }
	follows := func(s size) *watched { return s.follows }
	queues := func(s size) *watched { return s.queues }
	steps := func(w watched) (float64, string) { return w.StepS, fmt.Sprintf("%.1f ms", 1000*w.StepS) }
	cores := func(w watched) (float64, string) { return w.Cores, fmt.Sprintf("%.2f %%", 100*w.Cores) }
	return []row{
		{"nodes", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprint(r.Nodes) })},
		{"allocations", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprint(r.Allocs) })},
		{"jobs that are read whole", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprint(r.Jobs) })},
		{"load of the machine before", nil, func(s size) (float64, string) { return 0, s.load }},
		{"list and model", &target{30, true, "< 30 s"}, lists(func(r measure.Report) float64 { return r.ModelS }, "%.2f s")},
		{"memory until then, the most", &target{1024, true, "< 1 GiB"}, lists(func(r measure.Report) float64 { return r.PeakMiB }, "%.0f MiB")},
		{"events applied", &target{20000, false, "≥ 20 000/s"}, last(func(r measure.Report) (float64, string) {
			return result.SpreadOf(r.EventsPerS).Median, spread(r.EventsPerS, "%.0f/s")
		})},
		{"CPU of an event, mean", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprintf("%.0f µs", 1e6*r.EventCPUS) })},
		{"size of an event, mean", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprintf("%.1f kB", r.EventBytes/1000) })},
		{"memory until then, the most", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprintf("%.0f MiB", r.PeakEventMiB) })},
		{"asking all nodes, once", nil, last(func(r measure.Report) (float64, string) {
			return 0, fmt.Sprintf("%.2f s, %d answer", r.AskS, r.Known)
		})},
		{"summing up what they said, once", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprintf("%.1f ms", 1000*r.LoadsS) })},
		{fmt.Sprintf("placement decision, p50 / p99 / most of %d", o.decisions), &target{0.010, true, "p99 < 10 ms"}, last(func(r measure.Report) (float64, string) {
			p99 := quantile(r.PlaceS, 0.99)
			return p99, fmt.Sprintf("%.2f / %.2f / %.2f ms", 1000*quantile(r.PlaceS, 0.5), 1000*p99, 1000*quantile(r.PlaceS, 1))
		})},
		{"CPU of a decision, mean", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprintf("%.2f ms", 1000*r.PlaceCPUS) })},
		{"nodes among which it chooses, median", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprintf("%.0f", quantile(r.PlaceNodes, 0.5)) })},
		{"rebalancing all nodes", &target{1, true, "< 1 s"}, last(func(r measure.Report) (float64, string) {
			return quantile(r.RebalanceS, 1), spread(scaled(r.RebalanceS, 1000), "%.1f ms")
		})},
		{"moves that it asks for", nil, last(func(r measure.Report) (float64, string) { return 0, fmt.Sprint(r.Moves) })},
		{fmt.Sprintf("CPU of an idle shim, of one core, over %v", o.idle), &target{0.01, true, "< 1 %"}, watches(idle, cores)},
		{"longest step of its loop", &target{0.05, true, "< 50 ms"}, watches(idle, steps)},
		{"its memory, the most", nil, watches(idle, func(w watched) (float64, string) { return 0, fmt.Sprintf("%.0f MiB", w.PeakMiB) })},
		{"its writes, but for the lock's", &target{3, true, "< 3: its report"}, watches(idle, func(w watched) (float64, string) {
			return float64(w.Requests.Writes()), fmt.Sprint(w.Requests.Writes())
		})},
		{fmt.Sprintf("CPU with %g events/s", o.rate), nil, watches(follows, cores)},
		{fmt.Sprintf("CPU with %d jobs waiting in the queue", o.waiting), nil, watches(queues, cores)},
		{"longest step of its loop then", &target{0.05, true, "< 50 ms"}, watches(queues, steps)},
		{"its memory then, the most", nil, watches(queues, func(w watched) (float64, string) { return 0, fmt.Sprintf("%.0f MiB", w.PeakMiB) })},
	}
}

// quantile returns the least value with that fraction at or below it; NaN for none.
func quantile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

func scaled(values []float64, by float64) []float64 {
	var out []float64
	for _, v := range values {
		out = append(out, v*by)
	}
	return out
}

func spread(values []float64, format string) string {
	s := result.SpreadOf(values)
	text := func(v float64) string { return fmt.Sprintf(format, v) }
	if s.N < 2 {
		return text(s.Median)
	}
	return fmt.Sprintf("%s (%s … %s)", text(s.Median), text(s.Min), text(s.Max))
}
