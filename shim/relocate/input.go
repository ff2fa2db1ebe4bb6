// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package relocate

import (
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Input is the snapshot of a cluster for Decide.
type Input struct {
	Nodes []Node `json:"nodes" doc:"the nodes, with the work on them"`
	// Tasks are the tasks that may be moved and have known remaining work.
	Tasks  []Task `json:"tasks" doc:"the tasks that may be moved, of known remaining work"`
	Params Params `json:"params" strict:"optional"`
}

type Node struct {
	// ID is unique.
	ID string `json:"id" doc:"the node's unique ID"`
	// PoolCores is the elastic pool, in cores.
	PoolCores float64 `json:"pool_cores" doc:"the CPU that is divided there, in cores"`
	// LeftCPUS is the remaining work, in CPU-seconds, of the Known training tasks with an
	// estimate, including those that may move. Unknown counts the others.
	LeftCPUS float64 `json:"remaining_cpu_s" doc:"the CPU-seconds that its known training tasks still need"`
	Known    int     `json:"known" doc:"the number of its training tasks of known remaining work"`
	Unknown  int     `json:"unknown" doc:"the number of its other training tasks"`
}

type Task struct {
	// ID is unique.
	ID string `json:"id" doc:"the task's unique ID"`
	// Node is the ID of its node.
	Node string `json:"node" doc:"the ID of its node"`
	// LeftCPUS is the remaining work, in CPU-seconds.
	LeftCPUS float64 `json:"remaining_cpu_s" doc:"the CPU-seconds that it still needs"`
	// InS is the time until the expected finish on its node, in seconds; nil if unknown: then it
	// finishes with the node's other work.
	InS *float64 `json:"finish_in_s" strict:"optional"`
	// CapCores is the maximum CPU that the task can use, in cores; 0 means the pool.
	CapCores float64 `json:"cap_cores" strict:"optional"`
	// CostS is a move's duration, in seconds; 0 means Params.CostS.
	CostS float64 `json:"cost_s" strict:"optional"`
	// To are the IDs of possible targets; nil for all.
	To []string `json:"to,omitempty" strict:"optional"`
}

type Params struct {
	// CostS is a move's duration in seconds: saving, starting and lost work.
	CostS float64 `json:"cost_s" strict:"optional"`
	// Margin is the fraction of the remaining time that a move must save.
	Margin float64 `json:"margin" strict:"optional"`
}

// DefaultParams returns SpeCon's 5 s per move, and a margin of a fifth.
func DefaultParams() Params { return Params{CostS: 5, Margin: 0.2} }

// Bounds of a figure. No node or task comes near them, and sums of all figures stay finite.
const (
	MinCores = 1e-3
	MaxCores = 1e6
	MaxCPUS  = 1e12 // a thousand cores for thirty years
	MaxS     = 1e12
	MaxTasks = 100_000
)

// Validate returns all errors as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	nodes := fields.IDs{List: "nodes"}
	for i, n := range in.Nodes {
		at := func(name string) string { return fields.Member(fields.Index("nodes", i), name) }
		nodes.Check(&errs, i, n.ID)
		errs.Bound(at("pool_cores"), n.PoolCores, MinCores, MaxCores)
		errs.Bound(at("remaining_cpu_s"), n.LeftCPUS, 0, MaxCPUS)
		errs.Bound(at("known"), float64(n.Known), 0, MaxTasks)
		errs.Bound(at("unknown"), float64(n.Unknown), 0, MaxTasks)
	}
	is := func(id string) bool { return slices.ContainsFunc(in.Nodes, func(n Node) bool { return n.ID == id }) }
	tasks := fields.IDs{List: "tasks"}
	for i, t := range in.Tasks {
		at := func(name string) string { return fields.Member(fields.Index("tasks", i), name) }
		tasks.Check(&errs, i, t.ID)
		if !is(t.Node) {
			errs.Add(at("node"), "must be the id of one of nodes, got %q", t.Node)
		}
		errs.Bound(at("remaining_cpu_s"), t.LeftCPUS, 0, MaxCPUS)
		if t.InS != nil {
			errs.Bound(at("finish_in_s"), *t.InS, 0, MaxS)
		}
		if t.CapCores != 0 {
			errs.Bound(at("cap_cores"), t.CapCores, MinCores, MaxCores)
		}
		errs.Bound(at("cost_s"), t.CostS, 0, MaxS)
	}
	errs.Bound("params.cost_s", in.Params.CostS, 0, MaxS)
	if m := in.Params.Margin; !(m >= 0 && m < 1) {
		errs.Add("params.margin", "must be ≥ 0 and < 1, got %v", m)
	}
	return errs.Err()
}

// Example returns a valid input: the later task of a small node would finish sooner on the
// other one.
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
