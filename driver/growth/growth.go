// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package growth turns the values a trainer reports into growth efficiency:
// how much its metric still improves per CPU-second spent.
//
// Two estimators share one interface. "published" is FlowCon's equations 1 and
// 2 as printed (Zheng et al., ICPP 2019 and TCC 2022): the raw change between
// two measurements. "robust" (the default) knows the direction of the metric,
// divides by the range seen so far, sees through noise and says when the curve
// has gone flat. Both are deterministic, read no clock and keep bounded memory.
// They are not safe for concurrent use: one task, one estimator, one caller.
package growth

import (
	"errors"
	"fmt"
	"math"
)

// Goal says which way a metric improves.
type Goal string

const (
	Min Goal = "min" // a loss: lower is better
	Max Goal = "max" // an accuracy: higher is better
)

// The kinds New knows.
const (
	KindRobust    = "robust"
	KindPublished = "published"
)

var (
	// ErrKind is returned by New for an unknown kind of estimator.
	ErrKind = errors.New("unknown estimator")
	// ErrGoal is returned by New for an unknown goal.
	ErrGoal = errors.New("unknown goal")
)

// Point is one report of a trainer.
type Point struct {
	T     float64 // seconds of wall time, any origin; NaN when unknown
	CPU   float64 // CPU-seconds the task has used so far; may start again at 0 after a restart
	Value float64 // the metric; NaN and ±Inf mean that the model diverged
	Step  float64 // the trainer's step; NaN when unknown
	LR    float64 // the learning rate; 0 when unknown
}

// Estimate is what an estimator knows after a measurement.
type Estimate struct {
	// Measured is false while there are too few reports to say anything. The
	// other figures are then zero and the task deserves its fair share.
	Measured bool
	// Growth is per CPU-second and never negative. published: |ΔE| in the
	// metric's own unit; robust: expected improvement as a fraction of the
	// range of values seen so far.
	Growth float64
	// Progress is the same per second of wall time, 0 when T is unknown.
	Progress float64
	// Plateau is true when the curve is flat as far as the noise lets one see
	// (robust only). Growth is then 0.
	Plateau bool
	// Diverged is true after a NaN or ±Inf, until three finite reports in a
	// row have come. Growth is then 0.
	Diverged bool
	// Value is the newest report's value, NaN or ±Inf included.
	Value float64
	// Reports counts the finite reports used, duplicates left out.
	Reports int
	// Fit is the curve as it may go on (robust only).
	Fit Fit
	// Why says for people how the figure came about.
	Why string
}

// Estimator follows one task's reports.
type Estimator interface {
	// Add takes one report. Points whose CPU is NaN, negative or absurd are ignored.
	Add(Point)
	// Measure closes a measurement interval and returns the estimate. Without
	// a new report the interval extends to the next one and the last estimate
	// is returned again.
	Measure() Estimate
	// Curve returns, oldest first, points from which a later estimator of the process
	// that reports now can go on: at most some hundreds.
	Curve() []Point
}

// New returns an estimator of the kind ("" means robust) for a metric with the
// goal. The error is ErrKind or ErrGoal, wrapped with what was given.
func New(kind string, goal Goal) (Estimator, error) {
	if goal != Min && goal != Max {
		return nil, fmt.Errorf("%w %q: must be one of min, max", ErrGoal, string(goal))
	}
	switch kind {
	case "", KindRobust:
		return newRobust(goal), nil
	case KindPublished:
		return &published{}, nil
	}
	return nil, fmt.Errorf("%w %q: must be one of robust, published", ErrKind, kind)
}

// recoverAfter is the number of finite reports in a row after which a diverged
// task counts as healthy again: mixed-precision training throws a lone Inf now
// and then, and one lucky finite value in a broken run proves nothing.
const recoverAfter = 3

// health tracks divergence.
type health struct {
	diverged bool
	finite   int
}

// note takes one value and says whether it is finite.
func (h *health) note(v float64) bool {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		h.diverged, h.finite = true, 0
		return false
	}
	if h.finite++; h.finite >= recoverAfter {
		h.diverged = false
	}
	return true
}

// usable says whether a point's CPU reading can be worked with.
func usable(p Point) bool {
	return p.CPU >= 0 && p.CPU < 1e15 // 30 million core-years
}

// rate is change/span, 0 where that means nothing, and finite: a policy sums the
// figures up, and neither a clock nor a metric keeps within bounds.
func rate(change, span float64) float64 {
	r := change / span
	if !(span > 0) || !(r > 0) {
		return 0
	}
	return min(r, math.MaxFloat64)
}
