// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

// median reorders x and returns its median; x must not be empty.
func median(x []float64) float64 {
	n := len(x)
	hi := kth(x, n/2)
	if n%2 == 1 {
		return hi
	}
	// The lower half is all ≤ hi by now.
	lo := x[0]
	for _, v := range x[1 : n/2] {
		lo = max(lo, v)
	}
	return lo + (hi-lo)/2
}

// kth reorders x so that x[k] is its k-th smallest, and returns it (Hoare's
// quickselect, pivot by the median of three: no randomness, no allocation).
func kth(x []float64, k int) float64 {
	lo, hi := 0, len(x)-1
	for lo < hi {
		mid := lo + (hi-lo)/2
		if x[mid] < x[lo] {
			x[mid], x[lo] = x[lo], x[mid]
		}
		if x[hi] < x[lo] {
			x[hi], x[lo] = x[lo], x[hi]
		}
		if x[hi] < x[mid] {
			x[hi], x[mid] = x[mid], x[hi]
		}
		p := x[mid]
		i, j := lo, hi
		for i <= j {
			for x[i] < p {
				i++
			}
			for p < x[j] {
				j--
			}
			if i <= j {
				x[i], x[j] = x[j], x[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return x[k]
		}
	}
	return x[k]
}
