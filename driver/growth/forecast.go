// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

// Fit is the curve that the robust estimator has fitted: a value that nobody changes any
// more. The zero Fit promises nothing. CPU-seconds are those of the counter of the process
// that runs now.
type Fit struct {
	sign, level, span float64 // a value is sign·(level + span·u)
	from, width, to   float64 // of the window, and its newest report, in CPU-seconds
	offset            float64 // u = offset + Σ scale·φ((c − from)/width)
	scale             [shapes]float64
}

// farthest is how far ahead a fit is believed, in lengths of its window.
const farthest = 100

func (f *Fit) at(cpu float64) float64 {
	y := phi((cpu - f.from) / f.width)
	u := f.offset
	for s := range y {
		u += f.scale[s] * y[s]
	}
	return u
}

// To returns the CPU-seconds from a moment on until the curve reaches a value, 0 if it is
// there. It is false if the curve does not get there.
func (f Fit) To(value, cpu float64) (float64, bool) {
	if !(f.width > 0) {
		return 0, false
	}
	return f.reach((f.sign*value-f.level)/f.span, max(cpu, f.to))
}

// Part returns the CPU-seconds from a moment on until the curve has made a part of all the
// improvement that it makes from the task's beginning until its end, left CPU-seconds from
// now; 0 if that is done. It is false for the zero Fit.
func (f Fit) Part(part, cpu, left float64) (float64, bool) {
	if !(f.width > 0) || !(left >= 0) {
		return 0, false
	}
	now := max(cpu, f.to)
	level := f.at(now)
	done := 1 + f.at(f.to) - level // in ranges seen so far
	ahead := max(0, level-f.at(now+left))
	return f.reach(level-(part*(done+ahead)-done), now)
}

// reach returns how long after now the curve is down at u.
func (f *Fit) reach(u, now float64) (float64, bool) {
	if !(f.at(now) > u) {
		return 0, !math.IsNaN(u)
	}
	before := 0.0
	for ahead := f.width / 64; ahead < farthest*f.width; ahead *= 1.2 {
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
