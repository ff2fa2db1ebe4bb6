// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import "github.com/ebbtide/ebbtide/driver/policy"

func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "Algorithm 1: parts of the growth, G/ΣG, as if all tasks had asked for the same",
			Ours:      "each G counts by the task's fair share φ, what Nomad gave it of the whole: φG/ΣφG",
			Why:       "a task that asked for more keeps more; equal requests give the published parts",
		}, {
			Published: "Algorithm 1: a floor 1/(β·n) in CL only (β = 1 in TCC 2022)",
			Ours:      "a floor φ/β in every category, β = 2; 1/(β·n) with equal requests",
			Why:       "a slow task in NL beside a far faster one, or one in WL with a limit from a time with more tasks, would starve",
		}, {
			Published: "Algorithm 1: categories are decided in every run",
			Ours:      "a category changes only on a new report and CPU time since it was decided",
			Why:       "one slow interval and a join after it would take a task from NL to CL on a single measurement",
		}, {
			Published: "Algorithm 1: every task has a growth",
			Ours:      "a task without one is outside ΣG and all means; in NL it is not limited, in WL and CL it keeps category and limit",
			Why:       "a long first epoch is not lack of growth",
		}, {
			Published: "Algorithm 1: nothing on R = 0",
			Ours:      "G is undefined after an interval without CPU: category and limit stay",
			Why:       "nothing was measured, and there is no division by zero",
		}, {
			Published: "Algorithm 1: G ≥ α",
			Ours:      "forgives a relative error of 1e-9, and G = 0 is never ≥ α; where ΣG = 0 each part of it is 0",
			Why:       "tasks with equal growth stay together; with all standing still, α = 0 would call them growing",
		}, {
			Published: "Algorithm 1: a lone task has the published limit",
			Ours:      "always L = 1",
			Why:       "no other task is there to leave CPU to",
		}, {
			Published: "Algorithm 1: all in CL doubles the interval without end",
			Ours:      "up to `max_interval`",
			Why:       "statuses stay current, and a change is noticed",
		}, {
			Published: "Algorithm 2: a new task enters NL, and Algorithm 1 runs over all at once",
			Ours:      "it is compared with α from its second run on; a growth that is known counts in ΣG and α at once",
			Why:       "there was no interval to judge it by yet",
		}, {
			Published: "Algorithm 3 averages P, while Algorithm 1 compares α with G",
			Ours:      "G in both",
			Why:       "P = G·R: a task on a tenth of the pool would be compared with a tenth of its own growth",
		}, {
			Published: "Algorithm 3: the prose says NL and CL, the pseudo-code NL and WL",
			Ours:      "NL and WL; one that is empty, or has no growth, drops out of the sum",
			Why:       "the threshold separates these tasks",
		}, {
			Published: "Algorithm 3: all in CL gives α = −1 and free competition, so a task that starts to grow again is not noticed before a join or leave",
			Ours:      "as published",
			Why:       "no task is limited then, so a task that grows again loses nothing",
		}, {
			Published: "Algorithm 3: α = −1 only if all tasks are in CL",
			Ours:      "also while no task in NL and WL is measured",
			Why:       "there is nothing to set a threshold by; converged tasks stay converged when a new one joins",
		}, {
			Published: "Equation 1: |ΔE| of raw values",
			Ours:      "`estimator = \"robust\"` by default; `\"published\"` on request",
			Why:       "a metric's unit, noise and direction should not matter",
		}, {
			Published: "Equation 2: growth for CPU, memory, block and network I/O",
			Ours:      "measured for all, decided on CPU",
			Why:       "CPU is what limits act on",
		}, {
			Published: "nothing on diverged models",
			Ours:      "a model whose value is NaN or infinite is in CL at once",
			Why:       "NaN must not enter a sum",
		},
	}
}
