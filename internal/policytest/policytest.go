// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policytest tests what holds for every policy.
package policytest

import (
	"encoding/json"
	"strings"

	"github.com/shoenig/test/must"
)

// Decide decides, and checks that the input does not change, that the same input gives
// the same output, to the byte, and that every number of it fits into JSON.
func Decide[In, Out any](t must.T, decide func(In) Out, in In) Out {
	t.Helper()
	text := func(v any) string {
		data, err := json.Marshal(v)
		must.NoError(t, err)
		return string(data)
	}
	before := text(in)
	out := decide(in)
	must.Eq(t, before, text(in), must.Sprint("the input must not change"))
	must.Eq(t, text(out), text(decide(in)), must.Sprint("the same again"))
	return out
}

// Example checks of a policy in a table that its example is valid and a decision by a rule
// of its own, and that what is missing in an input is told.
func Example(t must.T, name string, example any, decide func([]byte) (any, error)) {
	t.Helper()
	in, err := json.Marshal(example)
	must.NoError(t, err)
	asked, err := decide(in)
	must.NoError(t, err)
	out, err := json.Marshal(asked)
	must.NoError(t, err)
	paper, _, _ := strings.Cut(name, "-")
	must.StrContains(t, string(out), `"rule":"`+paper+".")
	_, err = decide([]byte("{}"))
	must.ErrorContains(t, err, "is missing")
}
