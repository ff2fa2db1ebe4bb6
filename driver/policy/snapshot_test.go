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

func TestSnapshot_Validate(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	training := Task{ID: "train", Kind: Training, Entitlement: 1, Category: NL, Goal: GoalMin, Value: num(131.5), Acceptable: num(120), Objective: num(110)}
	service := Task{ID: "serve", Kind: Service, Entitlement: 1, ObjectiveS: num(1), ResponseS: num(2)}
	const trains, serves = "tasks[0].", "tasks[1]."
	for name, tc := range map[string]struct {
		change func(s *Snapshot, train, serve *Task)
		want   string // "" = valid
	}{
		"nothing":                    {func(s *Snapshot, a, b *Task) {}, ""},
		"no tasks":                   {func(s *Snapshot, a, b *Task) { s.Tasks = nil }, ""},
		"id empty":                   {func(s *Snapshot, a, b *Task) { a.ID = "" }, trains + "id: must not be empty"},
		"ids empty twice":            {func(s *Snapshot, a, b *Task) { a.ID, b.ID = "", "" }, trains + "id: must not be empty\n" + serves + "id: must not be empty"},
		"id repeated":                {func(s *Snapshot, a, b *Task) { b.ID = "train" }, serves + `id: must be unique, "train" is the id of tasks[0] too`},
		"kind":                       {func(s *Snapshot, a, b *Task) { a.Kind = "batch" }, trains + `kind: must be one of "training", "service", got "batch"`},
		"a service by its objective": {func(s *Snapshot, a, b *Task) { b.Kind = "" }, ""},
		"a service without one":      {func(s *Snapshot, a, b *Task) { b.ObjectiveS = nil }, serves + "objective_s: is missing: a service needs its required response time, in seconds"},
		"training with one":          {func(s *Snapshot, a, b *Task) { a.ObjectiveS = num(1) }, trains + "objective_s: is for services only, got 1 for a training task"},
		"a service with targets":     {func(s *Snapshot, a, b *Task) { b.Goal, b.Acceptable = GoalMin, num(1) }, serves + "kind: a service has no acceptable or objective"},
		"entitlement":                {func(s *Snapshot, a, b *Task) { a.Entitlement = -1 }, trains + "entitlement: must be > 0, got -1"},
		"use":                        {func(s *Snapshot, a, b *Task) { a.Use = -0.1 }, trains + "use: must be ≥ 0, got -0.1"},
		"use NaN":                    {func(s *Snapshot, a, b *Task) { b.Use = Share(nan) }, serves + "use: must be ≥ 0, got NaN"},
		"use Inf":                    {func(s *Snapshot, a, b *Task) { b.Use = Share(inf) }, serves + "use: must be ≥ 0, got +Inf"},
		"use above the pool":         {func(s *Snapshot, a, b *Task) { a.Use = 1.2 }, ""},
		"limit 0: none yet":          {func(s *Snapshot, a, b *Task) { a.Limit, b.Limit = 0, 0 }, ""},
		"limit negative":             {func(s *Snapshot, a, b *Task) { a.Limit = -1 }, trains + "limit: must be > 0 and ≤ 1, or 0 for none yet, got -1"},
		"limit too large":            {func(s *Snapshot, a, b *Task) { a.Limit = 1.5 }, trains + "limit: must be > 0 and ≤ 1, or 0 for none yet, got 1.5"},
		"limit NaN":                  {func(s *Snapshot, a, b *Task) { a.Limit = Share(nan) }, trains + "limit: must be > 0 and ≤ 1, or 0 for none yet, got NaN"},
		"category":                   {func(s *Snapshot, a, b *Task) { a.Category = "nl" }, trains + `category: must be one of "NL", "WL", "CL" or "" for a new task, got "nl"`},
		"growth":                     {func(s *Snapshot, a, b *Task) { a.Growth = num(-1) }, trains + "growth: must be ≥ 0, got -1"},
		"growth NaN":                 {func(s *Snapshot, a, b *Task) { a.Growth = num(nan) }, trains + "growth: must be ≥ 0, got NaN"},
		"growth 0":                   {func(s *Snapshot, a, b *Task) { a.Growth = num(0) }, ""},
		"progress":                   {func(s *Snapshot, a, b *Task) { a.Progress = num(inf) }, trains + "progress: must be ≥ 0, got +Inf"},
		"value":                      {func(s *Snapshot, a, b *Task) { a.Value = num(nan) }, trains + "value: must be a finite number, got NaN"},
		"value negative":             {func(s *Snapshot, a, b *Task) { a.Value = num(-1) }, ""},
		"state":                      {func(s *Snapshot, a, b *Task) { a.State = "CL" }, trains + `state: must be one of "training", "acceptable", "objective", got "CL"`},
		"state training":             {func(s *Snapshot, a, b *Task) { a.State = InTraining }, ""},
		"goal":                       {func(s *Snapshot, a, b *Task) { a.Goal = "down" }, trains + `goal: must be "min" or "max", got "down"`},
		"goal missing":               {func(s *Snapshot, a, b *Task) { a.Goal = "" }, trains + `goal: must be "min" or "max", got ""`},
		"goal missing, no target":    {func(s *Snapshot, a, b *Task) { a.Goal, a.Acceptable, a.Objective = "", nil, nil }, ""},
		"goal wrong, no target":      {func(s *Snapshot, a, b *Task) { a.Goal, a.Acceptable, a.Objective = "MIN", nil, nil }, trains + `goal: must be "min" or "max", got "MIN"`},
		"acceptable":                 {func(s *Snapshot, a, b *Task) { a.Acceptable = num(nan) }, trains + "acceptable: must be a finite number, got NaN"},
		"objective":                  {func(s *Snapshot, a, b *Task) { a.Objective = num(-inf) }, trains + "objective: must be a finite number, got -Inf"},
		"easier":                     {func(s *Snapshot, a, b *Task) { a.Objective = num(130) }, trains + `objective: must be ≤ acceptable = 120, because goal is "min": lower values are better; got 130, which is easier`},
		"equal":                      {func(s *Snapshot, a, b *Task) { a.Objective = num(120) }, ""},
		"objective_s":                {func(s *Snapshot, a, b *Task) { b.ObjectiveS = num(0) }, serves + "objective_s: must be > 0, got 0"},
		"objective_s Inf":            {func(s *Snapshot, a, b *Task) { b.ObjectiveS = num(inf) }, serves + "objective_s: must be > 0, got +Inf"},
		"response_s":                 {func(s *Snapshot, a, b *Task) { b.ResponseS = num(-1) }, serves + "response_s: must be ≥ 0, got -1"},
		"response_s 0":               {func(s *Snapshot, a, b *Task) { b.ResponseS = num(0) }, ""},
		"gone":                       {func(s *Snapshot, a, b *Task) { s.Gone = Share(inf) }, "gone: must be ≥ 0, got +Inf"},
		"of the node": {func(s *Snapshot, a, b *Task) { s.Event, s.PoolCores, s.IntervalS = "x", -1, inf },
			"event: must be one of \"\", \"join\", \"leave\", \"target\", got \"x\"\npool_cores: must be ≥ 0, got -1\ninterval_s: must be ≥ 0, got +Inf"},
	} {
		t.Run(name, func(t *testing.T) {
			s := Snapshot{Tasks: []Task{training, service}}
			tc.change(&s, &s.Tasks[0], &s.Tasks[1])
			if tc.want == "" {
				must.NoError(t, s.Validate())
			} else {
				must.EqError(t, s.Validate(), tc.want)
			}
		})
	}
}

// A target once reached stays reached; Tracked ignores Value.
func TestTask_Reached(t *testing.T) {
	task := Task{Goal: GoalMin, Acceptable: num(0.5), Objective: num(0.2)}
	must.Eq(t, InTraining, task.Reached())
	for _, tc := range []struct {
		value float64
		was   TargetState
		want  TargetState
	}{{1, "", InTraining}, {0.5, InTraining, Acceptable}, {0.2, "", Objective}, {1, Acceptable, Acceptable}, {0.4, Objective, Objective}} {
		task.Value, task.State = num(tc.value), tc.was
		must.Eq(t, tc.want, task.Reached())
	}
	task.Value, task.State, task.Tracked = num(0.1), Acceptable, true
	must.Eq(t, Acceptable, task.Reached())
}
