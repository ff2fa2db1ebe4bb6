// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import "github.com/ebbtide/ebbtide/driver/policy"

// departures lists the differences from Adaptive Fair-Share.
func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "jobs with the same user, application and input are a group",
			Ours:      "a job, or tasks with the same `ebbtide_gpu_group`; the user is the namespace",
			Why:       "Nomad knows no users",
		}, {
			Published: "coefficients are equal at first",
			Ours:      "`count-only`; with the preset, equal after 5 measured jobs",
			Why:       "properties were not shown to help",
		}, {
			Published: "ranks are not defined",
			Ours:      "sums over distinct values, as in figure 11",
			Why:       "the figure's numbers agree",
		}, {
			Published: "groups are those of the window",
			Ours:      "those with containers on the card; shares change as these come and go",
			Why:       "an unused share is lost",
		}, {
			Published: "no bounds",
			Ours:      "priorities, caps, minima, a floor, and what is in use",
			Why:       "an allocation cannot be taken back",
		}, {
			Published: "AdaptiveUpdate, a sketch, moves the coefficients",
			Ours:      "only in `decide` and the model, by at most `step` towards the property that fits the need best",
			Why:       "it delays a fifth of the jobs, and the rest gain little",
		}, {
			Published: "a plan pauses a job before its predicted peak exceeds the card",
			Ours:      "requests wait at the gate, and jobs take [turns](gpu.md#time) by fair finish",
			Why:       "profiles do not exist for new jobs, and turns need none",
		},
	}
}
