// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package baseline holds the ways to divide a node's CPU that only a simulation needs, to
// compare the policies of package policies with: two that no operator would use, and one
// that no operator can.
package baseline

import (
	"cmp"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// The names.
const (
	// Equal gives each of n tasks an n-th of the pool, whether others use theirs or not.
	Equal = "equal"
	// LAS serves the task that has had the least CPU time (least attained service; for
	// training jobs in Tiresias, Gu et al., NSDI 2019).
	LAS = "las"
	// SRPT serves the task with the shortest remaining work: the least possible mean
	// completion on one node whose tasks can use all of it (Schrage 1968), if sizes are true.
	SRPT = "srpt"
)

// Find returns a baseline by its name.
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

// Names lists the baselines.
func Names() []string { return []string{Equal, LAS, SRPT} }

// least is the share of a task that is not served: a limit of 0 would mean none.
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

// serve gives the pool to the tasks in order, to each as much as it can use.
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
