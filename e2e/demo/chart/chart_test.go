// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package chart

import (
	"bytes"
	"image/png"
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// made returns a job that uses half of two cores.
func made(name string, submitted, finished float64) result.Job {
	j := result.Job{Name: name, Submitted: submitted, Started: submitted, Finished: finished}
	for t := submitted; t <= finished; t++ {
		left := math.Exp(-(t - submitted) / 5)
		j.Curve = append(j.Curve, mix.Point{T: t, Value: left})
		j.Samples = append(j.Samples, result.Sample{T: t, CPU: result.Number(t - submitted)})
	}
	return j
}

func TestDraw(t *testing.T) {
	full := result.Pair{
		With: result.Run{Jobs: []result.Job{made("a", 0, 60), made("b", 8, 40)}},
		None: result.Run{Jobs: []result.Job{made("a", 0, 50), made("b", 8, 45)}},
	}
	nan := result.Number(math.NaN())
	for name, p := range map[string]result.Pair{
		"full":     full,
		"nothing":  {},
		"one side": {With: full.With},
		"unknown": {With: result.Run{Jobs: []result.Job{{Name: "x", Finished: math.NaN(), Samples: []result.Sample{{T: 1, CPU: nan}},
			Curve: mix.Curve{{T: math.NaN(), Value: 1}, {T: 1, Value: math.Inf(1)}}}}}},
		"flat": {With: result.Run{Jobs: []result.Job{{Name: "x", Finished: 5, Curve: mix.Curve{{T: 1, Value: 2}, {T: 2, Value: 2}}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Draw(p, result.Experiment{Cores: 2})
			must.NoError(t, err)
			img, err := png.Decode(bytes.NewReader(b))
			must.NoError(t, err)
			must.Eq(t, width*dpi/72, img.Bounds().Dx())
			must.Eq(t, int(layoutFor(len(p.With.Jobs)).height)*dpi/72, img.Bounds().Dy())
		})
	}
}

func TestUse(t *testing.T) {
	j := made("a", 10, 20)
	must.InDelta(t, 0.5, Use(j, 15, 2), 1e-9)
	must.InDelta(t, 0.5, Use(j, 10.2, 2), 1e-9)
	must.Eq(t, 0.0, Use(j, 9, 2))
	must.Eq(t, 0.0, Use(j, 20.1, 2))
	j.Samples = nil
	must.Eq(t, 0.0, Use(j, 15, 2))
}

func TestTicks(t *testing.T) {
	must.Eq(t, []float64{0, 20, 40, 60, 80}, ticks(85, 8))
	must.Eq(t, []float64{0, 1, 2, 3}, ticks(3.5, 4))
	must.Eq(t, []float64{0}, ticks(math.NaN(), 4))
	must.Eq(t, []float64{0}, ticks(0, 4))
}

func TestChange(t *testing.T) {
	must.Eq(t, "20 % sooner", change(10, 8))
	must.Eq(t, "10 % later", change(10, 11))
	must.Eq(t, "same", change(10, 10.01))
	must.Eq(t, "unknown", change(math.NaN(), 1))
}

func TestThin(t *testing.T) {
	var ps []pt
	for i := range 1000 {
		ps = append(ps, pt{float64(i) / 100, 0})
	}
	got := thin(ps)
	must.Less(t, 50, len(got))
	must.Eq(t, ps[0], got[0])
	must.Eq(t, ps[999], got[len(got)-1])
}
