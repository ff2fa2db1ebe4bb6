// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package target

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func num(x float64) *float64 { return &x }

func TestGoal_Reached(t *testing.T) {
	for _, tc := range []struct {
		goal          Goal
		value, target float64
		want          bool
	}{
		{GoalMin, 0.31, 0.3, false},
		{GoalMin, 0.3, 0.3, true},
		{GoalMin, 0.29, 0.3, true},
		{GoalMin, -5, -4, true},
		{GoalMax, 0.92, 0.93, false},
		{GoalMax, 0.93, 0.93, true},
		{GoalMax, 0.94, 0.93, true},
		{GoalMax, -5, -4, false},
		{"", 0.3, 0.3, false},
		{GoalMin, math.NaN(), 0.3, false},
		{GoalMax, math.NaN(), 0.3, false},
		{GoalMin, 0.3, math.NaN(), false},
		{GoalMax, 0.3, math.NaN(), false},
		{GoalMin, math.Inf(-1), 0.3, false},
		{GoalMax, math.Inf(1), 0.3, false},
	} {
		must.Eq(t, tc.want, tc.goal.Reached(tc.value, tc.target), must.Sprintf("%+v", tc))
	}
}

func TestCheck(t *testing.T) {
	must.NoError(t, Check("", nil, nil))
	must.NoError(t, Check(GoalMin, nil, num(1)))
	must.NoError(t, Check(GoalMax, num(0.8), num(0.9)))
	must.EqError(t, Check(GoalMax, num(0.9), num(0.8)),
		`objective: must be ≥ acceptable = 0.9, because goal is "max": higher values are better; got 0.8, which is easier`)
	must.EqError(t, Check("", num(0.9), nil), `goal: must be "min" or "max", got ""`)
}

// What is stored is read by later versions.
func TestReached_json(t *testing.T) {
	at := Reached{State: StateObjective, Metric: "val_loss", Value: 0.25, Target: 0.3, Step: num(7), Time: time.Unix(1, 0).UTC()}
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
