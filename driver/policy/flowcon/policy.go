// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

func Policy() policy.Policy {
	return policy.Definition[Params]{
		Name:        "flowcon",
		Synopsis:    "limits by growth efficiency (FlowCon, Algorithms 1 to 3)",
		Defaults:    DefaultParams(),
		CheckParams: CheckParams,
		Options:     Options(),
		Needs:       Needs(),
		Check:       Check,
		Example:     Example(),
		Departures:  departures(),
		Decide:      Decide,
	}.Policy()
}

func Needs() []string {
	return []string{
		"interval_s", "initial_interval_s", "event",
		"tasks[].category", "tasks[].growth", "tasks[].progress", "tasks[].limit", "tasks[].use",
	}
}

func Check(s policy.Snapshot, _ Params) error { return s.CheckIntervals().Err() }

func Options() []policy.Option {
	return []policy.Option{
		{Name: "alpha", Kind: policy.KindString, Default: `"adaptive"`, Param: "alpha", Allowed: "`adaptive`, or a number ≥ 0, as a string",
			Doc: "FlowCon: growth below which a task counts as converging, in the unit of `growth` in the status."},
		{Name: "beta", Kind: policy.KindNumber, Default: `2`, Param: "beta", Allowed: "≥ 1",
			Doc: "FlowCon: minimum limit, 1/β of the fair share."},
	}
}

type Params struct {
	// Alpha is the threshold on G below which a task counts as converging.
	Alpha Alpha `json:"alpha" strict:"optional"`
	// Beta is the β ≥ 1 of the floor: the minimum limit is the fair share / β.
	Beta float64 `json:"beta" strict:"optional"`
}

// DefaultParams returns an adaptive α and β = 2: TCC 2022 has 1, ICPP 2019 leaves it to
// the operator.
func DefaultParams() Params { return Params{Beta: 2} }

func CheckParams(p Params) error {
	var errs fields.Errors
	if a, fixed := p.Alpha.Fixed(); fixed && !fields.NonNegative(a) {
		errs.Add("alpha", `must be "adaptive" or a number ≥ 0, got %v`, a)
	}
	if !(p.Beta >= 1) || math.IsInf(p.Beta, 1) {
		errs.Add("beta", "must be ≥ 1, got %v", p.Beta)
	}
	return errs.Err()
}

// Alpha is the threshold α: a constant, or adaptive (Algorithm 3), the zero value.
type Alpha struct {
	fixed bool
	value float64
}

// FixedAlpha returns a constant threshold, in the unit of G.
func FixedAlpha(value float64) Alpha { return Alpha{fixed: true, value: value} }

// Fixed returns the threshold; ok is false if it is adaptive.
func (a Alpha) Fixed() (value float64, ok bool) { return a.value, a.fixed }

func (a Alpha) MarshalJSON() ([]byte, error) {
	if !a.fixed {
		return []byte(`"adaptive"`), nil
	}
	return json.Marshal(a.value)
}

// UnmarshalJSON reads "adaptive" or a number, possibly quoted, since the agent's option
// is a string. There is no upper bound: G has the unit of the task's own metric.
func (a *Alpha) UnmarshalJSON(data []byte) error {
	text := string(data)
	if json.Unmarshal(data, &text) == nil && text == "adaptive" {
		*a = Alpha{}
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !fields.NonNegative(value) {
		return fmt.Errorf(`must be "adaptive" or a number ≥ 0, got %s`, data)
	}
	*a = FixedAlpha(value)
	return nil
}

// Example returns a snapshot in which most rules apply: a growing, a slowing, a
// converged, an unreported and a new task.
func Example() policy.Snapshot {
	known := func(x float64) *float64 { return &x }
	return policy.Snapshot{
		Tasks: []policy.Task{
			{ID: "vae", Entitlement: 1, Category: policy.NL, Growth: known(0.6), Progress: known(0.3), Limit: 0.6, Use: 0.5},
			{ID: "mnist", Entitlement: 1, Category: policy.NL, Growth: known(0.3), Progress: known(0.06), Limit: 0.4, Use: 0.2},
			{ID: "gru", Entitlement: 1, Category: policy.WL, Growth: known(0.1), Progress: known(0.01), Limit: 0.2, Use: 0.1},
			{ID: "lstm", Entitlement: 1, Category: policy.NL, Limit: 1, Use: 0.2},
			{ID: "rnn", Entitlement: 1, Category: policy.New, Limit: 1},
		},
		IntervalS:        40,
		InitialIntervalS: 20,
		Event:            policy.EventJoin,
	}
}
