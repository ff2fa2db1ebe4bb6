// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp_test

import (
	"fmt"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
)

// Two tasks have come at the same time. The shorter one is served first, as far as the longer one still
// ends when it would have with half of the node.
func ExampleDecide() {
	left := func(s policy.CPUSeconds) *policy.CPUSeconds { return &s }
	s := policy.Snapshot{PoolCores: 2, IntervalS: 10, Tasks: []policy.Task{
		{ID: "long", Entitlement: 1, RemainingCPUS: left(900)},
		{ID: "short", Entitlement: 1, RemainingCPUS: left(100)},
	}}
	p := fsp.DefaultParams()
	p.Prefer = fsp.Completion
	out := fsp.Decide(s, p)
	for _, d := range out.Tasks {
		fmt.Printf("%s %.2f %s\n", d.ID, d.Bound(), d.Rule)
	}
	// Output:
	// long 0.27 fsp.preferred
	// short 0.72 fsp.preferred
}
