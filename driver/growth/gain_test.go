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

func (g *Gain) interval(values ...float64) (gain, previous *float64) {
	for _, v := range values {
		g.Add(v)
	}
	return g.Close()
}

func TestGain(t *testing.T) {
	var g Gain
	for i, step := range []struct {
		values         []float64
		gain, previous float64 // negative: unknown
	}{
		{nil, -1, -1},
		{[]float64{10, 9, 8}, -1, -1},
		{[]float64{7}, 1, -1},                           // from 9 to 7: the whole range
		{[]float64{5, 5, 500}, 0.5, 1},                  // outliers and …
		{[]float64{5, math.NaN(), math.Inf(1)}, 0, 0.5}, // … values that are not finite have no effect
		{nil, -1, 0},
		{[]float64{4}, 0.2, -1},
		{[]float64{6}, 0.4, 0.2}, // the distance, in either direction
	} {
		gain, previous := g.interval(step.values...)
		for _, c := range []struct {
			want float64
			got  *float64
		}{{step.gain, gain}, {step.previous, previous}} {
			if c.want < 0 {
				must.Nil(t, c.got, must.Sprintf("interval %d", i))
				continue
			}
			must.NotNil(t, c.got, must.Sprintf("interval %d", i))
			must.InDelta(t, c.want, *c.got, 1e-12, must.Sprintf("interval %d", i))
		}
	}
}

// The gains of a flattening curve fall below any threshold, even if the noise exceeds
// it.
func TestGain_noise(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var g Gain
	below := 0
	for m := range 40 {
		for k := range 300 {
			x := float64(m) + float64(k)/300
			g.Add(2*math.Exp(-x/4) + 0.05*rnd.NormFloat64())
		}
		gain, _ := g.Close()
		if gain != nil && *gain < 0.01 {
			below++
		}
	}
	must.Greater(t, 15, below)
}

func TestGain_bounds(t *testing.T) {
	values := rapid.OneOf(rapid.SampledFrom([]float64{0, -math.MaxFloat64, math.MaxFloat64, 5e-324, math.Inf(1), math.NaN()}), rapid.Float64())
	rapid.Check(t, func(t *rapid.T) {
		var g Gain
		var last *float64
		for range rapid.IntRange(1, 10).Draw(t, "intervals") {
			few := rapid.SliceOfN(values, 1, 4).Draw(t, "values")
			for k := range rapid.SampledFrom([]int{0, 1, 3, 3 * keptValues}).Draw(t, "reports") {
				g.Add(few[k%len(few)])
			}
			gain, previous := g.Close()
			must.Eq(t, last, previous)
			if gain != nil {
				must.Between(t, 0, *gain, 1)
			}
			last = gain
			must.LessEq(t, keptValues, len(g.values))
		}
	})
}
