// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package toy is a minimal policy: every task has the same fraction of the pool.
package toy

import (
	"fmt"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Params are the operator's settings.
type Params struct {
	// Keep is the fraction of the pool, in [0, 1), that no task gets.
	Keep float64 `json:"keep" strict:"optional"`
}

// Policy returns policy toy.
func Policy() policy.Policy {
	return policy.Definition[Params]{
		Name:     "toy",
		Synopsis: "equal parts",
		CheckParams: func(p Params) error {
			var errs fields.Errors
			if !(p.Keep >= 0 && p.Keep < 1) {
				errs.Add("keep", "must be ≥ 0 and < 1, got %v", p.Keep)
			}
			return errs.Err()
		},
		Options:    []policy.Option{{Name: "toy_keep", Kind: policy.KindNumber, Default: "0", Param: "keep"}},
		Example:    policy.Snapshot{Tasks: []policy.Task{{ID: "a", Entitlement: 1}, {ID: "b", Entitlement: 3}}},
		Departures: []policy.Departure{{Published: "nothing", Ours: "equal parts", Why: "it is a toy"}},
		Decide: func(s policy.Snapshot, p Params) (out policy.Outcome) {
			limit := policy.Share((1 - p.Keep) / float64(len(s.Tasks)))
			for _, t := range s.Tasks {
				out.Tasks = append(out.Tasks, policy.Decision{
					ID: t.ID, Limit: &limit, Rule: "toy.equal", Why: fmt.Sprintf("one of %d", len(s.Tasks)),
				})
			}
			return out
		},
	}.Policy()
}
