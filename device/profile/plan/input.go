// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"math"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// maxSize bounds sizes (4 PiB in MiB), so that their sums are exact.
const maxSize = 1 << 32

const (
	defaultPriority = 50
	maxPriority     = 100
)

// Input is the snapshot of a card for Decide. All sizes are whole MiB.
type Input struct {
	// MemoryMiB is what can be granted of the card.
	MemoryMiB int    `json:"memory_mib" doc:"what can be granted of the card, in MiB"`
	Jobs      []Job  `json:"jobs" doc:"the jobs on the card"`
	Params    Params `json:"params" strict:"optional"`
}

// Job is a job on the card.
type Job struct {
	// ID is unique in the snapshot.
	ID string `json:"id" doc:"the job's unique ID"`
	// Priority is 1 to 100; 0 is 50.
	Priority int `json:"priority" strict:"optional"`
	// ArrivedS is its arrival, in seconds of any clock; the earlier job is first.
	ArrivedS float64 `json:"arrived_s" strict:"optional"`
	// HeldMiB is what it holds, also while paused.
	HeldMiB int `json:"held_mib" doc:"the memory that it holds, also while paused, in MiB"`
	// AheadMiB is the most its profile expects it to hold within the horizon; nil without a
	// profile.
	AheadMiB *int `json:"ahead_mib" strict:"optional"`
	// PausedS is how long the plan has paused it; nil if it has not.
	PausedS *float64 `json:"paused_s" strict:"optional"`
	// ResumedS is how long ago a pause by the plan ended; nil if there was none.
	ResumedS *float64 `json:"resumed_s" strict:"optional"`
	// Fixed: it cannot be paused.
	Fixed bool `json:"fixed" strict:"optional"`
	// Halted: it is paused for another reason.
	Halted bool `json:"halted" strict:"optional"`
}

func (j Job) priority() int {
	if j.Priority == 0 {
		return defaultPriority
	}
	return j.Priority
}

func (j Job) rise() int {
	if j.AheadMiB == nil {
		return 0
	}
	return max(0, *j.AheadMiB-j.HeldMiB)
}

// Params are the operator's settings.
type Params struct {
	// Margin, in [0, 1), is the fraction of the memory to leave over when a job is resumed:
	// otherwise it would soon be paused again.
	Margin float64 `json:"margin" strict:"optional"`
	// RestS, ≥ 0, is how long a resumed job is not paused again.
	RestS float64 `json:"rest_s" strict:"optional"`
	// MaxPauseS, > 0, is the time after which a paused job is resumed whatever fits.
	MaxPauseS float64 `json:"max_pause_s" strict:"optional"`
}

// DefaultParams returns the default settings.
func DefaultParams() Params { return Params{Margin: 0.05, RestS: 60, MaxPauseS: 600} }

// Validate returns every error in the input as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	if in.MemoryMiB < 1 || in.MemoryMiB > maxSize {
		errs.Add("memory_mib", "must be ≥ 1 and ≤ %d, got %d", maxSize, in.MemoryMiB)
	}
	ids := fields.IDs{List: "jobs"}
	for i, j := range in.Jobs {
		at := func(name string) string { return fields.Member(fields.Index("jobs", i), name) }
		ids.Check(&errs, i, j.ID)
		size := func(name string, mib int) {
			if mib < 0 || mib > maxSize {
				errs.Add(at(name), "must be ≥ 0 and ≤ %d, got %d", maxSize, mib)
			}
		}
		seconds := func(name string, s *float64) {
			if s != nil && (!(*s >= 0) || math.IsInf(*s, 1)) {
				errs.Add(at(name), "must be ≥ 0, got %v", *s)
			}
		}
		if j.Priority < 0 || j.Priority > maxPriority {
			errs.Add(at("priority"), "must be 0 for the default, %d, or ≥ 1 and ≤ %d, got %d", defaultPriority, maxPriority, j.Priority)
		}
		if math.IsNaN(j.ArrivedS) || math.IsInf(j.ArrivedS, 0) {
			errs.Add(at("arrived_s"), "must be a finite number, got %v", j.ArrivedS)
		}
		size("held_mib", j.HeldMiB)
		if j.AheadMiB != nil {
			size("ahead_mib", *j.AheadMiB)
		}
		seconds("paused_s", j.PausedS)
		seconds("resumed_s", j.ResumedS)
		if j.PausedS != nil && j.ResumedS != nil {
			errs.Add(at("resumed_s"), "must be left out while paused_s is given, got %v", *j.ResumedS)
		}
	}
	p := in.Params
	if !(p.Margin >= 0 && p.Margin < 1) {
		errs.Add("params.margin", "must be ≥ 0 and < 1, got %v", p.Margin)
	}
	if !(p.RestS >= 0) || math.IsInf(p.RestS, 1) {
		errs.Add("params.rest_s", "must be ≥ 0, got %v", p.RestS)
	}
	if !(p.MaxPauseS > 0) || math.IsInf(p.MaxPauseS, 1) {
		errs.Add("params.max_pause_s", "must be > 0, got %v", p.MaxPauseS)
	}
	return errs.Err()
}

// Example returns the paper's two LAMMPS jobs on a card of 12 GiB just before their late peaks,
// with a job without a profile and a paused one.
func Example() Input {
	mib := func(n int) *int { return &n }
	seconds := func(s float64) *float64 { return &s }
	return Input{
		MemoryMiB: 12288,
		Jobs: []Job{
			{ID: "lammps-1", Priority: 50, HeldMiB: 1741, AheadMiB: mib(8499)},
			{ID: "lammps-2", Priority: 50, ArrivedS: 5, HeldMiB: 1741, AheadMiB: mib(8499)},
			{ID: "notebook", Priority: 70, ArrivedS: 60, HeldMiB: 539},
			{ID: "mnist", Priority: 20, ArrivedS: 90, HeldMiB: 256, AheadMiB: mib(2207), PausedS: seconds(45)},
		},
		Params: DefaultParams(),
	}
}
