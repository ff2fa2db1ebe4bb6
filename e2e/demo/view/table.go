// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package view renders the demo's live table and summary. Only Screen writes.
package view

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Frame is a run's state for display.
type Frame struct {
	Policy  string
	Elapsed time.Duration // since the first submission
	Cores   float64       // of the pool
	Alpha   float64       // the policy's threshold; NaN or < 0 for none
	Jobs    []Line
}

// Line is one job. Unknown figures are NaN.
type Line struct {
	Name        string
	State       State
	Wait        time.Duration // until its submission
	Took        time.Duration // from submission to end
	Category    string        // NL, WL, CL or ""
	Metric      string
	Value       float64
	Step, Total float64
	Ahead       float64 // CPU-seconds beyond its fair share
	Limit       float64 // fraction of the pool
	Use         float64 // fraction of the pool
}

type State int

const (
	Planned State = iota
	Starting
	Running
	Done
)

type Look struct {
	Width  int  // columns
	Colour bool // use ANSI colours
}

// Column widths; columns after the name are right-aligned.
const (
	nameWidth    = 8
	stateWidth   = 13
	valueWidth   = 9
	stepWidth    = 13
	percentWidth = 5
	aheadWidth   = 7
	leastBar     = 10
	mostBar      = 40
)

// column is a table column; narrow terminals drop the highest numbers first.
type column struct {
	title string
	width int
	left  bool
	drop  int // 0 for never
	cell  func(Line) string
}

func columns() []column {
	return []column{
		{"job", nameWidth, true, 0, func(l Line) string { return l.Name }},
		{"state", stateWidth, true, 0, state},
		{"loss", valueWidth, false, 0, func(l Line) string { return figure(l.Value, 4) }},
		{"step", stepWidth, false, 3, steps},
		{"ahead", aheadWidth, false, 4, whileRunning(func(l Line) string { return ahead(l.Ahead) })},
		{"limit", percentWidth, false, 2, whileRunning(func(l Line) string { return percent(l.Limit) })},
		{"CPU", percentWidth, false, 0, whileRunning(func(l Line) string { return percent(l.Use) })},
	}
}

// whileRunning blanks a cell of jobs that are not running.
func whileRunning(cell func(Line) string) func(Line) string {
	return func(l Line) string {
		if l.State != Running {
			return ""
		}
		return cell(l)
	}
}

// fit chooses columns for a width, and the bar's width, 0 for none.
func fit(width int) (shown []column, bar int) {
	shown = columns()
	for {
		used := 0
		for _, c := range shown {
			used += c.width + 1
		}
		if left := width - used - 1; left >= leastBar {
			return shown, min(left, mostBar)
		}
		worst := -1
		for i, c := range shown {
			if c.drop > 0 && (worst < 0 || c.drop > shown[worst].drop) {
				worst = i
			}
		}
		if worst < 0 {
			return shown, max(0, width-used-1)
		}
		shown = append(shown[:worst:worst], shown[worst+1:]...)
	}
}

// Table renders a frame as lines without line ends.
func Table(f Frame, look Look) []string {
	shown, bar := fit(look.Width)
	out := []string{clip(caption(f), look.Width)}
	var head strings.Builder
	for i, c := range shown {
		if i > 0 {
			head.WriteByte(' ')
		}
		head.WriteString(pad(c.title, c.width, c.left))
	}
	if bar > 0 {
		head.WriteString(" of the pool: █ used, | limit")
	}
	out = append(out, look.paint(dim, clip(strings.TrimRight(head.String(), " "), look.Width)))
	for _, l := range f.Jobs {
		out = append(out, row(l, shown, bar, look))
	}
	return out
}

// row renders a job's line. Colour codes do not count in the width.
func row(l Line, shown []column, bar int, look Look) string {
	var b strings.Builder
	used := 0
	for i, c := range shown {
		if i > 0 {
			b.WriteByte(' ')
			used++
		}
		text := pad(c.cell(l), c.width, c.left)
		if room := look.Width - used; utf8.RuneCountInString(text) > room {
			text = clip(text, room)
		}
		used += utf8.RuneCountInString(text)
		switch c.title {
		case "job":
			text = look.paint(bold, text)
		case "state":
			text = look.paint(colourOf(l), text)
		}
		b.WriteString(text)
	}
	if bar > 0 && used < look.Width {
		b.WriteByte(' ')
		b.WriteString(drawBar(l, bar, look))
	}
	return strings.TrimRight(b.String(), " ")
}

// drawBar shows a job's CPU, with its limit marked.
func drawBar(l Line, width int, look Look) string {
	if l.State != Running || math.IsNaN(l.Use) {
		return ""
	}
	cells := make([]rune, width)
	full := int(math.Round(clamp(l.Use) * float64(width)))
	for i := range cells {
		cells[i] = '·'
		if i < full {
			cells[i] = '█'
		}
	}
	if !math.IsNaN(l.Limit) && l.Limit < 1 {
		if at := int(math.Round(clamp(l.Limit) * float64(width))); at < width {
			return look.paint(colourOf(l), string(cells[:at])) + "|" + look.paint(colourOf(l), string(cells[at+1:]))
		}
	}
	return look.paint(colourOf(l), string(cells))
}

func caption(f Frame) string {
	parts := []string{fmt.Sprintf("policy %s", f.Policy), clock(f.Elapsed), fmt.Sprintf("pool %g cores", f.Cores)}
	if f.Alpha >= 0 {
		parts = append(parts, "α "+figure(f.Alpha, 2))
	}
	use, running := 0.0, 0
	for _, l := range f.Jobs {
		if l.State == Running && !math.IsNaN(l.Use) {
			use += l.Use
		}
		if l.State == Running {
			running++
		}
	}
	parts = append(parts, fmt.Sprintf("%d running", running), "CPU "+percent(use))
	return strings.Join(parts, " · ")
}

// Plain renders a frame for a log: a line per submitted job, except ended ones already in told.
func Plain(f Frame, told map[string]bool) []string {
	var out []string
	for _, l := range f.Jobs {
		if l.State == Planned || l.State == Done && told[l.Name] {
			continue
		}
		parts := []string{fmt.Sprintf("%s %6s  %-*s %-*s", f.Policy, clock(f.Elapsed), nameWidth, l.Name, stateWidth, state(l))}
		if !math.IsNaN(l.Value) {
			parts = append(parts, "loss "+pad(figure(l.Value, 4), 7, false), "step "+pad(steps(l), stepWidth, false))
		}
		if l.State == Running {
			parts = append(parts, "ahead "+pad(ahead(l.Ahead), aheadWidth, false), "limit "+pad(percent(l.Limit), percentWidth, false),
				"CPU "+pad(percent(l.Use), percentWidth, false))
		}
		out = append(out, strings.TrimRight(strings.Join(parts, "  "), " "))
	}
	return out
}

func state(l Line) string {
	switch l.State {
	case Planned:
		return "in " + clock(l.Wait.Round(time.Second))
	case Starting:
		return "starting"
	case Done:
		if l.Took <= 0 {
			return "not done"
		}
		return "done " + clock(l.Took)
	}
	switch l.Category {
	case "NL":
		return "NL growing"
	case "WL":
		return "WL watching"
	case "CL":
		return "CL converged"
	}
	return "running"
}

func steps(l Line) string {
	switch {
	case math.IsNaN(l.Step):
		return "-"
	case math.IsNaN(l.Total):
		return fmt.Sprintf("%.0f", l.Step)
	}
	return fmt.Sprintf("%.0f/%.0f", l.Step, l.Total)
}

// clock renders a duration.
func clock(d time.Duration) string {
	s := max(0, int(d.Round(time.Second)/time.Second))
	if s < 60 {
		return fmt.Sprintf("%d s", s)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// figure renders significant digits, "-" if unknown.
func figure(v float64, digits int) string {
	if math.IsNaN(v) {
		return "-"
	}
	if v == 0 {
		return "0"
	}
	if a := math.Abs(v); a >= 1e-4 && a < 1e6 {
		whole := int(math.Floor(math.Log10(a))) + 1
		return fmt.Sprintf("%.*f", max(0, digits-max(whole, min(whole, 1))), v)
	}
	return fmt.Sprintf("%.*e", digits-1, v)
}

// ahead renders signed CPU-seconds, "-" if unknown.
func ahead(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%+.0f s", v)
}

// percent renders a fraction, "-" if unknown.
func percent(f float64) string {
	if math.IsNaN(f) {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*f)
}

func clamp(f float64) float64 { return max(0, min(1, f)) }

func pad(s string, width int, left bool) string {
	s = clip(s, width)
	fill := strings.Repeat(" ", width-utf8.RuneCountInString(s))
	if left {
		return s + fill
	}
	return fill + s
}

func clip(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	if width <= 0 {
		return ""
	}
	return string([]rune(s)[:width-1]) + "…"
}

// SGR parameters.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
	grey   = "90"
)

func colourOf(l Line) string {
	switch {
	case l.State != Running:
		return grey
	case l.Category == "NL":
		return green
	case l.Category == "WL":
		return yellow
	case l.Category == "CL":
		return blue
	}
	return ""
}

func (l Look) paint(sgr, text string) string {
	if !l.Colour || sgr == "" || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}
