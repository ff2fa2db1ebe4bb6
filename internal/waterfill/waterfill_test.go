// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package waterfill

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestDivide(t *testing.T) {
	inf := math.Inf(1)
	cases := []struct {
		name  string
		total float64
		parts []Part
		want  []float64
	}{
		{"nothing to divide among", 1, nil, []float64{}},
		{"in proportion", 6, []Part{{1, 0, inf}, {2, 0, inf}, {3, 0, inf}}, []float64{1, 2, 3}},
		{"a minimum is held", 6, []Part{{1, 3, inf}, {2, 0, inf}, {1, 0, inf}}, []float64{3, 2, 1}},
		{"a maximum is held", 6, []Part{{1, 0, inf}, {9, 0, 2}, {1, 0, inf}}, []float64{2, 2, 2}},
		{"without a weight the minimum", 6, []Part{{0, 1, inf}, {1, 0, inf}}, []float64{1, 5}},
		{"the minima are too much", 1, []Part{{1, 2, 3}, {5, 2, 3}}, []float64{2, 2}},
		{"the maxima are too little", 9, []Part{{1, 2, 3}, {5, 2, 3}}, []float64{3, 3}},
		{"equal bounds", 9, []Part{{1, 3, 3}, {5, 0, inf}}, []float64{3, 6}},
	}
	for _, tc := range cases {
		got := Divide(tc.total, tc.parts)
		must.Len(t, len(tc.want), got, must.Sprint(tc.name))
		for i := range got {
			must.InDelta(t, tc.want[i], got[i], 1e-12, must.Sprintf("%s: part %d", tc.name, i))
		}
	}
}

func TestDivide_properties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		number := rapid.Float64Range(0, 1e6)
		parts := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) Part {
			p := Part{Weight: number.Draw(r, "weight"), Min: number.Draw(r, "min")}
			p.Max = p.Min + number.Draw(r, "span")
			return p
		}), 1, 20).Draw(r, "parts")
		total := rapid.Float64Range(0, 1e8).Draw(r, "total")
		level := Level(total, parts)
		var sum, least, most float64
		for i, x := range Divide(total, parts) {
			p := parts[i]
			must.Between(r, p.Min, x, p.Max)
			if x > p.Min && x < p.Max {
				must.InDelta(r, level*p.Weight, x, 1e-9*x)
			}
			sum += x
			least += p.Min
			if p.Weight > 0 {
				most += p.Max
			} else {
				most += p.Min
			}
		}
		want := min(max(total, least), most)
		must.InDelta(r, want, sum, 1e-6*(1+want))
	})
}
