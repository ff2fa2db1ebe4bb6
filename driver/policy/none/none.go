// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package none is the policy that decides nothing: all tasks compete freely, as
// they do without Ebbtide. It is there to compare the others with.
package none

import (
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

// RuleFree is the only rule: no task is limited.
const RuleFree = "none.free"

// The input and the output are those of FlowCon, so that one snapshot can be shown
// to both. The params are read and have no effect.
type (
	Input  = flowcon.Input
	Output = flowcon.Output
)

// Decide gives every task L = 1. Categories stay as they are, new tasks enter NL,
// α is flowcon.Off, and the interval is the initial one: there is nothing to adapt.
func Decide(in Input) Output {
	out := Output{
		Tasks:     make([]policy.Decision, len(in.Tasks)),
		Alpha:     flowcon.Off,
		IntervalS: in.InitialIntervalS,
	}
	for i, t := range in.Tasks {
		category := t.Category
		if category == policy.New {
			category = policy.NL
		}
		out.Tasks[i] = policy.Decision{
			ID:       t.ID,
			Category: category,
			Limit:    1,
			Rule:     RuleFree,
			Why:      "policy none: no limits, free competition",
		}
	}
	return out
}
