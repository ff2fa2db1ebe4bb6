// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
)

// growing is the summary of a node with that many growing tasks.
func growing(tasks int, growth float64) Summary {
	return Summary{Node: status.Node{
		Tasks: tasks, Counts: map[string]int{"NL": tasks}, GrowthSum: map[string]status.Number{"NL": status.Number(growth)},
	}}
}

func TestCandidates_barred(t *testing.T) {
	s, a := small()
	a.Allocated = cluster.Resources{}
	for _, id := range []string{"c", "d", "e", "f", "g"} {
		n := *s.state.Nodes["b"]
		n.ID = id
		s.state.Nodes[id] = &n
	}
	nodes := map[string]Summary{"a": growing(1, 0.1)}
	for i, id := range []string{"b", "c", "d", "e", "f", "g"} {
		nodes[id] = growing(1, 0.2+0.1*float64(i))
	}
	j := s.state.Jobs[a.Job]
	best := func(own string) string {
		now := s.snap()
		now.summaries = nodes
		return placement.Choose(now.candidates(j, j.Groups["train"], a.Allocated, own, []reading{{alloc: a, status: status.Status{Growth: 0.15}}}, now.nodeLoads()), placement.DefaultParams()).Node
	}
	must.Eq(t, "a", best(""))
	for _, id := range []string{"b", "c", "d", "e", "f"} {
		s.reject(a.Job, best(""))
		if id != "f" {
			must.Eq(t, id, best(""))
		}
	}
	must.Eq(t, "", best(""), must.Sprint("Nomad would place it on none of the best"))
	must.Eq(t, "a", best("a"), must.Sprint("where it is it may stay"))
	s.expireRejections()
	must.MapLen(t, 1, s.rejected)
	for id := range s.rejected[a.Job] {
		s.rejected[a.Job][id] = time.Now().Add(-time.Hour)
	}
	s.expireRejections()
	must.MapEmpty(t, s.rejected)
}

// A task only moves to a node that is better by the margin, also where all others have
// converged.
func TestBetter(t *testing.T) {
	c := config.Default()
	for name, tc := range map[string]struct {
		own, other Summary
		want       bool
	}{
		"both are empty":             {Summary{}, Summary{}, false},
		"its own learns":             {growing(1, 0.1), Summary{}, true},
		"both learn alike":           {growing(1, 0.11), growing(1, 0.1), false},
		"its own learns much faster": {growing(1, 0.2), growing(1, 0.1), true},
		"its own has more that have converged": {
			Summary{Node: status.Node{Counts: map[string]int{"CL": 2}}}, Summary{Node: status.Node{Counts: map[string]int{"CL": 1}}}, true,
		},
	} {
		loads := []placement.Load{load(&cluster.Node{ID: "z", PoolCores: 4}, tc.own), load(&cluster.Node{ID: "a", PoolCores: 4}, tc.other)}
		out := placement.Choose(loads, placement.DefaultParams())
		must.Eq(t, tc.want, better(c, out, loads[0], func(string) placement.Load { return loads[1] }), must.Sprint(name))
	}
}

// A task counts on its node from the start of its move.
func TestLoads(t *testing.T) {
	s, a := small()
	j := s.state.Jobs[a.Job]
	group := j.Groups["train"]
	now := time.Now()
	a.Allocated = cluster.Resources{}
	nodes := map[string]Summary{"a": growing(2, 0.2), "b": growing(1, 0.1)}
	grow := 0.0
	pending := func(own string) map[string]int {
		out := map[string]int{}
		now := s.snap()
		now.summaries = nodes
		for _, l := range now.candidates(j, group, a.Allocated, own, []reading{{alloc: a, status: status.Status{Growth: 0.15}}}, now.nodeLoads()) {
			out[l.ID] = l.NL.Tasks*10 + l.Pending
			if l.ID == "a" {
				grow = l.NL.Growth
			}
		}
		return out
	}
	must.Eq(t, map[string]int{"a": 20, "b": 10}, pending(""))
	must.Eq(t, map[string]int{"a": 10, "b": 10}, pending(a.Node), must.Sprint("its own node counts without it"))
	must.InDelta(t, 0.05, grow, 1e-9, must.Sprint("nor its growth"))
	s.inbound["b"] = 2
	must.Eq(t, map[string]int{"a": 20, "b": 12}, pending(""))

	started := func(at time.Time, running bool) int {
		s.state.Allocs = map[string]*cluster.Alloc{"x": {ID: "x", Job: j.Key, Group: "train", Node: "b", Running: running, Started: at}}
		return s.snap().startedSince(s.state.Nodes["b"], now)
	}
	must.Eq(t, 1, started(time.Time{}, false))
	must.Eq(t, 1, started(now.Add(time.Second), true), must.Sprint("its node has not seen it yet"))
	must.Eq(t, 0, started(now.Add(-time.Second), true))
}

// Whether a task is within the placement window depends on its node's clock only.
func TestPlace_clocks(t *testing.T) {
	c := config.Default()
	c.Placement.Enabled = true
	for _, skew := range []time.Duration{-5 * time.Minute, 0, 5 * time.Minute} {
		for age, young := range map[time.Duration]bool{c.Placement.Window - time.Second: true, c.Placement.Window + time.Second: false} {
			s, a := small()
			s.nomad = says{}
			s.Reload(c)
			now := time.Now().Add(skew)
			a.Started = now.Add(-age)
			snap := s.snap()
			all := snap.newlyStarted()
			must.Len(t, 1, all)
			snap.summaries = map[string]Summary{"a": {At: now}}
			must.Eq(t, !young, len(snap.place(nil, all).placed) > 0, must.Sprint(skew, age))
		}
	}
}

func TestFind(t *testing.T) {
	c := config.Default()
	c.Placement.Enabled = true
	job := func(change func(*cluster.Job)) *cluster.Job {
		j := &cluster.Job{Key: cluster.JobKey{Namespace: "ml", ID: "vae"}, Held: true, Groups: map[string]cluster.Group{"train": {Count: 1}}}
		change(j)
		return j
	}
	s, _ := small()
	choose := func(c config.Config, j *cluster.Job, nodes map[string]Summary) (move.Place, placement.Output, error) {
		s.Reload(c)
		now := s.snap()
		now.summaries = nodes
		return now.chooseNode(j, now.nodeLoads())
	}
	find := func(c config.Config, j *cluster.Job) string {
		b, out, err := choose(c, j, nil)
		must.NoError(t, err)
		must.Eq(t, "", b.Node)
		return out.Why
	}
	off := c
	off.Placement.Enabled = false
	must.Eq(t, "placement is disabled", find(off, job(func(*cluster.Job) {})))
	must.StrContains(t, find(c, job(func(j *cluster.Job) { j.Groups["more"] = cluster.Group{} })), "it has 2 groups")
	must.StrContains(t, find(c, job(func(j *cluster.Job) { j.Groups["train"] = cluster.Group{Count: 3} })), "group train has count 3")

	_, _, err := choose(c, job(func(*cluster.Job) {}), nil)
	must.ErrorContains(t, err, "there is no summary of any node")
	b, out, err := choose(c, job(func(*cluster.Job) {}), map[string]Summary{"a": growing(1, 0.1)})
	must.NoError(t, err)
	must.Eq(t, "", b.Node)
	must.Eq(t, placement.RuleNone, out.Rule, must.Sprint("no node is feasible"))
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		s.reject(cluster.JobKey{Namespace: "ml", ID: "vae"}, id)
	}
	_, out, err = choose(c, job(func(*cluster.Job) {}), map[string]Summary{"a": growing(1, 0.1)})
	must.NoError(t, err)
	must.Eq(t, "Nomad would place it on none of the 5 best nodes", out.Why)
}

// A trainer that has not reported may not have its signal handler yet.
func TestReporting(t *testing.T) {
	a, b, c, d := &cluster.Alloc{ID: "a"}, &cluster.Alloc{ID: "b"}, &cluster.Alloc{ID: "c"}, &cluster.Alloc{ID: "d"}
	said := func(alloc string, reports int64) status.Status { return status.Status{Alloc: alloc, Reports: reports} }
	must.Eq(t, []*cluster.Alloc{a}, reporting([]reading{
		{alloc: a, task: "x", status: said("a", 1)}, {alloc: a, task: "y", status: said("a", 3)},
		{alloc: b, task: "x", status: said("b", 1)}, {alloc: b, task: "y", status: said("b", 0)},
		{alloc: c, task: "x", status: said("before", 9)},
		{alloc: d, task: "x", err: errors.New("no status")},
	}))
}
