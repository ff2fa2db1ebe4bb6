// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

// keptValues is how many reports of an interval are kept; of more, every second one,
// every fourth one, and so on, is.
const keptValues = 256

// Gain measures the gain of SpeCon (Algorithm 1, line 5): by how much the evaluation
// function E moved from one interval to the next, |E(t_m) − E(t_m−1)|, on a scale on
// which E has spanned 1 so far.
//
// E of an interval is the median of its reports. The paper takes the last one, which is
// mostly the noise of one batch. The zero Gain is ready to use.
type Gain struct {
	values []float64 // of this interval
	seen   int       // reports of this interval
	every  int       // one of how many is kept

	level  float64 // E of the last interval that had reports
	known  bool
	lo, hi float64 // of the levels so far
	last   *float64
}

// Add takes a report. One that is not finite is left out.
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

// Close ends an interval. It returns its gain and that of the interval before, each in
// [0, 1]; nil is not known: there were no reports, or none before them.
func (g *Gain) Close() (gain, previous *float64) {
	previous = g.last
	g.last = nil
	if len(g.values) == 0 {
		return nil, previous
	}
	// The middle of two huge values need not fit.
	level := math.Max(-math.MaxFloat64, math.Min(math.MaxFloat64, median(g.values)))
	g.values, g.seen, g.every = g.values[:0], 0, 1
	if !g.known {
		g.level, g.lo, g.hi, g.known = level, level, level, true
		return nil, previous
	}
	g.lo, g.hi = math.Min(g.lo, level), math.Max(g.hi, level)
	var x float64
	// Halves do not overflow where the difference would.
	if span := g.hi/2 - g.lo/2; span > 0 {
		x = math.Min(1, math.Abs(level/2-g.level/2)/span)
	}
	g.level, g.last = level, &x
	return &x, previous
}
