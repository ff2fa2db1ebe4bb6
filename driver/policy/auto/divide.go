// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import "math"

// claim is what one task asks of a sum: want, but at least min.
type claim struct {
	task      int
	want, min float64
}

// fill divides total in proportion to want, so that nobody gets less than his min.
// Σ min ≤ total is the caller's business, and that there is a claim.
func fill(total float64, claims []claim) []float64 {
	out := make([]float64, len(claims))
	held := make([]bool, len(claims)) // at its min
	for {
		left, wanted := total, 0.0
		for i, c := range claims {
			if held[i] {
				left -= c.min
			} else {
				wanted += c.want
			}
		}
		again := false
		for i, c := range claims {
			if held[i] {
				out[i] = c.min
				continue
			}
			if out[i] = left * (c.want / wanted); out[i] < c.min {
				held[i], again = true, true
			}
		}
		if !again {
			return out
		}
	}
}

// level cuts the largest claims to one level, so that they sum to total: who wants
// less than the level keeps what he wants, and nobody is cut below his min. With
// Σ min ≤ total < Σ want there is such a level.
func level(total float64, claims []claim) []float64 {
	out := make([]float64, len(claims))
	sum := func(level float64) (s float64) {
		for i, c := range claims {
			out[i] = math.Max(c.min, math.Min(c.want, level))
			s += out[i]
		}
		return s
	}
	low, high := 0.0, 1.0
	for range 60 { // more than a float64's mantissa
		if middle := low + (high-low)/2; sum(middle) < total {
			low = middle
		} else {
			high = middle
		}
	}
	sum(low)
	return out
}
