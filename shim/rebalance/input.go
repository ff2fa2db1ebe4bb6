// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package rebalance

import (
	"math"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Input is the snapshot of a cluster for Decide.
type Input struct {
	// NowS is in seconds since an arbitrary epoch.
	NowS float64 `json:"now_s" doc:"the time of the decision, in seconds since any epoch"`
	// Nodes are in any order and may be empty.
	Nodes []Node `json:"nodes" doc:"the nodes"`
}

type Node struct {
	// ID is unique.
	ID string `json:"id" doc:"the node's unique ID"`
	// Tasks are the node's training tasks, in any order.
	Tasks []Task `json:"tasks" doc:"the node's training tasks"`
}

type Task struct {
	// ID is unique.
	ID string `json:"id" doc:"the task's unique ID"`
	// MarkedS is when the task was marked as migrated (package migration) or, if it never asked to
	// move, converged, in seconds since the same epoch; nil while it learns.
	MarkedS *float64 `json:"marked_s" doc:"when it was moved by specon-migrate, kept, or else converged, in seconds since the same epoch; null while it learns"`
	// Rebalanced means that Algorithm 3 has already moved the task.
	Rebalanced bool `json:"rebalanced" doc:"whether this policy has already moved it"`
}

// Validate returns all errors as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	if !fields.Finite(in.NowS) {
		errs.Add("now_s", "must be a finite number, got %v", in.NowS)
	}
	ids := fields.IDs{List: "nodes"}
	first := make(map[string]string)
	for i, n := range in.Nodes {
		node := fields.Index("nodes", i)
		ids.Check(&errs, i, n.ID)
		for j, t := range n.Tasks {
			task := fields.Index(fields.Member(node, "tasks"), j)
			switch other, repeated := first[t.ID]; {
			case t.ID == "":
				errs.Add(fields.Member(task, "id"), "must not be empty")
			case repeated:
				errs.Add(fields.Member(task, "id"), "must be unique, %q is the id of %s too", t.ID, other)
			default:
				first[t.ID] = task
			}
			if m := t.MarkedS; m != nil && !(*m <= in.NowS && !math.IsInf(*m, -1)) {
				errs.Add(fields.Member(task, "marked_s"), "must be ≤ now_s, %v, got %v", in.NowS, *m)
			}
		}
	}
	return errs.Err()
}

// Example returns a valid input: one idle node, two with tasks to spare.
func Example() Input {
	at := func(s float64) *float64 { return &s }
	return Input{
		NowS: 1000,
		Nodes: []Node{
			{ID: "node-a", Tasks: []Task{{ID: "vae", MarkedS: at(400)}, {ID: "gru", MarkedS: at(700)}}},
			{ID: "node-b", Tasks: []Task{}},
			{ID: "node-c", Tasks: []Task{{ID: "rnn", MarkedS: at(650)}, {ID: "lstm", MarkedS: at(900), Rebalanced: true}}},
		},
	}
}
