// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import "github.com/ebbtide/ebbtide/internal/waterfill"

type claim struct {
	weight float64
	// levels are its bounds, ascending and by precedence. The last is the most that it wants.
	levels [levels]int
}

const (
	held    = iota // cannot be taken away
	minimum        // the working set: below it the container fails or waits
	floor          // a fraction of an equal share
	wanted         // the most it wants
	levels
)

// divide gives all claims the first level, then the next ones, as long as all of one level fit;
// the remainder is divided by weight among those below their next level (weighted max-min
// fairness). It returns the first level that could not be given to all; wanted if there is none.
// If even what is held exceeds total, the shares are what is held.
//
// Shares do not depend on the order of equal claims, but for the last MiB, which goes to the
// first.
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

// fill distributes what lies between two levels, by weight: by d'Hondt's method, so that a larger
// weight never costs a MiB, as with largest remainders.
func fill(total int, claims []claim, level int, shares []int) {
	parts := make([]waterfill.Claim, len(claims))
	for i, c := range claims {
		parts[i] = waterfill.Claim{Weight: c.weight, Min: float64(c.levels[level-1]), Max: float64(c.levels[level])}
	}
	left := total
	for i, part := range waterfill.Divide(float64(total), parts) {
		if part < parts[i].Max {
			part *= 1 - 1e-9 // slightly less, so that rounding cannot exceed total
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
			return
		}
		shares[best]++
	}
}
