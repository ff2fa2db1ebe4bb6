// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "slices"

// median sorts x and returns its median; x must not be empty.
func median(x []float64) float64 {
	slices.Sort(x)
	lo, hi := x[(len(x)-1)/2], x[len(x)/2]
	return lo + (hi-lo)/2
}
