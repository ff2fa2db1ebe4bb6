// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"slices"
	"time"
)

// Forecast is what a profile expects of a job that runs.
type Forecast struct {
	// Bytes is the most that it expects to be held within the horizon. It is never less
	// than what is held.
	Bytes uint64
	// Known says that the profile knows the job where it is. Otherwise Bytes may be far
	// from what comes.
	Known bool
	// At is where in the profile the job is taken to be.
	At time.Duration
	// Runs is on how many runs that rests.
	Runs int
}

// slack is how far from what the runs held, as a part of the peak, a job may be that is
// taken to be in the same place.
const slack = 0.1

// Ahead says what a job will hold, at most, within the horizon, if it has run for at and
// holds that much.
//
// Where in the profile it is, is told by its running time first. A job on a shared card
// runs slower or faster than those before it, though: if what it holds is not what the
// runs held about then, or if they all had ended by then, it is taken to be in the nearest
// part where they held as much; of two at the same distance in the earlier one, for jobs
// fall behind more often than they hurry. So a job that is late is expected to rise from
// the moment on when the rise is next by its level, and until it comes. Only of one that
// holds more than any of the runs ever did there is no such part: its future is not known.
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

// find returns the part that is nearest to the one by running time, of those where the
// runs held about as much.
func (e envelope) find(by int, held uint64) (part int, ok bool) {
	n := len(e.high)
	by = min(by, n) // beyond the end none is nearer than the last one
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

// fits says whether the runs held about as much in a part or beside it: what is held now
// is a moment, and a part's figure the most of all of its moments.
func (e envelope) fits(i int, held uint64) bool {
	from, to := max(0, i-1), min(i+2, len(e.high))
	low, high := slices.Min(e.low[from:to]), slices.Max(e.high[from:to])
	if from == 0 {
		low = 0 // a run begins with nothing
	}
	tolerance := uint64(slack * float64(slices.Max(e.high)))
	return held+tolerance >= low && held <= high+tolerance
}
