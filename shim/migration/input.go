// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package migration

import (
	"math"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Input is the snapshot of a cluster for Decide.
type Input struct {
	// Task is the task that requests the move.
	Task string `json:"task" doc:"the task that requests the move"`
	// From is the ID of its node.
	From string `json:"from" doc:"the ID of its node"`
	// Nodes are the task's own node and the feasible targets, in any order.
	Nodes  []Node `json:"nodes" doc:"its own node and the feasible targets"`
	Params Params `json:"params" strict:"optional"`
}

type Node struct {
	// ID is unique.
	ID string `json:"id" doc:"the node's unique ID"`
	// Counts are the numbers of tasks by category.
	Counts Counts `json:"counts" doc:"its tasks by category: PC, WC, CC"`
	// Use is R, the used fraction of the node's pool.
	Use float64 `json:"use" doc:"the used fraction of its pool"`
}

type Counts struct {
	PC int `json:"PC" doc:"the number of progressing tasks"`
	WC int `json:"WC" doc:"the number of watched tasks"`
	CC int `json:"CC" doc:"the number of converged tasks"`
}

// Weights are the weights of a task by category.
type Weights struct {
	PC float64 `json:"PC" strict:"optional"`
	WC float64 `json:"WC" strict:"optional"`
	CC float64 `json:"CC" strict:"optional"`
}

type Params struct {
	// Weights must satisfy w_PC ≥ w_WC ≥ w_CC ≥ 0, and w_PC > 0.
	Weights Weights `json:"weights" strict:"optional"`
}

// DefaultParams returns the published weights.
func DefaultParams() Params { return Params{Weights: Weights{PC: 2, WC: 1.5, CC: 1}} }

// Validate returns all errors as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	if in.Task == "" {
		errs.Add("task", "must not be empty")
	}
	ids := fields.IDs{List: "nodes"}
	known := false
	for i, n := range in.Nodes {
		at := func(name string) string { return fields.Member(fields.Index("nodes", i), name) }
		ids.Check(&errs, i, n.ID)
		known = known || n.ID == in.From
		for _, c := range []struct {
			name  string
			count int
		}{{"PC", n.Counts.PC}, {"WC", n.Counts.WC}, {"CC", n.Counts.CC}} {
			if c.count < 0 {
				errs.Add(fields.Member(at("counts"), c.name), "must be ≥ 0, got %d", c.count)
			}
		}
		if !(n.Use >= 0) || math.IsInf(n.Use, 1) {
			errs.Add(at("use"), "must be ≥ 0, got %v", n.Use)
		}
	}
	if !known {
		errs.Add("from", "must be the id of one of nodes, got %q", in.From)
	}
	in.Params.Weights.validate("params.weights", &errs)
	return errs.Err()
}

// Validate returns all errors as a fields.Errors; path is the path of the weights.
func (w Weights) Validate(path string) error {
	var errs fields.Errors
	w.validate(path, &errs)
	return errs.Err()
}

func (w Weights) validate(path string, errs *fields.Errors) {
	at := func(name string) string { return fields.Member(path, name) }
	if !(w.PC > 0) || math.IsInf(w.PC, 1) {
		errs.Add(at("PC"), "must be > 0, got %v", w.PC)
	}
	if !(w.WC >= 0 && w.WC <= w.PC) {
		errs.Add(at("WC"), "must be from 0 to that of PC, %v, got %v", w.PC, w.WC)
	}
	if !(w.CC >= 0 && w.CC <= w.WC) {
		errs.Add(at("CC"), "must be from 0 to that of WC, %v, got %v", w.WC, w.CC)
	}
}

// Example returns a valid input in which two nodes share the lowest score.
func Example() Input {
	return Input{
		Task: "vae", From: "node-b",
		Nodes: []Node{
			{ID: "node-a", Counts: Counts{PC: 1, WC: 1, CC: 1}, Use: 0.9},
			{ID: "node-b", Counts: Counts{PC: 2, WC: 1, CC: 1}, Use: 1},
			{ID: "node-c", Counts: Counts{CC: 2}, Use: 0.7},
			{ID: "node-d", Counts: Counts{PC: 1}, Use: 0.5},
		},
		Params: DefaultParams(),
	}
}
