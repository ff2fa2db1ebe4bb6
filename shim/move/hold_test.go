// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/cluster"
)

var there = Binding{Namespace: "ml", Job: "vae", Group: "train", Node: "b"}

// waiting is a world whose job waits for the shim.
func waiting() *world {
	w := newWorld()
	w.old.DesiredStatus, w.old.ClientStatus = api.AllocDesiredStatusStop, api.AllocClientStatusComplete // of long ago
	w.placed = api.AllocClientStatusPending
	w.job.Constraints = []*api.Constraint{api.NewConstraint(cluster.Hold, "=", "released"), api.NewConstraint("${attr.cpu.arch}", "=", "amd64")}
	w.job.TaskGroups[0].Tasks[0].Constraints = []*api.Constraint{api.NewConstraint(cluster.Hold, "=", "released")}
	return w
}

func TestTry(t *testing.T) {
	w := waiting()
	why, err := Try(t.Context(), w, there)
	must.NoError(t, err)
	must.Eq(t, "", why)
	w.planned = &api.AllocationMetric{DimensionExhausted: map[string]int{"memory": 1}}
	why, err = Try(t.Context(), w, there)
	must.NoError(t, err)
	must.Eq(t, "no room: memory", why)
	must.SliceEmpty(t, w.calls)

	_, err = Try(t.Context(), newWorld(), there)
	must.ErrorIs(t, err, ErrNotHeld)
	w.job.Stop = ptr(true)
	_, err = Try(t.Context(), w, there)
	must.ErrorIs(t, err, ErrNotHeld)
}

func TestRelease(t *testing.T) {
	w := waiting()
	var bound []*Binding
	opts := quick()
	opts.Binds = func(_ context.Context, b *Binding) error {
		bound = append(bound, b)
		return nil
	}
	alloc, still, err := Release(t.Context(), w, there, opts)
	must.NoError(t, err)
	must.Eq(t, newID, alloc)
	must.False(t, still)
	must.Eq(t, []string{pinCall, unpinCall}, w.calls)
	must.Eq(t, []*Binding{&there, nil}, bound)
	must.Eq(t, []*api.Constraint{api.NewConstraint("${attr.cpu.arch}", "=", "amd64")}, w.job.Constraints)
	must.SliceEmpty(t, w.job.TaskGroups[0].Constraints)
	must.SliceEmpty(t, w.job.TaskGroups[0].Tasks[0].Constraints)

	// With no node Nomad places it.
	w = waiting()
	alloc, _, err = Release(t.Context(), w, Binding{Namespace: "ml", Job: "vae", Group: "train"}, quick())
	must.NoError(t, err)
	must.Eq(t, "", alloc)
	must.Eq(t, []string{unpinCall}, w.calls)
	must.Len(t, 1, w.job.Constraints)
}

// What fails leaves the job waiting, or free: never bound.
func TestRelease_fails(t *testing.T) {
	full := &api.AllocationMetric{DimensionExhausted: map[string]int{"memory": 1}}
	for name, c := range map[string]struct {
		change func(*world)
		calls  []string
		want   string
		waits  bool
	}{
		"not held": {func(w *world) { w.job.Constraints, w.job.TaskGroups[0].Tasks[0].Constraints = nil, nil }, nil, ErrNotHeld.Error(), false},
		"changed since": {func(w *world) { w.registered = func() error { return errors.New("index 11, not 10") } },
			[]string{pinCall}, "index 11, not 10", true},
		"full by now": {func(w *world) { w.evaluated = func() *api.AllocationMetric { return full } },
			[]string{pinCall, unpinCall}, "it is not placed: no room: memory", false},
		"never placed": {func(w *world) { w.placed = "" },
			[]string{pinCall, unpinCall}, "waiting until Nomad has placed it: context deadline exceeded", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := waiting()
			c.change(w)
			opts := quick()
			opts.Place = 50 * time.Millisecond
			_, still, err := Release(t.Context(), w, there, opts)
			must.False(t, still)
			must.ErrorContains(t, err, c.want)
			must.Eq(t, c.calls, w.calls)
			must.Len(t, 0, w.job.TaskGroups[0].Constraints)
			_, err = Try(t.Context(), w, there)
			must.Eq(t, c.waits, err == nil)
		})
	}
}
