// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/move"
)

// books serves claims and jobs only.
type books struct {
	move.Nomad
	move.Claims
	mu      sync.Mutex
	records []move.Record
	taken   []string // claims taken over
	read    []string

	unreadable []move.Unreadable
}

func (b *books) List(context.Context) ([]move.Record, []move.Unreadable, error) {
	return slices.Clone(b.records), slices.Clone(b.unreadable), nil
}

func (b *books) Write(_ context.Context, r move.Record) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Job == "orphan" {
		return 7, nil
	}
	b.taken = append(b.taken, r.ID+" by "+r.Owner)
	return 0, move.ErrClaimed // another process was faster
}

func (b *books) Remove(context.Context, move.Record) error { return nil }

func (b *books) Read(context.Context, string, string) (move.Record, error) {
	return move.Record{}, nil
}

func (b *books) Job(_ context.Context, _, id string) (*document.Job, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = append(b.read, id)
	return &document.Job{Job: &api.Job{ID: &id}}, nil
}

// The leader takes over other shims' claims at once, those of living processes never, and
// unbinds jobs without a record once.
func TestTerm_recover(t *testing.T) {
	b := &books{records: []move.Record{
		{ID: "1", Owner: ownerPrefix + "n1, process 7", Namespace: "ml", Job: "shims"},
		{ID: "2", Owner: "ebbtide move on n1, process 8", Namespace: "ml", Job: "users"},
		{ID: "3", Owner: ownerPrefix + "me", Namespace: "ml", Job: "ours"},
	}}
	b.unreadable = []move.Unreadable{{Path: "ebbtide/shim/claims/9", Why: "a newer version has written it", Namespace: "ml", Job: "newer"}, {Path: "ebbtide/shim/claims/8"}}
	term, _ := small()
	state := &term.state
	clear(state.Jobs)
	clear(state.Allocs)
	for _, id := range []string{"newer", "shims", "users", "ours", "orphan", "free", "stopped", "dead"} {
		key := cluster.JobKey{Namespace: "ml", ID: id}
		state.Jobs[key] = &cluster.Job{Key: key, Index: 5, Stopped: id == "stopped", Dead: id == "dead", Groups: map[string]cluster.Group{"g": {Bound: id != "free"}}}
	}
	term.nomad, term.claims = b, b
	term.busy[cluster.JobKey{Namespace: "ml", ID: "ours"}] = true
	for range 2 {
		term.recovery.readAt = term.recovery.readAt.AddDate(-1, 0, 0)
		term.recover(term.listed())
		term.drain()
	}
	must.Eq(t, []string{"1 by " + ownerPrefix + "me", "1 by " + ownerPrefix + "me"}, b.taken)
	must.Eq(t, []string{"orphan"}, b.read)
	must.Eq(t, 1, testutil.ToFloat64(term.metrics.Orphans), must.Sprint("a completed job stays bound"))
	must.MapLen(t, 1, term.busy)
	must.Eq(t, 2, testutil.ToFloat64(term.metrics.Unreadable))
	newer := cluster.JobKey{Namespace: "ml", ID: "newer"}
	must.StrContains(t, term.latest[newer].text, "left alone: the record of its move cannot be read: variable ebbtide/shim/claims/9: a newer version has written it")
	state.Jobs[newer].Held = true
	must.SliceEmpty(t, term.snap().heldJobs(&plan{}), must.Sprint("it is not touched"))

	// The operators' pause, which cannot be read, stops no recovery.
	term.recovery.readAt = term.recovery.readAt.AddDate(-1, 0, 0)
	term.asking = true
	term.listed()
	term.reconcile()
	term.drain()
	must.Len(t, 3, b.taken)

	term.recovery.readAt = term.recovery.readAt.AddDate(-1, 0, 0)
	term.claims = failing{b}
	term.recover(term.listed())
	term.drain()
	must.False(t, term.recovery.reading)
}

type failing struct{ move.Claims }

func (failing) List(context.Context) ([]move.Record, []move.Unreadable, error) {
	return nil, nil, errors.New("no leader")
}
