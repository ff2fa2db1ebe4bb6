// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

// Curve is the input of an estimator, taken from a task's history.
type Curve struct {
	Points  []Point // distinct reports of the current process
	Earlier int     // number of points of earlier processes
	Blank   int     // number of its points without a report
}

// NewCurve extracts the reports from a history, which has a point for every event. A
// CPU counter that decreases is a new process, and what came before is dropped. Points
// with neither value nor step are no reports; repetitions of the last value and step
// are dropped.
func NewCurve(history []Point) Curve {
	var c Curve
	for i, p := range history {
		if i > 0 && p.CPU < history[i-1].CPU {
			c = Curve{Earlier: i}
		}
		if math.IsNaN(p.Value) && math.IsNaN(p.Step) {
			c.Blank++
			continue
		}
		if n := len(c.Points); n > 0 && same(c.Points[n-1].Step, p.Step) && same(c.Points[n-1].Value, p.Value) {
			continue
		}
		c.Points = append(c.Points, p)
	}
	return c
}

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
