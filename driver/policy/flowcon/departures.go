// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import "github.com/ebbtide/ebbtide/driver/policy"

func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "Algorithm 1: limits G/ΣG",
			Ours:      "φG/ΣφG",
			Why:       "tasks that asked for more keep more; equal requests give the published limits",
		}, {
			Published: "Algorithm 1: a floor 1/(β·n) in CL only",
			Ours:      "a floor φ/β in every category, β = 2",
			Why:       "slow tasks in NL or WL would starve",
		}, {
			Published: "Algorithm 1 decides categories in every run",
			Ours:      "a category changes only after a new report and CPU time",
			Why:       "one slow interval would count twice",
		}, {
			Published: "Algorithm 1: every task has a growth",
			Ours:      "a task without one is outside ΣG and all means; in NL it has no limit, in WL and CL it keeps its limit",
			Why:       "a long first epoch is not lack of growth",
		}, {
			Published: "Algorithm 1: R = 0 is not covered",
			Ours:      "category and limit stay",
			Why:       "nothing was measured",
		}, {
			Published: "Algorithm 1: G ≥ α",
			Ours:      "with a relative tolerance of 1e-9; G = 0 is never ≥ α",
			Why:       "equal tasks stay together, and α = 0 does not mean growth",
		}, {
			Published: "Algorithm 1 limits a lone task",
			Ours:      "L = 1",
			Why:       "there is no other task to leave CPU to",
		}, {
			Published: "Algorithm 1: all in CL doubles the interval without bound",
			Ours:      "up to `max_interval`",
			Why:       "a change is noticed",
		}, {
			Published: "Algorithm 2 measures a new task at once",
			Ours:      "it is compared with α from its second run on",
			Why:       "it has no interval yet",
		}, {
			Published: "Algorithm 3 averages P, Algorithm 1 compares α with G",
			Ours:      "G in both",
			Why:       "P = G·R would favour tasks with a large share",
		}, {
			Published: "Algorithm 3: NL and CL (prose), NL and WL (pseudo-code)",
			Ours:      "NL and WL; an empty list is ignored",
			Why:       "the threshold separates these two",
		}, {
			Published: "Algorithm 3: α = −1 if all tasks are in CL",
			Ours:      "also while no task in NL or WL is measured",
			Why:       "there is nothing to derive a threshold from",
		}, {
			Published: "Equation 1: |ΔE| of raw values",
			Ours:      "`estimator = \"robust\"`; `\"published\"` on request",
			Why:       "unit, noise and direction of a metric must not decide",
		}, {
			Published: "Equation 2 for four resources",
			Ours:      "measured for all, decided on CPU",
			Why:       "no measurement shows that other limits help",
		}, {
			Published: "diverged models are not covered",
			Ours:      "a NaN or infinite value puts the task into CL",
			Why:       "NaN must not enter a sum",
		}, {
			Published: "managers send α and the interval to workers",
			Ours:      "options of the agent",
			Why:       "Nomad tells a running plugin nothing; tasks survive a restart of the agent",
		},
	}
}
