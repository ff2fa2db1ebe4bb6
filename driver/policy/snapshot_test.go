// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"math"
	"testing"

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

func TestCheckTargets(t *testing.T) {
	must.Len(t, 0, CheckTargets("", nil, nil))
	must.Len(t, 0, CheckTargets(GoalMin, nil, num(1)))
	must.Len(t, 0, CheckTargets(GoalMax, num(0.8), num(0.9)))
	must.EqError(t, CheckTargets(GoalMax, num(0.9), num(0.8)),
		`objective: must be ≥ acceptable = 0.9, because goal is "max": higher values are better; got 0.8, which is easier`)
	must.EqError(t, CheckTargets("", num(0.9), nil), `goal: must be "min" or "max", got ""`)
}

func TestTask_Fresh(t *testing.T) {
	must.True(t, Task{}.Fresh(), must.Sprint("written by hand"))
	must.True(t, Task{Epoch: 3, CategoryEpoch: 2}.Fresh())
	must.False(t, Task{Epoch: 3, CategoryEpoch: 3}.Fresh())
}

func TestSnapshot_FairShares(t *testing.T) {
	of := func(entitlements ...float64) (s Snapshot) {
		for _, e := range entitlements {
			s.Tasks = append(s.Tasks, Task{Entitlement: e})
		}
		return s
	}
	must.Eq(t, []Share{}, of().FairShares())
	must.Eq(t, []Share{0.25, 0.25, 0.25, 0.25}, of(500, 500, 500, 500).FairShares())
	must.Eq(t, []Share{8000.0 / 8500, 500.0 / 8500}, of(8000, 500).FairShares())
	must.Eq(t, []Share{0.5, 0.5}, of(math.MaxFloat64, math.MaxFloat64).FairShares())
	must.Positive(t, of(5e-324, math.MaxFloat64).FairShares()[0])
}

// What no policy accepts: of kinds that exclude each other, and of figures.
func TestSnapshot_Validate(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		task       Task
	}{
		{"training", "", Task{ID: "a", Kind: Training, Entitlement: 1}},
		{"a service", "", Task{ID: "a", Kind: Service, Entitlement: 1, ObjectiveS: num(1)}},
		{"a service by its objective", "", Task{ID: "a", Entitlement: 1, ObjectiveS: num(1), ResponseS: num(2)}},
		{"kind", `tasks[0].kind: must be one of "training", "service", got "batch"`, Task{ID: "a", Kind: "batch", Entitlement: 1}},
		{"a service without objective", "tasks[0].objective_s: is missing, a service needs one", Task{ID: "a", Kind: Service, Entitlement: 1}},
		{"training with an objective_s", "tasks[0].objective_s: is for services only, got 1 for a training task",
			Task{ID: "a", Kind: Training, Entitlement: 1, ObjectiveS: num(1)}},
		{"a service with targets", "tasks[0].kind: a service has no acceptable or objective",
			Task{ID: "a", Kind: Service, Entitlement: 1, ObjectiveS: num(1), Goal: GoalMin, Acceptable: num(1)}},
		{"entitlement", "tasks[0].entitlement: must be > 0, got -1", Task{ID: "a", Entitlement: -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := (Snapshot{Tasks: []Task{tc.task}}).Validate(); tc.want != "" {
				must.EqError(t, err, tc.want)
			} else {
				must.NoError(t, err)
			}
		})
	}
	must.EqError(t, Snapshot{Event: "x", PoolCores: -1, IntervalS: math.Inf(1)}.Validate(),
		"event: must be one of \"\", \"join\", \"leave\", got \"x\"\npool_cores: must be ≥ 0, got -1\ninterval_s: must be ≥ 0, got +Inf")
}
