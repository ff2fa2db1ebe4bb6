// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

// trained reports n values of a soon flat curve at a learning rate.
func trained(e Estimator, n int, lr func(i int) float64) Estimate {
	for i := range n {
		e.Add(Point{T: float64(i), CPU: float64(i), Value: 1 + math.Exp(-float64(i)), Step: float64(i), LR: lr(i)})
	}
	return e.Measure()
}

func constant(int) float64 { return 0.1 }

func TestRobust_learningRateDrops(t *testing.T) {
	e := build(t, KindRobust, Min)
	must.True(t, trained(e, 40, constant).Plateau)
	// The plateau ends at once, and earlier reports are no longer fitted.
	m := feed(e, Point{T: 40, CPU: 40, Value: 1, Step: 40, LR: 0.01})
	must.False(t, m.Plateau)
	must.False(t, m.Measured)
	must.Eq(t, Fit{}, m.Fit)
	for i := 41; i < 60; i++ {
		m = feed(e, Point{T: float64(i), CPU: float64(i), Value: 0.5 + 0.5*math.Exp(-float64(i-40)/8), Step: float64(i), LR: 0.01})
		must.Eq(t, i >= 42, m.Measured)
		must.False(t, m.Plateau)
	}
	must.Greater(t, 0, m.Growth)
	must.NotEq(t, Fit{}, m.Fit)

	next := build(t, KindRobust, Min)
	for _, p := range e.Curve() {
		next.Add(p)
	}
	must.True(t, next.Measure().Measured)
	must.False(t, feed(next, Point{T: 60, CPU: 60, Value: 0.52, Step: 60, LR: 0.001}).Measured)
}

func TestRobust_learningRateDecays(t *testing.T) {
	for name, lr := range map[string]func(i int) float64{
		"constant":    constant,
		"cosine":      func(i int) float64 { return 0.05 * (1 + math.Cos(math.Pi*float64(i)/40)) },
		"linear":      func(i int) float64 { return 0.1 * (1 - float64(i)/40) },
		"exponential": func(i int) float64 { return math.Pow(0.5, float64(i)) },
		"a quarter":   func(i int) float64 { return 0.1 * math.Pow(0.75, math.Floor(float64(i)/10)) },
		"rises":       func(i int) float64 { return 0.1 + math.Floor(float64(i)/10) },
		"none":        func(int) float64 { return 0 },
		"now none":    func(i int) float64 { return []float64{0.1, 0, math.NaN(), math.Inf(1), -1}[i/8] },
	} {
		e := build(t, KindRobust, Min)
		must.True(t, trained(e, 40, lr).Plateau, must.Sprint(name))
	}
}
