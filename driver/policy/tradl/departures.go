// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import "github.com/ebbtide/ebbtide/driver/policy"

func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "the fair share is 1/n, and an acceptable task gets 1/(2n) above it and 1/(n+1) otherwise",
			Ours:      "the fair share φ is what Nomad gave the task of the whole; it gets φ/2 and φ·n/(n+1)",
			Why:       "a task that asked for more keeps more; equal requests give the published limits",
		}, {
			Published: "Algorithm 1 compares values with ≤ and calls them a loss",
			Ours:      "a loss reaches a target by falling to it, an accuracy by rising to it",
			Why:       "metrics of both directions are in use",
		}, {
			Published: "all tasks have targets, acceptable and objective",
			Ours:      "each target is optional. A task without any, a service too, counts in n and in Σ RU and is never in AS",
			Why:       "it still needs CPU, so acceptable tasks should yield to it",
		}, {
			Published: "AS holds the acceptable tasks of the run before",
			Ours:      "those of this run",
			Why:       "with the set of the run before, a node whose last task becomes acceptable would stay limited for an interval without benefit",
		}, {
			Published: "a task that has reached its objective is removed",
			Ours:      "until it has left it counts in n and in AS, and keeps its limit, but not below its floor",
			Why:       "it still saves its model, and others need not make room for a task that is about to leave",
		}, {
			Published: "the early branches (pool not full, all acceptable) look at no target",
			Ours:      "an objective ends its task there as well",
			Why:       "success does not depend on the load",
		}, {
			Published: "Σ RU is over the tasks that are there",
			Ours:      "with what tasks that have left used in the last interval",
			Why:       "otherwise each leave would lift all limits for an interval",
		}, {
			Published: "Σ RU < a and RU > 1/n, exactly",
			Ours:      "a relative error of 1e-9 is forgiven",
			Why:       "the order of a sum should not matter",
		}, {
			Published: "one report that reaches a target reaches it",
			Ours:      "as published, or `ebbtide_target_hold` in a row; a value that is NaN or infinite reaches nothing, and a worse one revokes nothing",
			Why:       "reports are noisy, and a diverged model has not succeeded",
		}, {
			Published: "1/(2n) and 1/(n+1) take turns: one step down, one up",
			Ours:      "as published",
			Why:       "both are below the fair share",
		},
	}
}
