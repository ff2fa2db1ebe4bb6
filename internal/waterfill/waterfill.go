// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package waterfill divides a quantity among claims by weight and within bounds:
// weighted max-min fairness.
package waterfill

import "math"

// Claim is a request for a part of a total. Weight, Min and Max are ≥ 0, Min ≤ Max; Max
// may be +Inf.
type Claim struct{ Weight, Min, Max float64 }

// Divide returns clamp(λ·Weight, Min, Max) for each claim, with the λ at which the
// parts sum to total. If the bounds allow no such λ, all parts are at their Min (total
// too small) or Max (total too large). A claim without weight gets its Min.
//
// It is exact: parts within their bounds are proportional to their weights up to
// rounding.
func Divide(total float64, claims []Claim) []float64 {
	out := make([]float64, len(claims))
	open := make([]int, len(claims)) // claims not yet settled at a bound
	heaviest := 0.0
	for i, c := range claims {
		open[i] = i
		heaviest = max(heaviest, c.Weight)
	}
	// As in CSS flex layout: divide the rest by weight, clamp, and settle the claims
	// clamped in the direction of the error. Settling the others too could be wrong, as
	// λ may still move back. Each round settles at least one claim.
	for left := total; len(open) > 0; {
		weights := 0.0
		for _, i := range open {
			weights += claims[i].Weight / heaviest // terms ≤ 1 cannot overflow
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
