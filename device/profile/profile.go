// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"errors"
	"fmt"
	"slices"
)

// Keep is how many of the latest runs of a key are kept.
const Keep = 5

// Profile is what is known of the runs of a key.
type Profile struct {
	Key Key `json:"key"`
	// Runs are the latest ones, oldest first.
	Runs []Run `json:"runs"`
	// Measured is the number of runs ever observed to their end.
	Measured int `json:"measured"`
}

func (p Profile) add(r Run) Profile {
	p.Runs = append(slices.Clone(p.Runs), r.clone())
	p.Runs = p.Runs[max(0, len(p.Runs)-Keep):]
	if r.Whole {
		p.Measured++
	}
	return p
}

func (p Profile) validate() error {
	if len(p.Runs) == 0 || len(p.Runs) > Keep {
		return fmt.Errorf("runs: must be 1 to %d, got %d", Keep, len(p.Runs))
	}
	if p.Measured < 0 || p.Measured > maxNumber {
		return fmt.Errorf("measured: must be from 0 to %d, got %d", uint64(maxNumber), p.Measured)
	}
	var errs []error
	for i, r := range p.Runs {
		if err := r.validate(); err != nil {
			errs = append(errs, fmt.Errorf("runs[%d].%w", i, err))
		}
	}
	return errors.Join(errs...)
}

// envelope returns, for each bin, the most of the peaks of the runs that lasted so long.
func (p Profile) envelope() (high []uint64) {
	to := width
	for _, r := range p.Runs {
		to = max(to, r.WidthS)
	}
	for _, r := range p.Runs {
		for i, bytes := range r.widen(to).Bytes {
			if i == len(high) {
				high = append(high, 0)
			}
			high[i] = max(high[i], bytes)
		}
	}
	return high
}

// Summary is a profile in a few figures.
type Summary struct {
	Key Key
	// Measured is the number of runs observed to their end.
	Measured int
	// Peak is the maximum of the latest runs.
	Peak uint64
	// Working is the working set: what was held at least half of the time, the median over the
	// bins of the envelope.
	Working uint64
}

// Summary returns the profile's figures.
func (p Profile) Summary() Summary {
	s := Summary{Key: p.Key, Measured: p.Measured}
	if high := p.envelope(); len(high) > 0 {
		s.Peak = slices.Max(high)
		order := slices.Sorted(slices.Values(high))
		s.Working = order[(len(order)-1)/2]
	}
	return s
}
