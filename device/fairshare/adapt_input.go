// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"math"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// AdaptInput is a window that has ended. All sizes are whole MiB.
type AdaptInput struct {
	// Groups are in any order.
	Groups []Group `json:"groups" doc:"the groups of jobs"`
	// Coefficients are for groups without own ones.
	Coefficients Coefficients `json:"coefficients" doc:"\"equal\", \"count-only\" or the coefficients"`
	// Profiles is the number of jobs measured so far.
	Profiles int `json:"profiles" doc:"the number of jobs measured so far"`
	// Measured are the groups with measurements.
	Measured []Measured  `json:"measured" doc:"what was measured in the window, by group"`
	Params   AdaptParams `json:"params" strict:"optional"`
}

// Measured is what was measured of a group in the window.
type Measured struct {
	// Group is the group's ID, with at most one entry.
	Group string `json:"group" doc:"the group's ID"`
	// GrantedMiB is the most its containers might hold together.
	GrantedMiB int `json:"granted_mib" doc:"the most that its containers might hold together, in MiB"`
	// PeakMiB is the most they held together.
	PeakMiB int `json:"peak_mib" doc:"the most that they held together, in MiB"`
	// MinimumMiB is their measured working set; 0 if unknown.
	MinimumMiB int `json:"minimum_mib" strict:"optional"`
	// DurationS is the mean execution time of its jobs; nil if none ended.
	DurationS *float64 `json:"duration_s" strict:"optional"`
	// BaselineS is the execution time of such jobs without memory shortage; nil if unknown.
	BaselineS *float64 `json:"baseline_s" strict:"optional"`
	// Denied counts requests that were denied or waited.
	Denied int `json:"denied" strict:"optional"`
}

// AdaptParams are the operator's settings.
type AdaptParams struct {
	// Step, in (0, 1], is the most that a coefficient moves in one window.
	Step float64 `json:"step" strict:"optional"`
	// Full, in (0, 1], is the fraction of its grant from which a group uses all of it.
	Full float64 `json:"full" strict:"optional"`
	// Slow, ≥ 0, is the tolerated slowdown against the baseline: ε_perf of the paper.
	Slow float64 `json:"slow" strict:"optional"`
	// Profiles, ≥ 0, is the number of measured jobs from which C_0 = 1 is left.
	Profiles int `json:"profiles" strict:"optional"`
}

// DefaultAdaptParams returns the default settings.
func DefaultAdaptParams() AdaptParams {
	return AdaptParams{Step: 0.1, Full: 0.9, Slow: 0.1, Profiles: 5}
}

// Validate returns every error in the input as a fields.Errors, by JSON path.
func (in AdaptInput) Validate() error {
	var errs fields.Errors
	known := validateGroups(&errs, in.Groups, in.Coefficients)
	if in.Profiles < 0 {
		errs.Add("profiles", "must be ≥ 0, got %d", in.Profiles)
	}
	first := make(map[string]int, len(in.Measured))
	for i, m := range in.Measured {
		at := func(name string) string { return fields.Member(fields.Index("measured", i), name) }
		switch j, repeated := first[m.Group]; {
		case !known[m.Group]:
			errs.Add(at("group"), "must be the id of one of groups, got %q", m.Group)
		case repeated:
			errs.Add(at("group"), "must be unique, %q is that of %s too", m.Group, fields.Index("measured", j))
		default:
			first[m.Group] = i
		}
		validateSize(&errs, at("granted_mib"), m.GrantedMiB)
		validateSize(&errs, at("peak_mib"), m.PeakMiB)
		validateSize(&errs, at("minimum_mib"), m.MinimumMiB)
		for _, d := range []struct {
			name    string
			seconds *float64
		}{{"duration_s", m.DurationS}, {"baseline_s", m.BaselineS}} {
			if d.seconds != nil && (!(*d.seconds > 0) || math.IsInf(*d.seconds, 1)) {
				errs.Add(at(d.name), "must be > 0, got %v", *d.seconds)
			}
		}
		if m.Denied < 0 {
			errs.Add(at("denied"), "must be ≥ 0, got %d", m.Denied)
		}
	}
	p := in.Params
	if !(p.Step > 0 && p.Step <= 1) {
		errs.Add("params.step", "must be > 0 and ≤ 1, got %v", p.Step)
	}
	if !(p.Full > 0 && p.Full <= 1) {
		errs.Add("params.full", "must be > 0 and ≤ 1, got %v", p.Full)
	}
	if !(p.Slow >= 0) || math.IsInf(p.Slow, 1) {
		errs.Add("params.slow", "must be ≥ 0, got %v", p.Slow)
	}
	if p.Profiles < 0 {
		errs.Add("params.profiles", "must be ≥ 0, got %d", p.Profiles)
	}
	return errs.Err()
}

// AdaptExample returns the window of figure 11 after its jobs have run: the first group had more
// than it used, the second was denied memory, the third was slow, the fourth as expected, the
// fifth is unmeasured.
func AdaptExample() AdaptInput {
	seconds := func(s float64) *float64 { return &s }
	return AdaptInput{
		Groups:       figure11(),
		Coefficients: Coefficients{Scheme: Equal},
		Profiles:     30,
		Measured: []Measured{
			{Group: "grp1", GrantedMiB: 5259, PeakMiB: 2900, MinimumMiB: 2048, DurationS: seconds(310), BaselineS: seconds(305)},
			{Group: "grp2", GrantedMiB: 5634, PeakMiB: 5634, MinimumMiB: 5389, DurationS: seconds(260), BaselineS: seconds(190), Denied: 3},
			{Group: "grp3", GrantedMiB: 4674, PeakMiB: 4600, MinimumMiB: 539, DurationS: seconds(900), BaselineS: seconds(715)},
			{Group: "grp4", GrantedMiB: 3673, PeakMiB: 3400, MinimumMiB: 3000, DurationS: seconds(720), BaselineS: seconds(715)},
		},
		Params: DefaultAdaptParams(),
	}
}
