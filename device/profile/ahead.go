// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"slices"
	"time"
)

// Forecast is what a profile predicts for a running job.
type Forecast struct {
	// Bytes is the most that it will hold within the horizon, at least what is held now.
	Bytes uint64
	// Known: the profile matches the job.
	Known bool
	// At is the job's estimated position in the profile.
	At time.Duration
	// Runs is the number of runs behind the forecast.
	Runs int
}

// slack is how far, as a fraction of the peak, a job may be from the runs and still match them.
const slack = 0.1

// Ahead forecasts the most that a job will hold within the horizon, given that it has run for at
// and holds held.
//
// Its position in the profile is its running time. But a job on a shared card may run slower or
// faster than earlier ones: if what it holds does not match the runs at that time, its position
// is the nearest bin with a match; of two the earlier one, since jobs are more often late. So a
// late job is expected to rise until the rise comes. A job that holds more than any run did has
// no match.
func (p Profile) Ahead(at time.Duration, held uint64, horizon time.Duration) Forecast {
	e := p.envelope()
	f := Forecast{Bytes: held, At: at, Runs: len(p.Runs)}
	if len(e.high) == 0 {
		return f
	}
	by := int(max(0, at.Seconds()) / e.width)
	part, ok := e.find(by, held)
	if !ok {
		return f
	}
	f.Known = true
	begins := max(0, at.Seconds())
	if part != by {
		begins = float64(part) * e.width
		f.At = time.Duration(begins * float64(time.Second))
	}
	last := min(int((begins+max(0, horizon.Seconds()))/e.width), len(e.high)-1)
	f.Bytes = max(held, slices.Max(e.high[part:last+1]))
	return f
}

// find returns the bin nearest to by among those where the runs held about as much.
func (e envelope) find(by int, held uint64) (part int, ok bool) {
	n := len(e.high)
	by = min(by, n) // beyond the end the last one is nearest
	for d := range n + 1 {
		if i := by - d; i >= 0 && i < n && e.fits(i, held) {
			return i, true
		}
		if i := by + d; i < n && e.fits(i, held) {
			return i, true
		}
	}
	return 0, false
}

// fits reports whether the runs held about as much in a bin or next to it: held is one moment, a
// bin's value a maximum.
func (e envelope) fits(i int, held uint64) bool {
	from, to := max(0, i-1), min(i+2, len(e.high))
	low, high := slices.Min(e.low[from:to]), slices.Max(e.high[from:to])
	if from == 0 {
		low = 0
	}
	tolerance := uint64(slack * float64(slices.Max(e.high)))
	return held+tolerance >= low && held <= high+tolerance
}
