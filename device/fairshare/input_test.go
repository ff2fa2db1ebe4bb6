// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	for want, change := range map[string]func(*Input){
		"memory_mib: must be ≥ 1 and ≤ 4294967296, got 0":                                                           func(in *Input) { in.MemoryMiB, in.ReserveMiB = 0, 0 },
		"memory_mib: must be ≥ 1 and ≤ 4294967296, got 4294967297":                                                  func(in *Input) { in.MemoryMiB = maxNumber + 1 },
		"reserve_mib: must be ≥ 0 and ≤ memory_mib = 24576, got -1":                                                 func(in *Input) { in.ReserveMiB = -1 },
		"reserve_mib: must be ≥ 0 and ≤ memory_mib = 24576, got 24577":                                              func(in *Input) { in.ReserveMiB = 24577 },
		`mode: must be one of "adaptive", "static", "whole-card", got "fair"`:                                       func(in *Input) { in.Mode = "fair" },
		"groups[3].id: must not be empty":                                                                           func(in *Input) { in.Groups[3].ID = "" },
		`groups[3].id: must be unique, "grp1" is the id of groups[0] too`:                                           func(in *Input) { in.Groups[3].ID = "grp1" },
		"groups[0].jobs: must be ≥ 1 and ≤ 4294967296, got 0":                                                       func(in *Input) { in.Groups[0].Jobs = 0 },
		`groups[0].properties.count: must have another name: "count" is the number of jobs`:                         func(in *Input) { in.Groups[0].Properties[Count] = Property{"a", 1} },
		"groups[0].properties.x.value: must not be empty; a property that the group does not have is left out":      func(in *Input) { in.Groups[0].Properties["x"] = Property{"", 1} },
		"groups[0].properties.x.rank: must be ≥ 1 and ≤ 4294967296, got 0":                                          func(in *Input) { in.Groups[0].Properties["x"] = Property{"a", 0} },
		`groups[1].properties.application.rank: must be 1, the rank of "App_1" in groups[0], got 2`:                 func(in *Input) { in.Groups[1].Properties["application"] = Property{"App_1", 2} },
		`coefficients: must be "count-only", "equal" or an object of numbers, got null`:                             func(in *Input) { in.Coefficients = Coefficients{} },
		`coefficients: must be "count-only", "equal" or an object of numbers, got "euqal"`:                          func(in *Input) { in.Coefficients = Coefficients{Scheme: "euqal"} },
		"coefficients.userr: unknown property, must be one of: application, count, size, user":                      func(in *Input) { in.Coefficients = Coefficients{By: map[string]float64{"userr": 1}} },
		"coefficients.user: must be ≥ 0 and ≤ 1, got -1":                                                            func(in *Input) { in.Coefficients = Coefficients{By: map[string]float64{"user": -1}} },
		"coefficients: must sum to 1, got 0.5":                                                                      func(in *Input) { in.Coefficients = Coefficients{By: map[string]float64{"user": 0.5}} },
		"coefficients: must sum to 1, got 0":                                                                        func(in *Input) { in.Coefficients = Coefficients{By: map[string]float64{}} },
		"groups[2].coefficients.size: unknown property, must be one of: count, application, user":                   func(in *Input) { in.Groups[2].Coefficients = Coefficients{By: map[string]float64{"size": 1}} },
		`containers[4].id: must be unique, "lammps" is the id of containers[0] too`:                                 func(in *Input) { in.Containers[4].ID = "lammps" },
		`containers[0].group: must be the id of one of groups, got "grp9"`:                                          func(in *Input) { in.Containers[0].Group = "grp9" },
		"containers[1].cap_mib: must be ≥ 0 and ≤ 4294967296, got -1":                                               func(in *Input) { in.Containers[1] = in.Containers[1].cap(-1) },
		"containers[0].minimum_mib: must be ≥ 0 and ≤ 4294967296, got -1":                                           func(in *Input) { in.Containers[0].MinimumMiB = -1 },
		"containers[0].in_use_mib: must be ≥ 0 and ≤ 4294967296, got 4294967297":                                    func(in *Input) { in.Containers[0].InUseMiB = maxNumber + 1 },
		"containers[0].priority: must be 0 for the default, 50, or ≥ 1 and ≤ 100, got 101":                          func(in *Input) { in.Containers[0].Priority = 101 },
		"containers[0].arrived_s: must be a finite number, got NaN":                                                 func(in *Input) { in.Containers[0].ArrivedS = math.NaN() },
		"params.floor: must be ≥ 0 and ≤ 1, got NaN":                                                                func(in *Input) { in.Params.Floor = math.NaN() },
		"memory_mib: must be ≥ 1 and ≤ 4294967296, got -5\nreserve_mib: must be ≥ 0 and ≤ memory_mib = -5, got 576": func(in *Input) { in.MemoryMiB = -5 },
	} {
		in := Example()
		change(&in)
		must.EqError(t, in.Validate(), want)
	}
}

func TestAdaptInput_Validate(t *testing.T) {
	must.NoError(t, AdaptExample().Validate())
	inf, zero := math.Inf(1), 0.0
	for want, change := range map[string]func(*AdaptInput){
		"groups[0].jobs: must be ≥ 1 and ≤ 4294967296, got 0":                  func(in *AdaptInput) { in.Groups[0].Jobs = 0 },
		"profiles: must be ≥ 0, got -1":                                        func(in *AdaptInput) { in.Profiles = -1 },
		`measured[0].group: must be the id of one of groups, got "x"`:          func(in *AdaptInput) { in.Measured[0].Group = "x" },
		`measured[1].group: must be unique, "grp1" is that of measured[0] too`: func(in *AdaptInput) { in.Measured[1].Group = "grp1" },
		"measured[0].granted_mib: must be ≥ 0 and ≤ 4294967296, got -1":        func(in *AdaptInput) { in.Measured[0].GrantedMiB = -1 },
		"measured[0].peak_mib: must be ≥ 0 and ≤ 4294967296, got -1":           func(in *AdaptInput) { in.Measured[0].PeakMiB = -1 },
		"measured[0].minimum_mib: must be ≥ 0 and ≤ 4294967296, got -1":        func(in *AdaptInput) { in.Measured[0].MinimumMiB = -1 },
		"measured[0].duration_s: must be > 0, got 0":                           func(in *AdaptInput) { in.Measured[0].DurationS = &zero },
		"measured[0].baseline_s: must be > 0, got +Inf":                        func(in *AdaptInput) { in.Measured[0].BaselineS = &inf },
		"measured[0].denied: must be ≥ 0, got -1":                              func(in *AdaptInput) { in.Measured[0].Denied = -1 },
		"params.step: must be > 0 and ≤ 1, got 0":                              func(in *AdaptInput) { in.Params.Step = 0 },
		"params.full: must be > 0 and ≤ 1, got 1.1":                            func(in *AdaptInput) { in.Params.Full = 1.1 },
		"params.slow: must be ≥ 0, got +Inf":                                   func(in *AdaptInput) { in.Params.Slow = inf },
		"params.profiles: must be ≥ 0, got -1":                                 func(in *AdaptInput) { in.Params.Profiles = -1 },
	} {
		in := AdaptExample()
		change(&in)
		must.EqError(t, in.Validate(), want)
	}
	must.StrContains(t, strings.Join(strings.Fields(AdaptInput{}.Validate().Error()), " "), "coefficients: must be")
}
