// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import "slices"

// Present returns the time in which at least one job was present, in seconds, ignoring unfinished
// jobs: an empty pool is not idle.
func (r Run) Present() float64 {
	var spans [][2]float64
	for _, j := range r.Jobs {
		if j.EndS != nil {
			spans = append(spans, [2]float64{j.ArriveS, *j.EndS})
		}
	}
	slices.SortFunc(spans, func(a, b [2]float64) int {
		switch {
		case a[0] < b[0]:
			return -1
		case a[0] > b[0]:
			return 1
		}
		return 0
	})
	sum := 0.0
	for i, s := range spans {
		if i > 0 {
			s[0] = max(s[0], spans[i-1][1])
		}
		sum += max(0, s[1]-s[0])
		spans[i][1] = max(s[1], s[0])
	}
	return sum
}
