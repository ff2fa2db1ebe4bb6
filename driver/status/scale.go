// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"math"
	"strconv"
	"strings"
)

// maxPlotted bounds drawn values; larger ones count as not finite. It keeps all
// differences and ratios within float64.
const maxPlotted = 1e100

// tick is a labelled position on an axis.
type tick struct {
	at    float64
	label string
}

// scale maps values to 0..1 along a linear or logarithmic axis.
type scale struct {
	min, max float64
	log      bool
}

// at returns the position of v, clamped to the axis.
func (s scale) at(v float64) float64 {
	if s.log {
		v = max(v, s.min) // values ≤ 0 are at the bottom
		return clamp01((math.Log10(v) - math.Log10(s.min)) / (math.Log10(s.max) - math.Log10(s.min)))
	}
	return clamp01((v - s.min) / (s.max - s.min))
}

func clamp01(f float64) float64 { return max(0, min(1, f)) }

func plotted(v float64) bool { return !math.IsNaN(v) && math.Abs(v) <= maxPlotted }

// autoScale fits an axis to values. It is logarithmic if all are ≥ 0, none is 0 unless
// zero is set, and the largest is at least ratio times the smallest positive one; it
// covers at most decades decades. Zeros alone have an axis of −1 to 1, or 0 to 1 if
// zero is set.
func autoScale(values []float64, ratio float64, zero bool, decades float64) scale {
	lo, hi, least := math.Inf(1), math.Inf(-1), math.Inf(1)
	for _, v := range values {
		if !plotted(v) {
			continue
		}
		lo, hi = min(lo, v), max(hi, v)
		if v > 1e-100 {
			least = min(least, v)
		}
	}
	switch {
	case lo > hi || zero && max(-lo, hi) < 1e-90:
		return scale{min: 0, max: 1}
	case max(-lo, hi) < 1e-90: // zeros alone
		return scale{min: -1, max: 1}
	}
	if least < hi && hi/least >= ratio && (lo >= least || zero && lo >= 0) {
		least = max(least, hi/math.Pow(10, decades))
		return scale{min: math.Pow(10, math.Floor(math.Log10(least))), max: hi * 1.3, log: true}
	}
	if zero {
		lo = min(lo, 0)
	}
	span := hi - lo
	// Smaller spans would drown in rounding.
	if least := max(math.Abs(lo), math.Abs(hi)) * 1e-6; span <= least {
		span = max(least, math.Abs(hi)*0.1)
		lo, hi = lo-span/2, hi+span/2
	}
	pad := span * 0.06
	if zero && lo == 0 {
		return scale{min: 0, max: hi + pad}
	}
	return scale{min: lo - pad, max: hi + pad}
}

func (s scale) ticks(n int) []tick {
	var out []tick
	if s.log {
		first, last := math.Ceil(math.Log10(s.min)-1e-9), math.Floor(math.Log10(s.max)+1e-9)
		every := max(1, math.Ceil((last-first)/float64(n)))
		fine := last-first <= 1 // few decades: add 2 and 5
		for e := first; e <= last && len(out) < 50; e += every {
			for _, m := range []float64{1, 2, 5} {
				v := m * math.Pow(10, e)
				if (m == 1 || fine) && v <= s.max*1.0001 {
					out = append(out, tick{v, short(v, 0)})
				}
			}
		}
		return out
	}
	step := niceStep((s.max - s.min) / float64(n))
	if step <= 0 || math.IsInf(step, 0) || math.IsNaN(step) {
		return nil
	}
	for i := math.Ceil(s.min/step - 1e-9); len(out) < 50; i++ {
		v := i * step
		if v > s.max+step*1e-9 {
			break
		}
		out = append(out, tick{v, short(v, step)})
	}
	return out
}

func niceStep(raw float64) float64 {
	if raw <= 0 {
		return 0
	}
	p := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*p*1.0001 {
			return m * p
		}
	}
	return 10 * p
}

// short formats v for display; step > 0 is the distance of ticks and sets the decimals.
func short(v, step float64) string {
	if v == 0 || step > 0 && math.Abs(v) < step*1e-6 {
		return "0"
	}
	abs := math.Abs(v)
	if abs >= 1e6 || abs < 1e-4 || step > 0 && step < 1e-5 {
		digits := 4
		if step > 0 {
			digits = int(min(9, max(1, math.Ceil(math.Log10(abs/step)-1e-9)+1)))
		}
		mantissa, exp, ok := strings.Cut(strconv.FormatFloat(v, 'e', digits-1, 64), "e")
		if !ok {
			return mantissa
		}
		if strings.Contains(mantissa, ".") {
			mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
		}
		power := strings.TrimLeft(exp[1:], "0")
		switch {
		case power == "": // close neighbours, such as 1.000005
			return mantissa
		case exp[0] == '-':
			power = "-" + power
		}
		return mantissa + "e" + power
	}
	if step > 0 {
		return strconv.FormatFloat(v, 'f', max(0, int(math.Ceil(-math.Log10(step)-1e-9))), 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func timeUnit(span float64) (seconds float64, name string) {
	switch {
	case span < 5*60:
		return 1, "s"
	case span < 5*3600:
		return 60, "min"
	case span < 5*86400:
		return 3600, "h"
	}
	return 86400, "days"
}
