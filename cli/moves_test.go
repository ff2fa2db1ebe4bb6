// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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
	must.StrContains(t, out[0].Why, "run ebbtide moves -recover")

	waits := job("waits", true, false)
	waits.Groups["train"] = cluster.Group{Bound: true, Node: "n1", Adopts: "left"}
	must.StrContains(t, orphans([]*cluster.Job{waits}, nil, nil)[0].Why, "for which it may wait")
}

// A job that has been suspended and drained waits for the node of its checkpoint: it is not unbound
// before it runs.
func TestMoves_recover(t *testing.T) {
	var asked []string
	allocs := "[]"
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		switch r.URL.Path {
		case "/v1/jobs":
			_, _ = w.Write([]byte(`[{"ID": "vae", "Namespace": "default", "Meta": {"ebbtide_queue": "true"}}]`))
		case "/v1/job/vae":
			_, _ = w.Write([]byte(`{"ID": "vae", "Namespace": "default", "Status": "pending", "TaskGroups": [{"Name": "train", "Meta": {"ebbtide_adopt": "left"},
				"Constraints": [{"LTarget": "${node.unique.id}", "RTarget": "n1,ebbtide-move:7", "Operand": "set_contains_any"}]}]}`))
		case "/v1/job/vae/allocations":
			_, _ = w.Write([]byte(allocs))
		case "/v1/vars", "/v1/nodes":
			_, _ = w.Write([]byte("[]"))
		default: // also a claim's variable: another process has it
			w.WriteHeader(map[bool]int{true: http.StatusConflict, false: http.StatusNotFound}[r.Method == http.MethodPut])
			_, _ = w.Write([]byte("{}"))
		}
	}))
	defer nomad.Close()
	t.Setenv("NOMAD_ADDR", nomad.URL)
	_, _, stderr := ebbtide("", "moves", "-recover")
	must.StrContains(t, stderr, "job vae: waits for the node of its checkpoint")
	claims := func() bool {
		return slices.ContainsFunc(asked, func(a string) bool { return strings.HasPrefix(a, "PUT /v1/var/") })
	}
	must.False(t, claims())
	allocs = `[{"ID": "a", "ClientStatus": "running"}]`
	ebbtide("", "moves", "-recover")
	must.True(t, claims(), must.Sprint("it is unbound"))
}
