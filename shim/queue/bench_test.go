// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shoenig/test/must"
)

// A full cluster of 10,000 nodes of eight GPUs, 40 owners and 5,000 waiting jobs.
func BenchmarkDecide(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	in := Input{NowS: 1e6, Params: DefaultParams()}
	add := func(gpus float64, node string) {
		left := 36_000 * r.ExpFloat64()
		served := 36_000 * r.ExpFloat64()
		in.Jobs = append(in.Jobs, Job{
			ID: fmt.Sprint("job-", len(in.Jobs)), Owner: fmt.Sprint("owner-", r.IntN(40)), Needs: Resources{"gpu": gpus, "memory": 32_000 * gpus}, SubmittedS: 1e6 * r.Float64(),
			Node: node, SinceS: 9e5, ServedS: served, FairS: served * 2 * r.Float64(), RemainingS: &left, Suspendable: true,
		})
		if r.IntN(4) == 0 {
			in.Jobs[len(in.Jobs)-1].RemainingS = nil
		}
	}
	for i := range 10_000 {
		id := fmt.Sprint("node-", i)
		in.Nodes = append(in.Nodes, Node{ID: id, Capacity: Resources{"gpu": 8, "memory": 512_000}})
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
	b.ReportMetric(float64(len(in.Jobs)), "jobs")
	for b.Loop() {
		Decide(in)
	}
}
