// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"maps"
	"math"
	"slices"
	"strconv"
)

// buckets maps upper bounds to cumulative counts of observations.
type buckets map[float64]float64

func (b buckets) add(other buckets) {
	for bound, n := range other {
		b[bound] += n
	}
}

// since returns the observations after before. reset means that the counts restarted or
// the bounds changed: then all are new.
func (b buckets) since(before buckets) (delta buckets, reset bool) {
	delta = make(buckets, len(b))
	reset = len(b) != len(before)
	for bound, n := range b {
		m, ok := before[bound]
		reset = reset || !ok || n < m
		delta[bound] = n - m
	}
	if reset {
		return maps.Clone(b), true
	}
	return delta, false
}

// quantile estimates a quantile as PromQL's histogram_quantile does, by linear
// interpolation in its bucket. The smallest bucket begins at 0, unless its bound is ≤
// 0; in the unbounded bucket the result is the largest bound. ok is false without
// observations or bounds.
func (b buckets) quantile(q float64) (value float64, ok bool) {
	bounds := slices.Sorted(maps.Keys(b))
	if len(bounds) < 2 || !math.IsInf(bounds[len(bounds)-1], 1) {
		return 0, false
	}
	counts := make([]float64, len(bounds))
	for i, bound := range bounds {
		counts[i] = b[bound]
		if i > 0 { // buckets read while being counted
			counts[i] = max(counts[i], counts[i-1])
		}
	}
	last := len(bounds) - 1
	total := counts[last]
	if !(total > 0) {
		return 0, false
	}
	rank := q * total
	i := 0
	for i < last && counts[i] < rank {
		i++
	}
	switch {
	case i == last:
		return bounds[last-1], true
	case i == 0 && bounds[0] <= 0:
		return bounds[0], true
	case i == 0:
		return bounds[0] * (rank / counts[0]), true
	}
	from, in := bounds[i-1], counts[i]-counts[i-1]
	return from + (bounds[i]-from)*((rank-counts[i-1])/in), true
}

func histograms(samples []sample, name string) map[string]buckets {
	all := map[string]buckets{}
	total := map[string]float64{}
	for i := range samples {
		s := &samples[i]
		if math.IsNaN(s.value) || math.IsInf(s.value, 0) || s.value < 0 {
			continue
		}
		switch s.name {
		case name + "_bucket":
			bound, err := strconv.ParseFloat(s.label("le"), 64)
			if err != nil || math.IsNaN(bound) || math.IsInf(bound, -1) {
				continue
			}
			key := s.key("le")
			if all[key] == nil {
				all[key] = buckets{}
			}
			all[key][bound] = s.value
		case name + "_count":
			total[s.key("le")] = s.value
		}
	}
	for key, n := range total {
		if b := all[key]; b == nil {
			all[key] = buckets{math.Inf(1): n}
		} else if _, ok := b[math.Inf(1)]; !ok {
			b[math.Inf(1)] = n
		}
	}
	for key, b := range all {
		if _, ok := b[math.Inf(1)]; !ok {
			delete(all, key) // incomplete
		}
	}
	return all
}
