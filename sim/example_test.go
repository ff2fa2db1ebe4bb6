// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/ebbtide/ebbtide/sim"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

// Ten jobs of known size, under plain Nomad and under fair finish.
func ExampleRun() {
	const text = `
sizes = "exact"
node "node" { cores = 2 }
workload "generated" {
  jobs         = 10
  median_cpu_s = 200
  sigma        = 1
  spread       = 0.5
}`
	s, err := scenario.Parse("example.hcl", []byte(text), scenario.Changes{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var runs []metrics.Run
	for _, policy := range []string{"none", "fsp"} {
		v, err := sim.Find(policy, s)
		if err != nil {
			fmt.Println(err)
			return
		}
		run, err := sim.Run(context.Background(), sim.Config{Scenario: s, Variant: v, Seed: 1})
		if err != nil {
			fmt.Println(err)
			return
		}
		runs = append(runs, run)
	}
	ratios, err := metrics.Ratios(runs, "none", "fsp")
	if err != nil {
		fmt.Println(err)
		return
	}
	sum := 0.0
	for _, r := range ratios {
		sum += r
	}
	fmt.Printf("%d jobs take %.0f %% of their time under plain Nomad, the worst %.0f %%\n", len(ratios), 100*sum/float64(len(ratios)), 100*slices.Max(ratios))
	// Output:
	// 10 jobs take 69 % of their time under plain Nomad, the worst 100 %
}
