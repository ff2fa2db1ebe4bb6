// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import (
	"cmp"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

func Policy() policy.Policy {
	return policy.Definition[Params]{
		Name:        "fsp",
		Synopsis:    "one task after the other, none later than under fair sharing (FSP)",
		Defaults:    DefaultParams(),
		CheckParams: CheckParams,
		Options:     Options(),
		Needs: []string{
			"now_s", "pool_cores", "tasks[].cpu_s", "tasks[].fair_cpu_s", "tasks[].remaining_cpu_s", "tasks[].quality_cpu_s",
		},
		Check:      Check,
		Example:    Example(),
		Departures: departures(),
		Ghosts:     true,
		Decide:     Decide,
	}.Policy()
}

// OptionPrefer is the option that sets Params.Prefer.
const OptionPrefer = "fsp_prefer"

func Options() []policy.Option {
	return []policy.Option{
		{Name: OptionPrefer, Kind: policy.KindString, Default: `"balanced"`, Param: "prefer", Allowed: "`balanced`, `completion`, `quality`",
			Doc: "Training tasks served first, as long as no task becomes late: those that finish soonest (`completion`: lowest mean), reach a good model soonest (`quality`), or either, after the first results of all."},
		{Name: "fsp_floor", Kind: policy.KindNumber, Default: `0.1`, Param: "floor", Allowed: "> 0, ≤ 1",
			Doc: "Minimum CPU of a training task, as a fraction of its fair share."},
	}
}

type Params struct {
	// Prefer is the order in which slack is spent.
	Prefer Prefer `json:"prefer" strict:"optional"`
	// Floor is the guaranteed fraction of the twin's rate, in (0, 1].
	Floor float64 `json:"floor" strict:"optional"`
}

func DefaultParams() Params { return Params{Prefer: Balanced, Floor: 0.1} }

func CheckParams(p Params) error {
	var errs fields.Errors
	if !slices.Contains([]Prefer{Balanced, Completion, Quality}, p.Prefer) {
		errs.Add("prefer", `must be one of "balanced", "completion", "quality", got %q`, string(p.Prefer))
	}
	if !(p.Floor > 0 && p.Floor <= 1) {
		errs.Add("floor", "must be > 0 and ≤ 1, got %v", p.Floor)
	}
	return errs.Err()
}

// Prefer is an order of preference.
type Prefer string

// Where the work to the quality point is unknown, the work to the end counts.
const (
	// Balanced orders by v or the work to the quality point or to the first results, whichever is least.
	Balanced Prefer = "balanced"
	// Completion orders by v.
	Completion Prefer = "completion"
	// Quality orders by the work to the quality point, then by v.
	Quality Prefer = "quality"
)

// beginning is the part of its work after which a task gives first results: most training curves have
// half of their improvement by then.
const beginning = 1.0 / 8

// toFirst returns the CPU-seconds to the first results of a task of known size, 0 after that.
func toFirst(t policy.Task) float64 {
	if t.Ended {
		return 0
	}
	part := float64(beginning * (t.CPUS + *t.RemainingCPUS))
	if first := part - float64(t.CPUS); first > part*rounding {
		return first
	}
	return 0
}

func (p Prefer) compare(a, b *job) int {
	need := func(j *job) (turn int, need float64) {
		switch {
		case p == Completion:
		case j.toQuality > 0 && p == Quality:
			return 0, j.toQuality
		case p == Quality:
			return 1, j.twin
		default:
			need = j.twin
			if j.toQuality > 0 {
				need = min(need, j.toQuality)
			}
			if j.toFirst > 0 {
				need = min(need, j.toFirst)
			}
			return 0, need
		}
		return 0, j.twin
	}
	turnA, needA := need(a)
	turnB, needB := need(b)
	return cmp.Or(cmp.Compare(turnA, turnB), cmp.Compare(needA, needB))
}

// Within these bounds no sum or time overflows.
const (
	maxCPUS  = 1e12
	maxCores = 1e6
	minCores = 1e-3
)

// Check reports values without a valid twin.
func Check(s policy.Snapshot, _ Params) error {
	var errs fields.Errors
	if !(s.PoolCores >= minCores && s.PoolCores <= maxCores) {
		errs.Add("pool_cores", "must be ≥ %v and ≤ %v, got %v", minCores, maxCores, s.PoolCores)
	}
	if !(s.NowS >= 0 && s.NowS <= maxCPUS) {
		errs.Add("now_s", "must be ≥ 0 and ≤ %v, got %v", maxCPUS, s.NowS)
	}
	for i, t := range s.Tasks {
		at := func(name string) string { return fields.Member(fields.Index("tasks", i), name) }
		if !(t.CapCores == 0 || t.CapCores >= minCores && t.CapCores <= maxCores) {
			errs.Add(at("cap_cores"), "must be ≥ %v and ≤ %v, or 0 for the pool, got %v", minCores, maxCores, t.CapCores)
		}
		for _, f := range []struct {
			name  string
			value *policy.CPUSeconds
		}{{"cpu_s", &t.CPUS}, {"fair_cpu_s", &t.FairCPUS}, {"remaining_cpu_s", t.RemainingCPUS}, {"quality_cpu_s", t.QualityCPUS}} {
			if f.value != nil && !(*f.value >= 0 && *f.value <= maxCPUS) {
				errs.Add(at(f.name), "must be ≥ 0 and ≤ %v, got %v", maxCPUS, *f.value)
			}
		}
		switch {
		case t.Ended && t.Service():
			errs.Add(at("ended"), "is for training tasks only")
		case t.Ended && t.RemainingCPUS != nil && *t.RemainingCPUS > 0:
			errs.Add(at("remaining_cpu_s"), "must be 0 or null for a task that has ended, got %v", *t.RemainingCPUS)
		}
	}
	return errs.Err()
}

func Example() policy.Snapshot {
	known := func(x policy.CPUSeconds) *policy.CPUSeconds { return &x }
	seconds := func(x float64) *float64 { return &x }
	return policy.Snapshot{
		NowS: 1700000000, PoolCores: 4, IntervalS: 20,
		Tasks: []policy.Task{
			{ID: "vae", Entitlement: 1, CPUS: 700, FairCPUS: 100, RemainingCPUS: known(300), QualityCPUS: known(0)},
			{ID: "mnist", Entitlement: 1, CPUS: 10, FairCPUS: 540, RemainingCPUS: known(720), QualityCPUS: known(300)},
			{ID: "gru", Entitlement: 2, CPUS: 10, FairCPUS: 100, RemainingCPUS: known(1400), QualityCPUS: known(50)},
			{ID: "rnn", Entitlement: 1, CapCores: 1, CPUS: 900, FairCPUS: 950, RemainingCPUS: known(40)},
			{ID: "preprocess", Entitlement: 1, CPUS: 90, FairCPUS: 90},
			{ID: "lstm", Entitlement: 1, CPUS: 200, FairCPUS: 120, RemainingCPUS: known(0), QualityCPUS: known(0), Ended: true},
			{ID: "api", Entitlement: 1, Kind: policy.Service, ObjectiveS: seconds(0.1), ResponseS: seconds(0.08), Use: 0.2, Limit: 0.25},
		},
	}
}
