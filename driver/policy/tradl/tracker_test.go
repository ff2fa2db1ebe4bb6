// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

func TestTracker(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	const a, o = StateAcceptable, StateObjective
	for _, tc := range []struct {
		name                  string
		goal                  Goal
		acceptable, objective *float64
		hold                  int
		values                []float64
		want                  []State
	}{
		{"published: at once", GoalMin, num(3), num(2), 1, []float64{4, 3, 1, 0, 9}, []State{"", a, o, "", ""}},
		{"hold below 1 is 1", GoalMin, num(3), num(2), -5, []float64{4, 3, 1}, []State{"", a, o}},
		{"rising", GoalMax, num(0.8), num(0.9), 1, []float64{0.7, 0.8, 0.85, 0.9}, []State{"", a, "", o}},
		{"both with one report: the objective", GoalMin, num(3), num(2), 1, []float64{4, 1}, []State{"", o}},
		{"three in a row", GoalMin, num(3), num(2), 3, []float64{3, 3, 4, 3, 3, 3, 3}, []State{"", "", "", "", "", a, ""}},
		{"three in a row, separately", GoalMin, num(3), num(2), 3, []float64{3, 2, 1, 1}, []State{"", "", a, o}},
		{"both in a row: the objective", GoalMin, num(3), num(2), 2, []float64{2, 2}, []State{"", o}},
		{"a worse report takes nothing back", GoalMin, num(3), num(2), 2, []float64{3, 3, 9, 9, 3, 3, 2, 3, 2, 2}, []State{"", a, "", "", "", "", "", "", "", o}},
		{"NaN and infinity break the row", GoalMin, num(3), num(2), 2, []float64{3, nan, 3, inf, 3, 3}, []State{"", "", "", "", "", a}},
		{"only acceptable", GoalMin, num(3), nil, 1, []float64{1, 0}, []State{a, ""}},
		{"only objective", GoalMin, nil, num(2), 1, []float64{3, 2}, []State{"", o}},
		{"neither", GoalMin, nil, nil, 1, []float64{1, 0}, []State{"", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, CheckTargets(tc.goal, tc.acceptable, tc.objective))
			tracker := NewTracker(tc.goal, tc.acceptable, tc.objective, tc.hold)
			must.Eq(t, StateTraining, tracker.State())
			state := StateTraining
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
	tracker := NewTracker(GoalMin, num(3), num(2), 2)
	must.Eq(t, "", tracker.Observe(3))
	tracker.Restore(StateTraining) // as after a restart of the process
	must.Eq(t, "", tracker.Observe(3))
	must.Eq(t, StateAcceptable, tracker.Observe(3))

	tracker.Restore(StateAcceptable)
	must.Eq(t, StateAcceptable, tracker.State())
	must.Eq(t, "", tracker.Observe(3))
	must.Eq(t, "", tracker.Observe(3))
	must.Eq(t, "", tracker.Observe(2))
	must.Eq(t, StateObjective, tracker.Observe(2))

	tracker.Restore(StateObjective)
	must.Eq(t, "", tracker.Observe(2))
	must.Eq(t, "", tracker.Observe(2))
	must.Eq(t, StateObjective, tracker.State())

	for _, nonsense := range []State{"", "NL"} {
		tracker.Restore(nonsense)
		must.Eq(t, StateTraining, tracker.State())
	}
}
