// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Bins is the maximum number of bins of a run.
const Bins = 128

// width is the initial length of a bin, in seconds; it doubles when a run outgrows Bins.
const width = 1.0

// maxNumber bounds sizes in bytes and times in seconds, so that sums of values from a file cannot
// overflow.
const maxNumber = 1 << 50

// Run is the memory that a run of a job held over its running time.
type Run struct {
	// WidthS is the length of a bin.
	WidthS float64 `json:"width_s"`
	// Bytes is the maximum held in each bin.
	Bytes []uint64 `json:"bytes"`
	// Seconds is how long it was observed to run.
	Seconds float64 `json:"seconds"`
	// Whole: its end was observed, so Seconds is its duration.
	Whole bool `json:"whole"`
}

// Peak returns the most that was held.
func (r Run) Peak() uint64 {
	if len(r.Bytes) == 0 {
		return 0
	}
	return slices.Max(r.Bytes)
}

func (r Run) clone() Run {
	r.Bytes = slices.Clone(r.Bytes)
	return r
}

func (r Run) validate() error {
	mantissa, _ := math.Frexp(r.WidthS)
	switch {
	case !(r.WidthS >= width && r.WidthS <= maxNumber && mantissa == 0.5):
		return fmt.Errorf("width_s: must be a power of two from %v to %v, got %v", width, float64(maxNumber), r.WidthS)
	case !(r.Seconds >= 0 && r.Seconds <= maxNumber):
		return fmt.Errorf("seconds: must be from 0 to %v, got %v", float64(maxNumber), r.Seconds)
	case len(r.Bytes) == 0 || len(r.Bytes) > Bins:
		return fmt.Errorf("bytes: must be 1 to %d sizes, got %d", Bins, len(r.Bytes))
	case r.Peak() > maxNumber:
		return fmt.Errorf("bytes: must be at most %d, got %d", uint64(maxNumber), r.Peak())
	}
	return nil
}

// widen returns the run with bins of that length, a power of two.
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

// Recorder records a run. The zero value is ready to use. It is not safe for concurrent use.
type Recorder struct {
	run  Run
	last uint64 // held when last observed
}

// Observe records that bytes are held after a running time, until the next observation. Running
// time does not go back.
func (c *Recorder) Observe(at time.Duration, bytes uint64) {
	r := &c.run
	if r.WidthS == 0 {
		r.WidthS = width
	}
	r.Seconds = min(max(r.Seconds, at.Seconds()), maxNumber)
	bytes = min(bytes, maxNumber)
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

// End returns the recording of a run that has ended after a running time.
func (c *Recorder) End(at time.Duration) Run {
	c.Observe(at, 0)
	r := c.Run()
	r.Whole = true
	return r
}
