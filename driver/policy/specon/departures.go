// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package specon

import "github.com/ebbtide/ebbtide/driver/policy"

// Departures lists the differences from SpeCon's Algorithm 1.
func Departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "g = |E(t) − E(t′)| of two values",
			Ours:      "of the medians of two intervals, as a fraction of the values' range",
			Why:       "one noisy report must not decide",
		}, {
			Published: "g > α is not covered where g = α",
			Ours:      "g ≥ α progresses",
			Why:       "each case has one rule",
		}, {
			Published: "lines 10 to 12 move PC to WC a second time",
			Ours:      "WC to CC, as in the prose",
			Why:       "CC could not be reached",
		}, {
			Published: "|PC| + |WC| during the loop",
			Ours:      "after the run",
			Why:       "the result must not depend on the order of tasks",
		}, {
			Published: "moved tasks are omitted",
			Ours:      "they are categorised, but request no move",
			Why:       "node scores stay correct",
		},
	}
}
