// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import "github.com/ebbtide/ebbtide/driver/policy"

// Tracker follows the reports of one task and says when they have reached a
// target so many times in a row, so that one lucky report reaches nothing. It is
// not safe for concurrent use.
type Tracker struct {
	goal                  policy.Goal
	acceptable, objective *float64
	hold                  int
	state                 policy.TargetState
	// Reports in a row that reached each of the targets, up to hold.
	acceptableRow, objectiveRow int
}

// NewTracker returns a tracker of a task that has reached nothing yet. Targets
// that are nil are never reached. A hold below 1, the published value, is 1.
func NewTracker(goal policy.Goal, acceptable, objective *float64, hold int) *Tracker {
	return &Tracker{goal: goal, acceptable: acceptable, objective: objective, hold: max(hold, 1), state: policy.InTraining}
}

// Observe takes the next report and returns the state that it led to, or "" when
// it led to nothing new. A report that reaches both targets leads to
// policy.Objective at once, without policy.Acceptable before it.
func (t *Tracker) Observe(value float64) (reached policy.TargetState) {
	if t.objective != nil && t.goal.Reached(value, *t.objective) {
		t.objectiveRow = min(t.objectiveRow+1, t.hold)
	} else {
		t.objectiveRow = 0
	}
	if t.acceptable != nil && t.goal.Reached(value, *t.acceptable) {
		t.acceptableRow = min(t.acceptableRow+1, t.hold)
	} else {
		t.acceptableRow = 0
	}
	now := t.state
	switch {
	case t.objectiveRow >= t.hold:
		now = policy.Objective
	case t.acceptableRow >= t.hold && t.state == policy.InTraining:
		now = policy.Acceptable
	}
	if now == t.state {
		return ""
	}
	t.state = now
	return now
}

// State returns what the task has reached so far.
func (t *Tracker) State() policy.TargetState { return t.state }

// Restore sets what the task had reached before, as another process wrote it down.
// What is not a state is policy.InTraining. Reports in a row are counted anew.
func (t *Tracker) Restore(s policy.TargetState) {
	if !s.Valid() || s == "" {
		s = policy.InTraining
	}
	t.state = s
	t.acceptableRow, t.objectiveRow = 0, 0
}
