// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import "github.com/ebbtide/ebbtide/driver/policy"

func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "Algorithm 2: L moves by q/Q · R_G · β",
			Ours:      "halfway to what the response time requires; `dqoes_step = \"published\"` with `dqoes_headroom = false` gives the published step",
			Why:       "after a jump of the load the target is met again after 3 runs instead of 26",
		}, {
			Published: "Algorithm 2: class B grows only by what class G uses",
			Ours:      "and by the idle part of the pool (`dqoes_headroom`)",
			Why:       "on an idle node a service would miss its target for nothing",
		}, {
			Published: "Algorithm 2: class G is bounded by 1/(2n) (pseudo-code) or 1/(2|G|) (prose)",
			Ours:      "every class is bounded by φ/2; 1/(2n) with equal requests, n being all tasks",
			Why:       "limits may stem from a time with more tasks",
		}, {
			Published: "Algorithm 2: limits above the pool in sum are not covered",
			Ours:      "the proportional step cuts the largest to one level of their fair shares",
			Why:       "an unreachable objective costs other services nothing",
		}, {
			Published: "Algorithm 2: every service is measured in every interval",
			Ours:      "an unmeasured one is in no class or sum and keeps its limit",
			Why:       "the same figure must not take the same step twice",
		}, {
			Published: "Algorithm 2: only services",
			Ours:      "other tasks have no limit, but count in n and in what is used",
			Why:       "they are on the node",
		}, {
			Published: "joins and leaves are not covered",
			Ours:      "limits and the listener's state stay; the interval is the initial one",
			Why:       "the response times belong to another set of tasks",
		}, {
			Published: "Algorithm 3: both sums move towards 0 three times (prose) or twice (pseudo-code)",
			Ours:      "three times, each by more than a rounding error",
			Why:       "the prose is clear",
		}, {
			Published: "Algorithm 3: fewer satisfied services halve the interval and run Algorithm 2 at once",
			Ours:      "the present run is that run",
			Why:       "a second run on the same figures would repeat its step",
		}, {
			Published: "Algorithm 3 counts all services",
			Ours:      "with unmeasured ones there is no trend",
			Why:       "sums over different services do not compare",
		}, {
			Published: "Algorithm 3 halves the interval without bound",
			Ours:      "down to the initial one",
			Why:       "an interval must span several responses",
		},
	}
}
