// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import "github.com/ebbtide/ebbtide/driver/policy"

// departures lists the differences from the papers on FSP and PSBS. The figures are
// from TestFigures: 12 jobs on two cores, against fair sharing.
func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "FSP serves the job whose twin ends first",
			Ours:      "any order of preference, as long as every prefix of the twins' order has slack",
			Why:       "what the order gains is spent on models that still learn: `balanced` has time to quality −33 % where `completion` has −18 %, and no job later",
		}, {
			Published: "the one job in front has the whole server",
			Ours:      "every task has a floor, a part of its twin's rate, for which slack is set aside",
			Why:       "all keep reporting. The guarantee stays exact: without slack for a floor of 0.1 the worst job takes 1.04 times as long (`quality`). It costs 2 points of the mean (−40 % instead of −42 %; the optimum, SRPT, is −43 %)",
		}, {
			Published: "the server switches at the moment at which a twin ends or a size is used up",
			Ours:      "what a task could use up of a slack before the next decision is spread over the interval",
			Why:       "exact with decisions every 20 s, and no timer is needed",
		}, {
			Published: "a job is the faster the more of the server it has",
			Ours:      "its threads wait for each other: tasks in front have a whole core each, and what is beyond is divided by heSRPT (Berg et al. 2020) with k^p for k cores",
			Why:       "measured: three tasks with two threads each are done 5 to 30 % sooner side by side on two cores than one after the other",
		}, {
			Published: "a job can use the whole server",
			Ours:      "the twin shares by water-filling under each task's cap; a task that must run at its cap from now on is served first, and CPU that the tasks in front cannot use goes to the next",
			Why:       "with caps the guarantee is not exact: one thread each on two cores, the worst job takes 1.04 times as long, 1.16 times without that rule",
		}, {
			Published: "PSBS: a size is estimated once, and a job whose twin has ended stays late",
			Ours:      "size is time used + estimated remaining, in each run anew, while the twin's service is not touched: errors do not add up, and a better estimate ends being late",
			Why:       "a trainer's estimate gets better as it goes on: wrong by a factor of 1.23 (σ of log2 0.3) the worst job takes 1.01 times as long, and 1.15 times with an estimate that never gets better (`completion`)",
		}, {
			Published: "PSBS: late jobs have the whole server, shared by weight",
			Ours:      "the same, each up to its cap; the others keep their floors",
			Why:       "a late task has been wronged, but all keep reporting",
		}, {
			Published: "every job has a size",
			Ours:      "a task of unknown size runs as its twin does; the others have what that leaves",
			Why:       "neither it nor the others lose",
		}, {
			Published: "nothing on jobs of another kind",
			Ours:      "services are outside: the pool is what they leave, by their use up to their limit, and at least the floor of the others",
			Why:       "finish times are relative to what there is to share",
		},
	}
}
