// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policytest tests what holds for every policy.
package policytest

import (
	"encoding/json"

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
