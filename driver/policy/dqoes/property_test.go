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

	"github.com/ebbtide/ebbtide/internal/policytest"
)

// ordinary draws figures as they occur; anything draws extremes as well.
func ordinary(low, high float64) *rapid.Generator[float64] { return rapid.Float64Range(low, high) }

func anything(low, high float64) *rapid.Generator[float64] {
	return rapid.OneOf(ordinary(low, high), rapid.SampledFrom([]float64{
		math.SmallestNonzeroFloat64, 1e-300, 0.1, 1, 1e300, math.MaxFloat64,
	}))
}

// inputs draws valid inputs.
func inputs(figures func(low, high float64) *rapid.Generator[float64]) *rapid.Generator[Input] {
	return rapid.Custom(func(t *rapid.T) Input {
		in := Input{
			Tasks:            make([]Task, rapid.IntRange(0, 12).Draw(t, "n")),
			IntervalS:        rapid.Float64Range(1, 1000).Draw(t, "interval"),
			InitialIntervalS: rapid.Float64Range(1, 60).Draw(t, "initial interval"),
			MaxIntervalS:     rapid.Float64Range(60, 600).Draw(t, "max interval"),
			State: State{
				QGood:     figures(0, 100).Draw(t, "q_good"),
				QBad:      -figures(0, 100).Draw(t, "q_bad"),
				Satisfied: rapid.IntRange(0, 12).Draw(t, "satisfied"),
				Trend:     rapid.IntRange(0, 3).Draw(t, "trend"),
			},
			Params: Params{
				Alpha:    rapid.Float64Range(0.01, 0.9).Draw(t, "alpha"),
				Beta:     rapid.Float64Range(0.01, 1).Draw(t, "beta"),
				Headroom: rapid.Bool().Draw(t, "headroom"),
				Step:     rapid.SampledFrom([]Step{"", StepPublished, StepProportional}).Draw(t, "step"),
			},
		}
		if rapid.Bool().Draw(t, "mixed") {
			in.Params.Tasks = len(in.Tasks) + rapid.IntRange(0, 5).Draw(t, "other tasks")
			in.Params.Others = rapid.Float64Range(0, 1).Draw(t, "others")
			in.Params.Extra = rapid.Float64Range(0, 1).Draw(t, "extra")
		}
		for i := range in.Tasks {
			in.Tasks[i] = Task{
				ID:         fmt.Sprintf("task-%d", i),
				ObjectiveS: math.Max(math.SmallestNonzeroFloat64, figures(0.1, 100).Draw(t, "objective")),
				Use:        rapid.OneOf(rapid.Just(0.0), figures(0, 1.1)).Draw(t, "use"),
				Limit:      rapid.Float64Range(1e-6, 1).Draw(t, "limit"),
			}
			if rapid.IntRange(0, 9).Draw(t, "measured") > 0 {
				in.Tasks[i].ResponseS = num(figures(0, 100).Draw(t, "response"))
			}
		}
		must.NoError(t, in.Validate())
		return in
	})
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(anything).Draw(t, "in")
		out := policytest.Decide(t, Decide, in)

		must.Len(t, len(in.Tasks), out.Tasks)
		floor := 1 / (2 * float64(max(in.Params.Tasks, len(in.Tasks))))
		count := map[Class]int{}
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			must.Eq(t, was.ID, d.ID)
			must.Between(t, floor, d.Limit, 1)
			must.NotEq(t, "", d.Why)
			count[d.Class]++

			limit := math.Max(was.Limit, floor)
			published := in.Params.Step != StepProportional
			switch d.Class {
			case Good:
				must.Eq(t, RuleGood, d.Rule)
				if published {
					must.LessEq(t, limit, d.Limit)
				}
			case Satisfied:
				must.Eq(t, RuleSatisfied, d.Rule)
				// In a short pool the proportional step moves these, too, from both sides.
				if published {
					must.Eq(t, limit, d.Limit)
				}
			case Bad:
				must.SliceContains(t, []string{RuleBad, RuleBadFull}, d.Rule)
				if published {
					must.GreaterEq(t, limit, d.Limit)
				}
			default:
				must.Nil(t, was.ResponseS)
				must.Eq(t, RuleUnmeasured, d.Rule)
				must.Eq(t, limit, d.Limit)
			}
			if !published && d.Limit > limit {
				must.LessEq(t, 2*limit, d.Limit)
			}
		}

		// The state is one that the next run takes.
		in.State = out.State
		must.NoError(t, in.Validate())
		must.Eq(t, count[Satisfied], out.State.Satisfied)
		must.Between(t, 0, out.State.Trend, 2)
		if count[Good] == 0 {
			must.Eq(t, 0.0, out.State.QGood)
		}
		must.Between(t, math.Min(in.IntervalS, in.InitialIntervalS), out.IntervalS, math.Max(in.IntervalS, in.MaxIntervalS))
	})
}

// The order of the input may change the order of the decisions, and nothing else
// but the last bits of sums.
func TestDecide_orderFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(ordinary).Draw(t, "in")
		reversed := in
		reversed.Tasks = slices.Clone(in.Tasks)
		slices.Reverse(reversed.Tasks)
		one, other := Decide(in), Decide(reversed)
		slices.Reverse(other.Tasks)
		for i := range one.Tasks {
			must.Eq(t, one.Tasks[i].Class, other.Tasks[i].Class)
			must.InDelta(t, one.Tasks[i].Limit, other.Tasks[i].Limit, 1e-9)
		}
		must.Eq(t, one.State.Satisfied, other.State.Satisfied)
		must.Eq(t, one.IntervalS, other.IntervalS)
	})
}

// The unit of time must not matter.
func TestDecide_scaleFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(ordinary).Draw(t, "in")
		k := rapid.Float64Range(1e-6, 1e6).Draw(t, "k")
		scaled := in
		scaled.Tasks = slices.Clone(in.Tasks)
		for i, task := range in.Tasks {
			scaled.Tasks[i].ObjectiveS *= k
			if task.ResponseS != nil {
				scaled.Tasks[i].ResponseS = num(*task.ResponseS * k)
			}
		}
		one, other := Decide(in), Decide(scaled)
		for i := range one.Tasks {
			must.Eq(t, one.Tasks[i].Class, other.Tasks[i].Class)
			must.InDelta(t, one.Tasks[i].Limit, other.Tasks[i].Limit, 1e-9)
		}
	})
}

// The limits of a full pool fit into it, however many of its services ask for more
// than there is (StepProportional).
func TestDecide_fits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(ordinary).Draw(t, "in")
		in.Params.Step, in.Params.Tasks, in.Params.Others, in.Params.Extra = StepProportional, 0, 0, 0
		var sum float64
		for i := range in.Tasks {
			if in.Tasks[i].ResponseS == nil {
				in.Tasks[i].ResponseS = num(1)
			}
		}
		for _, d := range Decide(in).Tasks {
			sum += d.Limit
		}
		must.LessEq(t, 1+1e-8, sum)
	})
}
