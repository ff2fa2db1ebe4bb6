// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package view

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

// Times that differ by less than both count as equal: measurements are not more exact.
const (
	even        = metrics.Slower // fraction of the time
	evenSeconds = 0.3
)

// verdictOf is −1 for sooner, 1 for later, 0 for even.
func verdictOf(none, with float64) int {
	diff := with/none - 1
	switch {
	case math.Abs(diff) < even || math.Abs(with-none) < evenSeconds:
		return 0
	case diff < 0:
		return -1
	}
	return 1
}

// measure is a compared time of a job.
type measure struct {
	title, short, name string
	of                 func(metrics.Job) *float64 // the moment
}

var measures = []measure{
	{"done after, s", "done", metrics.Completion, func(j metrics.Job) *float64 { return j.EndS }},
	{"95 % of its quality after, s", "95 %", metrics.Quality95, func(j metrics.Job) *float64 { return j.Quality95S }},
}

// time returns the job's time; NaN if unknown.
func (m measure) time(j metrics.Job) float64 {
	if at := m.of(j); at != nil {
		return *at - j.ArriveS
	}
	return math.NaN()
}

// Summary compares a pair's runs in several lines.
func Summary(c result.Comparison, look Look) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s %-8s", nameWidth, "", "")
	for _, m := range measures {
		fmt.Fprintf(&b, "  %28s", m.title)
	}
	fmt.Fprintf(&b, "\n%-*s %-8s", nameWidth, "job", "model")
	for range measures {
		fmt.Fprintf(&b, "  %8s %8s %10s", c.None.Policy, c.With.Policy, "change")
	}
	b.WriteString("\n")
	line := func(name, model string, times [][2]float64) {
		text := fmt.Sprintf("%s %-8s", look.paint(bold, pad(name, nameWidth, true)), model)
		for _, t := range times {
			colour := map[int]string{-1: green, 1: red}[verdictOf(t[0], t[1])]
			text += fmt.Sprintf("  %8s %8s %s", seconds(t[0]), seconds(t[1]), look.paint(colour, fmt.Sprintf("%10s", signed(t[1]/t[0]-1))))
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	for i, j := range c.With.Jobs {
		var times [][2]float64
		for _, m := range measures {
			times = append(times, [2]float64{m.time(c.None.Jobs[i]), m.time(j)})
		}
		line(j.ID, j.Kind, times)
	}
	var means [][2]float64
	for _, m := range measures {
		t := c.Summary.Time(m.name)
		means = append(means, [2]float64{t.Seconds.Mean / t.Ratio.Mean, t.Seconds.Mean})
	}
	line("mean", "", means)
	line("last end", "", [][2]float64{{c.None.Makespan(), c.With.Makespan()}})
	b.WriteString("\n" + verdict(c, look))
	fmt.Fprintf(&b, "worst job       %.2f times its time under %s (%s)\n", c.Summary.Ratio.Max, c.None.Policy, c.Summary.WorstJob)
	b.WriteString("\nTimes count from each job's own submission. Quality: the part of the way from a job's first loss to its best one.\n")
	b.WriteString(busy(c))
	return b.String()
}

// Outcome summarises all runs in a phrase.
func Outcome(s metrics.Summary) string {
	return fmt.Sprintf("mean time to end %s under %s, worst job × %.2f", Change(s.Time(metrics.Completion).Ratio.Mean), s.Policy, s.Ratio.Max)
}

// Change formats a ratio as a change in percent.
func Change(ratio float64) string { return strings.TrimSpace(signed(ratio - 1)) }

// verdict names winners and losers.
func verdict(c result.Comparison, look Look) string {
	var b strings.Builder
	for _, m := range measures {
		lists := make(map[int][]string)
		for i, j := range c.With.Jobs {
			if none, with := m.time(c.None.Jobs[i]), m.time(j); !math.IsNaN(none) && !math.IsNaN(with) {
				v := verdictOf(none, with)
				lists[v] = append(lists[v], j.ID+" "+strings.TrimSpace(signed(with/none-1)))
			}
		}
		for _, l := range []struct {
			title, colour string
			verdict       int
		}{{"sooner", green, -1}, {"later", red, 1}, {"even", "", 0}} {
			text := "none"
			if names := lists[l.verdict]; len(names) > 0 {
				text = strings.Join(names, ", ")
			} else if l.verdict == 0 {
				continue
			}
			b.WriteString(look.paint(l.colour, fmt.Sprintf("%-15s", m.short+" "+l.title)) + " " + text + "\n")
		}
	}
	return b.String()
}

// used returns the fraction of the pool used while jobs were present.
func used(r metrics.Run) float64 {
	cpu := 0.0
	for _, j := range r.Jobs {
		cpu += j.CPUS
	}
	return cpu / (cpu + r.IdleCPUS)
}

// busy states the accuracy of the figures, from other load on the machine.
func busy(c result.Comparison) string {
	const enough, alike, calm = 0.85, 0.05, 0.05
	none, with := used(c.None), used(c.With)
	text := fmt.Sprintf("Even: less than %.0f %% or %.1f s apart. The jobs used %.0f %% of the pool under %s and %.0f %% under %s.\n",
		100*even, evenSeconds, 100*none, c.None.Policy, 100*with, c.With.Policy)
	if none < enough || with < enough || math.Abs(none-with) > alike {
		text += "Something else was using this machine, or the jobs did not want all of it: the comparison is less exact.\n"
	}
	if c.Noise > calm {
		text += fmt.Sprintf("Until the second job came, where no policy acts, the first one's work differed by %.0f %%: noise of the machine.\n", 100*c.Noise)
	}
	return text
}

func seconds(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

// signed returns a difference in per cent, without "-0.0".
func signed(f float64) string {
	if math.IsNaN(f) {
		return "-"
	}
	text := fmt.Sprintf("%+.1f %%", 100*f)
	if text == "-0.0 %" {
		text = "+0.0 %"
	}
	return fmt.Sprintf("%8s", text)
}
