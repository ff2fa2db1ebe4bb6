// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package specon

import (
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// DefaultAlpha is the default threshold on the gain of an interval.
const DefaultAlpha = 0.01

// Category is a task's phase of training (SpeCon, §5.1).
type Category string

const (
	// New is a task that is not categorised yet; treated as PC.
	New Category = ""
	// PC is a progressing container.
	PC Category = "PC"
	// WC is a watching container: its gain fell below the threshold once.
	WC Category = "WC"
	// CC is a converged container.
	CC Category = "CC"
)

func (c Category) Valid() bool {
	return slices.Contains([]Category{New, PC, WC, CC}, c)
}

// Input is the input of Decide.
type Input struct {
	// Tasks are the node's training tasks in any order, possibly none.
	Tasks []Task `json:"tasks" doc:"the node's training tasks"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

type Task struct {
	ID string `json:"id" doc:"the task's unique ID"`
	// Category is the last run's decision, or New.
	Category Category `json:"category" doc:"PC, WC or CC as last decided; \"\" for a new task"`
	// Gain is g: |E(t_m) − E(t_m−1)| on the normalised evaluation function, over the
	// last interval; nil if unknown.
	Gain *float64 `json:"gain" doc:"how far the normalised metric moved in the last interval; null if unknown"`
	// PreviousGain is that of the interval before; nil if unknown.
	PreviousGain *float64 `json:"previous_gain" doc:"the same, in the interval before; null if unknown"`
	// Migrated means that the task has been moved, or kept by decision (Algorithm 2): it requests a
	// move only once.
	Migrated bool `json:"migrated" strict:"optional"`
}

// Params are the operator's settings.
type Params struct {
	// Alpha is the threshold α > 0.
	Alpha float64 `json:"alpha" strict:"optional"`
}

func DefaultParams() Params { return Params{Alpha: DefaultAlpha} }

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
