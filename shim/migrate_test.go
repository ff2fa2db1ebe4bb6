// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
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
	"github.com/ebbtide/ebbtide/shim/rebalance"
	"github.com/ebbtide/ebbtide/shim/store"
)

// A node is idle if it runs no task, not if none is movable; a node without a summary is not
// known to be idle.
func TestSpread(t *testing.T) {
	s, a := small()
	now := time.Now()
	s.writer.jobs = map[cluster.JobKey]store.Job{a.Job: {Marked: now.Add(-time.Minute)}}
	other := *a
	other.ID = "other"
	s.state.Allocs[other.ID] = &other
	moves := func(nodes map[string]Summary) []rebalance.Move {
		snap := s.snap()
		snap.summaries = nodes
		in, _ := snap.rebalanceInput(now)
		must.NoError(t, in.Validate())
		return rebalance.Decide(in).Moves
	}
	own := Summary{Node: status.Node{Tasks: 2}}
	must.Len(t, 1, moves(map[string]Summary{"a": own, "b": {}}))
	must.SliceEmpty(t, moves(map[string]Summary{"a": own, "b": {Node: status.Node{Tasks: 5}}}))
	must.SliceEmpty(t, moves(map[string]Summary{"a": own}))
}

// A task that never asked to move is moved for balance once its status says that it has converged.
func TestRebalancing_converged(t *testing.T) {
	s, a := small()
	a.Allocated = cluster.Resources{}
	other := *a
	other.ID = "other"
	s.state.Allocs[other.ID] = &other
	said := map[string]status.Status{}
	s.nomad = says{statuses: said}
	moved := func() (out []string) {
		snap := s.snap()
		snap.summaries = map[string]Summary{"a": {Node: status.Node{Tasks: 2}}, "b": {}}
		for _, x := range snap.rebalancing().proposals {
			out = append(out, x.alloc.ID+" to "+x.to)
		}
		return out
	}
	must.SliceEmpty(t, moved(), must.Sprint("nothing is known of them"))
	since := time.Now().Add(-time.Minute)
	said["alloc"] = status.Status{Alloc: "alloc", SpeCon: status.SpeCon{Category: "WC", Since: since}}
	must.SliceEmpty(t, moved(), must.Sprint("it learns"))
	said["alloc"] = status.Status{Alloc: "alloc", SpeCon: status.SpeCon{Category: "CC", Since: since}}
	must.Eq(t, []string{"alloc to b"}, moved())
	said["other"] = status.Status{Alloc: "other", SpeCon: status.SpeCon{Category: "CC", Since: since.Add(time.Second)}}
	must.Eq(t, []string{"other to b"}, moved(), must.Sprint("it converged last"))
	s.writer.jobs = map[cluster.JobKey]store.Job{a.Job: {Rebalanced: true}}
	must.SliceEmpty(t, moved())
}

func TestMark_dry(t *testing.T) {
	s, a := small()
	c := config.Default()
	c.DryRun = true
	s.writer.mark(c, a.Job, true)
	must.False(t, s.writer.jobs[a.Job].Marked.IsZero())
	must.Eq(t, 0, s.running, must.Sprint("nothing is written"))

	// After the dry run the jobs' memory is read again.
	s.remembers, s.operatorsKnown, s.operatorsAt = true, true, time.Now()
	s.recovery.readAt, s.writer.held = time.Now(), func() error { return errors.New("lost") }
	s.listed()
	for _, c := range []config.Config{c, config.Default()} {
		s.Reload(c)
		s.asking = true
		s.reconcile()
		must.Eq(t, c.DryRun, s.remembers)
		must.Eq(t, c.DryRun, s.operatorsKnown, must.Sprint("no decision before that"))
	}
	s.drain()
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
	s.writer.vars = store.Store{Client: client, Namespace: "default", Path: "x"}
	s.writer.jobs = map[cluster.JobKey]store.Job{a.Job: {Marked: time.Now()}}
	forget := func() int32 {
		state, _ := s.cluster.Snapshot()
		s.forget(state)
		s.drain()
		return asked.Swap(0) // those of a save just before too
	}
	s.listed()
	must.Zero(t, forget())
	must.MapLen(t, 1, s.writer.jobs)
	s.complete(a)
	must.Eq(t, 1, forget())
	must.MapEmpty(t, s.writer.jobs)
	must.Eq(t, 1, forget(), must.Sprint("Nomad still remembers it"))
	down.Store(false)
	must.Eq(t, 1, forget())
	must.Zero(t, forget())

	down.Store(true)
	s.writer.saveJob(a.Job, store.Job{})
	s.complete(a)
	must.Eq(t, 2, forget())
	s.writer.saveJob(a.Job, store.Job{Failures: 1})
	must.Eq(t, 1, forget(), must.Sprint("only what is remembered now is written"))
	must.MapLen(t, 1, s.writer.jobs)
}
