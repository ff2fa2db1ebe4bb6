// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package twin

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func known(x policy.CPUSeconds) *policy.CPUSeconds { return &x }

func TestAdvance(t *testing.T) {
	tasks := []policy.Task{
		{ID: "short", Entitlement: 1, RemainingCPUS: known(10)},
		{ID: "double", Entitlement: 2, RemainingCPUS: known(100)},
		{ID: "unknown", Entitlement: 1},
		{ID: "ghost", Entitlement: 1, CPUS: 30, FairCPUS: 20, Ended: true},
		{ID: "late", Entitlement: 9, CPUS: 5, FairCPUS: 6, RemainingCPUS: known(1)},
		{ID: "api", Entitlement: 9, Kind: policy.Service},
	}
	fair := func() (out []policy.CPUSeconds) {
		for _, t := range tasks {
			out = append(out, t.FairCPUS)
		}
		return out
	}
	Advance(tasks, 5, 5)
	must.Eq(t, []policy.CPUSeconds{5, 10, 5, 25, 6, 0}, fair())
	// Short and ghost end after another 5 s; then double and unknown share 5 cores.
	Advance(tasks, 5, 8)
	must.Eq(t, []policy.CPUSeconds{10, 30, 15, 30, 6, 0}, fair())
	must.Zero(t, Left(tasks[3]))
	must.Eq(t, 70, Left(tasks[1]))
	must.InDelta(t, 21, Due(tasks, 1, 5), 1e-9) // 70 at 2/3 of 5
	must.True(t, math.IsInf(Due(tasks, 2, 5), 1))
	must.Zero(t, Due(tasks, 4, 5))
	must.Eq(t, 30, tasks[1].FairCPUS, must.Sprint("Due looks only"))

	Advance(tasks, 0, 5)
	Advance(tasks, 5, 0)
	must.True(t, math.IsInf(Due(tasks, 1, 0), 1))
	must.Eq(t, []policy.CPUSeconds{10, 30, 15, 30, 6, 0}, fair())
}

func TestAdvance_cap(t *testing.T) {
	tasks := []policy.Task{{ID: "a", Entitlement: 1, CapCores: 1}, {ID: "b", Entitlement: 1}}
	Advance(tasks, 4, 10)
	must.Eq(t, 10, tasks[0].FairCPUS)
	must.Eq(t, 30, tasks[1].FairCPUS)
}

// The result is independent of the steps; twins get all CPU, but no more than their
// size.
func TestAdvance_cut(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		tasks := make([]policy.Task, 1+rnd.IntN(8))
		size := 0.0
		for i := range tasks {
			tasks[i] = policy.Task{Entitlement: 0.1 + rnd.Float64(), CPUS: policy.CPUSeconds(10 * rnd.Float64()), Ended: rnd.IntN(3) == 0}
			if !tasks[i].Ended {
				tasks[i].RemainingCPUS = known(policy.CPUSeconds(100 * rnd.Float64()))
			}
			size += float64(Left(tasks[i]))
		}
		parts := append([]policy.Task(nil), tasks...)
		seconds := 40 * rnd.Float64()
		Advance(tasks, 3, seconds)
		for range 16 {
			Advance(parts, 3, seconds/16)
		}
		got := 0.0
		for i := range tasks {
			must.InDelta(t, float64(tasks[i].FairCPUS), float64(parts[i].FairCPUS), 1e-6)
			got += float64(tasks[i].FairCPUS)
		}
		must.InDelta(t, min(3*seconds, size), got, 1e-6)
	}
}
