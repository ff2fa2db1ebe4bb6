// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/rebalance"
)

// A node is idle if it runs no task, not if none is movable; a node without a summary is not
// known to be idle.
func TestSpread(t *testing.T) {
	s, a := small()
	now := time.Now()
	s.journal.jobs = map[cluster.JobKey]memory.Job{a.Job: {Marked: now.Add(-time.Minute)}}
	other := *a
	other.ID = "other"
	s.state = cluster.FromListing(cluster.Listing{
		Nodes: []*cluster.Node{s.state.Nodes["a"], s.state.Nodes["b"]}, Jobs: []*cluster.Job{s.state.Jobs[a.Job]}, Allocs: []*cluster.Alloc{a, &other},
	})
	moves := func(nodes map[string]Summary) []rebalance.Move {
		in := rebalance.Input{NowS: seconds(now)}
		s.rebalancer.rebalanceInput(config.Default(), s.state.NodeIDs(), nodes, &in, map[string]*cluster.Alloc{})
		must.NoError(t, in.Validate())
		return rebalance.Decide(in).Moves
	}
	own := Summary{Node: status.Node{Tasks: 2}}
	must.Len(t, 1, moves(map[string]Summary{"a": own, "b": {}}))
	must.SliceEmpty(t, moves(map[string]Summary{"a": own, "b": {Node: status.Node{Tasks: 5}}}))
	must.SliceEmpty(t, moves(map[string]Summary{"a": own}))
}

func TestMark_dry(t *testing.T) {
	s, a := small()
	c := config.Default()
	c.DryRun = true
	s.journal.mark(c, a.Job, true)
	must.False(t, s.journal.of(c, a.Job).Marked.IsZero())
	must.True(t, s.journal.of(config.Default(), a.Job).Marked.IsZero())
}

// A completed job is decided again when rerun, also in a dry run. A failed deletion is
// retried unless the job is remembered again.
func TestForget_completed(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	var asked atomic.Int32
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if down.Load() {
			http.Error(w, "no leader", http.StatusInternalServerError)
		} else if r.Method == http.MethodPut {
			_, _ = w.Write([]byte("{}"))
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	s, a := small()
	s.journal.store = memory.Store{Client: client, Namespace: "default", Path: "x"}
	s.journal.jobs = map[cluster.JobKey]memory.Job{a.Job: {Marked: time.Now()}}
	s.journal.dryRun = map[cluster.JobKey]memory.Job{a.Job: {Marked: time.Now()}}
	forget := func() int32 {
		s.forget()
		s.drain()
		return asked.Swap(0) // those of a save just before too
	}
	must.Zero(t, forget())
	must.MapLen(t, 1, s.journal.jobs)
	must.MapLen(t, 1, s.journal.dryRun)
	s.state.Completed[a.Job] = true
	must.Eq(t, 1, forget())
	must.MapEmpty(t, s.journal.jobs)
	must.MapEmpty(t, s.journal.dryRun)
	must.MapEmpty(t, s.state.Completed)
	must.Eq(t, 1, forget(), must.Sprint("Nomad still remembers it"))
	down.Store(false)
	must.Eq(t, 1, forget())
	must.Zero(t, forget())

	down.Store(true)
	s.journal.saveJob(a.Job, memory.Job{})
	s.state.Completed[a.Job] = true
	must.Eq(t, 2, forget())
	s.journal.saveJob(a.Job, memory.Job{Failures: 1})
	must.Eq(t, 1, forget(), must.Sprint("only what is remembered now is written"))
	must.MapLen(t, 1, s.journal.jobs)
}
