// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Text writes the report for people: the verdict, the machine, the tests and the figures.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("Ebbtide on a card: %s", verdict(r.Verdict, r.Reason))
	if r.Fake {
		p("\nTHIS WAS THE FAKE CARD: its figures say nothing about a real one.")
	}
	p("")
	p("date      %s, %.0f s", r.Begun.UTC().Format(time.RFC3339), r.Seconds)
	p("ebbtide   %s", r.Ebbtide)
	p("machine   Linux %s, %s, %d processors, %d MiB, glibc %s (%s is needed), root: %s",
		r.Machine.Kernel, r.Machine.Architecture, r.Machine.Processors, r.Machine.MemoryMiB,
		cmp.Or(r.Machine.Glibc, "unknown"), r.Machine.GlibcNeeded, map[bool]string{true: "yes", false: "no"}[r.Machine.Root])
	if c := r.Card; c != nil {
		p("card      %s, %s", c.Name, c.UUID)
		p("driver    %s, CUDA %s", c.Driver, c.CUDA)
		p("memory    %s MiB, of which the driver keeps %s; %s were free; a context takes %s",
			number(c.MemoryMiB), number(c.ReservedMiB), number(c.FreeMiB), number(c.ContextMiB))
	}
	if len(r.Tests) > 0 {
		n := r.count()
		p("\nTests: %d passed, %d failed, %d skipped\n", n[Passed], n[Failed], n[Skipped])
	}
	for _, t := range r.Tests {
		p("  %-7s  %6.1f s  %s", t.Verdict, t.Seconds, t.Name)
		for line := range strings.Lines(t.Reason) {
			p("                       %s", strings.TrimRight(line, "\n"))
		}
	}
	if len(r.Figures) > 0 {
		p("\nFigures: the median, and in brackets the least and the most of several")
	}
	// Figures of a name are together, in the order in which they were found.
	var order []string
	key := func(f Figure) string { return f.Test + "\x00" + f.Name + "\x00" + f.What }
	for _, f := range r.Figures {
		if !slices.Contains(order, key(f)) {
			order = append(order, key(f))
		}
	}
	figures := slices.Clone(r.Figures)
	slices.SortStableFunc(figures, func(a, b Figure) int { return cmp.Compare(slices.Index(order, key(a)), slices.Index(order, key(b))) })
	test, what := "", ""
	for _, f := range figures {
		if f.Test != test {
			p("\n%s", f.Test)
			test, what = f.Test, ""
		}
		if f.What != what {
			p("  %s: %s", f.Name, f.What)
			what = f.What
		}
		if f.Of == "" {
			p("    %s", f.value())
		} else {
			p("    %-40s %s", f.Of, f.value())
		}
	}
	_, err := io.WriteString(w, b.String())
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func verdict(v Verdict, reason string) string {
	if reason == "" {
		return string(v)
	}
	return string(v) + ": " + reason
}

// String returns the figure as a line.
func (f Figure) String() string {
	return strings.TrimSpace(f.Name+" "+f.Of) + ": " + f.value()
}

func (f Figure) value() string {
	if f.Median == nil {
		return "not measured: " + f.Missing
	}
	s := strings.TrimSpace(number(*f.Median) + " " + f.Unit)
	if n := len(f.Samples); n > 1 {
		s += fmt.Sprintf(" (%s to %s, %d times)", number(slices.Min(f.Samples)), number(slices.Max(f.Samples)), n)
	}
	return s
}

// number formats a value with four digits, or all before the point.
func number(x float64) string {
	if x >= 1000 || x <= -1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}
