// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

// bends is the number of curves in a forecast: φ(x) = (1 + kx)^−p with p = 1 and ½,
// since training losses fall as powers of CPU-seconds. The shapes of fit.go describe
// the newest reports better, but do not extrapolate: a line never ends, and an
// exponential ends too soon.
const bends = 14

func bend(x float64) (y [bends]float64) {
	for i, k := range [bends / 2]float64{1, 2, 4, 8, 16, 32, 64} {
		y[2*i] = 1 / (1 + k*max(x, 0))
		y[2*i+1] = math.Sqrt(y[2*i])
	}
	return y
}

// Fit is a curve fitted to all reports since the last drop of the learning rate or
// restart that lost ground. It is immutable; the zero Fit predicts nothing. CPU-seconds
// are on the counter of the current process.
type Fit struct {
	sign, level, span float64 // a value is sign·(level + span·u)
	from, width, to   float64 // of the first report, of all, and of the newest one, in CPU-seconds
	offset            float64 // u = offset + Σ scale·φ((c − from)/width)
	scale             [bends]float64
}

// forecast fits the bends to all cells and averages them by likelihood.
func (f *fitter) forecast() Fit {
	f.group(f.cells)
	n := len(f.bins)
	c0 := f.bins[0].c
	out := Fit{level: f.level, from: c0, width: f.bins[n-1].c - c0, to: f.cells[len(f.cells)-1].at}
	for i, b := range f.bins {
		for s, y := range bend((b.c - c0) / out.width) {
			f.phi[s][i] = y
		}
	}
	sigma := f.spread()
	var offset, score [bends]float64
	least := math.Inf(1)
	for s := range bends {
		out.scale[s], offset[s], _ = f.regress(f.phi[s][:n], sigma)
		score[s] = f.misfit(n, sigma)
		least = math.Min(least, score[s])
	}
	total := 0.0
	for s := range bends {
		score[s] = math.Pow(least/score[s], float64(n)/2)
		total += score[s]
	}
	for s := range bends {
		out.offset += score[s] / total * offset[s]
		out.scale[s] *= score[s] / total
	}
	return out
}

// maxExtrapolation is how far ahead a fit is valid, in widths of its data.
const maxExtrapolation = 100

func (f *Fit) at(cpu float64) float64 {
	u := f.offset
	for s, y := range bend((cpu - f.from) / f.width) {
		u += f.scale[s] * y
	}
	return u
}

// To returns the CPU-seconds from cpu on until the curve reaches value, 0 if it already
// has; false if it never does.
func (f Fit) To(value, cpu float64) (float64, bool) {
	if !(f.width > 0) {
		return 0, false
	}
	return f.reach((f.sign*value-f.level)/f.span, max(cpu, f.to))
}

// reach returns the CPU-seconds from now until the curve falls to u.
func (f *Fit) reach(u, now float64) (float64, bool) {
	if !(f.at(now) > u) {
		return 0, !math.IsNaN(u)
	}
	before := 0.0
	for ahead := f.width / 64; ahead < maxExtrapolation*f.width; ahead *= 1.2 {
		if f.at(now+ahead) > u {
			before = ahead
			continue
		}
		for range 40 {
			if mid := before + (ahead-before)/2; f.at(now+mid) > u {
				before = mid
			} else {
				ahead = mid
			}
		}
		return ahead, true
	}
	return 0, false
}
