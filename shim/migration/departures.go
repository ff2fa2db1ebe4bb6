// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package migration

import "github.com/ebbtide/ebbtide/driver/policy"

// Departures lists the differences from SpeCon's Algorithm 2.
func Departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "all nodes are candidates",
			Ours:      "those on which Nomad would place the job",
			Why:       "the move would fail",
		}, {
			Published: "a task moves to the best node",
			Ours:      "beside fair finish, if its end is sooner there, the move included",
			Why:       "a move that does not pay delays its task",
		}, {
			Published: "ties of resource use are open",
			Ours:      "by node ID",
			Why:       "decisions are reproducible",
		},
	}
}
