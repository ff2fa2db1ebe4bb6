// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
)

type Kind string

const (
	// Training is a task that trains. Without progress data its Growth stays nil.
	Training Kind = "training"
	// Service is a task with a response time to keep.
	Service Kind = "service"
)

// Category is a task's phase of training (FlowCon, TCC 2022, §5.2).
type Category string

const (
	// New is a task no policy has seen yet.
	New Category = ""
	// NL ("new list") grows fast.
	NL Category = "NL"
	// WL ("watching list") fell below the threshold once: near convergence.
	WL Category = "WL"
	// CL ("completing list") fell below the threshold again: completing.
	CL Category = "CL"
)

func (c Category) Valid() bool { return slices.Contains([]Category{New, NL, WL, CL}, c) }

// TargetState is the target that a training task has reached (TRADL). A later, worse
// value does not revoke it.
type TargetState string

const (
	// InTraining means that no target has been reached, like "".
	InTraining TargetState = "training"
	// Acceptable means that the model is usable; training continues.
	Acceptable TargetState = "acceptable"
	// Objective means that the task has succeeded and stops.
	Objective TargetState = "objective"
)

func states() []TargetState { return []TargetState{InTraining, Acceptable, Objective} }

func (s TargetState) Valid() bool { return s == "" || slices.Contains(states(), s) }

// Rank orders the states; InTraining is 0.
func (s TargetState) Rank() int { return max(slices.Index(states(), s), 0) }

// Goal is the direction in which a value improves.
type Goal string

const (
	// GoalMin is for a loss: lower is better.
	GoalMin Goal = "min"
	// GoalMax is for an accuracy: higher is better.
	GoalMax Goal = "max"
)

func (g Goal) Valid() bool { return g == GoalMin || g == GoalMax }

// Class compares a service with its objective (DQoES).
type Class string

const (
	// Good is faster than the objective.
	Good Class = "G"
	// Satisfied is within the tolerance.
	Satisfied Class = "S"
	// Bad is slower than the objective.
	Bad Class = "B"
	// Unmeasured means no response time in the last interval.
	Unmeasured Class = ""
)

// Event is the reason of a run (FlowCon, Algorithm 2).
type Event string

const (
	// EventNone is the end of an interval.
	EventNone Event = ""
	// EventJoin is the start of a task.
	EventJoin Event = "join"
	// EventLeave is the end of a task, which the snapshot omits.
	EventLeave Event = "leave"
	// EventTarget is that a task has reached a target (TRADL, §4.1.2).
	EventTarget Event = "target"
)

func (e Event) check(errs *fields.Errors) {
	if !slices.Contains([]Event{EventNone, EventJoin, EventLeave, EventTarget}, e) {
		errs.Add("event", `must be one of "", "join", "leave", "target", got %q`, string(e))
	}
}
