// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package placement

import "github.com/ebbtide/ebbtide/driver/policy"

// Departures lists the differences from FlowCon's Algorithm 4.
func Departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "chooses the node of a new container",
			Ours:      "moves a job after its start, if another node is better by `placement.margin`, or chooses for a held one",
			Why:       "Nomad places jobs",
		}, {
			Published: "|NL| + 1 until the next report",
			Ours:      "each task placed since then counts",
			Why:       "tasks seconds apart would share a node",
		}, {
			Published: "every task has a growth",
			Ours:      "a node without a measured task in NL has the mean of the others', or 1",
			Why:       "a sum of 0 would look empty",
		}, {
			Published: "all nodes count alike",
			Ours:      "S per core; `capacity_aware = false` on request",
			Why:       "64 cores would count like 2",
		},
	}
}
