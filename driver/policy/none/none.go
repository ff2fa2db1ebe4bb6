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

// Decide gives every task L = 1. The interval is the initial one.
func Decide(s policy.Snapshot, _ flowcon.Params) policy.Outcome {
	free := policy.Share(1)
	out := policy.Outcome{Tasks: make([]policy.Decision, len(s.Tasks)), IntervalS: s.InitialIntervalS}
	for i, t := range s.Tasks {
		out.Tasks[i] = policy.Decision{ID: t.ID, Limit: &free, Rule: RuleFree, Why: "policy none: no limits, free competition"}
	}
	return out
}
