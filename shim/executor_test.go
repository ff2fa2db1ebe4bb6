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
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/shim/web"
)

// A leadership's steps never block: with a node and the store hanging, events are applied, and moves
// finish.
func TestServe_slow(t *testing.T) {
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
	s.planner.surveyor.nomad, s.writer.vars.Client = move.API{Client: client}, client
	s.claims = failing{}
	s.operatorsKnown, s.operatorsAt = true, time.Now()
	held := *s.state.Jobs[a.Job]
	held.Key.ID = "held"
	held.Held, held.Groups = true, map[string]cluster.Group{"train": {}}
	s.state.Jobs = map[cluster.JobKey]*cluster.Job{held.Key: &held}
	s.listed()
	ctx, cancel := context.WithCancel(t.Context())
	s.leading = ctx
	s.writer.record(store.Entry{Job: "vae"})
	ended := make(chan error)
	s.changed <- struct{}{}
	go func() { ended <- s.serve(ctx) }()
	<-asked
	<-asked // the node's status, and a write
	finished := make(chan struct{})
	s.tell(func() { close(finished) })
	<-finished
	s.complete(a)
	cancel()
	must.ErrorIs(t, <-ended, context.Canceled)
	close(over)
	s.drain()
	must.False(t, s.passing)
	must.MapEmpty(t, s.busy, must.Sprint("nothing more is carried out"))
}

// A move that Nomad's plan rejects does not count against limits, and another node is tried at
// once.
func TestFinish_unwilling(t *testing.T) {
	s, a := small()
	c := config.Default()
	s.relocation.done()
	f := transfer{alloc: a, to: "b", entry: store.Entry{Policy: policies.Relocate}, err: &move.Refused{Target: true}, end: s.budget.Begin(time.Now(), a.Job, "a", "b")}
	s.busy[a.Job], s.placed[a.ID] = true, true
	s.finish(c, f)
	must.Eq(t, "", s.snap().blocked(a, "b"))
	must.True(t, s.isRejected(a.Job, "b"))
	must.False(t, s.snap().canTake(a, "b", policies.Relocate))
	must.MapEmpty(t, s.busy)
	must.MapEmpty(t, s.placed)
	must.True(t, s.urgent)
	must.True(t, s.relocation.due(time.Hour))
	must.Eq(t, 0, s.running, must.Sprint("nothing is written down"))
	must.Eq(t, web.ReasonTarget, f.reason())

	// Up to maxAttempts.
	for range maxAttempts - 1 {
		s.relocation.done()
		s.relocation.retryNow()
	}
	must.False(t, s.relocation.due(time.Hour))
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
		s.writer.jobs, s.writer.held = make(map[cluster.JobKey]store.Job), func() error { return errors.New("lost") }
		end := s.budget.Begin(time.Now(), a.Job, "a", "b")
		f := transfer{alloc: a, to: "b", entry: store.Entry{Policy: policies.SpeConMigrate}, err: tc.err, end: end, result: move.Result{SaveS: 1, DownS: 2.5}}
		s.finish(config.Default(), f)
		must.Eq(t, tc.reason, f.reason())
		must.Eq(t, 5.0, s.snap().costOf(cluster.JobKey{}, cluster.Group{}))
		if tc.err == nil {
			must.Eq(t, 3.5, s.snap().costOf(a.Job, cluster.Group{MovesDisk: true, Requested: cluster.Resources{DiskMB: 1e6}}), must.Sprint("what this move has taken"))
		}
		s.drain()
		must.Eq(t, tc.marked, !s.writer.jobs[a.Job].Marked.IsZero(), must.Sprint(name))
		must.Eq(t, tc.err == nil, s.writer.jobs[a.Job].Failures == 0, must.Sprint(name))
		must.NotEq(t, "", s.snap().blocked(a, "b"), must.Sprint(name))
	}
}

// A move after which the task would finish later is refused, with the figures; an unreadable
// status does not refuse it.
func TestGainCheck(t *testing.T) {
	s, a := small()
	s.summaries = map[string]Summary{"b": growing(3, 0.1)}
	check := func(known ...reading) string {
		it := proposal{alloc: a, to: "b", entry: store.Entry{Policy: policies.SpeConMigrate}, known: known}
		return s.gainCheck(s.view(s.now(), s.listed()), it)()
	}
	now := time.Now()
	said := status.Status{Updated: now, Fair: status.Fair{RemainingCPUS: 100, Finish: now.Add(90 * time.Second)}}
	s.nomad = says{statuses: map[string]status.Status{a.ID: said}}
	must.StrContains(t, check(), "it would finish in 90 s on its node, but in 105 s on the target, including 5 s for the move")
	s.summaries["b"] = growing(1, 0.1)
	must.Eq(t, "", check())
	s.nomad = says{}
	must.Eq(t, "", check())

	// A status that the decision has read is not read again.
	s.summaries["b"] = growing(3, 0.1)
	group, _ := s.snap().group(a, policies.SpeConMigrate)
	known := reading{alloc: a, task: group.Tasks[0], status: said}
	must.StrContains(t, check(reading{alloc: a, task: "other"}, known), "it would finish in 90 s")
	must.Eq(t, "", check(reading{alloc: a, task: "other", status: said}))
}

// Before a job's first move, its disk is taken to be full.
func TestCostOf(t *testing.T) {
	s, a := small()
	group := cluster.Group{Requested: cluster.Resources{DiskMB: 50_000}}
	must.Eq(t, 5, s.snap().costOf(a.Job, group), must.Sprint("its checkpoint is on a shared volume"))
	group.MovesDisk = true
	must.Eq(t, 505, s.snap().costOf(a.Job, group))
	s.writer.jobs[a.Job] = store.Job{CostS: 7}
	must.Eq(t, 7, s.snap().costOf(a.Job, group), must.Sprint("what its last move has taken"))
	for _, wrong := range []float64{math.NaN(), -1, 1.7e308} {
		s.writer.jobs[a.Job] = store.Job{CostS: wrong}
		must.Eq(t, 505, s.snap().costOf(a.Job, group))
	}
}
