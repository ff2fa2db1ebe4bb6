// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/store"
)

// large is a cluster with one training job per node, and its summaries.
func large(nodes int) (cluster.Snapshot, map[string]Summary) {
	l := cluster.Listing{}
	says := make(map[string]Summary, nodes)
	for i := range nodes {
		id := fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)
		key := cluster.JobKey{Namespace: "ml", ID: fmt.Sprintf("train-%d", i)}
		l.Nodes = append(l.Nodes, &cluster.Node{
			ID: id, Name: fmt.Sprintf("node-%d", i), Datacenter: "dc1", Pool: "default", Schedulable: true,
			Drivers: map[string]bool{"ebbtide": true, "docker": true, "exec": true}, PoolCores: float64(8 + i%8),
			Capacity: cluster.Resources{MHz: 1000, MemoryMB: 1000, DiskMB: 1000},
		})
		l.Jobs = append(l.Jobs, &cluster.Job{
			Key: key, Datacenters: []string{"dc*"}, Pool: "default",
			Groups: map[string]cluster.Group{"train": {Count: 1, Movable: true, Drivers: []string{"ebbtide"}}},
		})
		l.Allocs = append(l.Allocs, &cluster.Alloc{
			ID: fmt.Sprint("alloc-", i), Job: key, Group: "train", Node: id, Running: true, Allocated: cluster.Resources{MHz: 400, MemoryMB: 100},
		})
		says[id] = Summary{Node: status.Node{Tasks: 3, Counts: map[string]int{"NL": 2, "CL": 1}, GrowthSum: map[string]status.Number{"NL": status.Number(1 + i%100), "CL": 0.1}}}
	}
	model := cluster.NewStore()
	model.Replace(l)
	state, _ := model.Snapshot()
	return state, says
}

func TestPreview(t *testing.T) {
	state, says := large(20)
	now := time.Now()
	jobs := make(map[cluster.JobKey]store.Job)
	for j := range state.Jobs() {
		jobs[j.Key] = store.Job{Marked: now.Add(-time.Minute)}
	}
	p := NewPreview(nil, state, jobs)
	a := state.Alloc("alloc-7")
	out, entry := p.Placing(config.Default(), says)(a)
	must.MapLen(t, 20, out.Scores)
	must.Eq(t, placement.RuleLeast, out.Rule)
	must.Eq(t, "node-7", entry.From)
	must.Eq(t, state.Node(out.Node).Name, entry.To)
	must.StrContains(t, entry.Why, entry.To+" has the lowest S of 20")
	must.StrContains(t, entry.Scores, `"node-19":`)

	moves, err := p.Rebalance(now, says)
	must.NoError(t, err)
	must.SliceEmpty(t, moves.Moves)
	must.StrContains(t, moves.Why, "60 tasks on 20 nodes", must.Sprint("those that may not move count, too"))
	_, err = p.Rebalance(now.Add(-time.Hour), says) // marks in the future count as now
	must.NoError(t, err)
}

// The cost of one decision: see docs/evaluation.md.
func BenchmarkPreview_Placing(b *testing.B) {
	state, says := large(10_000)
	p := NewPreview(nil, state, nil)
	place, a := p.Placing(config.Default(), says), state.Alloc("alloc-7")
	b.ReportAllocs()
	for b.Loop() {
		place(a)
	}
}

// The cost of a pass over a cluster in which nothing is to be decided: see docs/evaluation.md.
func BenchmarkPass(b *testing.B) {
	s, _ := small()
	state, _ := large(30_000)
	b.ReportAllocs()
	for b.Loop() {
		s.planner.pass(b.Context(), s.snapshot(config.Default(), state), func(plan) {})
	}
}
