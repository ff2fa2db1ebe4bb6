// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package latency counts durations: number, mean, maximum, and quantiles exact to one per cent,
// in a few kB.
package latency

import (
	"maps"
	"math"
	"slices"
)

// step is the ratio of bucket bounds; a quantile's error is at most half.
const step = 1.02

// Digest holds durations in seconds. The zero value is empty. It is not safe for concurrent
// use.
type Digest struct {
	count  int64
	sum    float64
	max    float64
	bucket map[int]int64
}

// Add adds a duration. Negative values and NaN count as 0.
func (d *Digest) Add(seconds float64) {
	if !(seconds > 0) {
		seconds = 0
	}
	if d.bucket == nil {
		d.bucket = map[int]int64{}
	}
	d.count++
	d.sum += seconds
	d.max = max(d.max, seconds)
	d.bucket[place(seconds)]++
}

// place returns the bucket; below a nanosecond there is one.
func place(seconds float64) int {
	return int(math.Round(math.Log(min(max(seconds, 1e-9), 1e9)) / math.Log(step)))
}

func (d *Digest) Count() int64 { return d.count }

// Max returns the longest duration; 0 if there are none.
func (d *Digest) Max() float64 { return d.max }

// Mean returns the exact mean; NaN if there are none.
func (d *Digest) Mean() float64 { return d.sum / float64(d.count) }

// Quantile returns the smallest duration that a fraction q does not exceed; NaN if there are
// none.
func (d *Digest) Quantile(q float64) float64 {
	if d.count == 0 {
		return math.NaN()
	}
	rank := int64(math.Ceil(q * float64(d.count)))
	for _, at := range slices.Sorted(maps.Keys(d.bucket)) {
		if rank -= d.bucket[at]; rank <= 0 {
			return min(math.Pow(step, float64(at)), d.max)
		}
	}
	return d.max
}
