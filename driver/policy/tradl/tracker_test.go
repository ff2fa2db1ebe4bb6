// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func TestTracker(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	const a, o = policy.Acceptable, policy.Objective
	for _, tc := range []struct {
		name                  string
		goal                  policy.Goal
		acceptable, objective *float64
		hold                  int
		values                []float64
		want                  []policy.TargetState
	}{
		{"published: at once", policy.GoalMin, num(3), num(2), 1, []float64{4, 3, 1, 0, 9}, []policy.TargetState{"", a, o, "", ""}},
		{"hold below 1 is 1", policy.GoalMin, num(3), num(2), -5, []float64{4, 3, 1}, []policy.TargetState{"", a, o}},
		{"rising", policy.GoalMax, num(0.8), num(0.9), 1, []float64{0.7, 0.8, 0.85, 0.9}, []policy.TargetState{"", a, "", o}},
		{"both with one report: the objective", policy.GoalMin, num(3), num(2), 1, []float64{4, 1}, []policy.TargetState{"", o}},
		{"three in a row", policy.GoalMin, num(3), num(2), 3, []float64{3, 3, 4, 3, 3, 3, 3}, []policy.TargetState{"", "", "", "", "", a, ""}},
		{"three in a row, separately", policy.GoalMin, num(3), num(2), 3, []float64{3, 2, 1, 1}, []policy.TargetState{"", "", a, o}},
		{"both in a row: the objective", policy.GoalMin, num(3), num(2), 2, []float64{2, 2}, []policy.TargetState{"", o}},
		{"a worse report takes nothing back", policy.GoalMin, num(3), num(2), 2, []float64{3, 3, 9, 9, 3, 3, 2, 3, 2, 2}, []policy.TargetState{"", a, "", "", "", "", "", "", "", o}},
		{"NaN and infinity break the row", policy.GoalMin, num(3), num(2), 2, []float64{3, nan, 3, inf, 3, 3}, []policy.TargetState{"", "", "", "", "", a}},
		{"only acceptable", policy.GoalMin, num(3), nil, 1, []float64{1, 0}, []policy.TargetState{a, ""}},
		{"only objective", policy.GoalMin, nil, num(2), 1, []float64{3, 2}, []policy.TargetState{"", o}},
		{"neither", policy.GoalMin, nil, nil, 1, []float64{1, 0}, []policy.TargetState{"", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.Len(t, 0, policy.CheckTargets(tc.goal, tc.acceptable, tc.objective))
			tracker := NewTracker(tc.goal, tc.acceptable, tc.objective, tc.hold)
			must.Eq(t, policy.InTraining, tracker.State())
			state := policy.InTraining
			for i, v := range tc.values {
				got := tracker.Observe(v)
				must.Eq(t, tc.want[i], got, must.Sprintf("report %d", i))
				if got != "" {
					state = got
				}
				must.Eq(t, state, tracker.State())
			}
		})
	}
}

func TestTracker_Restore(t *testing.T) {
	tracker := NewTracker(policy.GoalMin, num(3), num(2), 2)
	must.Eq(t, "", tracker.Observe(3))
	tracker.Restore(policy.InTraining) // as after a restart of the process
	must.Eq(t, "", tracker.Observe(3))
	must.Eq(t, policy.Acceptable, tracker.Observe(3))

	tracker.Restore(policy.Acceptable)
	must.Eq(t, policy.Acceptable, tracker.State())
	must.Eq(t, "", tracker.Observe(3))
	must.Eq(t, "", tracker.Observe(3))
	must.Eq(t, "", tracker.Observe(2))
	must.Eq(t, policy.Objective, tracker.Observe(2))

	tracker.Restore(policy.Objective)
	must.Eq(t, "", tracker.Observe(2))
	must.Eq(t, "", tracker.Observe(2))
	must.Eq(t, policy.Objective, tracker.State())

	for _, nonsense := range []policy.TargetState{"", "NL"} {
		tracker.Restore(nonsense)
		must.Eq(t, policy.InTraining, tracker.State())
	}
}
