// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package none

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

func TestDecide(t *testing.T) {
	in := flowcon.Example()
	out := Decide(in, flowcon.Params{})

	must.Eq(t, in.InitialIntervalS, out.IntervalS)
	must.Len(t, len(in.Tasks), out.Tasks)
	for i, d := range out.Tasks {
		must.Eq(t, in.Tasks[i].ID, d.ID)
		must.Eq(t, 1, d.Bound())
		must.Eq(t, RuleFree, d.Rule)
		must.NotEq(t, "", d.Why)
	}
}

func TestDecide_empty(t *testing.T) {
	out := Decide(policy.Snapshot{}, flowcon.Params{})
	must.NotNil(t, out.Tasks) // "[]" in JSON, not "null"
	must.Len(t, 0, out.Tasks)
}

func TestPolicy(t *testing.T) {
	policytest.Example(t, Policy().Query)
}
