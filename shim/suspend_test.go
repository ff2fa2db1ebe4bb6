// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
)

// reported is a Nomad whose tasks have reported.
type reported struct {
	plans
	reports int64
}

func (r reported) Status(_ context.Context, a *api.Allocation, _ string) (status.Status, error) {
	return status.Status{Alloc: a.ID, Reports: r.reports, Fair: status.NoFair()}, nil
}

// yielding has a long job that has run for an hour on the only node, and a short one that waits.
func yielding(change func(*cluster.Job)) (s *fixture, long, short cluster.JobKey) {
	s = queueing()
	s.nomad = reported{reports: 1}
	long = s.submit("long", 10*time.Hour, func(j *cluster.Job) {
		j.Held, j.Type = false, api.JobTypeBatch
		g := j.Groups["g"]
		g.Movable = true
		j.Groups["g"] = g
		change(j)
	})
	short = s.submit("short", time.Minute, nil)
	s.state.Allocs["run"] = &cluster.Alloc{ID: "run", Job: long, Group: "g", Node: "a", Running: true, Started: time.Now().Add(-time.Hour), Allocated: cluster.Resources{MHz: 600}}
	return s, long, short
}

func TestSuspend(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	const suspended = "would be suspended: job ml/short is before it"
	asIs := func(*cluster.Job) {}
	s, long, short := yielding(asIs)
	s.decide(c)
	must.Eq(t, suspended, s.latest[long].text)
	must.StrContains(t, s.latest[short].text, "1 suspended for it")

	for name, change := range map[string]func(*fixture, *cluster.Job){
		"without a checkpoint": func(_ *fixture, j *cluster.Job) { g := j.Groups["g"]; g.Movable = false; j.Groups["g"] = g },
		"service":              func(_ *fixture, j *cluster.Job) { j.Type = api.JobTypeService },
		"two tasks":            func(_ *fixture, j *cluster.Job) { g := j.Groups["g"]; g.Tasks = []string{"a", "b"}; j.Groups["g"] = g },
		"no report yet":        func(s *fixture, _ *cluster.Job) { s.nomad = reported{} },
		"paused":               func(s *fixture, _ *cluster.Job) { s.pause = &store.Pause{} },
		"just begun":           func(s *fixture, _ *cluster.Job) { s.state.Allocs["run"].Started = time.Now() },
	} {
		s, long, short := yielding(asIs)
		change(s, s.state.Jobs[long])
		s.decide(c)
		must.Eq(t, "", s.latest[long].text, must.Sprint(name))
		must.StrContains(t, s.latest[short].text, "no place is free", must.Sprint(name))
	}
}

// One that Nomad is stopping is not suspended as well, although it has reported.
func TestSuspend_stopping(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	s, long, short := yielding(func(*cluster.Job) {})
	s.decide(c)
	must.StrContains(t, s.latest[long].text, "would be suspended")
	delete(s.latest, long)
	stopping := *s.state.Allocs["run"]
	stopping.Stopping = true
	s.state.Allocs["run"] = &stopping
	s.decide(c)
	must.Eq(t, "", s.latest[long].text)
	must.StrContains(t, s.latest[short].text, "a place is about to be free")
}

// While one is being suspended, no second one is for the same job, even if it is the last in the
// order by now.
func TestSuspend_once(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	s, long, short := yielding(func(*cluster.Job) {})
	s.decide(c)
	must.StrContains(t, s.latest[long].text, "would be suspended")
	node := *s.state.Nodes["a"]
	node.ID, node.Name = "b", "node-b"
	s.state.Nodes["b"] = &node
	last := s.submit("last", 20*time.Hour, nil)
	*s.state.Jobs[last] = *s.state.Jobs[long]
	s.state.Jobs[last].Key, s.state.Jobs[last].Duration = last, 20*time.Hour
	run := *s.state.Allocs["run"]
	run.ID, run.Job, run.Node = "last", last, "b"
	s.state.Allocs["last"] = &run
	s.decide(c)
	must.StrContains(t, s.latest[last].text, "would be suspended")

	delete(s.latest, last)
	s.busy[long], s.planner.queuer.jobs[long].asked = true, "run"
	s.decide(c)
	must.Eq(t, "", s.latest[last].text)
	must.StrContains(t, s.latest[short].text, "a place is about to be free")

	delete(s.busy, long) // it has failed
	s.decide(c)
	must.StrContains(t, s.latest[last].text, "would be suspended")
}

// Each running job's turn to be heard comes, and what it said holds for some minutes.
func TestSuspend_many(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	const suspended = "would be suspended: job ml/short is before it"
	s, long, _ := yielding(func(*cluster.Job) {})
	var read []int
	for i := range 2*maxStatuses + 1 { // before it, on nodes that are not eligible
		key := s.submit(fmt.Sprint("a-", i), time.Hour, func(j *cluster.Job) { j.Held = false })
		s.state.Allocs[key.ID] = &cluster.Alloc{ID: key.ID, Job: key, Group: "g", Node: "elsewhere", Running: true, Allocated: cluster.Resources{MHz: 1}}
	}
	for range 3 {
		must.Eq(t, "", s.latest[long].text)
		s.decide(c)
		n := 0
		for _, k := range s.planner.queuer.jobs {
			if k.reports {
				n++
			}
		}
		read = append(read, n)
	}
	must.Eq(t, []int{maxStatuses, 2 * maxStatuses, 2*maxStatuses + 2}, read)
	must.Eq(t, suspended, s.latest[long].text)

	s.nomad = reported{reports: 0} // until all have been read anew
	for range 4 {
		delete(s.latest, long)
		s.decide(c)
	}
	must.Eq(t, "", s.latest[long].text)
	k := s.planner.queuer.jobs[long]
	k.Suspendable, k.reports, k.left = true, true, 600
	k.apply(k.heard.Add(time.Minute))
	must.Eq(t, []any{true, 540.0}, []any{k.Suspendable, *k.RemainingS})
	k.RemainingS = nil
	k.apply(k.heard.Add(maxHeard))
	must.False(t, k.Suspendable)
	must.Nil(t, k.RemainingS)
}

// An operator's stop needs no other job.
func TestSuspend_stop(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	s, long, short := yielding(func(*cluster.Job) {})
	delete(s.state.Jobs, short)
	s.orders.Jobs = map[string]store.Order{"ml/long": ordered(store.DoStop)}
	s.decide(c)
	must.Eq(t, "would be suspended: stopped "+since, s.latest[long].text)
	delete(s.latest, long)
	s.nomad, s.state.Nodes["a"].Schedulable = reported{}, false
	s.decide(c)
	must.Eq(t, "", s.latest[long].text, must.Sprint("no report yet"))
	s.state.Jobs[long].Held = true
	delete(s.state.Allocs, "run")
	s.decide(c)
	must.StrContains(t, s.latest[long].text, "on hold "+since)
}

// A suspended job waits for its node with what it had been served, unless that is gone.
func TestSuspend_waits(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	left := 1800.0
	s := queueing()
	other := *s.state.Nodes["a"]
	other.ID, other.Name = "b", "node-b"
	s.state.Nodes["b"] = &other
	key := s.submit("job", time.Hour, func(j *cluster.Job) {
		g := j.Groups["g"]
		g.Bound, g.Node, g.Adopts = true, "a", "old"
		j.Groups["g"] = g
	})
	s.writer.jobs[key] = store.Job{Served: &store.Served{S: 600, FairS: 300, RemainingS: &left, Tasks: []move.Task{{Name: "train", Saved: 42}}}}
	s.state.Nodes["a"].Schedulable = false
	s.decide(c)
	k := s.planner.queuer.jobs[key]
	must.Eq(t, []float64{600, 1800}, []float64{k.ServedS, *k.RemainingS})
	must.GreaterEq(t, 300, k.FairS)
	must.StrContains(t, s.latest[key].text, "suspended at step 42: waits for node node-a, which has its checkpoint")

	s.state.Nodes["a"].Schedulable = true
	s.decide(c)
	must.StrContains(t, s.latest[key].text, "would be placed: number 1 of the queue")
	must.True(t, s.planner.queuer.jobs[key].Local)
	s.state.Nodes["a"].Schedulable = false
	g := s.state.Jobs[key].Groups["g"]
	g.Shared = true
	s.state.Jobs[key].Groups["g"] = g
	s.decide(c)
	must.StrContains(t, s.latest[key].text, "would be placed", must.Sprint("its checkpoint is everywhere"))
	must.False(t, s.planner.queuer.jobs[key].Local)

	g.Shared = false
	s.state.Jobs[key].Groups["g"] = g
	delete(s.latest, key)
	again := s.submit("again", time.Hour, nil) // the user's file does not have the binding
	s.writer.jobs[again] = store.Job{CostS: 5, Served: &store.Served{S: 600}}
	s.decide(c)
	must.Eq(t, store.Job{CostS: 5}, s.writer.jobs[again])
	must.Zero(t, s.planner.queuer.jobs[again].ServedS)
	delete(s.state.Nodes, "a")
	s.decide(c)
	must.StrContains(t, s.latest[key].text, "would be placed", must.Sprint("its node has left the cluster"))
}

// A job that can be suspended has its first tenth before another's end.
func TestSuspend_beginning(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	s := queueing()
	left := 600.0
	begun := s.submit("begun", 0, func(j *cluster.Job) {
		g := j.Groups["g"]
		g.Bound, g.Node, g.Adopts = true, "a", "old"
		j.Groups["g"] = g
	})
	s.writer.jobs[begun] = store.Job{Served: &store.Served{S: 300, FairS: 300, RemainingS: &left}}
	s.submit("new", 15*time.Minute, func(j *cluster.Job) { j.Type = api.JobTypeBatch })
	s.decide(c)
	must.Eq(t, []string{"begun", "new"}, s.names())
	g := s.state.Jobs[cluster.JobKey{Namespace: "ml", ID: "new"}].Groups
	g["g"] = cluster.Group{Count: 1, Movable: true, Tasks: g["g"].Tasks, Drivers: g["g"].Drivers, Requested: g["g"].Requested}
	s.decide(c)
	must.Eq(t, []string{"new", "begun"}, s.names())

	is := s.planner.queuer.jobs[cluster.JobKey{Namespace: "ml", ID: "new"}]
	must.True(t, is.Suspendable)
	c.DryRun = false
	s.planner.pass(s.leading, s.snapshot(c, s.listed()), func(plan) {})
	must.Eq(t, "a", is.Node)
	must.False(t, is.Suspendable, must.Sprint("it is released, and has no allocation yet"))
}

// A job that went on needs what it said before, less what it has had since, until it says more.
func TestSuspend_left(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	s, long, _ := yielding(func(*cluster.Job) {})
	left := 7200.0
	s.writer.jobs[long] = store.Job{Served: &store.Served{S: 600, RemainingS: &left}}
	s.decide(c)
	k := s.planner.queuer.jobs[long]
	must.InDelta(t, 4200, k.ServedS, 1)
	must.InDelta(t, 3600, *k.RemainingS, 1)
	left = 3000
	s.decide(c)
	must.InDelta(t, 10*3600-4200, *k.RemainingS, 1, must.Sprint("it was wrong"))
}

// The cost of an interruption is what saving and resuming took.
func TestSuspend_resumed(t *testing.T) {
	s, long, _ := yielding(func(*cluster.Job) {})
	s.resumed(long, time.Minute, nil) // not suspended by this shim's memory
	must.Zero(t, s.writer.jobs[long].CostS)
	s.writer.jobs[long] = store.Job{Served: &store.Served{S: 600, SaveS: 2.5}}
	s.resumed(long, time.Minute, errors.New("lost"))
	must.Zero(t, s.writer.jobs[long].CostS)
	s.resumed(long, time.Minute, nil)
	must.Eq(t, 62.5, s.writer.jobs[long].CostS)
	must.Eq(t, 600, servedBefore(s.writer.jobs[long]))
	s.resumed(long, time.Minute, move.ErrNotResumed)
	must.Zero(t, servedBefore(s.writer.jobs[long]))
}
