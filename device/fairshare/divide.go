// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import "slices"

// claim is what one container has to say about a sum of whole MiB.
type claim struct {
	// weight > 0 is what it counts for.
	weight float64
	// levels are what it should have, the most urgent first, each ≥ the one before. The
	// last one is the most that it wants.
	levels [levels]int
}

// The levels of a claim.
const (
	held    = iota // what is in use: cannot be taken away
	minimum        // the working set: below it the container fails or waits
	floor          // a part of an equal share: nobody starves
	wanted         // what it wants at most
	levels
)

// divide gives everybody the first level, then the next ones, as long as all of one
// level fit together; what is left over then is divided by weight among those whose
// next level has not been reached (weighted max-min fairness, a level being the bound).
// It returns the level that could not be given to all, or wanted.
//
// Where not even what is held fits into total, that is what everybody has: the sum
// exceeds total, and the level is held.
//
// Shares are the same whatever the order of equal claims but for the last MiB, which
// goes to the first.
func divide(total int, claims []claim) (shares []int, level int) {
	sum := func(level int) (sum int) {
		for _, c := range claims {
			sum += c.levels[level]
		}
		return sum
	}
	shares = make([]int, len(claims))
	for i, c := range claims {
		shares[i] = c.levels[held]
	}
	if sum(held) > total {
		return shares, held
	}
	level = minimum
	for level < wanted && sum(level) <= total {
		level++
	}
	fill(total, claims, level, shares)
	return shares, level
}

// fill makes shares of what lies between two levels: clamp(λ·weight), with the largest λ
// so that they fit into total.
//
// Whole MiB come about as seats do by d'Hondt's method, not by largest remainders: a
// larger weight never costs a MiB.
func fill(total int, claims []claim, level int, shares []int) {
	λ := water(float64(total), claims, level)
	left := total
	for i, c := range claims {
		low, high := c.levels[level-1], c.levels[level]
		// A little less than exact: the sum must not exceed total by a rounding error.
		shares[i] = min(max(int(min(λ*c.weight*(1-1e-9), float64(high))), low), high)
		left -= shares[i]
	}
	for ; left > 0; left-- {
		best := -1
		for i, c := range claims {
			if shares[i] < c.levels[level] &&
				(best < 0 || c.weight/float64(shares[i]+1) > claims[best].weight/float64(shares[best]+1)) {
				best = i
			}
		}
		if best < 0 {
			return // everybody has what he wants
		}
		shares[best]++
	}
}

// water returns the λ at which Σ clamp(λ·weight, level below, level) is total, or the
// one at which all have reached their level. Between two of the points at which somebody
// reaches a bound the sum is a line.
func water(total float64, claims []claim, level int) float64 {
	points := []float64{0}
	for _, c := range claims {
		points = append(points, float64(c.levels[level-1])/c.weight, float64(c.levels[level])/c.weight)
	}
	slices.Sort(points)
	sum := func(λ float64) (sum float64) {
		for _, c := range claims {
			sum += min(max(λ*c.weight, float64(c.levels[level-1])), float64(c.levels[level]))
		}
		return sum
	}
	i, _ := slices.BinarySearchFunc(points, total, func(λ, total float64) int {
		if sum(λ) < total {
			return -1
		}
		return 1
	})
	switch {
	case i == len(points):
		return points[len(points)-1]
	case i == 0:
		return 0
	}
	low, high := sum(points[i-1]), sum(points[i])
	return points[i-1] + (points[i]-points[i-1])*(total-low)/(high-low)
}
