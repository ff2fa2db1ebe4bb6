// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import "github.com/ebbtide/ebbtide/driver/policy"

func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "Algorithm 2: L moves by q/Q · R_G · β",
			Ours:      "the agent's default is `dqoes_step = \"proportional\"`, also with `policy = \"dqoes\"`: half of the way to what the response time asks for. `dqoes_step = \"published\"` and `dqoes_headroom = false` give the published form",
			Why:       "after a jump of its load from 0.2 to 0.5 of the pool a service has its target back after 3 runs instead of 26",
		}, {
			Published: "Algorithm 2: R_G is what class G uses, so with G empty class B never grows",
			Ours:      "the idle part of the pool is added, for both classes (`dqoes_headroom = true`); R_G is at most the pool",
			Why:       "on an idle node a service would miss its target needlessly",
		}, {
			Published: "Algorithm 2: class G is bounded by 1/(2n) (pseudo-code) or 1/(2|G|) (prose)",
			Ours:      "every class is bounded by half of its fair share φ, what Nomad gave it of the whole: 1/(2n) with equal requests, n being all tasks of the node",
			Why:       "a limit may stem from a time with more tasks; a task that asked for more keeps more",
		}, {
			Published: "Algorithm 2: nothing on a sum of limits above the pool",
			Ours:      "the proportional step cuts the largest to one level of their fair shares",
			Why:       "an unreachable objective should cost other services nothing",
		}, {
			Published: "Algorithm 2: every service has a response time in every interval",
			Ours:      "one without is in no class, sum or count and keeps its limit; what it uses is not idle",
			Why:       "the same figure twice would take the same step twice",
		}, {
			Published: "Algorithm 2: a node has services only",
			Ours:      "other tasks are not limited; what they use is not idle, and they count in n",
			Why:       "they are on the node all the same",
		}, {
			Published: "nothing on services that join and leave",
			Ours:      "limits and the listener's state stay, and the interval is the initial one",
			Why:       "the response times stem from another set of tasks",
		}, {
			Published: "Algorithm 3: both sums moved towards 0 three times in a row (prose), or twice (pseudo-code)",
			Ours:      "three times, each by more than a rounding error; a sum that stays 0 has not moved",
			Why:       "the prose is clear",
		}, {
			Published: "Algorithm 3: fewer satisfied services halve the interval and run Algorithm 2 at once",
			Ours:      "the interval is halved, and this very run is the one at once",
			Why:       "it has the figures that show the fall: on the same figures a second one would take the same step again",
		}, {
			Published: "Algorithm 3: all services are counted",
			Ours:      "with unmeasured ones there is no trend, and the count has fallen only if it did with all of them satisfied",
			Why:       "the sums of two runs are over different services",
		},
	}
}
