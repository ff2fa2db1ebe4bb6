// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"math/rand/v2"
	"slices"
)

// Interval is a mean with its 95 % confidence interval.
type Interval struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	N    int     `json:"n"` // number of values; no interval with one
}

// resamples is the number of bootstrap samples; an interval's ends are then the 50th values
// from outside.
const resamples = 2000

// Bootstrap returns the mean and its 95 % interval by the percentile bootstrap (Efron 1979),
// reproducibly by seed. Ratios of pairs make it a paired one.
func Bootstrap(values []float64, seed uint64) Interval {
	n := len(values)
	if n == 0 {
		return Interval{}
	}
	out := Interval{Mean: mean(values), N: n}
	if out.Low, out.High = out.Mean, out.Mean; n == 1 {
		return out
	}
	r := rand.New(rand.NewPCG(seed, 95))
	means := make([]float64, resamples)
	for i := range means {
		sum := 0.0
		for range n {
			sum += values[r.IntN(n)]
		}
		means[i] = sum / float64(n)
	}
	slices.Sort(means)
	out.Low, out.High = quantile(means, 0.025), quantile(means, 0.975)
	return out
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// quantile interpolates between sorted values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i >= len(sorted)-1 {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
