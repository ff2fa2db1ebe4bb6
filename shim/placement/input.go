// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package placement

import (
	"math"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Input is the snapshot of a cluster for Decide.
type Input struct {
	// Nodes are in any order and may be empty.
	Nodes []Node `json:"nodes" doc:"the nodes"`
	// Feasible are the IDs of the nodes to which Nomad would assign the task.
	Feasible []string `json:"feasible" doc:"the IDs of the nodes to which Nomad would assign the task"`
	Params   Params   `json:"params" strict:"optional"`
}

type Node struct {
	// ID is unique.
	ID string `json:"id" doc:"the node's unique ID"`
	// PoolCores is the elastic pool, in cores.
	PoolCores float64 `json:"pool_cores" doc:"the CPU that is divided there, in cores"`
	// Tasks are those reported by the node, in any order.
	Tasks []Task `json:"tasks" doc:"the tasks that the node reports"`
	// Pending counts tasks placed on the node that it has not reported yet.
	Pending int `json:"pending" doc:"the number of tasks placed there that it does not report yet"`
}

type Task struct {
	// Category is the category by the node's policy; policy.New counts as NL.
	Category policy.Category `json:"category" doc:"NL, WL or CL by its growth; \"\" for a new task"`
	// Growth is G, the growth efficiency; nil if unknown.
	Growth *float64 `json:"growth" doc:"its progress per CPU; null if unknown"`
}

type Params struct {
	// CapacityAware divides scores by the pool. The published algorithm does not: all nodes count
	// alike.
	CapacityAware bool `json:"capacity_aware" strict:"optional"`
}

// DefaultParams returns capacity-aware placement.
func DefaultParams() Params { return Params{CapacityAware: true} }

// Validate returns all errors as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	ids := fields.IDs{List: "nodes"}
	known := make(map[string]bool, len(in.Nodes))
	for i, n := range in.Nodes {
		at := func(name string) string { return fields.Member(fields.Index("nodes", i), name) }
		ids.Check(&errs, i, n.ID)
		known[n.ID] = true
		if !(n.PoolCores > 0) || math.IsInf(n.PoolCores, 1) {
			errs.Add(at("pool_cores"), "must be > 0, got %v", n.PoolCores)
		}
		if n.Pending < 0 {
			errs.Add(at("pending"), "must be ≥ 0, got %d", n.Pending)
		}
		for j, t := range n.Tasks {
			task := fields.Index(at("tasks"), j)
			if !t.Category.Valid() {
				errs.Add(fields.Member(task, "category"), `must be one of "NL", "WL", "CL" or "" for a new task, got %q`, string(t.Category))
			}
			if t.Growth != nil && (!(*t.Growth >= 0) || math.IsInf(*t.Growth, 1)) {
				errs.Add(fields.Member(task, "growth"), "must be ≥ 0, got %v", *t.Growth)
			}
		}
	}
	first := make(map[string]int, len(in.Feasible))
	for i, id := range in.Feasible {
		at := fields.Index("feasible", i)
		j, repeated := first[id]
		switch {
		case !known[id]:
			errs.Add(at, "must be the id of one of nodes, got %q", id)
		case repeated:
			errs.Add(at, "must be unique, %q is %s too", id, fields.Index("feasible", j))
		}
		first[id] = i
	}
	return errs.Err()
}

// Example returns a valid input: a busy node, a nearly finished one, a small infeasible one,
// and one with a pending task.
func Example() Input {
	g := func(x float64) *float64 { return &x }
	return Input{
		Nodes: []Node{
			{ID: "node-a", PoolCores: 8, Tasks: []Task{
				{Category: policy.NL, Growth: g(0.6)}, {Category: policy.NL, Growth: g(0.4)}, {Category: policy.CL, Growth: g(0.01)},
			}},
			{ID: "node-b", PoolCores: 8, Tasks: []Task{{Category: policy.WL, Growth: g(0.1)}, {Category: policy.CL, Growth: g(0.02)}}},
			{ID: "node-c", PoolCores: 2, Tasks: []Task{}},
			{ID: "node-d", PoolCores: 16, Tasks: []Task{{Category: policy.New}}, Pending: 1},
		},
		Feasible: []string{"node-a", "node-b", "node-d"},
		Params:   DefaultParams(),
	}
}
