// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

var nan = math.NaN()

// feed reports steps first … last by the stride, each taking so many CPU-seconds from cpu on, and
// returns the CPU-seconds used by then.
func feed(e *Estimator, first, last, stride, cpu, per, total float64) float64 {
	for s := first; s <= last; s += stride {
		e.Add(Point{CPU: cpu, Step: s, Total: total})
		cpu += per * stride
	}
	return cpu - per*stride
}

func TestSteps(t *testing.T) {
	e := New(Declared{}, State{})
	m := e.Estimate(0, Curve{})
	must.Nil(t, m.CPUS)
	must.Eq(t, Unknown, m.Source)
	e.Add(Point{CPU: 5, Step: 10, Total: 100})
	must.Nil(t, e.Estimate(5, Curve{}).CPUS)

	cpu := feed(e, 20, 50, 10, 25, 2, 100)
	m = e.Estimate(cpu, Curve{})
	must.Eq(t, Steps, m.Source)
	must.InDelta(t, 100, float64(*m.CPUS), 1e-9)
	must.InDelta(t, 2, float64(m.PerStep), 1e-9)
	must.Eq(t, 100, m.Total)
	must.StrContains(t, m.Why, "50 of 100 steps")

	// It falls with the CPU used, down to what is left at the next report.
	must.InDelta(t, 90, float64(*e.Estimate(cpu+10, Curve{}).CPUS), 1e-9)
	must.InDelta(t, 80, float64(*e.Estimate(cpu+1000, Curve{}).CPUS), 1e-9)
}
