// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func draw(t *rapid.T) []Point {
	n := rapid.IntRange(1, 120).Draw(t, "n")
	k := rapid.Float64Range(0.001, 0.5).Draw(t, "k")
	noise := rapid.Float64Range(0, 0.3).Draw(t, "noise")
	var ps []Point
	c := 0.0
	for range n {
		c += rapid.Float64Range(0.1, 10).Draw(t, "dc")
		v := math.Exp(-k*c) + noise*rapid.Float64Range(-1, 1).Draw(t, "e")
		ps = append(ps, Point{T: 2 * c, CPU: c, Value: v, Step: math.NaN()})
	}
	return ps
}

// Scaling E (with the goal reversed for a negative factor) or shifting it changes
// neither growth nor plateaus.
func TestRobust_invariance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ps := draw(t)
		k := rapid.Float64Range(1e-4, 1e4).Draw(t, "factor")
		add := k * rapid.Float64Range(-10, 10).Draw(t, "add")
		goal := Min
		if rapid.Bool().Draw(t, "turn") {
			k, goal = -k, Max
		}
		a, b := newRobust(Min), newRobust(goal)
		for i, p := range ps {
			a.Add(p)
			p.Value = k*p.Value + add
			b.Add(p)
			x, y := a.Measure(), b.Measure()
			if math.Abs(x.Growth-y.Growth) > 1e-6*math.Max(x.Growth, 1e-6) || x.Plateau != y.Plateau ||
				x.Measured != y.Measured || x.Diverged != y.Diverged || x.Why != y.Why {
				t.Fatalf("report %d: %+v became %+v", i, x, y)
			}
		}
	})
}

func TestEstimators_anything(t *testing.T) {
	weird := rapid.OneOf(
		rapid.Float64(),
		rapid.Float64Range(-1, 1),
		rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(1), math.Inf(-1), 1e-320, -1e-320, 1e149, -1e149, math.MaxFloat64, 5, 5, 5}),
	)
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"robust", "published"}).Draw(t, "kind")
		goal := rapid.SampledFrom([]Goal{Min, Max}).Draw(t, "goal")
		e, err := New(kind, goal)
		if err != nil {
			t.Fatal(err)
		}
		cpu := rapid.OneOf(rapid.Float64Range(0, 10), rapid.Float64Range(0, 1e9), weird)
		for range rapid.IntRange(0, 300).Draw(t, "n") {
			e.Add(Point{T: weird.Draw(t, "t"), CPU: cpu.Draw(t, "cpu"), Value: weird.Draw(t, "v"), Step: weird.Draw(t, "step")})
			if rapid.Bool().Draw(t, "measure") {
				m := e.Measure()
				if !(m.Growth >= 0) || math.IsInf(m.Growth, 0) || !(m.Progress >= 0) || math.IsInf(m.Progress, 0) {
					t.Fatalf("%+v", m)
				}
				if (m.Plateau || m.Diverged || !m.Measured) && m.Growth != 0 {
					t.Fatalf("growth where there is none: %+v", m)
				}
				if m.Why == "" {
					t.Fatalf("no reason: %+v", m)
				}
			}
		}
	})
}
