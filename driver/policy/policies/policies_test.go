// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/internal/policytest"
)

func TestFind(t *testing.T) {
	for _, p := range All() {
		found, err := Find(All(), p.Name)
		must.NoError(t, err)
		must.Eq(t, p.Name, found.Name)
		must.NotEq(t, "", p.Synopsis)
	}
	for _, name := range Names() {
		_, err := Find(All(), name)
		must.NoError(t, err, must.Sprint("what the driver runs can be asked"))
	}
	_, err := Find(All(), "flowkon")
	must.ErrorContains(t, err, `unknown policy "flowkon", must be one of: auto, flowcon, `)
}

// Every example is valid, and what is missing is told.
func TestPolicies(t *testing.T) {
	for _, p := range All() {
		policytest.Example(t, p.Name, p.Example, p.DecideJSON)
	}
}
