// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/web"
)

// The loop never blocks: with a node and the store hanging, events are applied and moves
// finish.
func TestLoop_slow(t *testing.T) {
	asked, over := make(chan string, 100), make(chan struct{})
	nomad := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	s, a := small()
	s.surveyor.nomad, s.journal.store.Client = move.API{Client: client}, client
	s.claims = failing{}
	s.pauseKnown, s.operatorState.pauseReadAt = true, time.Now()
	held := *s.state.Jobs[a.Job]
	held.Key.ID = "held"
	held.Held, held.Groups = true, map[string]cluster.Group{"train": {}}
	nodes := []*cluster.Node{s.state.Nodes["a"], s.state.Nodes["b"]}
	ctx, cancel := context.WithCancel(t.Context())
	s.leading = ctx
	ended := make(chan error)
	go func() {
		ended <- s.serve(ctx, func() time.Duration { return s.now().Interval }, s.reconcile, func(string, time.Duration) {})
	}()
	must.NoError(t, s.post(ctx, func() {
		s.listed(cluster.FromListing(cluster.Listing{Nodes: nodes, Jobs: []*cluster.Job{&held}, Allocs: []*cluster.Alloc{a}}), map[cluster.JobKey]memory.Job{})
		s.journal.record(memory.Entry{Job: "vae"})
	}))
	<-asked
	<-asked // the node's status, and a write
	for range 3 {
		must.NoError(t, s.post(ctx, func() { s.state.Completed[a.Job] = true }))
	}
	cancel()
	must.ErrorIs(t, <-ended, context.Canceled)
	close(over)
	s.drain()
	must.Eq(t, 0, s.deciding)
	must.SliceEmpty(t, s.steps, must.Sprint("nothing more is decided"))
}

// A move that Nomad's plan rejects does not count against limits, and another node is tried at
// once.
func TestFinish_unwilling(t *testing.T) {
	s, a := small()
	c := config.Default()
	s.relocator.done()
	f := transfer{alloc: a, to: "b", entry: memory.Entry{Policy: policies.Relocate}, err: &move.Refused{Target: true}, end: s.gate.Begin(time.Now(), a.Job, "a", "b")}
	s.busy[a.Job], s.placer.decided[a.ID] = true, true
	s.finish(c, f)
	must.Eq(t, "", s.blocked(a, "b"))
	must.True(t, s.isRejected(a.Job, "b"))
	must.False(t, s.canTake(a, "b", policies.Relocate))
	must.MapEmpty(t, s.busy)
	must.MapEmpty(t, s.placer.decided)
	must.True(t, s.urgent)
	must.True(t, s.relocator.due(time.Hour))
	must.Eq(t, 0, s.running, must.Sprint("nothing is written down"))
	must.Eq(t, web.ReasonTarget, f.reason())

	// Up to maxAttempts.
	for range maxAttempts - 1 {
		s.relocator.done()
		s.relocator.retryNow()
	}
	must.False(t, s.relocator.due(time.Hour))
}

// A failure is retried after its back-off, a refusal is not.
func TestFinish_failed(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		marked bool
		reason string
	}{
		"moved":   {nil, true, ""},
		"refused": {&move.Refused{}, true, web.ReasonJob},
		"claimed": {move.ErrClaimed, true, web.ReasonClaimed},
		"failed":  {errors.New("no leader"), false, ""},
	} {
		s, a := small()
		s.journal.jobs, s.journal.held = make(map[cluster.JobKey]memory.Job), func() error { return errors.New("lost") }
		end := s.gate.Begin(time.Now(), a.Job, "a", "b")
		f := transfer{alloc: a, to: "b", entry: memory.Entry{Policy: policies.SpeConMigrate}, err: tc.err, end: end, result: move.Result{SaveS: 1, DownS: 2.5}}
		s.finish(config.Default(), f)
		must.Eq(t, tc.reason, f.reason())
		must.Eq(t, 5.0, s.costOf(cluster.JobKey{}, cluster.Group{}))
		if tc.err == nil {
			must.Eq(t, 3.5, s.costOf(a.Job, cluster.Group{MovesDisk: true, Requested: cluster.Resources{DiskMB: 1e6}}), must.Sprint("what this move has taken"))
		}
		s.drain()
		must.Eq(t, tc.marked, !s.journal.jobs[a.Job].Marked.IsZero(), must.Sprint(name))
		must.Eq(t, tc.err == nil, s.journal.jobs[a.Job].Failures == 0, must.Sprint(name))
		must.NotEq(t, "", s.blocked(a, "b"), must.Sprint(name))
	}
}

// A move after which the task would finish later is refused, with the figures; an unreadable
// status does not refuse it.
func TestGainCheck(t *testing.T) {
	s, a := small()
	s.nodes = map[string]Summary{"b": growing(3, 0.1)}
	now := time.Now()
	said := status.Status{Updated: now, Fair: status.Fair{RemainingCPUS: 100, Finish: now.Add(90 * time.Second)}}
	s.nomad = says{statuses: map[string]status.Status{a.ID: said}}
	must.StrContains(t, s.gainCheck(a, "b", policies.SpeConMigrate, nil)(), "it would finish in 90 s on its node, but in 105 s on the target, including 5 s for the move")
	s.nodes["b"] = growing(1, 0.1)
	must.Eq(t, "", s.gainCheck(a, "b", policies.SpeConMigrate, nil)())
	s.nomad = says{}
	must.Eq(t, "", s.gainCheck(a, "b", policies.SpeConMigrate, nil)())

	// A status that the decision has read is not read again.
	s.nodes["b"] = growing(3, 0.1)
	group, _ := s.group(a, policies.SpeConMigrate)
	known := reading{alloc: a, task: group.Tasks[0], status: said}
	must.StrContains(t, s.gainCheck(a, "b", policies.SpeConMigrate, []reading{{alloc: a, task: "other"}, known})(), "it would finish in 90 s")
	must.Eq(t, "", s.gainCheck(a, "b", policies.SpeConMigrate, []reading{{alloc: a, task: "other", status: said}})())
}

// Before a job's first move, its disk is taken to be full.
func TestCostOf(t *testing.T) {
	s, a := small()
	group := cluster.Group{Requested: cluster.Resources{DiskMB: 50_000}}
	must.Eq(t, 5, s.costOf(a.Job, group), must.Sprint("its checkpoint is on a shared volume"))
	group.MovesDisk = true
	must.Eq(t, 505, s.costOf(a.Job, group))
	s.journal.jobs[a.Job] = memory.Job{CostS: 7}
	must.Eq(t, 7, s.costOf(a.Job, group), must.Sprint("what its last move has taken"))
	for _, wrong := range []float64{math.NaN(), -1, 1.7e308} {
		s.journal.jobs[a.Job] = memory.Job{CostS: wrong}
		must.Eq(t, 505, s.costOf(a.Job, group))
	}
}
