// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package rebalance

import "github.com/ebbtide/ebbtide/driver/policy"

// Departures lists the differences from SpeCon's Algorithm 3.
func Departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "runs once all tasks are marked (prose), or always (pseudo-code, Fig. 9)",
			Ours:      "always; tasks that have converged or are marked move, the others count",
			Why:       "the last tasks of a node are never marked",
		}, {
			Published: "D holds all tasks",
			Ours:      "those not yet rebalanced, on nodes with more than bf tasks and more than one",
			Why:       "a node would be emptied for another",
		}, {
			Published: "an idle node takes tasks if it has less than bf",
			Ours:      "if bf = 0 as well",
			Why:       "two tasks would share a node while others are idle",
		}, {
			Published: "a node takes tasks in a loop",
			Ours:      "one per run",
			Why:       "the next run sees the result",
		}, {
			Published: "a task moves",
			Ours:      "beside fair finish, if its end is sooner there, the move included",
			Why:       "a move that does not pay delays its task",
		},
	}
}
