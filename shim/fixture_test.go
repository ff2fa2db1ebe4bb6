// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/internal/optin"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/shim/stream"
)

// fixture is a leadership over a cluster that tests change.
type fixture struct {
	*leadership
	state world
}

type world struct {
	Nodes  map[string]*cluster.Node
	Jobs   map[cluster.JobKey]*cluster.Job
	Allocs map[string]*cluster.Alloc
	Runs   []cluster.Run
}

// small returns a cluster with two nodes and one movable job.
func small() (f *fixture, a *cluster.Alloc) {
	f = &fixture{leadership: New(config.Default(), nil, "me", hclog.NewNullLogger()).leadership(context.Background(), nil, store.Store{}, func() error { return nil })}
	f.planner.surveyor.nomad = noFiles{}
	node := func(id string) *cluster.Node {
		return &cluster.Node{
			ID: id, Name: "node-" + id, Datacenter: "dc1", Pool: "default", Schedulable: true, Drivers: map[string]bool{"ebbtide": true},
			PoolCores: 4, Capacity: cluster.Resources{MHz: 1000, MemoryMB: 1000, DiskMB: 1000},
		}
	}
	key := cluster.JobKey{Namespace: "ml", ID: "vae"}
	a = &cluster.Alloc{ID: "alloc", Job: key, Group: "train", Node: "a", Running: true, Allocated: cluster.Resources{MHz: 600, MemoryMB: 100}}
	f.state = world{
		Nodes: map[string]*cluster.Node{"a": node("a"), "b": node("b")},
		Jobs: map[cluster.JobKey]*cluster.Job{key: {
			Key: key, Migrates: optin.All(), Datacenters: []string{"dc*"}, Pool: "default",
			Groups: map[string]cluster.Group{"train": {Count: 1, Movable: true, Tasks: []string{"train"}, Drivers: []string{"ebbtide"}}},
		}},
		Allocs: map[string]*cluster.Alloc{a.ID: a},
	}
	return f, a
}

// noFiles is a Nomad without status files.
type noFiles struct{ statuses }

func (noFiles) StatusFiles(context.Context, *api.Allocation) ([]string, error) { return nil, nil }

// listed makes the store's cluster the fixture's.
func (f *fixture) listed() cluster.Snapshot {
	f.cluster.Replace(cluster.Listing{
		Nodes: slices.Collect(maps.Values(f.state.Nodes)), Jobs: slices.Collect(maps.Values(f.state.Jobs)), Allocs: slices.Collect(maps.Values(f.state.Allocs)), Runs: f.state.Runs,
	})
	state, _ := f.cluster.Snapshot()
	return state
}

// snap is a pass's snapshot.
func (f *fixture) snap() *snapshot { return f.snapshot(f.now(), f.listed()) }

// decide runs a pass to its end.
func (f *fixture) decide(c config.Config) {
	state := f.listed()
	f.forget(state)
	f.passed(f.planner.pass(f.leading, f.snapshot(c, state), func(p plan) { f.carryOut(c, p) }))
	f.drain()
}

// complete has an allocation complete.
func (f *fixture) complete(a *cluster.Alloc) {
	f.listed()
	text := fmt.Sprintf(`{"Allocation": {"ID": %q, "Namespace": %q, "JobID": %q, "ClientStatus": "complete", "DesiredStatus": "run", "ModifyIndex": 1000}}`, a.ID, a.Job.Namespace, a.Job.ID)
	if _, err := f.cluster.Apply(stream.Event{Topic: api.TopicAllocation, Index: 1000, Payload: []byte(text)}); err != nil {
		panic(err)
	}
}

// moveTo is a plan that moves an allocation.
func moveTo(a *cluster.Alloc, to string, e store.Entry) plan {
	return plan{proposals: []proposal{{do: moveTask, alloc: a, to: to, entry: e}}}
}
