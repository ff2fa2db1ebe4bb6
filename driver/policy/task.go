// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Kind says what a task does.
type Kind string

// The kinds of tasks.
const (
	// Training is a task that trains, with targets or without. A task without any
	// progress is one of which nothing is known: its Growth stays nil.
	Training Kind = "training"
	// Service is a task that answers requests and has a response time to keep.
	Service Kind = "service"
)

// Category says where a task is in its training (FlowCon, TCC 2022, §5.2).
type Category string

// The categories of FlowCon.
const (
	// New is a task that no policy has seen yet.
	New Category = ""
	// NL ("new list") is growing fast.
	NL Category = "NL"
	// WL ("watching list") fell below the threshold once: near convergence.
	WL Category = "WL"
	// CL ("completing list") fell below the threshold again: converged.
	CL Category = "CL"
)

// Valid says whether c is one of the categories above.
func (c Category) Valid() bool { return slices.Contains([]Category{New, NL, WL, CL}, c) }

// TargetState says what a training task has reached (TRADL). Targets are passed once: a
// worse value later takes nothing back.
type TargetState string

// The states, each harder to reach than the one before.
const (
	// InTraining is a task that has reached nothing yet, as "" is.
	InTraining TargetState = "training"
	// Acceptable is a task whose model can be used; it trains on.
	Acceptable TargetState = "acceptable"
	// Objective is a task that has succeeded and stops.
	Objective TargetState = "objective"
)

// states in their order.
func states() []TargetState { return []TargetState{InTraining, Acceptable, Objective} }

// Valid says whether s is one of the states above, or "".
func (s TargetState) Valid() bool { return s == "" || slices.Contains(states(), s) }

// Rank orders the states: 0 is InTraining.
func (s TargetState) Rank() int { return max(slices.Index(states(), s), 0) }

// Goal is the direction in which a value gets better.
type Goal string

// The directions.
const (
	// GoalMin is for a loss: it reaches a target by falling to it.
	GoalMin Goal = "min"
	// GoalMax is for an accuracy: it reaches a target by rising to it.
	GoalMax Goal = "max"
)

// Valid says whether g is one of the directions above.
func (g Goal) Valid() bool { return g == GoalMin || g == GoalMax }

// Class says how a service is doing (DQoES).
type Class string

// The classes of DQoES.
const (
	// Good is a service that is better than asked.
	Good Class = "G"
	// Satisfied is a service that is as asked.
	Satisfied Class = "S"
	// Bad is a service that is worse than asked.
	Bad Class = "B"
	// Unmeasured is a service without a response time in the last interval.
	Unmeasured Class = ""
)

// Event says why a policy runs (FlowCon, Algorithm 2).
type Event string

// The events.
const (
	// EventNone is a run at the end of an interval.
	EventNone Event = ""
	// EventJoin is a run because a task has started.
	EventJoin Event = "join"
	// EventLeave is a run because a task has ended; it is in the snapshot no more.
	EventLeave Event = "leave"
)

func (e Event) check(errs *fields.Errors) {
	if !slices.Contains([]Event{EventNone, EventJoin, EventLeave}, e) {
		errs.Add("event", `must be one of "", "join", "leave", got %q`, string(e))
	}
}
