// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

// ordinary draws plausible figures; anything also extremes.
func ordinary(low, high float64) *rapid.Generator[float64] { return rapid.Float64Range(low, high) }

func anything(low, high float64) *rapid.Generator[float64] {
	return rapid.OneOf(ordinary(low, high), rapid.SampledFrom([]float64{
		math.SmallestNonzeroFloat64, 1e-300, 0.1, 1, 1e300, math.MaxFloat64,
	}))
}

func inputs(figures func(low, high float64) *rapid.Generator[float64]) *rapid.Generator[input] {
	return rapid.Custom(func(t *rapid.T) input {
		in := input{Snapshot: policy.Snapshot{
			Tasks:            make([]policy.Task, rapid.IntRange(0, 12).Draw(t, "n")),
			IntervalS:        rapid.Float64Range(1, 1000).Draw(t, "interval"),
			InitialIntervalS: rapid.Float64Range(1, 60).Draw(t, "initial interval"),
			MaxIntervalS:     rapid.Float64Range(60, 600).Draw(t, "max interval"),
			Event:            rapid.SampledFrom([]policy.Event{"", "", "", policy.EventJoin}).Draw(t, "event"),
			State: State{
				QGood:     figures(0, 100).Draw(t, "q_good"),
				QBad:      -figures(0, 100).Draw(t, "q_bad"),
				Satisfied: rapid.IntRange(0, 12).Draw(t, "satisfied"),
				Trend:     rapid.IntRange(0, 3).Draw(t, "trend"),
			}.Encode(),
		}, Params: Params{
			Alpha:    rapid.Float64Range(0.01, 0.9).Draw(t, "alpha"),
			Beta:     rapid.Float64Range(0.01, 1).Draw(t, "beta"),
			Headroom: rapid.Bool().Draw(t, "headroom"),
			Step:     rapid.SampledFrom([]Step{StepPublished, StepProportional}).Draw(t, "step"),
		}}
		entitlement := rapid.Just(1.0)
		if rapid.Bool().Draw(t, "unequal") {
			entitlement = rapid.Float64Range(0.1, 16)
		}
		for i := range in.Tasks {
			in.Tasks[i] = policy.Task{
				ID:          fmt.Sprintf("task-%d", i),
				Entitlement: entitlement.Draw(t, "entitlement"),
				ObjectiveS:  num(math.Max(math.SmallestNonzeroFloat64, figures(0.1, 100).Draw(t, "objective"))),
				Use:         policy.Share(rapid.OneOf(rapid.Just(0.0), figures(0, 1.1)).Draw(t, "use")),
				Limit:       policy.Share(rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(1e-6, 1)).Draw(t, "limit")),
			}
			if rapid.IntRange(0, 9).Draw(t, "measured") > 0 {
				in.Tasks[i].ResponseS = num(figures(0, 100).Draw(t, "response"))
			}
		}
		if rapid.Bool().Draw(t, "mixed") {
			others := policy.Share(rapid.Float64Range(0, 1).Draw(t, "others"))
			in = in.beside(len(in.Tasks)+rapid.IntRange(1, 5).Draw(t, "other tasks"), others)
		}
		must.NoError(t, in.check())
		return in
	})
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(anything).Draw(t, "in")
		out := policytest.Decide(t, input.decide, in)

		must.Len(t, len(in.Tasks), out.Tasks)
		fair := in.FairShares()
		count := map[policy.Class]int{}
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			must.Eq(t, was.ID, d.ID)
			must.Between(t, fair[i]/2, d.Bound(), 1)
			must.NotEq(t, "", d.Why)
			if d.Rule == RuleNoService {
				must.Eq(t, 1, d.Bound())
				continue
			}
			count[d.Class]++

			limit := max(was.Bound(), fair[i]/2)
			published := in.Params.Step == StepPublished
			if in.Event != policy.EventNone {
				must.Eq(t, limit, d.Bound())
				continue
			}
			switch d.Class {
			case policy.Good:
				must.Eq(t, RuleGood, d.Rule)
				if published {
					must.LessEq(t, limit, d.Bound())
				}
			case policy.Satisfied:
				must.Eq(t, RuleSatisfied, d.Rule)
				// On a short pool the proportional step moves these as well, from both
				// sides.
				if published {
					must.Eq(t, limit, d.Bound())
				}
			case policy.Bad:
				must.SliceContains(t, []string{RuleBad, RuleBadFull}, d.Rule)
				if published {
					must.GreaterEq(t, limit, d.Bound())
				}
			default:
				must.Nil(t, was.ResponseS)
				must.Eq(t, RuleUnmeasured, d.Rule)
				must.Eq(t, limit, d.Bound())
			}
			if !published && d.Bound() > limit {
				must.LessEq(t, 2*limit, d.Bound())
			}
		}

		in.Snapshot.State = out.Outcome.State
		must.NoError(t, in.check())
		if in.Event != policy.EventNone {
			return
		}
		must.Eq(t, count[policy.Satisfied], out.State.Satisfied)
		must.Between(t, 0, out.State.Trend, 2)
		if count[policy.Good] == 0 {
			must.Eq(t, 0.0, out.State.QGood)
		}
		must.Between(t, math.Min(in.IntervalS, in.InitialIntervalS), out.IntervalS, math.Max(in.IntervalS, in.MaxIntervalS))
	})
}

func TestDecide_unitOfEntitlement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(ordinary).Draw(t, "in")
		policytest.Entitled(t, func(s policy.Snapshot) policy.Outcome { return Decide(s, in.Params) }, in.Snapshot,
			rapid.SampledFrom([]float64{0x1p-10, 0.5, 8, 1024}).Draw(t, "factor"))
	})
}

func TestDecide_scaleFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(ordinary).Draw(t, "in")
		k := rapid.Float64Range(1e-6, 1e6).Draw(t, "k")
		scaled := in
		scaled.Tasks = slices.Clone(in.Tasks)
		for i, task := range in.Tasks {
			if task.Service() {
				scaled.Tasks[i].ObjectiveS = num(*task.ObjectiveS * k)
			}
			if task.ResponseS != nil {
				scaled.Tasks[i].ResponseS = num(*task.ResponseS * k)
			}
		}
		one, other := in.decide(), scaled.decide()
		for i := range one.Tasks {
			must.Eq(t, one.Tasks[i].Class, other.Tasks[i].Class)
			must.InDelta(t, float64(one.Tasks[i].Bound()), float64(other.Tasks[i].Bound()), 1e-9)
		}
	})
}

func TestDecide_fits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(ordinary).Draw(t, "in")
		in.Tasks = slices.DeleteFunc(in.Tasks, func(t policy.Task) bool { return !t.Service() })
		in.Params.Step, in.Event = StepProportional, policy.EventNone
		var sum policy.Share
		for i := range in.Tasks {
			if in.Tasks[i].ResponseS == nil {
				in.Tasks[i].ResponseS = num(1)
			}
		}
		for _, d := range in.decide().Tasks {
			sum += d.Bound()
		}
		must.LessEq(t, 1+1e-8, sum)
	})
}
