// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package placement

import (
	"math"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Input is the snapshot of a cluster that Decide works on.
type Input struct {
	// Nodes are the cluster's nodes in any order. There may be none.
	Nodes []Node `json:"nodes"`
	// Feasible are the IDs of the nodes that Nomad would accept for the incoming task.
	Feasible []string `json:"feasible"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

// Node is one node of the snapshot.
type Node struct {
	// ID names the node; unique in the snapshot.
	ID string `json:"id"`
	// PoolCores is the node's elastic pool, in cores.
	PoolCores float64 `json:"pool_cores"`
	// Tasks are those that the node has reported, in any order.
	Tasks []Task `json:"tasks"`
	// Pending counts the tasks that were placed on the node and that it has not
	// reported yet.
	Pending int `json:"pending"`
}

// Task is one task on a node.
type Task struct {
	// Category is the one that the node's policy decided; policy.New counts as NL.
	Category policy.Category `json:"category"`
	// Growth is G, the growth efficiency; nil when it is not known.
	Growth *float64 `json:"growth"`
}

// Params are the operator's settings. DefaultParams returns the usual ones.
type Params struct {
	// CapacityAware divides what is asked of a node by its pool. Published is false:
	// all nodes count alike.
	CapacityAware bool `json:"capacity_aware" strict:"optional"`
}

// DefaultParams returns capacity-aware placement.
func DefaultParams() Params { return Params{CapacityAware: true} }

// Validate returns every error in the input as a fields.Errors, by JSON path.
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

// Example returns a valid input: a busy node, one that is nearly done, a small one
// that is not feasible, and one that has just been given a task.
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
