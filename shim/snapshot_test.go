// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
)

func TestGroup(t *testing.T) {
	group := func(change func(*fixture, *cluster.Alloc, *cluster.Group)) bool {
		s, a := small()
		g := s.state.Jobs[a.Job].Groups["train"]
		change(s, a, &g)
		if j := s.state.Jobs[a.Job]; j != nil {
			j.Groups["train"] = g
		}
		_, ok := s.snap().group(a, policies.Relocate)
		return ok
	}
	must.True(t, group(func(*fixture, *cluster.Alloc, *cluster.Group) {}))
	for name, change := range map[string]func(*fixture, *cluster.Alloc, *cluster.Group){
		"no job":     func(s *fixture, a *cluster.Alloc, _ *cluster.Group) { delete(s.state.Jobs, a.Job) },
		"stopped":    func(s *fixture, a *cluster.Alloc, _ *cluster.Group) { s.state.Jobs[a.Job].Stopped = true },
		"dispatched": func(s *fixture, a *cluster.Alloc, _ *cluster.Group) { s.state.Jobs[a.Job].Child = true },
		"stops":      func(_ *fixture, a *cluster.Alloc, _ *cluster.Group) { a.Stopping = true },
		"pending":    func(_ *fixture, a *cluster.Alloc, _ *cluster.Group) { a.Running = false },
		"count":      func(_ *fixture, _ *cluster.Alloc, g *cluster.Group) { g.Count = 2 },
		"immovable":  func(_ *fixture, _ *cluster.Alloc, g *cluster.Group) { g.Movable = false },
		"by another": func(s *fixture, a *cluster.Alloc, _ *cluster.Group) {
			s.state.Jobs[a.Job].Migrates = []string{policies.FlowConPlace}
		},
	} {
		must.False(t, group(change), must.Sprint(name))
	}
}

func TestFeasible(t *testing.T) {
	feasible := func(change func(*fixture, *cluster.Node)) bool {
		s, a := small()
		n := s.state.Nodes["b"]
		change(s, n)
		j := s.state.Jobs[a.Job]
		now := s.snap()
		return now.feasible(now.Node("b"), j, j.Groups["train"], a.Allocated)
	}
	must.True(t, feasible(func(*fixture, *cluster.Node) {}))
	for name, change := range map[string]func(*fixture, *cluster.Node){
		"ineligible": func(_ *fixture, n *cluster.Node) { n.Schedulable = false },
		"no Ebbtide": func(_ *fixture, n *cluster.Node) { n.PoolCores = 0 },
		"driver":     func(_ *fixture, n *cluster.Node) { n.Drivers = map[string]bool{"exec": true} },
		"datacenter": func(_ *fixture, n *cluster.Node) { n.Datacenter = "eu1" },
		"pool":       func(_ *fixture, n *cluster.Node) { n.Pool = "gpu" },
		"no room":    func(_ *fixture, n *cluster.Node) { n.Capacity.MHz = 599 },
	} {
		must.False(t, feasible(change), must.Sprint(name))
	}
	s, a := small()
	s.state.Jobs[a.Job].Pool = "all"
	s.state.Nodes["b"].Pool = "gpu"
	must.True(t, s.snap().feasible(s.state.Nodes["b"], s.state.Jobs[a.Job], s.state.Jobs[a.Job].Groups["train"], a.Allocated))
	must.False(t, s.snap().feasible(nil, s.state.Jobs[a.Job], cluster.Group{}, a.Allocated), must.Sprint("it is gone"))
}

func TestLoad(t *testing.T) {
	l := load(&cluster.Node{ID: "a", PoolCores: 4}, Summary{Node: status.Node{
		Counts:    map[string]int{"": 1, "NL": 2, "WL": 1, "CL": 3},
		GrowthSum: map[string]status.Number{"NL": 0.5, "CL": 0.01, "WL": status.Unknown()},
	}})
	must.Eq(t, placement.Load{
		ID: "a", PoolCores: 4, NL: placement.Group{Tasks: 3, Measured: 3, Growth: 0.5}, WL: placement.Group{Tasks: 1}, CL: placement.Group{Tasks: 3, Measured: 3, Growth: 0.01},
	}, l)
}

func TestReadable(t *testing.T) {
	s, _ := small()
	s.state.Nodes["0000-1111"] = &cluster.Node{ID: "0000-1111", Name: "one"}
	delete(s.state.Nodes, "a") // a one-letter name occurs in every sentence
	delete(s.state.Nodes, "b")
	must.Eq(t, "one has the lowest score", s.snap().readable("0000-1111 has the lowest score"))
	must.Eq(t, "one", s.snap().name("0000-1111"))
	must.Eq(t, "unknown", s.snap().name("unknown"))
	must.Eq(t, `{"a":1}`, text(map[string]float64{"a": 1}))
	must.Eq(t, 12.5, seconds(time.Unix(12, 500_000_000)))
}
