// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

// published is FlowCon's equations 1 and 2 on raw values:
//
//	P = |E(t_i) − E(t_{i−1})| / (t_i − t_{i−1})      G = P / R
//
// With R = ΔCPU / Δt (in cores), G = |ΔE| / ΔCPU: per CPU-second.
type published struct {
	health
	base    Point // start of the open interval
	last    Point // the newest finite report
	fresh   bool  // a finite report came since the last Measure
	newest  float64
	reports int
	est     Estimate
}

func (e *published) Add(p Point) {
	if !usable(p) {
		return
	}
	e.newest = p.Value
	if !e.note(p.Value) {
		return
	}
	// A decreasing counter is a new process: nothing is measured across it. A
	// decreasing step is ignored, because trainers with steps per epoch would void
	// every interval.
	if e.reports == 0 || p.CPU < e.last.CPU {
		e.base = p
	} else {
		e.fresh = true
	}
	e.last = p
	e.reports++
}

func (e *published) Measure() Estimate {
	e.est.Value, e.est.Reports, e.est.Diverged = e.newest, e.reports, e.diverged
	if e.diverged {
		out := e.est
		out.Measured, out.Growth, out.Progress = true, 0, 0
		out.Why = "diverged: the last reports are not finite"
		return out
	}
	dcpu := e.last.CPU - e.base.CPU
	switch {
	case e.reports == 0:
		e.est.Why = "no report yet"
	case !e.est.Measured && !e.fresh:
		e.est.Why = "one report: a second is needed"
	case !e.fresh:
		e.est.Why = "no report in this interval: it extends, keeping the last estimate"
	case dcpu <= 0:
		e.est.Why = "no CPU used in this interval: growth undefined, keeping the last estimate"
	default:
		de := math.Abs(e.last.Value - e.base.Value)
		e.est.Measured = true
		e.est.Growth = rate(de, dcpu)
		e.est.Progress = rate(de, e.last.T-e.base.T)
		e.est.Why = "raw change between two measurements (FlowCon eq. 1 and 2)"
		e.base, e.fresh = e.last, false
	}
	return e.est
}

func (e *published) Curve() []Point {
	if e.reports == 0 {
		return nil
	}
	return []Point{e.base, e.last}
}
