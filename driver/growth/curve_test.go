// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

func TestNewCurve(t *testing.T) {
	nan := math.NaN()
	p := func(cpu, value, step float64) Point { return Point{CPU: cpu, Value: value, Step: step} }
	for _, tc := range []struct {
		name           string
		history        []Point
		cpu            []float64 // of the points that are left
		earlier, blank int
	}{
		{"nothing", nil, nil, 0, 0},
		{"no report yet", []Point{p(0, nan, nan), p(1, nan, nan)}, nil, 0, 2},
		{"reports", []Point{p(1, 3, 1), p(2, 2, 2)}, []float64{1, 2}, 0, 0},
		{"a report is there once", []Point{p(1, 3, 1), p(2, 3, 1), p(3, 3, 2), p(4, 2, 2)}, []float64{1, 3, 4}, 0, 0},
		{"without steps", []Point{p(1, 3, nan), p(2, 3, nan), p(3, 2, nan)}, []float64{1, 3}, 0, 0},
		{"not a number, infinite", []Point{p(1, nan, 1), p(2, nan, 1), p(3, math.Inf(1), nan), p(4, nan, 2)}, []float64{1, 3, 4}, 0, 0},
		{"restarted", []Point{p(5, nan, nan), p(9, 1, 9), p(1, nan, nan), p(2, 3, 1)}, []float64{2}, 2, 1},
		{"restarted twice", []Point{p(9, 1, 9), p(3, 3, 1), p(2, 3, 1)}, []float64{2}, 2, 0},
		{"restarted in a row without a report", []Point{p(9, 1, 9), p(0, nan, nan)}, nil, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewCurve(tc.history)
			var cpu []float64
			for _, p := range c.Points {
				cpu = append(cpu, p.CPU)
			}
			must.Eq(t, tc.cpu, cpu)
			must.Eq(t, tc.earlier, c.Earlier)
			must.Eq(t, tc.blank, c.Blank)
		})
	}
}
