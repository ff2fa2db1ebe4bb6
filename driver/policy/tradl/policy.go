// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

func Policy() policy.Policy {
	return policy.Definition[Params]{
		Name:        "tradl",
		Synopsis:    "limits by acceptable and objective targets (TRADL)",
		Defaults:    DefaultParams(),
		CheckParams: CheckParams,
		Options:     Options(),
		Needs: []string{
			"tasks[].goal", "tasks[].value", "tasks[].acceptable", "tasks[].objective", "tasks[].use", "tasks[].limit",
		},
		Example:    Example(),
		Departures: departures(),
		Decide:     Decide,
	}.Policy()
}

func Options() []policy.Option {
	return []policy.Option{{
		Name: "tradl_full", Kind: policy.KindNumber, Default: `0.9`, Param: "full", Allowed: "> 0, ≤ 1",
		Doc: "TRADL: fraction of the pool in use from which tasks that have reached a target yield CPU.",
	}}
}

type Params struct {
	// Full is a, the fraction of the pool, in (0, 1], from which it counts as full.
	Full float64 `json:"full" strict:"optional"`
}

func DefaultParams() Params { return Params{Full: 0.9} }

func CheckParams(p Params) error {
	var errs fields.Errors
	if !(p.Full > 0 && p.Full <= 1) {
		errs.Add("full", "must be > 0 and ≤ 1, got %v", p.Full)
	}
	return errs.Err()
}

// Example returns a snapshot of a full node in which most rules apply, with the
// published targets.
func Example() policy.Snapshot {
	known := func(x float64) *float64 { return &x }
	return policy.Snapshot{Tasks: []policy.Task{
		{ID: "vae", Entitlement: 1, Goal: policy.GoalMin, Value: known(131.5), Acceptable: known(120), Objective: known(110), Use: 0.25, Limit: 1},
		{ID: "mnist", Entitlement: 1, Goal: policy.GoalMin, Value: known(0.28), Acceptable: known(0.3), Objective: known(0.25), Use: 0.3, Limit: 1},
		{ID: "gru", Entitlement: 1, Goal: policy.GoalMin, Value: known(0.0091), Acceptable: known(0.01), Objective: known(0.008),
			State: policy.Acceptable, Use: 0.1, Limit: 0.1},
		{ID: "rnn", Entitlement: 1, Goal: policy.GoalMin, Value: known(0.49), Acceptable: known(0.55), Objective: known(0.5),
			State: policy.Acceptable, Use: 0.15, Limit: 1.0 / 7},
		{ID: "resnet", Entitlement: 1, Goal: policy.GoalMax, Value: known(0.61), Objective: known(0.93), Use: 0.15, Limit: 1},
		{ID: "lstm", Entitlement: 1, Goal: policy.GoalMin, Acceptable: known(0.02), Use: 0.05, Limit: 1},
	}}
}
