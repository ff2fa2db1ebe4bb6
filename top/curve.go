// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Bar heights within a character cell, lowest first; the first is blank.
var (
	blocks = []rune(" ▁▂▃▄▅▆▇█")
	signs  = []rune(" .:-=+*%#")
)

func (l Layout) heights() []rune {
	if l.ASCII {
		return signs
	}
	return blocks
}

const maxValues = 64

// Values returns the last values of a history, or its last steps if it has no value, for
// a sparkline.
func Values(rows []status.Row) []status.Number {
	var all []status.Number
	course, _ := status.Course(rows)
	for _, v := range course {
		if n := status.Number(v); n.Known() {
			all = append(all, n)
		}
	}
	return all[max(0, len(all)-maxValues):]
}

func (l Layout) spark(values []status.Number, width int) string {
	var known []float64
	for _, v := range values {
		if v.Known() {
			known = append(known, float64(v))
		}
	}
	columns := resample(known, width)
	low, high := bounds(columns)
	heights := l.heights()
	var b strings.Builder
	for _, v := range columns {
		b.WriteRune(heights[1+level(v, low, high, len(heights)-1)])
	}
	return b.String()
}

// level scales v to one of n steps.
func level(v, low, high float64, n int) int {
	if !(high > low) {
		return n / 2
	}
	// Divide first: the difference of two large numbers may overflow.
	at := (v/2 - low/2) / (high/2 - low/2) * float64(n)
	return min(max(int(at), 0), n-1)
}

func bounds(values []float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return low, high
}

// resample reduces values to width columns, each showing its last value.
func resample(values []float64, width int) []float64 {
	if len(values) <= width || width < 1 {
		return values[:min(len(values), max(width, 0))]
	}
	out := make([]float64, width)
	for i := range out {
		out[i] = values[(i+1)*len(values)/width-1]
	}
	return out
}

// chart draws a history's metric, or its steps, over time, with its bounds on the left.
func (l Layout) chart(rows []status.Row, width, height int) []string {
	var known []status.Row
	var values []float64
	course, _ := status.Course(rows)
	for i, r := range rows {
		if status.Number(course[i]).Known() {
			known, values = append(known, r), append(values, course[i])
		}
	}
	const scale = 10
	width -= scale + 1
	if len(known) < 2 || width < 8 || height < 2 {
		return nil
	}
	first, last := known[0].Time, known[len(known)-1].Time
	length := last.Sub(first)
	columns := make([]float64, width)
	for i := range columns {
		columns[i] = math.NaN()
	}
	for i, r := range known {
		x := i * (width - 1) / (len(known) - 1)
		if length > 0 {
			x = int(float64(r.Time.Sub(first)) / float64(length) * float64(width-1))
		}
		if x >= 0 && x < width {
			columns[x] = values[i]
		}
	}
	// A value is valid until the next report.
	for i := 1; i < width; i++ {
		if math.IsNaN(columns[i]) {
			columns[i] = columns[i-1]
		}
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range columns {
		if !math.IsNaN(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	heights := l.heights()
	steps := len(heights) - 1
	var out []string
	for y := height - 1; y >= 0; y-- {
		label := ""
		switch y {
		case height - 1:
			label = number(status.Number(high))
		case 0:
			label = number(status.Number(low))
		}
		var b strings.Builder
		b.WriteString(l.pad(label, scale, true) + " ")
		for _, v := range columns {
			cell := 0
			if !math.IsNaN(v) {
				cell = min(max(1+level(v, low, high, height*steps)-y*steps, 0), steps)
			}
			b.WriteRune(heights[cell])
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	from, to := first.UTC().Format("15:04:05"), last.UTC().Format("15:04:05")
	if length.Hours() >= 24 {
		from, to = first.UTC().Format("01-02 15:04"), last.UTC().Format("01-02 15:04")
	}
	return append(out, fmt.Sprintf("%*s%s%*s", scale+1, "", from, max(width-len(from), 1), to))
}
