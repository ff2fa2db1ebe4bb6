// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"fmt"
	"math"
)

const (
	minReports     = 3   // distinct reports before a slope is defined
	plateauReports = 8   // distinct reports before a plateau is declared
	breakReports   = 3   // reports after a restart that decide whether it lost ground
	hampelHalf     = 3   // neighbours on each side of the outlier filter
	hampelSigmas   = 3.0 // robust standard deviations that make an outlier
	madToSigma     = 1.4826
)

// robust estimates growth; see Measure. Values are oriented so that lower is better.
// The abscissa is CPU-seconds, not wall time: a starved task must not look converged.
type robust struct {
	health
	sign    float64
	newest  float64
	reports int
	lastRaw Point // the newest usable point, unmodified
	hasRaw  bool

	hist   history
	mark   int // first cell after an undecided restart; 0 = none
	scraps int // consecutive segments dropped because the step decreased again at once
	fresh  bool
	lr     float64 // learning rate; 0 = unknown
	atLR   int     // reports with it

	flat bool // plateau, with hysteresis
	est  Estimate
	work fitter
}

func newRobust(goal Goal) *robust {
	e := &robust{sign: 1}
	if goal == Max {
		e.sign = -1
	}
	return e
}

// huge bounds the values used: squares beyond it overflow, and such a metric has
// diverged.
const huge = 1e150

func (e *robust) Add(p Point) {
	if !usable(p) {
		return
	}
	e.newest = p.Value
	v := p.Value
	if math.Abs(v) > huge {
		v = math.Inf(1)
	}
	if !e.note(v) {
		return
	}
	prev, had := e.lastRaw, e.hasRaw
	e.lastRaw, e.hasRaw = p, true
	u := e.sign * v
	if !had {
		e.reports, e.fresh = 1, true
		e.lrDropped(p.LR)
		e.hist.add(p.CPU, p.T, u, false)
		return
	}
	if v == prev.Value && p.CPU >= prev.CPU && (p.Step == prev.Step || p.CPU == prev.CPU) {
		return // the same report again, on a second stream or in a summary line
	}
	// A restarted process counts its CPU from zero; a slightly lower reading is jitter
	// between two sources.
	newCount := p.CPU < 0.9*prev.CPU
	restarted := newCount || p.Step < prev.Step && e.scraps < maxScraps
	if restarted && e.mark > 0 {
		// The previous process ended before three reports.
		e.hist.drop(e.mark)
		if e.scraps++; newCount {
			e.scraps = 0
		}
	}
	if newCount {
		e.hist.offset = e.hist.end()
	}
	cpu := math.Max(p.CPU+e.hist.offset, e.hist.end())
	e.reports++
	e.fresh = true
	if restarted {
		e.mark = len(e.hist.cells)
	}
	dropped := e.lrDropped(p.LR)
	if e.hist.add(cpu, p.T, u, restarted || dropped) {
		e.mark = max(0, e.mark-1)
	}
	if dropped {
		e.mark = len(e.hist.cells) - 1
		e.cut()
		e.est = Estimate{Why: "the learning rate has dropped"}
		return
	}
	e.judgeRestart()
}

const (
	lrDrop      = 2.0 / 3 // part of a learning rate below which a sudden change counts as a drop
	lrSteady    = 3       // reports at one rate that show a step schedule, not a decay
	lrUnchanged = 1e-6    // relative change that counts as none
)

// lrDropped reports whether a report is the first after a drop of the learning rate,
// which makes the earlier curve a poor guide.
func (e *robust) lrDropped(lr float64) bool {
	if !(lr > 0) || math.IsInf(lr, 0) {
		return false
	}
	was, steady := e.lr, e.atLR >= lrSteady
	if math.Abs(lr-was) <= lrUnchanged*was {
		e.atLR++
		return false
	}
	e.lr, e.atLR = lr, 1
	return steady && lr < lrDrop*was
}

// maxScraps is the number of consecutive segments that may be dropped within three
// reports because the step decreased. After that the step is ignored: two series may
// share the metric.
const maxScraps = 5

// judgeRestart decides what a restart means. With steps per epoch, or after a resume
// from a good checkpoint, the curve continues with its history. Only a curve that came
// back worse starts a new segment.
func (e *robust) judgeRestart() {
	if e.mark == 0 {
		return
	}
	if !e.lostGround() {
		e.mark, e.scraps = 0, 0
	} else if len(e.hist.cells)-e.mark >= breakReports {
		e.cut()
	}
}

// lostGround reports whether the reports since the restart are worse, beyond noise,
// than those before it.
func (e *robust) lostGround() bool {
	cells := e.hist.cells
	before := cells[max(0, e.mark-5):e.mark]
	after := cells[e.mark:]
	var buf [8]float64
	recent := buf[:0]
	for _, c := range before[max(0, len(before)-3):] {
		recent = append(recent, c.u)
	}
	level := median(recent)
	recent = buf[:0]
	for _, c := range after[:min(len(after), breakReports)] {
		recent = append(recent, c.u)
	}
	now := median(recent)
	return now-level > math.Max(4*noise(before, e.work.tmp[:0]), 0.05*e.hist.span)
}

func (e *robust) cut() {
	e.hist.cut(e.mark)
	e.mark, e.scraps = 0, 0
	e.flat = false
}

// Measure works in four steps:
//
//  1. Reports, with outliers replaced (Hampel), are grouped by CPU-seconds.
//  2. The longest window is chosen whose fit still describes its newest part:
//     late changes are not averaged away, while a smooth curve uses all its
//     points against noise.
//  3. Growth is the fit's improvement over the next CPU-seconds, per
//     CPU-second, as a fraction of the range seen so far.
//  4. It is zero on a plateau: in two windows, over at least eight reports,
//     the slope does not exceed the noise.
func (e *robust) Measure() Estimate {
	e.est.Value, e.est.Reports, e.est.Diverged = e.newest, e.reports, e.diverged
	if e.diverged {
		out := e.est
		out.Measured, out.Growth, out.Progress, out.Plateau = true, 0, 0, false
		out.Why = "diverged: the last reports are not finite"
		return out
	}
	switch {
	case e.reports == 0:
		e.est.Why = "no report yet"
		return e.est
	case !e.fresh:
		if e.est.Measured {
			e.est.Why = "no new report: keeping the last estimate"
		}
		return e.est
	case e.mark > 0:
		e.est.Why = "restarted and lost ground: keeping the last estimate until three reports arrive"
		return e.est
	case len(e.hist.cells) < minReports:
		if !e.est.Measured {
			e.est.Why = fmt.Sprintf("%d of %d reports needed", len(e.hist.cells), minReports)
		} else {
			e.est.Why = "restarted: keeping the last estimate until three reports arrive"
		}
		return e.est
	}
	e.fresh = false
	e.est.Measured = true
	w := &e.work
	n := len(e.hist.cells)
	if e.hist.doubtful(w.tmp[:0]) {
		n--
	}
	span := e.hist.rangeNow(n)
	if span <= math.Max(1e-9*e.hist.absMax, 1e-300) {
		// Constant, or only worse values.
		e.flat = len(e.hist.cells) >= plateauReports
		e.set(0, "no improvement so far")
		return e.est
	}
	w.load(&e.hist, n, span)
	g, curve := w.growth()
	e.est.Fit = w.forecast()
	e.est.Fit.sign, e.est.Fit.span = e.sign, span
	e.est.Fit.from -= e.hist.offset
	e.est.Fit.to -= e.hist.offset
	e.flat = w.plateau(e.flat)
	switch {
	case e.flat:
		e.set(0, "plateau: no slope beyond the noise in two windows")
	case g <= 0:
		e.set(0, "not improving")
	default:
		e.set(g, curve+" curve")
	}
	return e.est
}

// set stores the growth per CPU-second and derives progress from the recent rate of CPU
// use.
func (e *robust) set(g float64, why string) {
	e.est.Growth, e.est.Plateau, e.est.Why = g, e.flat, why
	cells := e.hist.cells
	last := cells[len(cells)-1]
	from := cells[max(0, len(cells)-plateauReports)]
	e.est.Progress = rate(g*(last.c-from.c), last.t-from.t)
}

// Curve omits earlier processes, whose CPU-seconds are on other counters.
func (e *robust) Curve() []Point {
	var out []Point
	for _, c := range e.hist.cells {
		if c.c >= e.hist.offset {
			out = append(out, Point{T: c.t, CPU: c.c - e.hist.offset, Value: e.sign * c.u, Step: math.NaN()})
		}
	}
	if len(out) > 0 {
		out[len(out)-1].Step = e.lastRaw.Step
		for i := max(0, len(out)-min(e.atLR, lrSteady)); i < len(out); i++ {
			out[i].LR = e.lr
		}
	}
	if e.diverged {
		out = append(out, Point{T: e.lastRaw.T, CPU: e.lastRaw.CPU, Value: math.NaN(), Step: math.NaN()})
	}
	return out
}
