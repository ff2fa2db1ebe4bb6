// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policytest tests what holds for every policy.
package policytest

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Decide decides, and checks that the input is unchanged, the output deterministic, and
// every number valid in JSON.
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

// Example checks that a query's example is valid and yields one of its own rules, and
// that missing fields are reported.
func Example(t must.T, q policy.Query) {
	t.Helper()
	must.NotEq(t, "", q.Synopsis)
	in, err := json.Marshal(q.Example)
	must.NoError(t, err)
	asked, err := q.Decide(in)
	must.NoError(t, err)
	out, err := json.Marshal(asked)
	must.NoError(t, err)
	paper, _, _ := strings.Cut(q.Name, "-")
	must.StrContains(t, string(out), `"rule":"`+paper+".")
	_, err = q.Decide([]byte("{}"))
	must.ErrorContains(t, err, "is missing")
}

// Departures checks that a document has the table of a policy's departures below a heading, to the
// letter. The reasons are in the code alone.
func Departures(t must.T, file, heading string, departures []policy.Departure) {
	t.Helper()
	doc, err := os.ReadFile(file)
	must.NoError(t, err)
	cell := strings.NewReplacer("|", `\|`)
	table := heading + "\n\n| published | Ebbtide |\n| --- | --- |\n"
	for _, d := range departures {
		for _, part := range []string{d.Published, d.Ours, d.Why} {
			must.NotEq(t, "", part)
			must.StrNotContains(t, part, "\n")
		}
		table += "| " + cell.Replace(d.Published) + " | " + cell.Replace(d.Ours) + " |\n"
	}
	must.StrContains(t, string(doc), table+"\n", must.Sprintf("%s lacks this table, or differs from it", file))
}

// Entitled checks that scaling all entitlements, or reversing the tasks, changes no
// decision.
func Entitled(t must.T, decide func(policy.Snapshot) policy.Outcome, s policy.Snapshot, factor float64) {
	t.Helper()
	scaled := s
	scaled.Tasks = slices.Clone(s.Tasks)
	for i := range scaled.Tasks {
		scaled.Tasks[i].Entitlement *= factor
	}
	Same(t, decide(s), decide(scaled))

	reversed := scaled
	reversed.Tasks = slices.Clone(s.Tasks)
	slices.Reverse(reversed.Tasks)
	other := decide(reversed)
	slices.Reverse(other.Tasks)
	Same(t, decide(s), other)
}

// Same checks that two outcomes are equal up to rounding.
func Same(t must.T, one, other policy.Outcome) {
	t.Helper()
	for i, d := range one.Tasks {
		o := other.Tasks[i]
		must.Eq(t, []string{d.ID, string(d.Category), string(d.State), string(d.Class)},
			[]string{o.ID, string(o.Category), string(o.State), string(o.Class)})
		must.InDelta(t, float64(d.Bound()), float64(o.Bound()), 1e-6)
	}
	must.InDelta(t, one.IntervalS, other.IntervalS, 1e-9)
}
