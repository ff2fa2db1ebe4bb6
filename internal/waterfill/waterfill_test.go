// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package waterfill

import (
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestDivide(t *testing.T) {
	inf := math.Inf(1)
	for _, tc := range []struct {
		name   string
		total  float64
		claims []Claim
		want   []float64
	}{
		{"no claims", 1, nil, []float64{}},
		{"by weight", 1, []Claim{{1, 0, inf}, {3, 0, inf}}, []float64{0.25, 0.75}},
		{"a minimum", 1, []Claim{{1, 0.5, inf}, {1, 0, inf}, {3, 0, inf}}, []float64{0.5, 0.125, 0.375}},
		{"a maximum", 1, []Claim{{1, 0, 0.25}, {1, 0, inf}, {2, 0, inf}}, []float64{0.25, 0.25, 0.5}},
		{"a minimum that makes another maximum void", 1, []Claim{{1, 0.75, inf}, {1, 0, 0.4}, {2, 0, inf}}, []float64{0.75, 0.25 / 3, 0.5 / 3}},
		{"too little", 1, []Claim{{1, 0.75, inf}, {1, 0.5, inf}}, []float64{0.75, 0.5}},
		{"too much", 1, []Claim{{1, 0, 0.25}, {1, 0, 0.5}}, []float64{0.25, 0.5}},
		{"without weight", 1, []Claim{{0, 0.25, inf}, {1, 0, inf}}, []float64{0.25, 0.75}},
		{"all without weight", 1, []Claim{{0, 0.25, inf}, {0, 0, inf}}, []float64{0.25, 0}},
		{"huge weights", 1, []Claim{{math.MaxFloat64, 0, inf}, {math.MaxFloat64, 0, inf}}, []float64{0.5, 0.5}},
		{"tiny weights", 1, []Claim{{5e-324, 0, inf}, {5e-324, 0, inf}}, []float64{0.5, 0.5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.Eq(t, tc.want, Divide(tc.total, tc.claims))
		})
	}
}

func claims() *rapid.Generator[[]Claim] {
	figure := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.1, 0.25, 0.5, 1}), rapid.Float64Range(0, 1))
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Claim {
		a, b := figure.Draw(t, "a"), figure.Draw(t, "b")
		if rapid.IntRange(0, 3).Draw(t, "open") == 0 {
			return Claim{max(1e-9, figure.Draw(t, "weight")), a, math.Inf(1)}
		}
		return Claim{max(1e-9, figure.Draw(t, "weight")), min(a, b), max(a, b)}
	}), 0, 20)
}

// The definition: bounds, the sum, and one λ for all.
func TestDivide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claims, total := claims().Draw(t, "claims"), rapid.Float64Range(0, 5).Draw(t, "total")
		before := slices.Clone(claims)
		out := Divide(total, claims)
		must.Eq(t, before, claims)

		var sum, least, most float64
		low, high := 0.0, math.Inf(1) // bounds of λ
		for i, c := range claims {
			must.Between(t, c.Min, out[i], c.Max)
			sum, least, most = sum+out[i], least+c.Min, most+c.Max
			if out[i] > c.Min {
				low = max(low, out[i]/c.Weight)
			}
			if out[i] < c.Max {
				high = min(high, out[i]/c.Weight)
			}
		}
		must.InDelta(t, min(max(total, least), most), sum, 1e-9)
		if sum < most && sum > least {
			must.LessEq(t, high*(1+1e-6), low)
		}

		// A larger total gives no claim less, and the order does not matter.
		reversed := slices.Clone(claims)
		slices.Reverse(reversed)
		other := Divide(total, reversed)
		slices.Reverse(other)
		for i, more := range Divide(total*1.5, claims) {
			must.GreaterEq(t, out[i]-1e-9, more)
			must.InDelta(t, out[i], other[i], 1e-9)
		}
	})
}

func BenchmarkDivide(b *testing.B) {
	claims := make([]Claim, 1000)
	for i := range claims {
		claims[i] = Claim{Weight: 1 / float64(i+1), Min: 0.0005, Max: 0.001 * float64(1+i%7)}
	}
	b.ReportAllocs()
	for b.Loop() {
		Divide(1, claims)
	}
}
