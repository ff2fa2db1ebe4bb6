// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Bins is into how many parts of equal length a run is divided at most.
const Bins = 128

// width is how long a part is at first, in seconds; it doubles when a run outgrows Bins.
const width = 1.0

// most bounds a size in bytes and a time in seconds, so that what a file says can be added
// up.
const most = 1 << 50

// Run is how much memory one run of a job held over its running time.
type Run struct {
	// WidthS is how long a part is, in seconds.
	WidthS float64 `json:"width_s"`
	// Bytes is the most that was held in each part, from the first on.
	Bytes []uint64 `json:"bytes"`
	// Seconds is how long it was seen to run.
	Seconds float64 `json:"seconds"`
	// Whole says that its end was seen: Seconds is how long it took.
	Whole bool `json:"whole"`
}

// Peak is the most that was held.
func (r Run) Peak() uint64 {
	if len(r.Bytes) == 0 {
		return 0
	}
	return slices.Max(r.Bytes)
}

// clone returns a copy of its own.
func (r Run) clone() Run {
	r.Bytes = slices.Clone(r.Bytes)
	return r
}

// validate says what is wrong with a run that was read from somewhere.
func (r Run) validate() error {
	mantissa, _ := math.Frexp(r.WidthS)
	switch {
	case !(r.WidthS >= width && r.WidthS <= most && mantissa == 0.5):
		return fmt.Errorf("width_s: must be a power of two from %v to %v, got %v", width, float64(most), r.WidthS)
	case !(r.Seconds >= 0 && r.Seconds <= most):
		return fmt.Errorf("seconds: must be from 0 to %v, got %v", float64(most), r.Seconds)
	case len(r.Bytes) == 0 || len(r.Bytes) > Bins:
		return fmt.Errorf("bytes: must be 1 to %d sizes, got %d", Bins, len(r.Bytes))
	case r.Peak() > most:
		return fmt.Errorf("bytes: must be at most %d, got %d", uint64(most), r.Peak())
	}
	return nil
}

// widen returns the run with parts of that length, a power of two.
func (r Run) widen(to float64) Run {
	r = r.clone()
	for r.WidthS < to {
		r.WidthS *= 2
		for i := range (len(r.Bytes) + 1) / 2 {
			r.Bytes[i] = slices.Max(r.Bytes[2*i : min(2*i+2, len(r.Bytes))])
		}
		r.Bytes = r.Bytes[:(len(r.Bytes)+1)/2]
	}
	return r
}

// Recorder records a run. The zero value is at its beginning. It is not safe for
// concurrent use.
type Recorder struct {
	run  Run
	last uint64 // bytes that were held when it was last observed
}

// Continue returns a recorder that goes on with a run, or an error that says why that is
// none.
func Continue(r Run) (*Recorder, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	r = r.clone()
	r.Whole = false
	return &Recorder{run: r, last: r.Bytes[len(r.Bytes)-1]}, nil
}

// Observe notes that so many bytes are held after so much running time. Between two
// observations the earlier one counts. Running time does not go back; an observation that
// says so is taken for one of the time before.
func (c *Recorder) Observe(at time.Duration, bytes uint64) {
	r := &c.run
	if r.WidthS == 0 {
		r.WidthS = width
	}
	r.Seconds = min(max(r.Seconds, at.Seconds()), most)
	bytes = min(bytes, most)
	if r.Seconds >= r.WidthS*Bins {
		to := r.WidthS
		for r.Seconds >= to*Bins {
			to *= 2
		}
		*r = r.widen(to)
	}
	part := int(math.Floor(r.Seconds / r.WidthS))
	for len(r.Bytes) <= part {
		r.Bytes = append(r.Bytes, c.last)
	}
	r.Bytes[part] = max(r.Bytes[part], bytes)
	c.last = bytes
}

// Run returns what has been recorded so far.
func (c *Recorder) Run() Run { return c.run.clone() }

// End returns what has been recorded of a run that has ended after so much running time.
func (c *Recorder) End(at time.Duration) Run {
	c.Observe(at, 0)
	r := c.Run()
	r.Whole = true
	return r
}
