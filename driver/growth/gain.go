// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

// keptValues bounds the reports kept of an interval; beyond it, every second one, every
// fourth one and so on is kept.
const keptValues = 256

// Gain is the gain of SpeCon (Algorithm 1, line 5): the change of the evaluation
// function E between intervals, |E(t_m) − E(t_m−1)|, as a fraction of the range of E so
// far.
//
// E of an interval is the median of its reports, where the paper takes the last one,
// which is mostly the noise of one batch. The zero Gain is ready to use.
type Gain struct {
	values []float64 // of this interval
	seen   int       // reports of this interval
	every  int       // one of how many is kept

	level  float64 // E of the last interval with reports
	known  bool
	lo, hi float64 // of the levels so far
	last   *float64
}

// Add takes a report, ignoring NaN and ±Inf.
func (g *Gain) Add(value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	g.every = max(g.every, 1)
	if g.seen++; (g.seen-1)%g.every != 0 {
		return
	}
	if len(g.values) == keptValues {
		for i := range keptValues / 2 {
			g.values[i] = g.values[2*i]
		}
		g.values = g.values[:keptValues/2]
		g.every *= 2
	}
	g.values = append(g.values, value)
}

// Close ends an interval and returns its gain and the previous one's, in [0, 1]; nil if
// unknown, for lack of reports now or before.
func (g *Gain) Close() (gain, previous *float64) {
	previous = g.last
	g.last = nil
	if len(g.values) == 0 {
		return nil, previous
	}
	// The midpoint of two huge values may overflow.
	level := math.Max(-math.MaxFloat64, math.Min(math.MaxFloat64, median(g.values)))
	g.values, g.seen, g.every = g.values[:0], 0, 1
	if !g.known {
		g.level, g.lo, g.hi, g.known = level, level, level, true
		return nil, previous
	}
	g.lo, g.hi = math.Min(g.lo, level), math.Max(g.hi, level)
	var x float64
	// Halves avoid overflow.
	if span := g.hi/2 - g.lo/2; span > 0 {
		x = math.Min(1, math.Abs(level/2-g.level/2)/span)
	}
	g.level, g.last = level, &x
	return &x, previous
}
