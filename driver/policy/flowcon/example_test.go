// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon_test

import (
	"fmt"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

// Of two tasks one still learns; the other, whose growth has been below α before, has converged.
func ExampleDecide() {
	s := policy.Snapshot{PoolCores: 2, IntervalS: 20, InitialIntervalS: 20, Tasks: []policy.Task{
		{ID: "learns", Entitlement: 1, Category: policy.NL, Growth: new(0.3), Progress: new(0.3), Limit: 1, Use: 0.5},
		{ID: "crawls", Entitlement: 1, Category: policy.WL, Growth: new(0.001), Progress: new(0.001), Limit: 1, Use: 0.5},
	}}
	p := flowcon.DefaultParams()
	p.Alpha = flowcon.FixedAlpha(0.05)
	for _, d := range flowcon.Decide(s, p).Tasks {
		fmt.Printf("%s %s %.2f %s\n", d.ID, d.Category, d.Bound(), d.Rule)
	}
	// Output:
	// learns NL 1.00 flowcon.alg1.nl
	// crawls CL 0.25 flowcon.alg1.cl
}
