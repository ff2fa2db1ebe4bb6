// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package latency counts durations: how many, their mean, their largest, and quantiles that are exact to one per
// cent, in a few kilobytes whatever the number.
package latency

import (
	"maps"
	"math"
	"slices"
)

// step is the ratio of two neighbouring bounds: a quantile lies at most half of it from the truth.
const step = 1.02

// Digest holds durations in seconds. The zero value is empty. It is not safe for concurrent use.
type Digest struct {
	count  int64
	sum    float64
	max    float64
	bucket map[int]int64
}

// Add takes one duration. What is negative or no number counts as 0.
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

// place is the number of the bucket; everything below a nanosecond shares one.
func place(seconds float64) int {
	return int(math.Round(math.Log(min(max(seconds, 1e-9), 1e9)) / math.Log(step)))
}

// Count is how many there were.
func (d *Digest) Count() int64 { return d.count }

// Max is the largest; 0 of none.
func (d *Digest) Max() float64 { return d.max }

// Mean is exact; NaN of none.
func (d *Digest) Mean() float64 { return d.sum / float64(d.count) }

// Quantile returns the smallest duration that a share q of all do not exceed; NaN of none.
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
