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
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/document/documenttest"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

// queueing is small's cluster with one node, on which each job of the queue fits alone.
func queueing() *fixture {
	s, a := small()
	delete(s.state.Allocs, a.ID)
	delete(s.state.Jobs, a.Job)
	delete(s.state.Nodes, "b")
	s.nomad, s.writer.held = plans{}, func() error { return errors.New("lost") }
	return s
}

// plans is a Nomad that places every job anywhere.
type plans struct{ move.Nomad }

func (plans) Job(_ context.Context, namespace, id string) (*document.Job, error) {
	return documenttest.Parse([]byte(fmt.Sprintf(`{"Namespace":%q,"ID":%q,"Constraints":[{"LTarget":%q}],"TaskGroups":[{"Name":"g"}]}`, namespace, id, cluster.Hold))), nil
}

func (plans) Plan(context.Context, *document.Job) (*api.JobPlanResponse, error) {
	return nil, move.ErrNoPlan
}

func (plans) Status(context.Context, *api.Allocation, string) (status.Status, error) {
	return status.Status{}, errors.New("no such file")
}

func (t *fixture) submit(id string, duration time.Duration, more func(*cluster.Job)) cluster.JobKey {
	key := cluster.JobKey{Namespace: "ml", ID: id}
	t.state.Jobs[key] = &cluster.Job{
		Key: key, Held: true, Queued: true, Owner: "ml", Duration: duration, Datacenters: []string{"dc*"}, Pool: "default", Submitted: time.Now(),
		Groups: map[string]cluster.Group{"g": {Count: 1, Tasks: []string{"train"}, Drivers: []string{"ebbtide"}, Requested: cluster.Resources{MHz: 600}}},
	}
	if more != nil {
		more(t.state.Jobs[key])
	}
	return key
}

// The shortest job starts, the others wait in their order, and say why.
func TestQueuer(t *testing.T) {
	s := queueing()
	c := config.Default()
	c.DryRun = true
	long, short, unknown := s.submit("long", time.Hour, nil), s.submit("short", 10*time.Minute, nil), s.submit("unknown", 0, nil)
	s.decide(c)
	must.StrContains(t, s.latest[unknown].text, "held; would be placed: number 1 of the queue")
	must.StrContains(t, s.latest[short].text, "waits in the queue, number 2: ")
	must.StrContains(t, s.latest[long].text, "waits in the queue, number 3: ")
	var order []string
	for _, q := range s.planner.queuer.standing.first {
		order = append(order, q.Job)
		must.Eq(t, "ml", q.Owner)
	}
	must.Eq(t, []string{"unknown", "short", "long"}, order)

	// It gets its allocation, which takes the place.
	s.state.Jobs[unknown].Held = false
	s.state.Allocs["run"] = &cluster.Alloc{ID: "run", Job: unknown, Group: "g", Node: "a", Running: true, Started: time.Now().Add(-time.Hour), Allocated: cluster.Resources{MHz: 600}}
	s.decide(c)
	for _, q := range s.planner.queuer.standing.first {
		must.Eq(t, q.Job == "unknown", q.Node == "node-a", must.Sprint(q))
	}
	must.StrContains(t, s.latest[short].text, ": no place is free")
	must.Eq(t, []queue.OwnerShare{ownerShare("ml", 0.6, 1, 1, 2)}, s.planner.queuer.standing.owners)

	// It ends; the next one's turn. Its twin goes on.
	delete(s.state.Allocs, "run")
	s.decide(c)
	must.StrContains(t, s.latest[short].text, "would be placed: number 1 of the queue")
	must.True(t, s.planner.queuer.jobs[unknown].Ended)

	// A job without a guess is expected to take as long as the last time.
	s.state.Jobs[unknown].Duration = 0
	must.Nil(t, expected(s.snap(), s.state.Jobs[unknown], "g", 0))
	s.state.Runs = []cluster.Run{{Job: unknown, Group: "g", Task: "train", At: time.Now(), Took: time.Minute}}
	must.Eq(t, 45, *expected(s.snap(), s.state.Jobs[unknown], "g", 15))

	// The others are stopped.
	delete(s.state.Jobs, short)
	s.state.Jobs[long].Stopped = true
	s.planner.queuer.jobs[unknown].FairS = 1e9
	s.decide(c)
	s.decide(c)
	must.MapEmpty(t, s.planner.queuer.jobs)
	must.SliceEmpty(t, s.planner.queuer.standing.first)

	// Time without jobs is no time of the twins.
	must.True(t, s.planner.queuer.at.IsZero())
	next := s.submit("next", time.Hour, nil)
	s.decide(c)
	must.Zero(t, s.planner.queuer.jobs[next].FairS)
}

// The figures are those of all waiting jobs, and 0 once the queue is empty or disabled.
func TestQueuer_figures(t *testing.T) {
	s := queueing()
	c := config.Default()
	c.DryRun = true
	figures := func() []float64 {
		s.decide(c)
		m := s.metrics
		return []float64{testutil.ToFloat64(m.Queued), testutil.ToFloat64(m.QueuedLate), testutil.ToFloat64(m.Suspended)}
	}
	for i := range maxQueued {
		s.submit(fmt.Sprint("job-", i), time.Hour, nil)
	}
	s.submit("runs", time.Hour, func(j *cluster.Job) { j.Held = false })
	s.state.Allocs["run"] = &cluster.Alloc{ID: "run", Job: cluster.JobKey{Namespace: "ml", ID: "runs"}, Group: "g", Node: "a", Running: true, Allocated: cluster.Resources{MHz: 600}}
	suspended := s.submit("suspended", time.Hour, func(j *cluster.Job) {
		g := j.Groups["g"]
		g.Adopts, g.Node = "before", "a"
		j.Groups["g"] = g
	})
	must.Eq(t, []float64{maxQueued + 1, 0, 1}, figures())
	must.Len(t, maxQueued, s.planner.queuer.standing.first)

	s.planner.queuer.jobs[suspended].FairS = 1e9 // its twin has ended
	must.Eq(t, []float64{maxQueued + 1, 1, 1}, figures())
	s.orders.Jobs = map[string]store.Order{"ml/suspended": ordered(store.DoHold)}
	must.Eq(t, []float64{maxQueued + 1, 0, 1}, figures())

	drained := ordered(store.DoHold).Act
	s.orders.Drained = &drained
	must.Eq(t, []float64{0, 0, 0}, figures())
	s.orders.Drained = nil
	must.Eq(t, []float64{maxQueued + 1, 0, 1}, figures())
	c.Queue.Enabled = false
	must.Eq(t, []float64{0, 0, 0}, figures())
}

func ownerShare(name string, use, share float64, running, waiting int) queue.OwnerShare {
	return queue.OwnerShare{Owner: queue.Owner{Name: name, Weight: 1}, Use: use, Share: share, Running: running, Waiting: waiting}
}

// Of many owners the report has those that have or are due most, rounded. A job runs also on a node
// that is no more the queue's.
func TestQueuer_owners(t *testing.T) {
	s := queueing()
	c := config.Default()
	c.DryRun = true
	for i := range maxOwners + 5 {
		s.submit(fmt.Sprint("job-", i), time.Hour, func(j *cluster.Job) { j.Owner = fmt.Sprintf("owner-%02d", i) })
	}
	s.submit("runs", time.Hour, func(j *cluster.Job) { j.Held, j.Owner = false, "first" })
	s.state.Allocs["run"] = &cluster.Alloc{ID: "run", Job: cluster.JobKey{Namespace: "ml", ID: "runs"}, Group: "g", Node: "a", Running: true, Allocated: cluster.Resources{MHz: 600}}
	s.decide(c)
	owners := s.planner.queuer.standing.owners
	must.Len(t, maxOwners, owners)
	must.Eq(t, ownerShare("first", 0.6, 0.018, 1, 0), owners[0])
	must.Eq(t, ownerShare("owner-00", 0, 0.018, 0, 1), owners[1])

	s.state.Nodes["a"].Schedulable = false
	s.decide(c)
	owners = s.planner.queuer.standing.owners
	must.Eq(t, ownerShare("first", 0, 0, 1, 0), owners[0])
	must.Eq(t, ownerShare("owner-00", 0, 0, 0, 1), owners[1])
	c.Queue.Enabled = false
	s.decide(c)
	must.SliceEmpty(t, s.planner.queuer.standing.owners)
}

// A node whose clock is wrong by a day has served its job since the server has placed it.
func TestQueuer_clocks(t *testing.T) {
	for _, off := range []time.Duration{0, -24 * time.Hour, 24 * time.Hour} {
		s := queueing()
		key := s.submit("runs", time.Hour, func(j *cluster.Job) { j.Held = false })
		s.state.Allocs["run"] = &cluster.Alloc{
			ID: "run", Job: key, Group: "g", Node: "a", Running: true, Allocated: cluster.Resources{MHz: 600},
			Created: time.Now().Add(-10 * time.Minute), Started: time.Now().Add(off - 10*time.Minute),
		}
		s.decide(config.Default())
		is := s.planner.queuer.jobs[key]
		must.InDelta(t, 600, is.ServedS, 60)
		must.InDelta(t, 3000, *is.RemainingS, 60)
		must.InDelta(t, seconds(time.Now())-600, is.SinceS, 60)
	}
}

// What the shim cannot place waits with a reason, or is left to Nomad.
func TestQueuer_edges(t *testing.T) {
	c := config.Default()
	c.DryRun = true
	for name, tc := range map[string]struct {
		change func(*fixture, *cluster.Job)
		want   string
	}{
		"too large": {func(_ *fixture, j *cluster.Job) { j.Groups["g"] = withRequest(j, cluster.Resources{MHz: 2000}) }, "no node has what it asks for: 2000 of cpu_mhz, at most 1000"},
		"no such GPU": {func(_ *fixture, j *cluster.Job) {
			g := j.Groups["g"]
			g.Devices = map[string]int64{"nvidia/gpu": 1}
			j.Groups["g"] = g
		}, "no node has what it asks for: 1 of nvidia/gpu, at most 0"},
		"other driver": {func(s *fixture, _ *cluster.Job) { s.state.Nodes["a"].Drivers = map[string]bool{"docker": true} }, "no node has what it asks for"},
		"drains":       {func(s *fixture, _ *cluster.Job) { s.state.Nodes["a"].Schedulable = false }, "no node has what it asks for"},
		"rejected":     {func(s *fixture, j *cluster.Job) { s.reject(j.Key, "a") }, "Nomad would place it on none of the 1 nodes that were tried"},
		"count":        {func(_ *fixture, j *cluster.Job) { g := j.Groups["g"]; g.Count = 2; j.Groups["g"] = g }, "would be placed: group g has count 2"},
		"hold opened": {func(s *fixture, j *cluster.Job) { // the suspended job resumed without a shim
			g := j.Groups["g"]
			g.Node, g.Adopts = "a", "left"
			j.Groups["g"] = g
			s.state.Allocs["next"] = &cluster.Alloc{ID: "next", Job: j.Key, Group: "g", Node: "a", Running: true}
		}, "would be placed: it is already running"},
		"full": {func(s *fixture, _ *cluster.Job) {
			s.state.Allocs["other"] = &cluster.Alloc{ID: "other", Node: "a", Running: true, Allocated: cluster.Resources{MHz: 500}}
		}, "no node has what it asks for: 600 of cpu_mhz, at most 500"},
	} {
		s := queueing()
		key := s.submit("job", time.Hour, nil)
		tc.change(s, s.state.Jobs[key])
		s.decide(c)
		must.StrContains(t, s.latest[key].text, tc.want, must.Sprint(name))
	}

	s := queueing()
	key := s.submit("job", time.Hour, nil)
	s.decide(c)
	must.MapLen(t, 1, s.planner.queuer.jobs)
	c.Queue.Enabled = false
	s.decide(c)
	must.MapEmpty(t, s.planner.queuer.jobs)
	must.StrContains(t, s.latest[key].text, "placement is disabled", must.Sprint("as other held jobs"))
}

func withRequest(j *cluster.Job, r cluster.Resources) cluster.Group {
	g := j.Groups["g"]
	g.Requested = r
	return g
}

// Jobs get the GPUs that Nomad's plugin reports; an owner's weight counts.
func TestQueuer_devices(t *testing.T) {
	s := queueing()
	s.state.Nodes["a"].Devices = []cluster.Device{{Vendor: "nvidia", Type: "gpu", Name: "H100", Count: 2}}
	gpus := func(n int64, owner string) func(*cluster.Job) {
		return func(j *cluster.Job) {
			g := withRequest(j, cluster.Resources{MHz: 100})
			g.Devices = map[string]int64{"nvidia/gpu": n}
			j.Groups["g"], j.Owner = g, owner
		}
	}
	c := config.Default()
	c.DryRun = true
	c.Queue.Weights = map[string]float64{"big": 10}
	small, large := s.submit("small", time.Hour, gpus(1, "small")), s.submit("large", time.Hour, gpus(2, "big"))
	s.decide(c)
	must.StrContains(t, s.latest[large].text, "would be placed: number 1")
	must.StrContains(t, s.latest[small].text, "waits in the queue, number 2")
}

// What the configuration says of the queue is the policy's.
func TestQueuer_config(t *testing.T) {
	s := queueing()
	c := config.Default()
	c.Queue.Cost, c.Queue.Probe, c.Queue.Weights = 5*time.Second, time.Hour, map[string]float64{"vision": 2}
	s.Reload(c)
	in := s.planner.queuer.input(s.snap(), time.Now())
	must.Eq(t, 5, in.Params.CostS)
	must.Eq(t, 3600, in.Params.ProbeS)
	must.Eq(t, []queue.Owner{{Name: "vision", Weight: 2}}, in.Owners)
}

// A new leader's twins go on from what they had under the last one, but of jobs that were submitted
// again meanwhile.
func TestQueuer_leaders(t *testing.T) {
	s := queueing()
	runs := s.submit("runs", time.Hour, func(j *cluster.Job) { j.Held = false })
	s.state.Allocs["run"] = &cluster.Alloc{ID: "run", Job: runs, Group: "g", Node: "a", Running: true, Allocated: cluster.Resources{MHz: 600}}
	waits, again := s.submit("waits", time.Hour, nil), s.submit("again", time.Hour, nil)
	c := config.Default()
	s.decide(c)
	must.Len(t, 3, s.twins)
	saved := make(map[cluster.JobKey]store.Twin)
	for _, is := range s.twins {
		is.FairS = 600
		saved[is.key] = is.Twin
	}
	s.state.Jobs[runs].Submitted = time.Now().Add(time.Minute) // the shim has released it
	s.state.Jobs[again].Submitted = time.Now().Add(time.Minute)

	next := queueing()
	next.state, next.before = s.state, saved
	next.decide(c)
	want := map[cluster.JobKey]float64{runs: 600, waits: 600, again: 0}
	must.Len(t, len(want), next.twins)
	for _, is := range next.twins {
		must.Eq(t, want[is.key], is.FairS, must.Sprint(is.key))
	}
}

// Jobs wait for reserved cores as for anything else.
func TestQueuer_cores(t *testing.T) {
	s := queueing()
	s.state.Nodes["a"].Capacity.Cores = 4
	c := config.Default()
	c.DryRun = true
	asks := func(n int64) func(*cluster.Job) {
		return func(j *cluster.Job) { j.Groups["g"] = withRequest(j, cluster.Resources{Cores: n}) }
	}
	short, long, never := s.submit("short", time.Minute, asks(3)), s.submit("long", time.Hour, asks(2)), s.submit("never", time.Hour, asks(5))
	s.decide(c)
	must.StrContains(t, s.latest[short].text, "would be placed: number 1")
	must.StrContains(t, s.latest[long].text, "no place is free")
	must.StrContains(t, s.latest[never].text, "no node has what it asks for: 5 of cores, at most 4")
}
