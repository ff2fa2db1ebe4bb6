// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package waterfill divides an amount in proportion to weights, within bounds.
package waterfill

import (
	"cmp"
	"math"
	"slices"
)

// Part is one claim on an amount: in proportion to Weight, within [Min, Max]. Weight is
// ≥ 0 and finite, 0 ≤ Min ≤ Max, and Max may be +Inf.
type Part struct{ Weight, Min, Max float64 }

// at is what the part gets at a level.
func (p Part) at(level float64) float64 {
	if p.Weight == 0 {
		return p.Min
	}
	return min(max(level*p.Weight, p.Min), p.Max)
}

// Divide returns what each part gets: the terms of Σ clamp(λ·Weight, Min, Max) = total
// for the level λ at which that holds. Where the minima sum to more than total each part
// gets its minimum, and where the maxima sum to less its maximum.
func Divide(total float64, parts []Part) []float64 {
	level := Level(total, parts)
	out := make([]float64, len(parts))
	for i, p := range parts {
		out[i] = p.at(level)
	}
	return out
}

// Level returns λ of Divide; +Inf where the maxima sum to less than total.
func Level(total float64, parts []Part) float64 {
	// The sum is piecewise linear in λ: a part grows with its weight from the level at
	// which it leaves its minimum until it meets its maximum.
	type bend struct{ level, slope float64 }
	bends := make([]bend, 0, 2*len(parts))
	sum, slope := 0.0, 0.0
	for _, p := range parts {
		sum += p.Min
		if p.Weight > 0 && p.Max > p.Min {
			bends = append(bends, bend{p.Min / p.Weight, p.Weight})
			if !math.IsInf(p.Max, 1) {
				bends = append(bends, bend{p.Max / p.Weight, -p.Weight})
			}
		}
	}
	slices.SortFunc(bends, func(a, b bend) int { return cmp.Compare(a.level, b.level) })
	level := 0.0
	for _, b := range bends {
		if slope > 0 {
			if next := sum + slope*(b.level-level); next >= total {
				break
			} else {
				sum = next
			}
		} else if sum >= total {
			break
		}
		level, slope = b.level, slope+b.slope
	}
	switch {
	case sum >= total:
		return level
	case slope <= 0:
		return math.Inf(1)
	}
	return level + (total-sum)/slope
}
