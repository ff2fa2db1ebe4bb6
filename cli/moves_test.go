// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// A bound job is listed unless a move claims it or it is dead.
func TestOrphans(t *testing.T) {
	job := func(id string, bound, dead bool) *cluster.Job {
		return &cluster.Job{Key: cluster.JobKey{Namespace: "ml", ID: id}, Dead: dead, Groups: map[string]cluster.Group{"train": {Bound: bound}}}
	}
	out := orphans([]*cluster.Job{job("free", false, false), job("moved", true, false), job("over", true, true), job("lost", true, false), job("newer", true, false)},
		[]move.Record{{Namespace: "ml", Job: "moved"}, {Namespace: "other", Job: "lost"}}, []move.Unreadable{{Namespace: "ml", Job: "newer"}})
	must.Len(t, 1, out)
	must.Eq(t, "lost", out[0].Job)
	must.Eq(t, "bound", outcome(out[0]))
}
