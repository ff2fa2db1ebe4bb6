// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package waterfill divides a quantity among claims by weight and within bounds:
// weighted max-min fairness.
package waterfill

import "math"

// Claim is what one party asks of a total. Weight, Min and Max are ≥ 0, Min ≤ Max;
// Max may be +Inf.
type Claim struct{ Weight, Min, Max float64 }

// Divide returns clamp(λ·Weight, Min, Max) for each claim, with the λ at which the
// parts sum to total. If the bounds allow no such λ, all parts are at their Min (the
// total is too small) or at their Max (it is too large). A claim without weight has
// its Min.
//
// It is exact: parts at no bound are proportional to their weights but for rounding.
func Divide(total float64, claims []Claim) []float64 {
	out := make([]float64, len(claims))
	open := make([]int, len(claims)) // claims that are at no bound for good
	heaviest := 0.0
	for i, c := range claims {
		open[i] = i
		heaviest = max(heaviest, c.Weight)
	}
	// As in the flex layout of CSS: divide what is left by weight, clamp, and settle
	// those clamped in the direction that made the sum wrong. With the other direction
	// settled as well, λ could still move back. Each round settles a claim at least.
	for left := total; len(open) > 0; {
		weights := 0.0
		for _, i := range open {
			weights += claims[i].Weight / heaviest // no sum of numbers up to 1 overflows
		}
		excess := 0.0 // how much clamping adds
		for _, i := range open {
			c, free := claims[i], 0.0
			if c.Weight > 0 {
				free = max(left, 0) * (c.Weight / heaviest / weights)
			}
			out[i] = min(max(free, c.Min), c.Max)
			excess += out[i] - free
		}
		if excess == 0 || math.IsNaN(excess) {
			break
		}
		rest := open[:0]
		for _, i := range open {
			c := claims[i]
			if excess > 0 && out[i] == c.Min || excess < 0 && out[i] == c.Max {
				left -= out[i]
			} else {
				rest = append(rest, i)
			}
		}
		open = rest
	}
	return out
}
