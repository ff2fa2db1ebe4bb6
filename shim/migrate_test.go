// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/actuator"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/rebalance"
)

// A node is idle if it has no task, not if none of its tasks may move; one that has said
// nothing is not known to be.
func TestSpread(t *testing.T) {
	s, a := small()
	now := time.Now()
	s.jobs = map[cluster.JobKey]memory.Job{a.Job: {Marked: now.Add(-time.Minute)}}
	other := *a
	other.ID = "other"
	s.state.Replace(cluster.Listing{
		Nodes: []*cluster.Node{s.state.Nodes["a"], s.state.Nodes["b"]}, Jobs: []*cluster.Job{s.state.Jobs[a.Job]}, Allocs: []*cluster.Alloc{a, &other},
	})
	moves := func(nodes map[string]Summary) []rebalance.Move {
		in, _ := s.spread(config.Default(), now, nodes)
		must.NoError(t, in.Validate())
		return rebalance.Decide(in).Moves
	}
	own := Summary{Node: status.Node{Tasks: 2}}
	must.Len(t, 1, moves(map[string]Summary{"a": own, "b": {}}))
	must.SliceEmpty(t, moves(map[string]Summary{"a": own, "b": {Node: status.Node{Tasks: 5}}}))
	must.SliceEmpty(t, moves(map[string]Summary{"a": own}))
}

// What a dry run decides of a job is forgotten with it.
func TestMark_dry(t *testing.T) {
	s, a := small()
	s.tried = make(map[cluster.JobKey]memory.Job)
	c := config.Default()
	c.DryRun = true
	s.mark(t.Context(), c, a.Job, true)
	must.False(t, s.remembered(c, a.Job).Marked.IsZero())
	must.True(t, s.remembered(config.Default(), a.Job).Marked.IsZero())
}

// A job that has completed is decided on anew when it is run again, also if Nomad could not
// be told at once, and in a dry run.
func TestForget_completed(t *testing.T) {
	down := true
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down {
			http.Error(w, "no leader", http.StatusInternalServerError)
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	s, a := small()
	s.store, s.gate = memory.Store{Client: client, Namespace: "default", Path: "x"}, actuator.NewGate(config.Default().Limits)
	s.jobs = map[cluster.JobKey]memory.Job{a.Job: {Marked: time.Now()}}
	s.tried = map[cluster.JobKey]memory.Job{a.Job: {Marked: time.Now()}}
	s.forget(t.Context())
	must.MapLen(t, 1, s.jobs)
	must.MapLen(t, 1, s.tried)
	s.state.Completed[a.Job] = true
	s.Shim = &Shim{log: hclog.NewNullLogger()}
	s.forget(t.Context())
	must.MapLen(t, 1, s.jobs, must.Sprint("Nomad still remembers it"))
	must.MapEmpty(t, s.tried)
	down = false
	s.forget(t.Context())
	must.MapEmpty(t, s.jobs)
	must.MapEmpty(t, s.state.Completed)
}
