// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package specon

import (
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// DefaultAlpha is the threshold on the gain of an interval.
const DefaultAlpha = 0.01

// Category says where a task is in its training (SpeCon, §5.1).
type Category string

// The categories of SpeCon.
const (
	// New is a task that has not been sorted yet: it is in PC.
	New Category = ""
	// PC is a progressing container.
	PC Category = "PC"
	// WC is a watching container: its gain fell below the threshold once.
	WC Category = "WC"
	// CC is a converged container.
	CC Category = "CC"
)

// Valid says whether c is one of the categories above.
func (c Category) Valid() bool {
	return slices.Contains([]Category{New, PC, WC, CC}, c)
}

// Input is the snapshot of a node that Decide works on.
type Input struct {
	// Tasks are the node's training tasks in any order. There may be none.
	Tasks []Task `json:"tasks"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

// Task is one task in the snapshot of a node.
type Task struct {
	// ID names the task; unique in the snapshot.
	ID string `json:"id"`
	// Category is the one that the last run decided, or New.
	Category Category `json:"category"`
	// Gain is g: |E(t_m) − E(t_m−1)| on the normalised evaluation function, over the
	// last interval; nil when it is not known.
	Gain *float64 `json:"gain"`
	// PreviousGain is that of the interval before; nil when it is not known.
	PreviousGain *float64 `json:"previous_gain"`
	// Migrated says that the task has been moved, or that it was decided that it stays
	// (Algorithm 2): it asks once only.
	Migrated bool `json:"migrated" strict:"optional"`
}

// Params are the operator's settings. DefaultParams returns the usual ones.
type Params struct {
	// Alpha is the threshold α > 0.
	Alpha float64 `json:"alpha" strict:"optional"`
}

// DefaultParams returns DefaultAlpha.
func DefaultParams() Params { return Params{Alpha: DefaultAlpha} }

// Validate returns every error in the input as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	ids := fields.IDs{List: "tasks"}
	for i, t := range in.Tasks {
		at := func(name string) string { return fields.Member(fields.Index("tasks", i), name) }
		ids.Check(&errs, i, t.ID)
		if !t.Category.Valid() {
			errs.Add(at("category"), `must be one of "PC", "WC", "CC" or "" for a new task, got %q`, string(t.Category))
		}
		if g := t.Gain; g != nil && !fields.NonNegative(*g) {
			errs.Add(at("gain"), "must be ≥ 0, got %v", *g)
		}
		if g := t.PreviousGain; g != nil && !fields.NonNegative(*g) {
			errs.Add(at("previous_gain"), "must be ≥ 0, got %v", *g)
		}
	}
	if a := in.Params.Alpha; !fields.Positive(a) {
		errs.Add("params.alpha", "must be > 0, got %v", a)
	}
	return errs.Err()
}

// Example returns a valid input of a node in which most rules fire.
func Example() Input {
	g := func(x float64) *float64 { return &x }
	return Input{
		Tasks: []Task{
			{ID: "vae", Category: PC, Gain: g(0.05), PreviousGain: g(0.06)},
			{ID: "rnn", Category: PC, Gain: g(0.008), PreviousGain: g(0.02)},
			{ID: "gru", Category: WC, Gain: g(0.004), PreviousGain: g(0.006)},
			{ID: "birnn", Category: CC, Gain: g(0.001), PreviousGain: g(0.002)},
			{ID: "lstm", Category: CC, Gain: g(0.002), PreviousGain: g(0.001)},
			{ID: "new", Category: New},
		},
		Params: DefaultParams(),
	}
}
