// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

// Reached says whether a value reaches a target: a loss by falling to it, an
// accuracy by rising to it. A model whose value is NaN or infinite has diverged
// and reaches nothing, not even −∞ for a loss.
func Reached(goal Goal, value, target float64) bool {
	if !finite(value) {
		return false
	}
	switch goal {
	case GoalMin:
		return value <= target
	case GoalMax:
		return value >= target
	default:
		return false
	}
}

// Tracker follows the reports of one task and says when they have reached a
// target so many times in a row, so that one lucky report reaches nothing. It is
// not safe for concurrent use.
type Tracker struct {
	goal                  Goal
	acceptable, objective *float64
	hold                  int
	state                 State
	// Reports in a row that reached each of the targets, up to hold.
	acceptableRow, objectiveRow int
}

// NewTracker returns a tracker of a task that has reached nothing yet. Targets
// that are nil are never reached. A hold below 1, the published value, is 1.
func NewTracker(goal Goal, acceptable, objective *float64, hold int) *Tracker {
	return &Tracker{goal: goal, acceptable: acceptable, objective: objective, hold: max(hold, 1), state: StateTraining}
}

// Observe takes the next report and returns the state that it led to, or "" when
// it led to nothing new. A report that reaches both targets leads to
// StateObjective at once, without StateAcceptable before it.
func (t *Tracker) Observe(value float64) (reached State) {
	if t.objective != nil && Reached(t.goal, value, *t.objective) {
		t.objectiveRow = min(t.objectiveRow+1, t.hold)
	} else {
		t.objectiveRow = 0
	}
	if t.acceptable != nil && Reached(t.goal, value, *t.acceptable) {
		t.acceptableRow = min(t.acceptableRow+1, t.hold)
	} else {
		t.acceptableRow = 0
	}
	now := t.state
	switch {
	case t.objectiveRow >= t.hold:
		now = StateObjective
	case t.acceptableRow >= t.hold && t.state == StateTraining:
		now = StateAcceptable
	}
	if now == t.state {
		return ""
	}
	t.state = now
	return now
}

// State returns what the task has reached so far.
func (t *Tracker) State() State { return t.state }

// Restore sets what the task had reached before, as another process wrote it down.
// What is not a state is StateTraining. Reports in a row are counted anew.
func (t *Tracker) Restore(s State) {
	if !s.Valid() || s == "" {
		s = StateTraining
	}
	t.state = s
	t.acceptableRow, t.objectiveRow = 0, 0
}
