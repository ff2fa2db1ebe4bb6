// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// DefaultBeta is the β of the floor 1/(β·n) under a task's limit. TCC 2022 has 1,
// ICPP 2019 leaves it to the operator.
const DefaultBeta = 2

// Event says why the policy runs (Algorithm 2).
type Event string

// The events of Algorithm 2.
const (
	// EventNone is a run at the end of an interval.
	EventNone Event = ""
	// EventJoin is a run because a task has started.
	EventJoin Event = "join"
	// EventLeave is a run because a task has ended; it is in the input no more.
	EventLeave Event = "leave"
)

// Input is the snapshot of a node that Decide works on.
type Input struct {
	// Tasks are the node's tasks in any order. There may be none.
	Tasks []Task `json:"tasks"`
	// IntervalS is the time between two runs so far, in seconds.
	IntervalS float64 `json:"interval_s"`
	// InitialIntervalS is the interval after a task has joined or left, in seconds.
	InitialIntervalS float64 `json:"initial_interval_s"`
	// Event says why the policy runs.
	Event Event `json:"event"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

// Task is one task in the snapshot of a node.
type Task struct {
	// ID names the task; unique in the snapshot.
	ID string `json:"id"`
	// Category is the one that the last run decided, or policy.New.
	Category policy.Category `json:"category"`
	// Growth is G, the growth efficiency per eq. 2: progress per second divided by
	// Use. nil when it is not known: never reported, or no CPU used in the interval.
	Growth *float64 `json:"growth"`
	// Progress is P, per second, per eq. 1; nil when it is not known. It is told to
	// people only: see Decide on Algorithm 3.
	Progress *float64 `json:"progress"`
	// Limit is the limit in force, as a fraction of the pool, in (0, 1]. A new task
	// may have 0: none yet.
	Limit float64 `json:"limit"`
	// Use is the task's CPU over the last interval, as a fraction of the pool. It
	// may exceed 1 where tasks borrow CPU from outside the pool.
	Use float64 `json:"use"`
}

// Params are the operator's settings. DefaultParams returns the usual ones.
type Params struct {
	// Alpha is the threshold on G below which a task counts as converging.
	Alpha Alpha `json:"alpha" strict:"optional"`
	// Beta is β ≥ 1 of the floor: no limit is below 1/(β·n) of the pool.
	Beta float64 `json:"beta" strict:"optional"`
}

// DefaultParams returns an adaptive α and DefaultBeta.
func DefaultParams() Params { return Params{Beta: DefaultBeta} }

// Alpha is the threshold α: a fixed number, or adaptive (Algorithm 3), which is
// the zero value.
type Alpha struct {
	fixed bool
	value float64
}

// FixedAlpha returns a threshold that stays at value, in the unit of G.
func FixedAlpha(value float64) Alpha { return Alpha{fixed: true, value: value} }

// ParseAlpha reads a threshold as operators write it: "adaptive" or a number ≥ 0.
func ParseAlpha(s string) (Alpha, error) {
	if s == "adaptive" {
		return Alpha{}, nil
	}
	value, err := strconv.ParseFloat(s, 64)
	if err != nil || !validAlpha(value) {
		return Alpha{}, fmt.Errorf(`must be "adaptive" or a number ≥ 0, got %q`, s)
	}
	return FixedAlpha(value), nil
}

// Fixed returns the threshold, and false when it is adaptive.
func (a Alpha) Fixed() (value float64, ok bool) { return a.value, a.fixed }

// String returns what ParseAlpha reads.
func (a Alpha) String() string {
	if !a.fixed {
		return "adaptive"
	}
	return strconv.FormatFloat(a.value, 'g', -1, 64)
}

// MarshalJSON writes a number, or "adaptive".
func (a Alpha) MarshalJSON() ([]byte, error) {
	if !a.fixed {
		return []byte(`"adaptive"`), nil
	}
	return json.Marshal(a.value)
}

// UnmarshalJSON reads a number, or "adaptive".
func (a *Alpha) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) == nil && s == "adaptive" {
		*a = Alpha{}
		return nil
	}
	var value *float64 // null leaves a plain float64 as it was, without an error
	if json.Unmarshal(data, &value) != nil || value == nil || !validAlpha(*value) {
		return fmt.Errorf(`must be "adaptive" or a number ≥ 0, got %s`, data)
	}
	*a = FixedAlpha(*value)
	return nil
}

// validAlpha says whether a number can be a threshold. There is no upper bound: G
// has the unit of the task's own evaluation function.
func validAlpha(value float64) bool { return value >= 0 && !math.IsInf(value, 1) }

// Validate returns every error in the input as a fields.Errors, by JSON path:
// "tasks[2].growth: must be ≥ 0, got -1".
func (in Input) Validate() error {
	var errs fields.Errors
	ids := fields.IDs{List: "tasks"}
	for i, t := range in.Tasks {
		at := func(name string) string { return fields.Member(fields.Index("tasks", i), name) }
		ids.Check(&errs, i, t.ID)
		if !t.Category.Valid() {
			errs.Add(at("category"), `must be one of "NL", "WL", "CL" or "" for a new task, got %q`, string(t.Category))
		}
		if t.Growth != nil && !nonNegative(*t.Growth) {
			errs.Add(at("growth"), "must be ≥ 0, got %v", *t.Growth)
		}
		if t.Progress != nil && !nonNegative(*t.Progress) {
			errs.Add(at("progress"), "must be ≥ 0, got %v", *t.Progress)
		}
		if isNew := t.Category == policy.New; !(t.Limit > 0 && t.Limit <= 1) && !(isNew && t.Limit == 0) {
			errs.Add(at("limit"), "must be > 0 and ≤ 1, got %v", t.Limit)
		}
		if !nonNegative(t.Use) {
			errs.Add(at("use"), "must be ≥ 0, got %v", t.Use)
		}
	}
	if !positive(in.IntervalS) {
		errs.Add("interval_s", "must be > 0, got %v", in.IntervalS)
	}
	if !positive(in.InitialIntervalS) {
		errs.Add("initial_interval_s", "must be > 0, got %v", in.InitialIntervalS)
	}
	switch in.Event {
	case EventNone, EventJoin, EventLeave:
	default:
		errs.Add("event", `must be one of "", "join", "leave", got %q`, string(in.Event))
	}
	if a, fixed := in.Params.Alpha.Fixed(); fixed && !validAlpha(a) {
		errs.Add("params.alpha", `must be "adaptive" or a number ≥ 0, got %v`, a)
	}
	if b := in.Params.Beta; !(b >= 1) || math.IsInf(b, 1) {
		errs.Add("params.beta", "must be ≥ 1, got %v", b)
	}
	return errs.Err()
}

func nonNegative(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }

func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }

// Example returns a valid input in which most rules fire: a task that grows, one
// that has begun to slow down, one that has converged, one that has not reported
// yet, and one that has just joined.
func Example() Input {
	known := func(x float64) *float64 { return &x }
	return Input{
		Tasks: []Task{
			{ID: "vae", Category: policy.NL, Growth: known(0.6), Progress: known(0.3), Limit: 0.6, Use: 0.5},
			{ID: "mnist", Category: policy.NL, Growth: known(0.3), Progress: known(0.06), Limit: 0.4, Use: 0.2},
			{ID: "gru", Category: policy.WL, Growth: known(0.1), Progress: known(0.01), Limit: 0.2, Use: 0.1},
			{ID: "lstm", Category: policy.NL, Limit: 1, Use: 0.2},
			{ID: "rnn", Category: policy.New, Limit: 1},
		},
		IntervalS:        40,
		InitialIntervalS: 20,
		Event:            EventJoin,
		Params:           DefaultParams(),
	}
}
