// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package growth estimates growth efficiency from a trainer's reports: the improvement
// of its metric per CPU-second.
//
// There are two estimators. "published" is equations 1 and 2 of FlowCon (Zheng et al.,
// ICPP 2019 and TCC 2022): the raw change between two measurements. "robust", the
// default, knows the metric's direction, normalises by the range seen so far, tolerates
// noise and detects plateaus. Both are deterministic, read no clock, keep bounded
// memory and are not safe for concurrent use.
package growth

import (
	"errors"
	"fmt"
	"math"
)

// Goal is the direction in which a metric improves.
type Goal string

const (
	Min Goal = "min" // a loss: lower is better
	Max Goal = "max" // an accuracy: higher is better
)

const (
	KindRobust    = "robust"
	KindPublished = "published"
)

var (
	// ErrKind is returned by New for an unknown kind.
	ErrKind = errors.New("unknown estimator")
	// ErrGoal is returned by New for an unknown goal.
	ErrGoal = errors.New("unknown goal")
)

type Point struct {
	T     float64 // wall time in seconds, any origin; NaN if unknown
	CPU   float64 // CPU-seconds used; restarts at 0 with the process
	Value float64 // the metric; NaN or ±Inf if the model diverged
	Step  float64 // the trainer's step; NaN if unknown
	LR    float64 // the learning rate; 0 if unknown
}

// Estimate is the result of a measurement.
type Estimate struct {
	// Measured is false while there are too few reports; the other figures are then
	// zero, and the task should get its fair share.
	Measured bool
	// Growth is per CPU-second, ≥ 0. published: |ΔE| in the metric's unit; robust:
	// expected improvement as a fraction of the range seen so far.
	Growth float64
	// Progress is the same per second of wall time; 0 if T is unknown.
	Progress float64
	// Plateau (robust only) means that the curve is flat within the noise; Growth is
	// then 0.
	Plateau bool
	// Diverged is set by NaN or ±Inf until three consecutive finite reports; Growth is
	// then 0.
	Diverged bool
	// Value is the newest report's value, possibly NaN or ±Inf.
	Value float64
	// Reports counts the finite reports used, without duplicates.
	Reports int
	// Fit predicts the curve (robust only).
	Fit Fit
	// Why explains the estimate.
	Why string
}

// Estimator follows the reports of one task.
type Estimator interface {
	// Add takes a report. Points with an invalid CPU (see usable) are ignored.
	Add(Point)
	// Measure closes an interval and returns the estimate. Without a new report the
	// last estimate is returned, and the interval extends.
	Measure() Estimate
	// Curve returns points, oldest first and at most a few hundred, from which a new
	// estimator can continue for the current process.
	Curve() []Point
}

// New returns an estimator of a kind ("" means robust). The error wraps ErrKind or
// ErrGoal.
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

// recoverAfter is the number of consecutive finite reports that end a divergence:
// mixed-precision training emits an occasional Inf, and a single finite value in a
// broken run proves nothing.
const recoverAfter = 3

type health struct {
	diverged bool
	finite   int
}

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

// usable reports whether a point's CPU is plausible.
func usable(p Point) bool {
	return p.CPU >= 0 && p.CPU < 1e15 // 30 million core-years
}

// rate is change/span, or 0 where that is undefined, and always finite, because
// policies sum the figures.
func rate(change, span float64) float64 {
	r := change / span
	if !(span > 0) || !(r > 0) {
		return 0
	}
	return min(r, math.MaxFloat64)
}
