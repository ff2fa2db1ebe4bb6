// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import "github.com/ebbtide/ebbtide/driver/policy"

func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "the fair share is 1/n; an acceptable task gets 1/(2n) or 1/(n+1)",
			Ours:      "the fair share is φ; it gets φ/2 or φ·n/(n+1)",
			Why:       "tasks that asked for more keep more; equal requests give the published limits",
		}, {
			Published: "values are losses",
			Ours:      "a target is reached by falling or by rising, as the metric's direction says",
			Why:       "accuracies rise",
		}, {
			Published: "every task has both targets",
			Ours:      "targets are optional; a task without any counts in n and ΣRU, never in AS",
			Why:       "acceptable tasks should yield to it",
		}, {
			Published: "AS holds the acceptable tasks of the previous run",
			Ours:      "those of this run",
			Why:       "the node would stay limited for one more interval",
		}, {
			Published: "a task at its objective is removed",
			Ours:      "until it has left, it counts and keeps its limit and floor",
			Why:       "it still saves its model",
		}, {
			Published: "the early branches check no target",
			Ours:      "an objective ends its task there as well",
			Why:       "success must not depend on the load",
		}, {
			Published: "ΣRU covers present tasks",
			Ours:      "plus the last interval's use by departed tasks",
			Why:       "each leave would lift all limits",
		}, {
			Published: "ΣRU < a and RU > 1/n, exactly",
			Ours:      "with a relative tolerance of 1e-9",
			Why:       "the order of a sum must not decide",
		}, {
			Published: "one report reaches a target",
			Ours:      "as published, or `ebbtide_target_hold` in a row; NaN and infinity never",
			Why:       "reports are noisy",
		},
	}
}
