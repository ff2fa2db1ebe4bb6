// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import "github.com/ebbtide/ebbtide/internal/waterfill"

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

// fill makes shares of what lies between two levels, by weight.
//
// Whole MiB come about as seats do by d'Hondt's method, not by largest remainders: a
// larger weight never costs a MiB.
func fill(total int, claims []claim, level int, shares []int) {
	parts := make([]waterfill.Claim, len(claims))
	for i, c := range claims {
		parts[i] = waterfill.Claim{Weight: c.weight, Min: float64(c.levels[level-1]), Max: float64(c.levels[level])}
	}
	left := total
	for i, part := range waterfill.Divide(float64(total), parts) {
		if part < parts[i].Max {
			part *= 1 - 1e-9 // a little less than exact: the sum must not exceed total by a rounding error
		}
		shares[i] = max(int(part), claims[i].levels[level-1])
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
			return // all claims are met
		}
		shares[best]++
	}
}
