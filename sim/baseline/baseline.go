// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package baseline has ways to divide a node's CPU for comparison in simulations: two that no
// operator would use, and one that needs unavailable information.
package baseline

import (
	"cmp"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
)

const (
	// Equal gives each of n tasks 1/n of the pool, used or not.
	Equal = "equal"
	// LAS serves the task with the least attained service (for training jobs in Tiresias, Gu et
	// al., NSDI 2019).
	LAS = "las"
	// SRPT serves the task with the shortest remaining work, which minimises mean completion on
	// one node if tasks can use all of it (Schrage 1968) and sizes are exact.
	SRPT = "srpt"
)

func Find(name string) (policy.Decider, bool) {
	decide, ok := map[string]func(policy.Snapshot) []float64{Equal: equal, LAS: las, SRPT: srpt}[name]
	if !ok {
		return policy.Decider{}, false
	}
	return policy.Decider{
		Name:  name,
		Check: policy.Snapshot.Validate,
		Decide: func(s policy.Snapshot) policy.Outcome {
			out := policy.Outcome{Tasks: make([]policy.Decision, len(s.Tasks))}
			for i, share := range decide(s) {
				limit := policy.Share(max(share, least))
				out.Tasks[i] = policy.Decision{ID: s.Tasks[i].ID, Limit: &limit, Rule: name}
			}
			return out
		},
	}, true
}

func Names() []string { return []string{Equal, LAS, SRPT} }

// least is the share of an unserved task; a limit of 0 would mean no limit.
const least = 1e-9

func equal(s policy.Snapshot) []float64 {
	out := make([]float64, len(s.Tasks))
	for i := range out {
		out[i] = 1 / float64(len(out))
	}
	return out
}

func las(s policy.Snapshot) []float64 {
	return serve(s, func(t policy.Task) float64 { return float64(t.CPUS) })
}

func srpt(s policy.Snapshot) []float64 {
	return serve(s, func(t policy.Task) float64 {
		if t.RemainingCPUS == nil {
			return 0
		}
		return float64(*t.RemainingCPUS)
	})
}

// serve gives the pool to the tasks in order, each as much as it can use.
func serve(s policy.Snapshot, by func(policy.Task) float64) []float64 {
	order := make([]int, len(s.Tasks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(by(s.Tasks[a]), by(s.Tasks[b])) })
	out := make([]float64, len(s.Tasks))
	free := 1.0
	for _, i := range order {
		most := 1.0
		if t := s.Tasks[i]; t.CapCores > 0 {
			most = min(1, float64(t.CapCores/s.PoolCores))
		}
		out[i] = min(most, free)
		free -= out[i]
	}
	return out
}
