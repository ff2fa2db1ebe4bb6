// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"
)

func TestFind(t *testing.T) {
	for _, p := range All() {
		found, err := Find(p.Name)
		must.NoError(t, err)
		must.Eq(t, p.Name, found.Name)
		must.NotEq(t, "", p.Synopsis)
	}
	for _, name := range Names() {
		_, err := Find(name)
		must.NoError(t, err, must.Sprint("what the driver runs can be asked"))
	}
	_, err := Find("flowkon")
	must.ErrorContains(t, err, `unknown policy "flowkon", must be one of: auto, flowcon, `)
}

// Every example is valid, and what is missing is told.
func TestPolicies(t *testing.T) {
	for _, p := range All() {
		example, err := json.Marshal(p.Example)
		must.NoError(t, err)
		asked, err := p.DecideJSON(example)
		must.NoError(t, err)
		out, err := json.Marshal(asked)
		must.NoError(t, err)
		must.StrContains(t, string(out), `"rule":"`+p.Name+".")
		_, err = p.DecideJSON([]byte("{}"))
		must.ErrorContains(t, err, "is missing")
	}
}
