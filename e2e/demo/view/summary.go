// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package view

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/ebbtide/ebbtide/e2e/demo/result"
)

// Below one of these differences two times of one run count as equal: reports,
// starts and the machine's other work are not more exact.
const (
	even        = 0.02 // part of the time
	evenSeconds = 0.3
)

// verdictOf is −1 for sooner, 1 for later, 0 for even and false for unknown.
func verdictOf(none, flowcon float64) (int, bool) {
	diff := result.Change(none, flowcon)
	switch {
	case math.IsNaN(diff):
		return 0, false
	case math.Abs(diff) < even || math.Abs(flowcon-none) < evenSeconds:
		return 0, true
	case diff < 0:
		return -1, true
	}
	return 1, true
}

// measure is a figure that is compared.
type measure struct {
	name string
	of   func(result.Times) float64
	say  string // of a job that won or lost
}

var measures = []measure{
	{"completion", func(t result.Times) float64 { return t.Completion }, "done"},
	{"to 95 % of its quality", func(t result.Times) float64 { return t.To95 }, "95 % of its quality"},
	{"to 90 % of its quality", func(t result.Times) float64 { return t.To90 }, "90 % of its quality"},
}

// Summary compares the two runs of a pair as a text of several lines. Its times
// are seconds.
func Summary(c result.Comparison, look Look) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %-24s %9s %9s  %s\n", "", "", "none", "flowcon", "difference")
	for _, r := range c.Rows {
		writeRow(&b, r, look)
	}
	mean := c.Mean
	mean.Name = "mean"
	writeRow(&b, mean, look)
	writeLine(&b, "all", "makespan", c.MakespanNone, c.MakespanFlowcon, look)
	b.WriteString("\n")
	b.WriteString(verdict(c, look))
	b.WriteString("\nTimes are seconds from each job's own submission. Quality: the part of the way from the first loss that a\n" +
		"job evaluated to the lowest one that it reached in either run.\n")
	b.WriteString(busy(c))
	return b.String()
}

func writeRow(b *strings.Builder, r result.Row, look Look) {
	name := r.Name
	for _, m := range measures {
		writeLine(b, name, m.name, m.of(r.None), m.of(r.Flowcon), look)
		name = ""
	}
}

func writeLine(b *strings.Builder, name, what string, none, flowcon float64, look Look) {
	text, colour := "  unknown", ""
	if v, known := verdictOf(none, flowcon); known {
		text = signed(result.Change(none, flowcon))
		switch v {
		case -1:
			text, colour = text+"  sooner", green
		case 1:
			text, colour = text+"  later", red
		default:
			text += "  even"
		}
	}
	label := name + strings.Repeat(" ", max(0, 10-utf8.RuneCountInString(name)))
	fmt.Fprintf(b, "%s %-24s %9s %9s  %s\n", look.paint(bold, label), what, seconds(none), seconds(flowcon), look.paint(colour, text))
}

// verdict names winners, losers and what is even, in the same words.
func verdict(c result.Comparison, look Look) string {
	var won, lost, same []string
	take := func(name string, none, flowcon float64, what string) {
		diff := result.Change(none, flowcon)
		v, known := verdictOf(none, flowcon)
		switch {
		case !known:
		case v < 0:
			won = append(won, fmt.Sprintf("%s: %s %.0f %% sooner", name, what, -100*diff))
		case v > 0:
			lost = append(lost, fmt.Sprintf("%s: %s %.0f %% later", name, what, 100*diff))
		default:
			same = append(same, fmt.Sprintf("%s: %s", name, what))
		}
	}
	for _, r := range c.Rows {
		for _, m := range measures {
			take(r.Name, m.of(r.None), m.of(r.Flowcon), m.say)
		}
	}
	take("all jobs", c.MakespanNone, c.MakespanFlowcon, "done")
	var b strings.Builder
	list := func(title, colour string, items []string) {
		if len(items) == 0 {
			items = []string{"nobody"}
		}
		for i, item := range items {
			if i > 0 {
				title = ""
			}
			b.WriteString(look.paint(colour, fmt.Sprintf("%-18s", title)))
			b.WriteString(" " + item + "\n")
		}
	}
	list("won by flowcon", green, won)
	list("lost by flowcon", red, lost)
	if len(same) > 0 {
		list("even", "", same)
	}
	return b.String()
}

// busy says how far the machine was the jobs' own, and so how exact all this is.
func busy(c result.Comparison) string {
	const enough, alike, calm = 0.85, 0.05, 0.05
	text := fmt.Sprintf("Even: less than %.0f %% or %.1f s apart. The jobs used %.0f %% of the pool under none and %.0f %% under flowcon.\n",
		100*even, evenSeconds, 100*c.BusyNone, 100*c.BusyFlowcon)
	if c.BusyNone < enough || c.BusyFlowcon < enough || math.Abs(c.BusyNone-c.BusyFlowcon) > alike {
		text += "Something else was using this machine, or the jobs did not want all of it: the comparison is less exact.\n"
	}
	if c.Noise > calm {
		text += fmt.Sprintf("Until the second job came, where no policy acts, the first one's work differed by %.0f %%: noise of the machine.\n", 100*c.Noise)
	}
	return text
}

// Distribution shows how the differences lie over several pairs.
func Distribution(all []result.Comparison) string {
	var b strings.Builder
	fmt.Fprintf(&b, "flowcon against none over %d seeds: the difference in time, negative = sooner\n", len(all))
	fmt.Fprintf(&b, "%-10s %-24s %9s %9s %9s\n", "", "", "best", "median", "worst")
	line := func(name, what string, of func(result.Comparison) float64) {
		var v []float64
		for _, c := range all {
			v = append(v, of(c))
		}
		s := result.SpreadOf(v)
		fmt.Fprintf(&b, "%-10s %-24s %9s %9s %9s\n", name, what, signed(s.Min), signed(s.Median), signed(s.Max))
	}
	if len(all) == 0 {
		return b.String()
	}
	for i, r := range all[0].Rows {
		name := r.Name
		for _, m := range measures {
			line(name, m.name, func(c result.Comparison) float64 {
				return result.Change(m.of(c.Rows[i].None), m.of(c.Rows[i].Flowcon))
			})
			name = ""
		}
	}
	name := "mean"
	for _, m := range measures {
		line(name, m.name, func(c result.Comparison) float64 { return result.Change(m.of(c.Mean.None), m.of(c.Mean.Flowcon)) })
		name = ""
	}
	line("all", "makespan", func(c result.Comparison) float64 { return result.Change(c.MakespanNone, c.MakespanFlowcon) })
	return b.String()
}

func seconds(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

// signed is a difference in per cent with its sign, and no "-0.0".
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
