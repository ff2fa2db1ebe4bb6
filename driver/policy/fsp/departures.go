// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import "github.com/ebbtide/ebbtide/driver/policy"

// departures lists the differences from the papers on FSP and PSBS. The figures are TestFigures':
// 12 jobs on two cores, relative to fair sharing.
func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "FSP serves the job whose twin ends first",
			Ours:      "any order of preference, if every prefix of the twins' order has slack",
			Why:       "the freedom is spent on models that still learn",
		}, {
			Published: "the job in front has the whole server",
			Ours:      "every task has a floor, a part of its twin's rate, set aside in the slack",
			Why:       "all tasks keep reporting",
		}, {
			Published: "the server switches when a twin ends or a size is used up",
			Ours:      "what a task may use of a slack before the next decision is spread over the interval",
			Why:       "no timer is needed",
		}, {
			Published: "a job's speed is proportional to its part of the server",
			Ours:      "tasks in front have whole cores, as many as pay by the overhead that they have shown, then equal parts; heSRPT's until one has",
			Why:       "threads of one task wait for each other",
		}, {
			Published: "a job can use the whole server",
			Ours:      "twins share by water-filling under each task's cap; a task that must run at its cap from now on comes first",
			Why:       "without this rule the worst job takes 1.16 times as long, with it 1.04 (one thread each, two cores)",
		}, {
			Published: "PSBS estimates a size once",
			Ours:      "in each run, as time used + estimated remaining",
			Why:       "errors do not add up, and a late task can recover",
		}, {
			Published: "PSBS: late jobs have the whole server, by weight",
			Ours:      "the same, each up to its cap; the others keep their floors",
			Why:       "all tasks keep reporting",
		}, {
			Published: "every job has a size",
			Ours:      "a task of unknown size runs at its twin's rate",
			Why:       "neither it nor the others lose",
		}, {
			Published: "other kinds of jobs are not covered",
			Ours:      "the pool is what services leave, but at least the other tasks' floors",
			Why:       "services come first",
		},
	}
}
