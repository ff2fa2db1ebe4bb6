// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// A full cluster of 10,000 nodes of eight GPUs, 40 owners and 5,000 waiting jobs. Alike, jobs need the
// same as others, and all cost the same to suspend; different, each has its own amounts, and half may
// run on a part of the nodes only.
func BenchmarkDecide(b *testing.B) {
	b.Run("alike", func(b *testing.B) { benchmarkDecide(b, false) })
	b.Run("different", func(b *testing.B) { benchmarkDecide(b, true) })
}

func benchmarkDecide(b *testing.B, different bool) {
	r := rand.New(rand.NewPCG(1, 2))
	in := Input{NowS: 1e6, Params: DefaultParams()}
	var some []string
	add := func(gpus float64, node string) {
		left := 36_000 * r.ExpFloat64()
		served := 36_000 * r.ExpFloat64()
		j := Job{
			ID: fmt.Sprint("job-", len(in.Jobs)), Owner: fmt.Sprint("owner-", r.IntN(40)), Needs: Resources{"gpu": gpus, "memory": 32_000 * gpus}, SubmittedS: 1e6 * r.Float64(),
			Node: node, SinceS: 9e5, ServedS: served, FairS: served * 2 * r.Float64(), RemainingS: &left, Suspendable: true,
		}
		if r.IntN(4) == 0 {
			j.RemainingS = nil
		}
		if different {
			j.Needs["memory"] *= r.Float64()
			j.CostS = 120 * r.Float64()
			if node == "" && r.IntN(2) == 0 {
				j.Feasible = some
			}
		}
		in.Jobs = append(in.Jobs, j)
	}
	for i := range 10_000 {
		id := fmt.Sprint("node-", i)
		in.Nodes = append(in.Nodes, Node{ID: id, Capacity: Resources{"gpu": 8, "memory": 512_000}})
		if i%4 > 0 {
			some = append(some, id)
		}
		for left := 8.0; left > 0; {
			gpus := min(left, float64(int(1)<<r.IntN(4)))
			add(gpus, id)
			left -= gpus
		}
	}
	for range 5000 {
		add(float64(int(1)<<r.IntN(4)), "")
	}
	must.NoError(b, in.Validate())
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		from := time.Now()
		Decide(in)
		took = append(took, time.Since(from))
	}
	slices.Sort(took)
	b.ReportMetric(float64(len(in.Jobs)), "jobs")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "p99-ms")
}
