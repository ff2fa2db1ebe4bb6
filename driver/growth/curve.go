// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

// Curve is a task's history as an estimator takes it.
type Curve struct {
	Points  []Point // the reports of the process that runs now, each of them once
	Earlier int     // how many points are of processes before it
	Blank   int     // how many of its points hold no report
}

// NewCurve finds the reports in a history, which has a point whenever anything
// happened. A CPU counter that runs backwards is a new process, and what was
// reported before is not looked at; a point with neither value nor step is no
// report, and one with the value and the step of the last report is that report.
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

// same says whether two figures are equal, unknown being equal to unknown.
func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
