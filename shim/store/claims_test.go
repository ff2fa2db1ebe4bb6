// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package store

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/move"
)

func TestClaims(t *testing.T) {
	s, _ := store(t)
	claims := Claims{s}
	none, err := claims.Read(t.Context(), "ml", "vae")
	must.NoError(t, err)
	must.Zero(t, none.Index)

	r := move.Record{
		ID: "1234", Owner: "ebbtide move on n1, process 7", Namespace: "ml", Job: "vae", Group: "train", Alloc: "a1", Source: "n1", Target: "n2",
		Version: 3, Before: 20, Phase: move.PhaseBind, Tasks: []move.Task{{Name: "train", Path: "/alloc/data/c", Bytes: 7, Saved: 100, Step: status.Number(101)}},
	}
	r.Index, err = claims.Write(t.Context(), r)
	must.NoError(t, err)
	there, err := claims.Read(t.Context(), "ml", "vae")
	must.NoError(t, err)
	must.Eq(t, r, there)

	// A job has one move at a time; the last writer continues.
	other := r
	other.ID, other.Index = "5678", 0
	_, err = claims.Write(t.Context(), other)
	must.ErrorIs(t, err, move.ErrClaimed)
	must.ErrorContains(t, err, "1234 of ebbtide move on n1, process 7")
	old := r
	r.Phase = move.PhaseWait
	r.Index, err = claims.Write(t.Context(), r)
	must.NoError(t, err)
	_, err = claims.Write(t.Context(), old)
	must.ErrorIs(t, err, move.ErrClaimed)
	must.ErrorIs(t, claims.Remove(t.Context(), old), move.ErrClaimed)

	other.Job = "gru"
	other.Index, err = claims.Write(t.Context(), other)
	must.NoError(t, err)
	all, skipped, err := claims.List(t.Context())
	must.SliceEmpty(t, skipped)
	must.NoError(t, err)
	must.SliceContainsAll(t, []string{"vae", "gru"}, []string{all[0].Job, all[1].Job})
	must.NoError(t, claims.Remove(t.Context(), r))
	all, _, err = claims.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, []move.Record{other}, all)
}

// A record that cannot be read hides no other, and no process can claim its job.
func TestClaims_unreadable(t *testing.T) {
	s, nomad := store(t)
	claims := Claims{s}
	good := move.Record{ID: "1", Namespace: "ml", Job: "good", Tasks: []move.Task{}}
	var err error
	good.Index, err = claims.Write(t.Context(), good)
	must.NoError(t, err)
	must.StrContains(t, nomad.items[claims.name("ml", "good")]["record"], `"schema":1`)

	want := make(map[string]move.Unreadable)
	for job, r := range map[string]struct{ record, why string }{
		"torn":    {`{"id": "2", "job": "to`, "unexpected end of JSON input"},
		"absent":  {"", "unexpected end of JSON input"},
		"nothing": {"{}", "it names no move, namespace or job"},
		"typed":   {`{"schema": 1, "id": "3", "namespace": "ml", "job": "typed", "tasks": 7}`, "json: cannot unmarshal number"},
		"newer":   {`{"schema": 3, "id": "4", "namespace": "ml", "job": "newer", "tasks": 7}`, "a newer version has written it (schema 3, this one reads up to 2)"},
	} {
		must.NoError(t, s.write(t.Context(), strings.TrimPrefix(claims.name("ml", job), s.Path), api.VariableItems{"record": r.record}))
		u := move.Unreadable{Path: claims.name("ml", job), Why: r.why}
		if strings.Contains(r.record, job) {
			u.Namespace, u.Job = "ml", job
		}
		want[u.Path] = u
	}
	all, skipped, err := claims.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, []move.Record{good}, all)
	must.Len(t, len(want), skipped)
	for _, u := range skipped {
		must.StrContains(t, u.Why, want[u.Path].Why)
		must.Eq(t, want[u.Path].Job, u.Job)
		must.Eq(t, want[u.Path].Namespace, u.Namespace)
	}
	_, err = claims.Write(t.Context(), move.Record{ID: "9", Namespace: "ml", Job: "newer"})
	must.ErrorIs(t, err, move.ErrClaimed)
	must.ErrorContains(t, err, "a newer version has written it")

	// Records of versions before the schema are read.
	must.NoError(t, s.write(t.Context(), strings.TrimPrefix(claims.name("ml", "old"), s.Path), api.VariableItems{"record": `{"id": "5", "namespace": "ml", "job": "old"}`}))
	old, err := claims.Read(t.Context(), "ml", "old")
	must.NoError(t, err)
	must.Eq(t, "5", old.ID)
}
