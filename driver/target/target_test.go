// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package target

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func num(x float64) *float64 { return &x }

func TestGoal_Reached(t *testing.T) {
	for _, tc := range []struct {
		goal          policy.Goal
		value, target float64
		want          bool
	}{
		{policy.GoalMin, 0.31, 0.3, false},
		{policy.GoalMin, 0.3, 0.3, true},
		{policy.GoalMin, 0.29, 0.3, true},
		{policy.GoalMin, -5, -4, true},
		{policy.GoalMax, 0.92, 0.93, false},
		{policy.GoalMax, 0.93, 0.93, true},
		{policy.GoalMax, 0.94, 0.93, true},
		{policy.GoalMax, -5, -4, false},
		{"", 0.3, 0.3, false},
		{policy.GoalMin, math.NaN(), 0.3, false},
		{policy.GoalMax, math.NaN(), 0.3, false},
		{policy.GoalMin, 0.3, math.NaN(), false},
		{policy.GoalMax, 0.3, math.NaN(), false},
		{policy.GoalMin, math.Inf(-1), 0.3, false},
		{policy.GoalMax, math.Inf(1), 0.3, false},
	} {
		must.Eq(t, tc.want, tc.goal.Reached(tc.value, tc.target), must.Sprintf("%+v", tc))
	}
}

func TestCheck(t *testing.T) {
	must.SliceEmpty(t, policy.CheckTargets("", nil, nil))
	must.SliceEmpty(t, policy.CheckTargets(policy.GoalMin, nil, num(1)))
	must.SliceEmpty(t, policy.CheckTargets(policy.GoalMax, num(0.8), num(0.9)))
	must.EqError(t, policy.CheckTargets(policy.GoalMax, num(0.9), num(0.8)),
		`objective: must be ≥ acceptable = 0.9, because goal is "max": higher values are better; got 0.8, which is easier`)
	must.EqError(t, policy.CheckTargets("", num(0.9), nil), `goal: must be "min" or "max", got ""`)
}

// The stored form must stay readable.
func TestReached_json(t *testing.T) {
	at := Reached{State: policy.Objective, Metric: "val_loss", Value: 0.25, Target: 0.3, Step: num(7), Time: time.Unix(1, 0).UTC()}
	for want, at := range map[string]Reached{
		`{"state":"objective","metric":"val_loss","value":0.25,"target":0.3,"step":7,"time":"1970-01-01T00:00:01Z"}`: at,
		`{"state":"","metric":"","value":0,"target":0,"step":null,"time":"0001-01-01T00:00:00Z"}`:                    {},
	} {
		got, err := json.Marshal(at)
		must.NoError(t, err)
		must.Eq(t, want, string(got))
		var back Reached
		must.NoError(t, json.Unmarshal(got, &back))
		must.Eq(t, at, back)
	}
}
