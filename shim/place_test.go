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
	"github.com/ebbtide/ebbtide/shim/placement"
)

// growing is how a node does with so many tasks that learn.
func growing(tasks int, growth float64) Summary {
	return Summary{Node: status.Node{
		Tasks: tasks, Counts: map[string]int{"NL": tasks}, GrowthSum: map[string]status.Number{"NL": status.Number(growth)},
	}}
}

func TestChoose(t *testing.T) {
	loads := func() []placement.Load {
		return []placement.Load{
			load(&cluster.Node{ID: "a", PoolCores: 4}, growing(1, 0.1)),
			load(&cluster.Node{ID: "b", PoolCores: 4}, growing(1, 0.2)),
			load(&cluster.Node{ID: "c", PoolCores: 4}, growing(1, 0.3)),
		}
	}
	var asked []string
	ask := func(accept ...string) (placement.Output, error) {
		asked = nil
		return choose(config.Default(), loads(), func(out placement.Output) (bool, error) {
			asked = append(asked, out.Node)
			for _, id := range accept {
				if id == out.Node {
					return true, nil
				}
			}
			return false, nil
		})
	}
	out, err := ask("b", "c")
	must.NoError(t, err)
	must.Eq(t, "b", out.Node)
	must.Eq(t, []string{"a", "b"}, asked)
	out, err = ask()
	must.NoError(t, err)
	must.Eq(t, "", out.Node)
	must.Eq(t, placement.RuleNone, out.Rule)
	must.Eq(t, []string{"a", "b", "c"}, asked)

	broken := errors.New("no leader")
	_, err = choose(config.Default(), loads(), func(placement.Output) (bool, error) { return false, broken })
	must.ErrorIs(t, err, broken)
}

// A task leaves its node only for one that is better by the margin, also where all others
// have converged.
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

// A task counts on its node from the moment in which it was sent there.
func TestLoads(t *testing.T) {
	s, a := small()
	j := s.state.Jobs[a.Job]
	group := j.Groups["train"]
	now := time.Now()
	s.inbound = map[string]int{}
	nodes := map[string]Summary{"a": growing(2, 0.2), "b": growing(1, 0.1)}
	pending := func(own string) map[string]int {
		out := map[string]int{}
		for _, l := range s.candidates(j, group, a.Uses, own, s.loads(nodes)) {
			out[l.ID] = l.NL.Tasks*10 + l.Pending
		}
		return out
	}
	// small has put it into the list of allocations only.
	must.Eq(t, map[string]int{"a": 20, "b": 10}, pending(""))
	must.Eq(t, map[string]int{"a": 10, "b": 10}, pending(a.Node), must.Sprint("its own node counts without it"))
	s.inbound["b"] = 2
	must.Eq(t, map[string]int{"a": 20, "b": 12}, pending(""))

	started := func(at time.Time, running bool) int {
		s.state = cluster.New()
		s.state.Nodes["b"] = &cluster.Node{ID: "b", Drivers: map[string]bool{"ebbtide": true}}
		s.state.Jobs[j.Key] = j
		var l cluster.Listing
		l.Allocs = []*cluster.Alloc{{ID: "x", Job: j.Key, Group: "train", Node: "b"}}
		s.state.Replace(l)
		s.state.Jobs[j.Key] = j
		x := s.state.Allocs["x"]
		x.Running, x.Started = running, at
		s.inbound = map[string]int{}
		return s.begun(&cluster.Node{ID: "b", Drivers: map[string]bool{"ebbtide": true}}, now)
	}
	must.Eq(t, 1, started(time.Time{}, false))
	must.Eq(t, 1, started(now.Add(time.Second), true), must.Sprint("its node has not seen it yet"))
	must.Eq(t, 0, started(now.Add(-time.Second), true))
}

// For whom no node is looked for, and why.
func TestFind(t *testing.T) {
	c := config.Default()
	c.Placement.Enabled = true
	job := func(change func(*cluster.Job)) *cluster.Job {
		j := &cluster.Job{Key: cluster.JobKey{Namespace: "ml", ID: "vae"}, Groups: map[string]cluster.Group{"train": {Count: 1, Held: true}}}
		change(j)
		return j
	}
	s := &term{state: cluster.New()}
	none := func() map[string]Summary { return nil }
	find := func(c config.Config, j *cluster.Job) string {
		b, out, err := s.find(t.Context(), c, j, none)
		must.NoError(t, err)
		must.Eq(t, "", b.Node)
		return out.Why
	}
	off := c
	off.Placement.Enabled = false
	must.Eq(t, "placement is off", find(off, job(func(*cluster.Job) {})))
	must.StrContains(t, find(c, job(func(j *cluster.Job) { j.Groups["more"] = cluster.Group{} })), "it has 2 groups")
	must.StrContains(t, find(c, job(func(j *cluster.Job) { j.Groups["train"] = cluster.Group{Count: 3} })), "group train has a count of 3")

	_, _, err := s.find(t.Context(), c, job(func(*cluster.Job) {}), none)
	must.ErrorContains(t, err, "nothing is known of any node")
	busy := func() map[string]Summary { return map[string]Summary{"a": growing(1, 0.1)} }
	b, out, err := s.find(t.Context(), c, job(func(*cluster.Job) {}), busy)
	must.NoError(t, err)
	must.Eq(t, "", b.Node)
	must.Eq(t, placement.RuleNone, out.Rule, must.Sprint("no node is feasible"))

	must.True(t, waits(job(func(*cluster.Job) {})))
	must.False(t, waits(job(func(j *cluster.Job) { j.Groups["train"] = cluster.Group{} })))
}
