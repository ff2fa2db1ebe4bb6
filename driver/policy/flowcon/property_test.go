// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

// growths draws growths at the rules' boundaries: none, equal values, any value,
// extremes.
func growths() *rapid.Generator[*float64] {
	return rapid.OneOf(
		rapid.Just[*float64](nil),
		rapid.Map(rapid.SampledFrom([]float64{0, 1e-300, 0.1, 0.3, 0.3, 1, 1e300}), num),
		rapid.Map(rapid.Float64Range(0, 2), num),
	)
}

func inputs(growth *rapid.Generator[*float64]) *rapid.Generator[input] {
	return rapid.Custom(func(t *rapid.T) input {
		in := input{policy.Snapshot{
			Tasks:            make([]policy.Task, rapid.IntRange(0, 12).Draw(t, "n")),
			IntervalS:        rapid.Float64Range(0.1, 1000).Draw(t, "interval"),
			InitialIntervalS: rapid.Float64Range(0.1, 60).Draw(t, "initial interval"),
			Event:            rapid.SampledFrom([]policy.Event{policy.EventNone, policy.EventJoin, policy.EventLeave}).Draw(t, "event"),
		}, Params{Beta: rapid.Float64Range(1, 10).Draw(t, "beta")}}
		entitlement := rapid.Just(1.0)
		if rapid.Bool().Draw(t, "unequal") {
			entitlement = rapid.OneOf(rapid.Float64Range(1, 16), rapid.Float64Range(1e-3, 1e3))
		}
		if rapid.Bool().Draw(t, "fixed") {
			in.Params.Alpha = FixedAlpha(rapid.SampledFrom([]float64{0, 0.01, 0.1, 0.3, 1}).Draw(t, "alpha"))
		}
		all := []policy.Category{policy.New, policy.NL, policy.WL, policy.CL}
		some := rapid.SampledFrom([][]policy.Category{all, {policy.CL}, {policy.WL, policy.CL}}).Draw(t, "categories")
		for i := range in.Tasks {
			in.Tasks[i] = policy.Task{
				ID:          fmt.Sprintf("task-%d", i),
				Entitlement: entitlement.Draw(t, "entitlement"),
				Category:    rapid.SampledFrom(some).Draw(t, "category"),
				Growth:      growth.Draw(t, "growth"),
				Limit:       policy.Share(rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(1e-6, 1)).Draw(t, "limit")),
				Use:         policy.Share(rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1.1)).Draw(t, "use")),
				Epoch:       rapid.Uint64Range(0, 2).Draw(t, "epoch"), CategoryEpoch: rapid.Uint64Range(0, 2).Draw(t, "category epoch"),
			}
		}
		must.NoError(t, in.check())
		return in
	})
}

// edges returns the category changes that Algorithm 1 allows in one run.
func edges() map[policy.Category][]policy.Category {
	return map[policy.Category][]policy.Category{
		policy.New: {policy.NL},
		policy.NL:  {policy.NL, policy.WL},
		policy.WL:  {policy.NL, policy.WL, policy.CL},
		policy.CL:  {policy.NL, policy.CL},
	}
}

func TestDecide_properties(t *testing.T) {
	allowed := edges()
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(growths()).Draw(t, "in")
		out := policytest.Decide(t, input.decide, in)

		must.Len(t, len(in.Tasks), out.Tasks)
		fair := in.FairShares()
		allCL := true
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			must.Eq(t, was.ID, d.ID)
			must.Between(t, fair[i]/policy.Share(in.Params.Beta), d.Bound(), 1)
			must.SliceContains(t, allowed[was.Category], d.Category)
			must.NotEq(t, "", d.Rule)
			must.NotEq(t, "", d.Why)
			allCL = allCL && d.Category == policy.CL

			if Growth(was, in.Event) == nil {
				if d.Category == policy.NL { // unmeasured or new: never limited
					must.Eq(t, 1, d.Bound())
				} else { // idle: unchanged
					must.Eq(t, was.Category, d.Category)
				}
			}
			if (*out.Alpha == Off || !was.Fresh()) && was.Category != policy.New {
				must.Eq(t, was.Category, d.Category)
			}
		}
		if len(out.Tasks) == 1 {
			must.Eq(t, 1, out.Tasks[0].Bound())
		}

		interval := in.IntervalS
		if in.Event != policy.EventNone {
			interval = in.InitialIntervalS
		}
		if allCL {
			interval *= 2
			for _, d := range out.Tasks {
				must.Eq(t, 1, d.Bound())
				must.Eq(t, RuleAllCL, d.Rule)
			}
		}
		must.Eq(t, interval, out.IntervalS)
	})
}

func TestDecide_scaleFree(t *testing.T) {
	measured := rapid.OneOf(
		rapid.Just[*float64](nil),
		rapid.Map(rapid.SampledFrom([]float64{0, 0.1, 0.3, 1}), num),
		rapid.Map(rapid.Float64Range(1e-6, 2), num),
	)
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(measured).Draw(t, "in")
		in.Params.Alpha = Alpha{}
		k := rapid.Float64Range(1e-9, 1e9).Draw(t, "k")

		scaled := in
		scaled.Tasks = slices.Clone(in.Tasks)
		for i, task := range in.Tasks {
			if task.Growth != nil {
				scaled.Tasks[i].Growth = num(*task.Growth * k)
			}
		}
		one, other := in.decide(), scaled.decide()
		must.Eq(t, categories(one), categories(other))
		for i := range one.Tasks {
			must.InDelta(t, float64(one.Tasks[i].Bound()), float64(other.Tasks[i].Bound()), 1e-9)
		}
	})
}

func TestDecide_unitOfEntitlement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(growths()).Draw(t, "in")
		policytest.Entitled(t, func(s policy.Snapshot) policy.Outcome { return Decide(s, in.Params) }, in.Snapshot,
			rapid.Float64Range(1e-3, 1e3).Draw(t, "factor"))
	})
}

// Splitting a task into two does not affect the others.
func TestDecide_split(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(growths()).Draw(t, "in")
		in.Params.Alpha = FixedAlpha(0.1)
		in.Tasks = append(in.Tasks, task("other", policy.NL, 1, 1), task("split", policy.NL, rapid.Float64Range(0, 2).Draw(t, "growth"), 1))
		in.Tasks[len(in.Tasks)-1].Entitlement = 2
		one := in.decide()

		half := in.Tasks[len(in.Tasks)-1]
		half.Entitlement = 1
		in.Tasks = append(in.Tasks[:len(in.Tasks)-1:len(in.Tasks)-1], half, half)
		two := in.decide()
		for i := range one.Tasks[:len(one.Tasks)-1] {
			must.Eq(t, one.Tasks[i].Category, two.Tasks[i].Category)
			must.InDelta(t, float64(one.Tasks[i].Bound()), float64(two.Tasks[i].Bound()), 1e-9)
		}
	})
}

// A task without growth is in CL after two runs and stays there.
func TestDecide_settles(t *testing.T) {
	in := adaptive(task("a", policy.New, 0, 1), task("b", policy.New, 0, 1), task("c", policy.New, 1, 1))
	want := [][]policy.Category{
		{policy.NL, policy.NL, policy.NL},
		{policy.WL, policy.WL, policy.NL},
		{policy.CL, policy.CL, policy.NL},
		{policy.CL, policy.CL, policy.NL},
	}
	for _, cs := range want {
		out := in.decide()
		must.Eq(t, cs, categories(out))
		for i, d := range out.Tasks {
			in.Tasks[i].Category, in.Tasks[i].Limit = d.Category, d.Bound()
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		cs := []policy.Category{policy.NL, policy.WL, policy.CL, policy.New}
		in := adaptive()
		for i := range n {
			t := task(fmt.Sprintf("%08d-task", i), cs[i%len(cs)], 1/float64(i+1), 0.123456)
			t.Use = 0.0123456
			in.Tasks = append(in.Tasks, t)
		}
		b.Run(fmt.Sprintf("tasks=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in.decide()
			}
		})
	}
}
