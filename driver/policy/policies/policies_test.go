// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

func TestFind(t *testing.T) {
	must.Eq(t, []string{FlowCon, None}, Names())
	for _, p := range All() {
		found, err := Find(p.Name)
		must.NoError(t, err)
		must.Eq(t, p.Name, found.Name)
		must.NotEq(t, "", p.Synopsis)
	}
	_, err := Find("flowkon")
	must.EqError(t, err, `unknown policy "flowkon", must be one of: flowcon, none`)
}

// The driver and the command line run the same function.
func TestPolicies(t *testing.T) {
	for _, p := range All() {
		example, err := json.Marshal(p.Example)
		must.NoError(t, err)
		asked, err := p.DecideJSON(example)
		must.NoError(t, err)
		if p.Decide != nil {
			out := p.Decide(flowcon.Example())
			must.Eq(t, asked, any(out))
			must.StrHasPrefix(t, p.Name+".", out.Tasks[0].Rule)
		}
		_, err = p.DecideJSON([]byte("{}"))
		must.ErrorContains(t, err, "is missing")
	}
}

// A policy with an input of its own can be asked, but is none that the driver runs.
func TestEntry(t *testing.T) {
	type input struct {
		X int `json:"x"`
	}
	p := entry("double", "", input{}, input{1}, func(in input) int { return 2 * in.X })
	must.Nil(t, p.Decide)
	out, err := p.DecideJSON([]byte(`{"x": 21}`))
	must.NoError(t, err)
	must.Eq(t, any(42), out)
}
