// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
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
		example, err := json.Marshal(p.Example)
		must.NoError(t, err)
		asked, err := p.DecideJSON(example)
		must.NoError(t, err)
		out, err := json.Marshal(asked)
		must.NoError(t, err)
		paper, _, _ := strings.Cut(p.Name, "-")
		must.StrContains(t, string(out), `"rule":"`+paper+".")
		_, err = p.DecideJSON([]byte("{}"))
		must.ErrorContains(t, err, "is missing")
	}
}
