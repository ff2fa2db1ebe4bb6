// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package relocate

import (
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Input is the snapshot of a cluster that Decide works on.
type Input struct {
	Nodes []Node `json:"nodes"`
	// Tasks are those that may move now and of which it is known how much they have left.
	Tasks []Task `json:"tasks"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

// Node is one node of the snapshot.
type Node struct {
	// ID names the node; unique in the snapshot.
	ID string `json:"id"`
	// PoolCores is its elastic pool.
	PoolCores float64 `json:"pool_cores"`
	// LeftCPUS is what the training tasks of known size will still use until they end, in
	// CPU-seconds, those that may move included. Known says how many they are, and Unknown
	// how many others there are.
	LeftCPUS float64 `json:"remaining_cpu_s"`
	Known    int     `json:"known"`
	Unknown  int     `json:"unknown"`
}

// Task is one that may move.
type Task struct {
	// ID names the task; unique in the snapshot.
	ID string `json:"id"`
	// Node is the ID of the one on which it runs.
	Node string `json:"node"`
	// LeftCPUS is what it will still use until it ends, in CPU-seconds.
	LeftCPUS float64 `json:"remaining_cpu_s"`
	// InS is in how many seconds it is expected to end where it is; nil if that is not
	// known: with all else that is left there.
	InS *float64 `json:"finish_in_s" strict:"optional"`
	// CapCores is the most that it can use; 0 stands for the pool.
	CapCores float64 `json:"cap_cores" strict:"optional"`
	// CostS is how long a move keeps it from running, in seconds; 0 stands for Params.CostS.
	CostS float64 `json:"cost_s" strict:"optional"`
	// To are the IDs of the nodes that could take it; nil stands for all.
	To []string `json:"to,omitempty" strict:"optional"`
}

// Params are the operator's settings.
type Params struct {
	// CostS is how long a move keeps a task from running, in seconds: saving, starting anew
	// and the work that is lost.
	CostS float64 `json:"cost_s" strict:"optional"`
	// Margin is the part of what a task still takes that a move must save.
	Margin float64 `json:"margin" strict:"optional"`
}

// DefaultParams returns SpeCon's 5 s for a move, and a margin of a fifth.
func DefaultParams() Params { return Params{CostS: 5, Margin: 0.2} }

// Validate returns every error in the input as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	positive := func(path string, v float64) {
		if !fields.Positive(v) {
			errs.Add(path, "must be > 0, got %v", v)
		}
	}
	notNegative := func(path string, v float64) {
		if !fields.NonNegative(v) {
			errs.Add(path, "must be ≥ 0, got %v", v)
		}
	}
	nodes := fields.IDs{List: "nodes"}
	for i, n := range in.Nodes {
		at := func(name string) string { return fields.Member(fields.Index("nodes", i), name) }
		nodes.Check(&errs, i, n.ID)
		positive(at("pool_cores"), n.PoolCores)
		notNegative(at("remaining_cpu_s"), n.LeftCPUS)
		notNegative(at("known"), float64(n.Known))
		notNegative(at("unknown"), float64(n.Unknown))
	}
	is := func(id string) bool { return slices.ContainsFunc(in.Nodes, func(n Node) bool { return n.ID == id }) }
	tasks := fields.IDs{List: "tasks"}
	for i, t := range in.Tasks {
		at := func(name string) string { return fields.Member(fields.Index("tasks", i), name) }
		tasks.Check(&errs, i, t.ID)
		if !is(t.Node) {
			errs.Add(at("node"), "must be the id of one of nodes, got %q", t.Node)
		}
		notNegative(at("remaining_cpu_s"), t.LeftCPUS)
		if t.InS != nil {
			notNegative(at("finish_in_s"), *t.InS)
		}
		notNegative(at("cap_cores"), t.CapCores)
		notNegative(at("cost_s"), t.CostS)
	}
	notNegative("params.cost_s", in.Params.CostS)
	if m := in.Params.Margin; !(m >= 0 && m < 1) {
		errs.Add("params.margin", "must be ≥ 0 and < 1, got %v", m)
	}
	return errs.Err()
}

// Example returns a valid input: the one task of a small node that ends last would end
// sooner on the other one.
func Example() Input {
	soon, late := 100.0, 300.0
	return Input{
		Nodes: []Node{
			{ID: "node-a", PoolCores: 2, LeftCPUS: 600, Known: 2},
			{ID: "node-b", PoolCores: 4, LeftCPUS: 80, Known: 1, Unknown: 1},
		},
		Tasks: []Task{
			{ID: "vae", Node: "node-a", LeftCPUS: 200, InS: &soon},
			{ID: "gru", Node: "node-a", LeftCPUS: 400, InS: &late},
		},
		Params: DefaultParams(),
	}
}
