// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestFit(t *testing.T) {
	for _, goal := range []Goal{Min, Max} {
		e := build(t, KindRobust, goal)
		sign := newRobust(goal).sign
		rng := rand.New(rand.NewPCG(1, 1))
		loss := func(c float64) float64 { return 2 + 3/(1+c/10) } // 5 … 2
		for c := 1.0; c <= 100; c++ {
			e.Add(Point{T: c, CPU: c, Value: sign * (loss(c) + 0.01*rng.NormFloat64()), Step: c})
		}
		f := e.Measure().Fit
		way, ok := f.To(sign*2.2, 100) // at 140
		must.True(t, ok)
		must.InDelta(t, 40, way, 12)
		later, ok := f.To(sign*2.2, 110)
		must.True(t, ok)
		must.InDelta(t, way-10, later, 1e-6)
		way, ok = f.To(sign*4, 100)
		must.True(t, ok)
		must.Eq(t, 0, way)
		_, ok = f.To(sign*1, 100)
		must.False(t, ok)
		_, ok = f.To(nan, 100)
		must.False(t, ok)
	}
	_, ok := Fit{}.To(1, 1)
	must.False(t, ok)
}

// A restarted process counts its CPU-seconds from 0, and so does the fit.
func TestFit_restarted(t *testing.T) {
	e := build(t, KindRobust, Min)
	for c := 1.0; c <= 100; c++ {
		cpu := c
		if c > 60 {
			cpu -= 60
		}
		e.Add(Point{T: c, CPU: cpu, Value: 2 + 3/(1+c/10), Step: c})
	}
	way, ok := e.Measure().Fit.To(2.2, 40)
	must.True(t, ok)
	must.InDelta(t, 40, way, 6)
}

func TestFit_anything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newRobust(Min)
		for _, p := range draw(t) {
			e.Add(p)
		}
		f := e.Measure().Fit
		now := rapid.OneOf(rapid.Float64Range(0, 2000), rapid.Float64()).Draw(t, "now")
		v := rapid.OneOf(rapid.Float64Range(-1, 2), rapid.Float64()).Draw(t, "value")
		way, ok := f.To(v, now)
		if ok && (!(way >= 0) || math.IsInf(way, 0)) {
			t.Fatalf("%v to %v", way, v)
		}
		if near, nearOK := f.To(v+math.Abs(v)/100, now); ok && (!nearOK || near > way*(1+1e-9)) {
			t.Fatalf("%v to %v, but %v to what is nearer", way, v, near)
		}
	})
}
