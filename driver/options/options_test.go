// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package options

import (
	"reflect"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Schema and Blocks have the same fields. Nomad decodes by one tag, the command line by
// the other.
func TestSchema(t *testing.T) {
	blocks := reflect.TypeFor[Blocks]()
	for _, b := range Schema() {
		var want []string
		for _, f := range b.Fields {
			want = append(want, f.Name)
		}
		for _, tag := range []string{"codec", "json"} {
			block := tagged(t, blocks, tag, b.Name).Elem()
			var got []string
			for i := range block.NumField() {
				got = append(got, block.Field(i).Tag.Get(tag))
			}
			must.Eq(t, want, got)
		}
	}
}

func tagged(t *testing.T, in reflect.Type, tag, name string) reflect.Type {
	for i := range in.NumField() {
		if in.Field(i).Tag.Get(tag) == name {
			return in.Field(i).Type
		}
	}
	t.Fatalf("%v has no field %s", in, name)
	return nil
}

func TestRead_signals(t *testing.T) {
	_, errs := Read(Input{Blocks: Blocks{Target: &Target{Signal: "sigusr1", StopSignal: "USR1"}}, Meta: map[string]string{"ebbtide_metric": "loss", "ebbtide_acceptable": "2", "ebbtide_objective": "1"}})
	must.EqError(t, errs.Err(), `target.signal: must be the name of a signal like SIGUSR1, got "sigusr1"
target.stop_signal: must be the name of a signal like SIGUSR1, got "USR1"`)
}

func TestKey(t *testing.T) {
	for written, want := range map[string]string{
		"ebbtide_goal": "ebbtide_goal", "EBBTIDE_GOAL": "ebbtide_goal", "ebbtide-goal": "ebbtide_goal", "ebbtide.goal": "ebbtide_goal",
	} {
		key, ours := Key(written)
		must.True(t, ours)
		must.Eq(t, want, key)
	}
	_, ours := Key("owner")
	must.False(t, ours)
}

// A dispatch of a parameterized job without an optional key.
func TestOurs_empty(t *testing.T) {
	meta := map[string]string{"owner": "", "ebbtide_gaol": "", "ebbtide-goal": "min", "ebbtide_goal": ""}
	for _, key := range MetaKeys() {
		if key != KeyGoal {
			meta[key] = ""
		}
	}
	got := Ours(meta)
	must.Eq(t, map[string]string{"ebbtide_gaol": "", "ebbtide_goal": "min"}, got)
	delete(got, "ebbtide_gaol")
	delete(got, "ebbtide_goal")
	_, errs := Read(Input{Meta: got})
	must.SliceEmpty(t, errs)
}

func TestRead_paths(t *testing.T) {
	_, errs := Read(Input{
		Blocks: Blocks{
			Progress:   &Progress{Preset: "x", Scale: "y"},
			Target:     &Target{Grace: "soon"},
			Checkpoint: &Checkpoint{Path: "/etc/x", Lease: "soon"},
		},
		Meta: map[string]string{"ebbtide_objective": "1", "ebbtide_a": "b"},
	})
	var paths []string
	for _, e := range errs {
		paths = append(paths, e.Path)
	}
	must.Eq(t, []string{"progress.scale", "meta.ebbtide_a", "progress.preset", "target.grace", "checkpoint.lease", "checkpoint.path", "meta.ebbtide_objective"}, paths)
	must.Eq(t, fields.Error{Path: "target.grace", Problem: `must be a duration from 0s to 1h, got "soon"`}, errs[3])

	_, errs = Read(Input{})
	must.SliceEmpty(t, errs)
}
