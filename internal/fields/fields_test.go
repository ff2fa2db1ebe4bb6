// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fields

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"
)

func TestErrors(t *testing.T) {
	var es Errors
	must.NoError(t, es.Err())

	es.Add("", "is empty")
	es.Add("tasks[2].growth", "must be ≥ 0, got %g", -1.0)
	must.EqError(t, es.Err(), "is empty\ntasks[2].growth: must be ≥ 0, got -1")

	var one Error
	must.True(t, errors.As(es.Err(), &one))
	must.ErrorIs(t, es.Err(), es[1])
}

func TestErrors_Merge(t *testing.T) {
	es := Errors{{"tasks[1]", "x"}, {"tasks[2].id", "x"}, {"event", "x"}}
	es.Merge(Errors{
		{"tasks[1].id", "covered by its task"},
		{"tasks[2].id", "covered by itself"},
		{"tasks[10].id", "kept: tasks[1] is not tasks[10]"},
		{"tasks[2].use", "kept"},
		{"eventual", "kept"},
	})
	must.Eq(t, []string{"tasks[1]", "tasks[2].id", "event", "tasks[10].id", "tasks[2].use", "eventual"}, paths(es))

	whole := Errors{{"tasks", "x"}}
	whole.Merge(Errors{{"tasks[0].id", "covered"}, {"tasks", "covered"}})
	must.Eq(t, []string{"tasks"}, paths(whole))
}

func TestErrors_Under(t *testing.T) {
	es := Errors{{"params", "x"}, {"dqoes.alpha", "x"}}
	must.Eq(t, []string{"params", "params.dqoes.alpha"}, paths(es.Under("params")))
}

func paths(es Errors) []string {
	var out []string
	for _, e := range es {
		out = append(out, e.Path)
	}
	return out
}

func TestMember(t *testing.T) {
	for _, tc := range []struct{ path, name, want string }{
		{"", "tasks", "tasks"},
		{"tasks[0]", "id", "tasks[0].id"},
		{"tasks[0]", "a.b", `tasks[0]["a.b"]`},
		{"", "", `[""]`},
		{"params", "line\nbreak", `params["line\nbreak"]`},
	} {
		must.Eq(t, tc.want, Member(tc.path, tc.name))
	}
	must.Eq(t, "tasks[3]", Index("tasks", 3))
}
