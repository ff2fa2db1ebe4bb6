// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"errors"
	"math"

	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// DefaultFull is the published part of the pool from which on it counts as full.
const DefaultFull = 0.9

// State is what a task has reached, and Goal the direction in which its value gets
// better.
type (
	State = target.State
	Goal  = target.Goal
)

// The states and the directions.
const (
	StateTraining   = target.StateTraining
	StateAcceptable = target.StateAcceptable
	StateObjective  = target.StateObjective
	GoalMin         = target.GoalMin
	GoalMax         = target.GoalMax
)

// Input is the snapshot of a node that Decide works on.
type Input struct {
	// Tasks are the node's training tasks in any order. There may be none.
	Tasks []Task `json:"tasks"`
	// Gone is what tasks that have left since used in the last interval, as a fraction
	// of the pool: they do not count any more, but the pool was as full as it was.
	Gone float64 `json:"gone" strict:"optional"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

// Task is one task in the snapshot of a node.
type Task struct {
	// ID names the task; unique in the snapshot.
	ID string `json:"id"`
	// Goal is the direction of the value and its targets. It may be "" when there
	// is no target.
	Goal Goal `json:"goal"`
	// Value is what the task reported last; nil when it has not reported.
	Value *float64 `json:"value"`
	// Acceptable is the value from which on the model can be used; nil for none.
	Acceptable *float64 `json:"acceptable"`
	// Objective is the value at which the training is done; nil for none.
	Objective *float64 `json:"objective"`
	// State is what the task had reached before.
	State State `json:"state" strict:"optional"`
	// Tracked says that State is all that counts, because a target.Watcher follows the
	// reports and asks for several in a row: Value is told to people only.
	Tracked bool `json:"tracked" strict:"optional"`
	// Use is the task's CPU over the last interval, as a fraction of the pool. It
	// may exceed 1 where tasks borrow CPU from outside the pool.
	Use float64 `json:"use"`
	// Limit is the limit in force, as a fraction of the pool, in (0, 1].
	Limit float64 `json:"limit"`
}

// Params are the operator's settings. DefaultParams returns the usual ones.
type Params struct {
	// Full is the part of the pool, in (0, 1], from which on it counts as full.
	Full float64 `json:"full" strict:"optional"`
}

// DefaultParams returns DefaultFull.
func DefaultParams() Params { return Params{Full: DefaultFull} }

// Validate returns every error in the input as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	ids := fields.IDs{List: "tasks"}
	for i, t := range in.Tasks {
		at := func(name string) string { return fields.Member(fields.Index("tasks", i), name) }
		ids.Check(&errs, i, t.ID)
		if t.Value != nil && !finite(*t.Value) {
			errs.Add(at("value"), "must be a finite number, got %v", *t.Value)
		}
		var targets fields.Errors
		if errors.As(target.Check(t.Goal, t.Acceptable, t.Objective), &targets) {
			for _, e := range targets {
				errs = append(errs, fields.Error{Path: at(e.Path), Problem: e.Problem})
			}
		}
		if !t.State.Valid() {
			errs.Add(at("state"), `must be one of "training", "acceptable", "objective", got %q`, string(t.State))
		}
		if !(t.Use >= 0) || math.IsInf(t.Use, 1) {
			errs.Add(at("use"), "must be ≥ 0, got %v", t.Use)
		}
		if !(t.Limit > 0 && t.Limit <= 1) {
			errs.Add(at("limit"), "must be > 0 and ≤ 1, got %v", t.Limit)
		}
	}
	if !(in.Gone >= 0) || math.IsInf(in.Gone, 1) {
		errs.Add("gone", "must be ≥ 0, got %v", in.Gone)
	}
	if f := in.Params.Full; !(f > 0 && f <= 1) {
		errs.Add("params.full", "must be > 0 and ≤ 1, got %v", f)
	}
	return errs.Err()
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Example returns a valid input of a full node in which most rules fire. The
// targets are the published ones.
func Example() Input {
	known := func(x float64) *float64 { return &x }
	return Input{
		Tasks: []Task{
			{ID: "vae", Goal: GoalMin, Value: known(131.5), Acceptable: known(120), Objective: known(110), Use: 0.25, Limit: 1},
			{ID: "mnist", Goal: GoalMin, Value: known(0.28), Acceptable: known(0.3), Objective: known(0.25), Use: 0.3, Limit: 1},
			{ID: "gru", Goal: GoalMin, Value: known(0.0091), Acceptable: known(0.01), Objective: known(0.008), State: StateAcceptable, Use: 0.1, Limit: 0.1},
			{ID: "rnn", Goal: GoalMin, Value: known(0.49), Acceptable: known(0.55), Objective: known(0.5), State: StateAcceptable, Use: 0.15, Limit: 1.0 / 7},
			{ID: "resnet", Goal: GoalMax, Value: known(0.61), Objective: known(0.93), Use: 0.15, Limit: 1},
			{ID: "lstm", Goal: GoalMin, Acceptable: known(0.02), Use: 0.05, Limit: 1},
		},
		Params: DefaultParams(),
	}
}
