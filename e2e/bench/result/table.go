// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

type Table struct {
	Title  string
	Header []string
	Rows   [][]string
	Notes  []string
}

func (t Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n| %s |\n|%s\n", t.Title, strings.Join(t.Header, " | "), strings.Repeat(" --- |", len(t.Header)))
	for _, row := range t.Rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	return b.String()
}

func (t Table) Text() string {
	widths := make([]int, len(t.Header))
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(row []string) {
		var l strings.Builder
		for i, cell := range row {
			l.WriteString("  " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	b.WriteString(t.Title + "\n\n")
	line(t.Header)
	for _, row := range t.Rows {
		line(row)
	}
	for _, n := range t.Notes {
		b.WriteString("\n  " + n + "\n")
	}
	return b.String()
}

// better is the good end of a distribution.
type better int

const (
	less better = iota
	more
)

// spread renders median (best … worst), and the number of unknown values.
func spread(values []float64, good better, format func(float64) string) string {
	s := SpreadOf(values)
	if s.N == 0 {
		return "–"
	}
	best, worst := s.Min, s.Max
	if good == more {
		best, worst = worst, best
	}
	text := fmt.Sprintf("%s (%s … %s)", format(s.Median), format(best), format(worst))
	if best == worst {
		text = format(s.Median)
	}
	if missing := len(values) - s.N; missing > 0 {
		text += fmt.Sprintf(", unknown in %d", missing)
	}
	return text
}

func seconds(v float64) string { return fmt.Sprintf("%.1f s", v) }

func change(v float64) string { return minus(fmt.Sprintf("%+.1f %%", 100*v)) }

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

func fine(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

// count renders a number; a median may be fractional.
func count(v float64) string {
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// minus replaces the hyphen by a minus sign.
func minus(s string) string { return strings.ReplaceAll(s, "-", "−") }

// Spread is a figure's distribution over runs.
type Spread struct {
	N                int
	Min, Median, Max float64
}

// SpreadOf skips unknown values.
func SpreadOf(values []float64) Spread {
	v := slices.DeleteFunc(slices.Clone(values), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	if len(v) == 0 {
		return Spread{Min: math.NaN(), Median: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(v)
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return Spread{N: len(v), Min: v[0], Median: mid, Max: v[len(v)-1]}
}

// Change returns a time's relative change, negative if sooner; NaN if unknown.
func Change(from, to float64) float64 {
	if from <= 0 {
		return math.NaN()
	}
	return (to - from) / from
}
