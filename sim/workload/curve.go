// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package workload

import (
	"math/rand/v2"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Curve is a job's metric by work done, linear between points. The job reports at each point
// but the first.
type Curve struct {
	Goal policy.Goal
	X    []float64 // fractions of the work, rising from 0 to 1
	Y    []float64 // values
}

func (c *Curve) At(x float64) float64 {
	i, found := slices.BinarySearch(c.X, x)
	switch {
	case found:
		return c.Y[i]
	case i == 0:
		return c.Y[0]
	case i == len(c.X):
		return c.Y[i-1]
	}
	f := (x - c.X[i-1]) / (c.X[i] - c.X[i-1])
	return c.Y[i-1] + float64(f*(c.Y[i]-c.Y[i-1]))
}

// Reach returns the fraction of the work at which quality, 0 at the first report and 1 at the
// last, is first reached. As for real jobs, nothing is known before the first report.
func (c *Curve) Reach(quality float64) float64 {
	first, last := c.Y[1], c.Y[len(c.Y)-1]
	if first == last {
		return c.X[1]
	}
	for i := 2; i < len(c.X); i++ {
		a, b := (c.Y[i-1]-first)/(last-first), (c.Y[i]-first)/(last-first)
		if b < quality {
			continue
		}
		if a >= quality {
			return c.X[i-1]
		}
		return c.X[i-1] + float64((quality-a)/(b-a)*(c.X[i]-c.X[i-1]))
	}
	return 1
}

// Passes returns the fraction of the work at which a report first reaches the value, 1 if none
// does.
func (c *Curve) Passes(value float64) float64 {
	for i := 1; i < len(c.X); i++ {
		if c.Goal.Reached(c.Y[i], value) {
			return c.X[i]
		}
	}
	return 1
}

// Span returns the distance between first and last value.
func (c *Curve) Span() float64 {
	span := c.Y[len(c.Y)-1] - c.Y[0]
	if span < 0 {
		return -span
	}
	return span
}

// shape is how a loss falls from 1 towards 0.
type shape int

const (
	exponential shape = iota
	hyperbolic
	stepwise // exponential, with two drops of the learning rate
	shapes
)

// fall returns the loss after a fraction x of the work; speed is the number of falls by e.
func (s shape) fall(x, speed float64) float64 {
	switch s {
	case hyperbolic:
		return 1 / (1 + float64(speed*x))
	case stepwise:
		loss := 0.3 + float64(0.7*exp(-3*speed*min(x, 0.5)))
		if x > 0.5 {
			loss *= 0.4 + float64(0.6*exp(-3*speed*min(x-0.5, 0.25)))
		}
		if x > 0.75 {
			loss *= 0.6 + float64(0.4*exp(-3*speed*(x-0.75)))
		}
		return loss
	}
	return exp(-speed * x)
}

// loss returns a curve with equidistant reports.
func loss(s shape, speed, from, to float64, reports int) *Curve {
	c := &Curve{Goal: policy.GoalMin, X: make([]float64, reports+1), Y: make([]float64, reports+1)}
	end := s.fall(1, speed)
	for i := range c.X {
		x := float64(i) / float64(reports)
		c.X[i] = x
		c.Y[i] = to + float64((from-to)*((s.fall(x, speed)-end)/(1-end)))
	}
	return c
}

// Exponential returns a loss that falls from 1 towards 0, by e five times.
func Exponential(reports int) *Curve { return loss(exponential, 5, 1, 0, reports) }

func anyLoss(r *rand.Rand, reports int) *Curve {
	s := shape(r.IntN(int(shapes)))
	speed := between(r, 3, 12)
	if s == hyperbolic {
		speed = between(r, 5, 60)
	}
	from := between(r, 0.5, 8)
	return loss(s, speed, from, from*between(r, 0.02, 0.4), reports)
}

func between(r *rand.Rand, lo, hi float64) float64 { return lo + float64(r.Float64()*(hi-lo)) }

// Normal is approximately standard normal, the sum of twelve uniform numbers.
func Normal(r *rand.Rand) float64 {
	sum := -6.0
	for range 12 {
		sum += r.Float64()
	}
	return sum
}

// exp is bitwise reproducible on all machines, unlike math.Exp, and accurate to ten digits for
// |x| < 100.
func exp(x float64) float64 {
	const halvings = 12
	y, term, sum := x/(1<<halvings), 1.0, 1.0
	for i := 1; i <= 8; i++ {
		term = float64(term*y) / float64(i)
		sum += term
	}
	for range halvings {
		sum *= sum
	}
	return sum
}
