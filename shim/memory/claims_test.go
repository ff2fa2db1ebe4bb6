// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"testing"

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
	all, err := claims.List(t.Context())
	must.NoError(t, err)
	must.SliceContainsAll(t, []string{"vae", "gru"}, []string{all[0].Job, all[1].Job})
	must.NoError(t, claims.Remove(t.Context(), r))
	all, err = claims.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, []move.Record{other}, all)
}
