// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"errors"
	"fmt"
	"slices"
)

// Keep is how many runs of a kind are kept, the latest ones: a job changes over the months.
const Keep = 5

// Profile is what is known of a kind of job.
type Profile struct {
	Kind Kind `json:"kind"`
	// Runs are the latest, the last one last.
	Runs []Run `json:"runs"`
	// Measured is how many runs have been seen to their end, ever.
	Measured int `json:"measured"`
}

// add returns the profile with one run more.
func (p Profile) add(r Run) Profile {
	p.Runs = append(slices.Clone(p.Runs), r.clone())
	p.Runs = p.Runs[max(0, len(p.Runs)-Keep):]
	if r.Whole {
		p.Measured++
	}
	return p
}

// validate says what is wrong with a profile that was read from somewhere.
func (p Profile) validate() error {
	if len(p.Runs) == 0 || len(p.Runs) > Keep {
		return fmt.Errorf("runs: must be 1 to %d, got %d", Keep, len(p.Runs))
	}
	if p.Measured < 0 || p.Measured > most {
		return fmt.Errorf("measured: must be from 0 to %d, got %d", uint64(most), p.Measured)
	}
	var errs []error
	for i, r := range p.Runs {
		if err := r.validate(); err != nil {
			errs = append(errs, fmt.Errorf("runs[%d].%w", i, err))
		}
	}
	return errors.Join(errs...)
}

// envelope is what lies around the runs of a profile: in each part, the most and the least
// of the peaks of the runs that lasted so long.
type envelope struct {
	width     float64 // seconds
	low, high []uint64
}

func (p Profile) envelope() envelope {
	e := envelope{width: width}
	for _, r := range p.Runs {
		e.width = max(e.width, r.WidthS)
	}
	for _, r := range p.Runs {
		for i, bytes := range r.widen(e.width).Bytes {
			if i == len(e.high) {
				e.low, e.high = append(e.low, bytes), append(e.high, bytes)
				continue
			}
			e.low[i], e.high[i] = min(e.low[i], bytes), max(e.high[i], bytes)
		}
	}
	return e
}

// Summary is a profile in a few figures.
type Summary struct {
	Kind Kind
	// Measured is how many runs have been seen to their end.
	Measured int
	// Peak is the most that one of the latest runs has held, in bytes.
	Peak uint64
	// Working is the working set, in bytes: what was held for half of the time at least,
	// the median over the parts of the envelope. It is never the peak of a job whose
	// peak is short.
	Working uint64
	// FastestS is how long the fastest of the latest runs took, in seconds; 0 if the end
	// of none was seen. One that did not come near the peak does not count: it has failed.
	FastestS float64
}

// near is the part of the peak from which on a run counts as one that did the job.
const near = 0.9

// Summary returns the figures.
func (p Profile) Summary() Summary {
	s := Summary{Kind: p.Kind, Measured: p.Measured}
	e := p.envelope()
	if len(e.high) > 0 {
		s.Peak = slices.Max(e.high)
		order := slices.Sorted(slices.Values(e.high))
		s.Working = order[(len(order)-1)/2]
	}
	for _, r := range p.Runs {
		if r.Whole && r.Seconds > 0 && float64(r.Peak()) >= near*float64(s.Peak) && (s.FastestS == 0 || r.Seconds < s.FastestS) {
			s.FastestS = r.Seconds
		}
	}
	return s
}
