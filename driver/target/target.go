// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package target says what a job wants to reach, and when its reports have reached it.
//
// A target ends a job or makes it yield, so it is bound to a metric that the job
// names and to the direction in which that metric improves: no other value that the
// job reports reaches it.
package target

import (
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Targets are what a job says is good enough.
type Targets struct {
	Acceptable *float64 // value of the metric at which the model is usable; nil = none
	Objective  *float64 // value of the metric at which the job has succeeded; nil = none
	Hold       int      // reports in a row that must reach a target; below 1 = 1
	QoE        float64  // response time that a service is to have, in seconds; 0 = no service
}

// Any says whether there is a target for a training job.
func (t Targets) Any() bool { return t.Acceptable != nil || t.Objective != nil }

// State says what a task has reached. Targets are passed once: a worse value
// later takes nothing back.
type State string

// The states, each harder to reach than the one before.
const (
	// StateTraining is a task that has reached nothing yet; so is "".
	StateTraining State = "training"
	// StateAcceptable is a task whose model can be used; it trains on.
	StateAcceptable State = "acceptable"
	// StateObjective is a task that has succeeded and stops.
	StateObjective State = "objective"
)

// Valid says whether s is one of the states above, or "".
func (s State) Valid() bool {
	return s == "" || s == StateTraining || s.Rank() > 0
}

// Rank orders the states: 0 is StateTraining.
func (s State) Rank() int {
	switch s {
	case StateObjective:
		return 2
	case StateAcceptable:
		return 1
	default:
		return 0
	}
}

// Goal is the direction in which a value gets better.
type Goal string

// The directions.
const (
	// GoalMin is for a loss: it reaches a target by falling to it.
	GoalMin Goal = progress.GoalMin
	// GoalMax is for an accuracy: it reaches a target by rising to it.
	GoalMax Goal = progress.GoalMax
)

// Valid says whether g is one of the directions above.
func (g Goal) Valid() bool { return g == GoalMin || g == GoalMax }

// Reached says whether a value reaches a target. A model whose value is NaN or
// infinite has diverged and reaches nothing, not even −∞ for a loss.
func (g Goal) Reached(value, target float64) bool {
	return finite(value) && (g == GoalMin && value <= target || g == GoalMax && value >= target)
}

// Check says what is wrong with a pair of targets, as a fields.Errors with the paths
// "goal", "acceptable" and "objective".
func Check(goal Goal, acceptable, objective *float64) error {
	var errs fields.Errors
	usable := true
	if targets := acceptable != nil || objective != nil; !goal.Valid() && (targets || goal != "") {
		errs.Add("goal", `must be "min" or "max", got %q`, string(goal))
		usable = false
	}
	for _, t := range []struct {
		name   string
		target *float64
	}{{"acceptable", acceptable}, {"objective", objective}} {
		if t.target != nil && !finite(*t.target) {
			errs.Add(t.name, "must be a finite number, got %v", *t.target)
			usable = false
		}
	}
	if !usable || acceptable == nil || objective == nil || goal.Reached(*objective, *acceptable) {
		return errs.Err()
	}
	harder, way := "≤", "lower values are better"
	if goal == GoalMax {
		harder, way = "≥", "higher values are better"
	}
	errs.Add("objective", `must be %s acceptable = %v, because goal is %q: %s; got %v, which is easier`,
		harder, *acceptable, string(goal), way, *objective)
	return errs.Err()
}

// Reached says that a target was reached, and by what. It is stored as JSON.
type Reached struct {
	State  State     `json:"state"`
	Metric string    `json:"metric"` // as it was reported
	Value  float64   `json:"value"`  // finite
	Target float64   `json:"target"` // finite
	Step   *float64  `json:"step"`   // steps done; nil = unknown
	Time   time.Time `json:"time"`   // of the report
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
