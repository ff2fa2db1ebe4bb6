// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package none limits no task, like plain Nomad, as a baseline for other policies.
package none

import (
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

const Name = "none"

// RuleFree: no limits.
const RuleFree = "none.free"

// Policy returns policy none. It accepts FlowCon's snapshot, so one snapshot works for both; the
// parameters have no effect.
func Policy() policy.Policy {
	return policy.Definition[flowcon.Params]{
		Name:        Name,
		Synopsis:    "no limits, for comparison",
		Defaults:    flowcon.DefaultParams(),
		CheckParams: flowcon.CheckParams,
		Needs:       flowcon.Needs(),
		Check:       flowcon.Check,
		Example:     flowcon.Example(),
		Departures: []policy.Departure{{
			Published: "containers compete freely",
			Ours:      "the same, and categories are shown",
			Why:       "to see what another policy would see",
		}},
		Decide: Decide,
	}.Policy()
}

// Decide gives every task L = 1. Categories are kept, new tasks enter NL, α is
// flowcon.Off, and the interval is the initial one.
func Decide(s policy.Snapshot, _ flowcon.Params) policy.Outcome {
	free, off := policy.Share(1), float64(flowcon.Off)
	out := policy.Outcome{
		Tasks:     make([]policy.Decision, len(s.Tasks)),
		Alpha:     &off,
		IntervalS: s.InitialIntervalS,
	}
	for i, t := range s.Tasks {
		category := t.Category
		if category == policy.New {
			category = policy.NL
		}
		out.Tasks[i] = policy.Decision{
			ID:       t.ID,
			Category: category,
			Limit:    &free,
			Rule:     RuleFree,
			Why:      "policy none: no limits, free competition",
		}
	}
	return out
}
