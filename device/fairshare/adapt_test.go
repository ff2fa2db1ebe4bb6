// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestAdapt_example(t *testing.T) {
	out := Adapt(AdaptExample())
	must.Eq(t, Coefficients{Scheme: Equal}, out.Coefficients)
	var rules, whys []string
	for _, g := range out.Groups {
		rules, whys = append(rules, g.Rule), append(whys, g.Why)
	}
	must.Eq(t, []string{RuleSurplus, RuleShort, RuleShort, RuleKeep, RuleUnmeasured}, rules)
	must.Eq(t, []string{
		"held up to 2900 of 5259 MiB, needs 2048 MiB, took 310 s for 305 s: Set = 0.35 should have been 0.2144, and size (1/6) explains that best: coefficients go 0.1 of the way to it, Set → 0.3317",
		"held up to 5634 of 5634 MiB, needs 5389 MiB, took 260 s for 190 s, 3 requests denied: Set = 0.375 should have been 0.6, and application (1/2) explains that best: coefficients go 0.1 of the way to it, Set → 0.3875",
		"held up to 4600 of 4674 MiB, needs 539 MiB, took 900 s for 715 s: Set = 0.3111 should have been 0.3916, and application (1/2) explains that best: coefficients go 0.1 of the way to it, Set → 0.33",
		"held up to 3400 of 3673 MiB, needs 3000 MiB, took 720 s for 715 s: had what it needed, coefficients stay",
		"nothing was measured: coefficients stay",
	}, whys)
	moved := out.Groups[0].Coefficients.By
	must.InDelta(t, 0.9*0.25+0.1, moved["size"], 1e-15)
	for _, name := range []string{Count, "application", "user"} {
		must.InDelta(t, 0.9*0.25, moved[name], 1e-15)
	}
	must.True(t, out.Groups[3].Coefficients.none())
}

func TestAdapt(t *testing.T) {
	num := func(x float64) *float64 { return &x }
	// window has two groups of 2 and 6 jobs, which property a ranks the other way round and b
	// does not distinguish.
	window := func(measured ...Measured) AdaptInput {
		return AdaptInput{
			Groups: []Group{
				{ID: "g", Jobs: 2, Properties: map[string]Property{"a": {"x", 3}, "b": {"z", 1}}},
				{ID: "h", Jobs: 6, Properties: map[string]Property{"a": {"y", 1}, "b": {"z", 1}}},
			},
			Coefficients: Coefficients{By: map[string]float64{Count: 0.5, "a": 0.5}},
			Profiles:     9, Measured: measured, Params: DefaultAdaptParams(),
		}
	}
	full := Measured{Group: "g", GrantedMiB: 100, PeakMiB: 100}
	short, slow := full, full
	short.Denied = 1
	slow.DurationS, slow.BaselineS = num(1.2), num(1)
	idle := Measured{Group: "h", GrantedMiB: 100, PeakMiB: 45}
	for _, tc := range []struct {
		name      string
		in        AdaptInput
		group     int
		rule      string
		property  string
		shortfall float64
		step      float64
	}{
		{"all is well", window(full), 0, RuleKeep, "", 0, 0},
		{"nothing is known", window(), 0, RuleUnmeasured, "", 0, 0},
		{"denied requests, half of the jobs", window(short), 0, RuleShort, "a", 0.5, 0.1},
		{"slow on a full grant", window(slow), 0, RuleShort, "a", 0.2, 0.1},
		{"slow despite free memory: for another reason", window(func() Measured { m := slow; m.PeakMiB = 89; return m }()), 0, RuleKeep, "", -(1 - 0.89/0.9), 0},
		{"a little slow", window(func() Measured { m := slow; m.DurationS = num(1.1); return m }()), 0, RuleKeep, "", 0, 0},
		{"no further than needed", window(func() Measured { m := slow; m.DurationS = num(1.11); m.Denied = 0; return m }()), 0, RuleShort, "a", 0.11, 0.1},
		{"a short step", func() AdaptInput {
			in := window(slow)
			in.Params.Step = 1
			return in
		}(), 0, RuleShort, "a", 0.2, 0.1 / 0.25},
		{"nothing was granted at all", window(Measured{Group: "g", Denied: 9}), 0, RuleShort, "b", 1, 0.1},
		{"nothing was granted, nothing was asked", window(Measured{Group: "g"}), 0, RuleKeep, "", 0, 0},
		{"too much, but no group is short", window(full, idle), 1, RuleKeep, "", -0.5, 0},
		{"too much while another is short", window(short, idle), 1, RuleSurplus, "a", -0.5, 0.1},
		{"too much, but the working set is kept", window(short, func() Measured { m := idle; m.MinimumMiB = 90; return m }()), 1, RuleSurplus, "a", -0.1, 0.1},
		{"no more than the working set", window(short, func() Measured { m := idle; m.MinimumMiB = 100; return m }()), 1, RuleKeep, "", 0, 0},
		{"no property gives more", func() AdaptInput {
			in := window(short)
			in.Groups[0].Coefficients.By = map[string]float64{"b": 1}
			return in
		}(), 0, RuleUnexplained, "", 0.5, 0},
		{"no property gives less", func() AdaptInput {
			in := window(short, idle)
			in.Groups[1].Coefficients.By = map[string]float64{"a": 1}
			return in
		}(), 1, RuleUnexplained, "", -0.5, 0},
		{"equal ranks, nothing to choose: the count first", func() AdaptInput {
			in := window(short)
			in.Groups[0].Properties = map[string]Property{"a": {"x", 1}}
			in.Groups[1].Properties = map[string]Property{"a": {"y", 1}}
			in.Groups[1].Jobs = 2
			in.Coefficients = Coefficients{Scheme: Equal}
			return in
		}(), 0, RuleUnexplained, "", 0.5, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			g := Adapt(tc.in).Groups[tc.group]
			must.Eq(t, tc.rule, g.Rule, must.Sprint(g.Why))
			must.Eq(t, tc.property, g.Property, must.Sprint(g.Why))
			must.InDelta(t, tc.shortfall, g.Shortfall, 1e-12)
			must.InDelta(t, tc.step, g.Step, 1e-12)
		})
	}
}

func TestAdapt_profiles(t *testing.T) {
	in := AdaptExample()
	in.Coefficients = Coefficients{Scheme: CountOnly}
	in.Profiles = 4
	out := Adapt(in)
	must.Eq(t, CountOnly, out.Coefficients.Scheme)
	must.Eq(t, RuleProfiling, out.Groups[1].Rule)
	must.Eq(t, "4 of 5 profiles: only the number of jobs counts", out.Groups[1].Why)
	must.True(t, out.Groups[1].Coefficients.none())

	in.Profiles = 5
	in.Groups[2].Coefficients = Coefficients{Scheme: CountOnly}
	out = Adapt(in)
	must.Eq(t, Equal, out.Coefficients.Scheme)
	must.Eq(t, RuleEnough, out.Groups[1].Rule)
	must.Eq(t, "5 profiles are enough: each of its 4 properties has the same weight", out.Groups[1].Why)
	must.True(t, out.Groups[1].Coefficients.none(), must.Sprint("those of all count"))
	must.Eq(t, Equal, out.Groups[2].Coefficients.Scheme)

	in.Coefficients = out.Coefficients
	for i := range in.Groups {
		in.Groups[i].Coefficients = out.Groups[i].Coefficients
	}
	must.Eq(t, RuleShort, Adapt(in).Groups[1].Rule)
}

// In a loop, two groups that need other parts of a full card than equal coefficients give them
// converge to what they need, and stay.
func TestAdapt_converges(t *testing.T) {
	needs := map[string]int{"big": 700, "small": 250}
	card := Input{
		MemoryMiB: 1000,
		Groups: []Group{
			{ID: "big", Jobs: 1, Properties: map[string]Property{"size": {"50M", 5}}},
			{ID: "small", Jobs: 1, Properties: map[string]Property{"size": {"10M", 1}}},
		},
		Coefficients: Coefficients{Scheme: CountOnly},
		Containers:   []Container{in("big", "a"), in("small", "b")}, Params: DefaultParams(),
	}
	for profiles := range 20 {
		window := AdaptInput{Groups: card.Groups, Coefficients: card.Coefficients, Profiles: profiles, Params: DefaultAdaptParams()}
		for _, g := range Decide(card).Groups {
			m := Measured{Group: g.ID, GrantedMiB: g.MemoryMiB, PeakMiB: min(needs[g.ID], g.MemoryMiB)}
			if m.PeakMiB < needs[g.ID] {
				m.Denied = 1
			}
			window.Measured = append(window.Measured, m)
		}
		out := Adapt(window)
		card.Coefficients = out.Coefficients
		for i, g := range out.Groups {
			card.Groups[i].Coefficients = g.Coefficients
		}
	}
	for i, c := range Decide(card).Containers {
		must.GreaterEq(t, needs[card.Groups[i].ID], c.ShareMiB, must.Sprint(c.ID))
	}
}
