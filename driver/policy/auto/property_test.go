// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

// check checks what must hold after every run: shares are conserved, floors hold,
// nobody starves.
func check(t must.T, in input, out policy.Outcome) {
	t.Helper()
	must.Len(t, len(in.Tasks), out.Tasks)
	fair := in.FairShares()
	sum, free := policy.Share(0), true
	for i, d := range out.Tasks {
		must.Eq(t, in.Tasks[i].ID, d.ID)
		must.Eq(t, in.Tasks[i].Service(), d.Kind == policy.Service)
		must.NotEq(t, "", d.Rule)
		must.NotEq(t, "", d.Why)
		must.Between(t, fair[i]/2*(1-1e-9), d.Bound(), 1, must.Sprintf("%+v", d))
		must.Eq(t, d.State == policy.Objective, d.Stop)
		if d.Kind == policy.Training {
			must.True(t, d.Category.Valid() && d.Category != policy.New)
			must.True(t, d.State.Valid() && d.State != "")
		}
		sum += d.Bound()
		free = free && d.Bound() == 1
	}
	if !free {
		must.InDelta(t, 1, float64(sum), 1e-9)
	}
	must.False(t, math.IsNaN(*out.Alpha))
	must.Positive(t, out.IntervalS)
	must.LessEq(t, in.MaxIntervalS, out.IntervalS)
}

func num(x float64) *float64 { return &x }

// maybe draws nothing, a value where rules change, or any value.
func maybe(some []float64, low, high float64) *rapid.Generator[*float64] {
	return rapid.OneOf(
		rapid.Just[*float64](nil),
		rapid.Map(rapid.SampledFrom(some), num),
		rapid.Map(rapid.Float64Range(low, high), num),
	)
}

func uses() *rapid.Generator[policy.Share] {
	return rapid.OneOf(rapid.SampledFrom([]policy.Share{0, 0.25, 0.5, 1, 1e308}), shares(0, 1.1))
}

// boundLimits are limits as this policy leaves them, and such as it does not.
func boundLimits() *rapid.Generator[policy.Share] {
	return rapid.OneOf(rapid.SampledFrom([]policy.Share{1, 0.5, 0.25, 0.1}), shares(1e-6, 1))
}

func shares(low, high float64) *rapid.Generator[policy.Share] {
	return rapid.Map(rapid.Float64Range(low, high), func(x float64) policy.Share { return policy.Share(x) })
}

// serving and trainings draw tasks.
func serving() *rapid.Generator[policy.Task] {
	return rapid.Custom(func(t *rapid.T) policy.Task {
		return policy.Task{
			Kind:       policy.Service,
			ObjectiveS: num(rapid.SampledFrom([]float64{1e-300, 0.01, 1, 10, 1e300}).Draw(t, "objective")),
			ResponseS:  maybe([]float64{0, 0.011, 1, 1.1, 9, 10, 1e300}, 0, 30).Draw(t, "response"),
			Use:        uses().Draw(t, "use"),
			Limit:      rapid.OneOf(rapid.Just(policy.Share(0)), boundLimits()).Draw(t, "limit"),
		}
	})
}

func trainings() *rapid.Generator[policy.Task] {
	return rapid.Custom(func(t *rapid.T) policy.Task {
		task := policy.Task{
			Kind:     policy.Training,
			Category: rapid.SampledFrom([]policy.Category{policy.New, policy.NL, policy.WL, policy.CL}).Draw(t, "category"),
			Growth:   maybe([]float64{0, 1e-300, 0.1, 0.3, 1e300}, 0, 2).Draw(t, "growth"),
			Value:    maybe([]float64{0.1, 0.2}, 0, 1).Draw(t, "value"),
			State: rapid.SampledFrom([]policy.TargetState{"", policy.InTraining, policy.InTraining, policy.Acceptable,
				policy.Objective}).Draw(t, "state"),
			Use:   uses().Draw(t, "use"),
			Limit: rapid.OneOf(rapid.Just(policy.Share(0)), boundLimits()).Draw(t, "limit"),
		}
		if rapid.Bool().Draw(t, "targets") {
			task.Goal, task.Acceptable, task.Objective = policy.GoalMin, num(0.2), num(0.1)
		}
		return task
	})
}

// inputs draws valid inputs.
func inputs() *rapid.Generator[input] {
	return rapid.Custom(func(t *rapid.T) input {
		in := input{policy.Snapshot{
			State: dqoes.State{
				QGood: rapid.Float64Range(0, 50).Draw(t, "q good"), QBad: rapid.Float64Range(-50, 0).Draw(t, "q bad"),
				Satisfied: rapid.IntRange(0, 5).Draw(t, "satisfied"), Trend: rapid.IntRange(0, 3).Draw(t, "trend"),
			}.Encode(),
			IntervalS:        rapid.Float64Range(1, 200).Draw(t, "interval"),
			InitialIntervalS: 20,
			MaxIntervalS:     rapid.SampledFrom([]float64{20, 80, 1000}).Draw(t, "max interval"),
			Event:            rapid.SampledFrom([]policy.Event{"", "", policy.EventJoin, policy.EventLeave}).Draw(t, "event"),
		}, DefaultParams()}
		in.Params.Flowcon.Beta = rapid.SampledFrom([]float64{1, 2, 10, 1e300}).Draw(t, "beta")
		in.Params.ServiceShare = rapid.SampledFrom([]float64{1e-9, 0.3, 0.8, 1}).Draw(t, "share")
		in.Params.Dqoes.Step = rapid.SampledFrom([]dqoes.Step{dqoes.StepPublished, dqoes.StepProportional}).Draw(t, "step")
		in.Params.Dqoes.Headroom = rapid.Bool().Draw(t, "headroom")
		in.Tasks = append(rapid.SliceOfN(serving(), 0, 6).Draw(t, "services"), rapid.SliceOfN(trainings(), 0, 6).Draw(t, "trainings")...)
		// Equal requests, as in the papers, or any.
		entitlement := rapid.Just(1.0)
		if rapid.Bool().Draw(t, "unequal") {
			entitlement = rapid.SampledFrom([]float64{0.125, 0.5, 1, 3, 16}) // whole numbers of shares
		}
		for i := range in.Tasks {
			in.Tasks[i].ID, in.Tasks[i].Entitlement = fmt.Sprintf("task-%d", i), entitlement.Draw(t, "entitlement")
		}
		in.Tasks = rapid.Permutation(in.Tasks).Draw(t, "order")
		must.NoError(t, in.check())
		return in
	})
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := policytest.Decide(t, input.decide, in)
		check(t, in, out)

		// What a run decides is what the next one can take.
		for i, d := range out.Tasks {
			in.Tasks[i].Limit, in.Tasks[i].Category, in.Tasks[i].State = d.Bound(), d.Category, d.State
		}
		in.State, in.IntervalS = out.State, out.IntervalS
		must.NoError(t, in.check())
	})
}

// Neither the unit of entitlements nor the order of tasks matters.
func TestDecide_entitled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		policytest.Entitled(t, func(s policy.Snapshot) policy.Outcome { return Decide(s, in.Params) }, in.Snapshot,
			rapid.SampledFrom([]float64{0x1p-10, 0.5, 8, 1024}).Draw(t, "factor"))
	})
}

// What services get does not depend on how training goes: only on how much CPU it
// uses, and who of it is there.
func TestDecide_servicesFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		one := in.decide()
		other := in
		other.Tasks = slices.Clone(in.Tasks)
		for i, task := range in.Tasks {
			if task.Kind == policy.Training && !one.Tasks[i].Stop {
				other.Tasks[i] = policy.Task{ID: task.ID, Kind: policy.Training, Entitlement: task.Entitlement, Category: policy.CL, Growth: num(0), Use: task.Use, Limit: task.Limit}
			}
		}
		two := other.decide()
		for i, d := range one.Tasks {
			if d.Kind == policy.Service {
				must.Eq(t, d.Bound(), two.Tasks[i].Bound())
			}
		}
	})
}

// A service keeps what it needs, unless services may not have so much together.
func TestDecide_servicesKeep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := in.decide()
		bound := slices.ContainsFunc(out.Tasks, func(d policy.Decision) bool { return d.Rule == RuleBound })
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			if bound || d.Kind != policy.Service || was.Limit == 0 || was.Limit == 1 {
				continue
			}
			switch {
			case in.Event != policy.EventNone:
				must.GreaterEq(t, was.Limit*(1-1e-9), d.Bound())
			case d.Class == policy.Good || d.Class == policy.Satisfied:
				// With a limit of this size it would answer in (1+α/2)·o.
				must.GreaterEq(t, was.Limit*policy.Share(min(1, *was.ResponseS / *was.ObjectiveS / 1.05))*(1-1e-9), d.Bound())
			case d.Class == policy.Bad && in.Params.Dqoes.Step != dqoes.StepProportional:
				must.GreaterEq(t, was.Limit*(1-1e-9), d.Bound())
			}
		}
	})
}

// One training task more on a node takes nothing from a service, unless the bound
// does: services that were within it have on the event what they had.
func TestDecide_join(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		in.Event = policy.EventNone
		before := in.decide()
		in.Event = policy.EventJoin
		for i, d := range before.Tasks {
			in.Tasks[i].Limit, in.Tasks[i].Category, in.Tasks[i].State = d.Bound(), d.Category, d.State
		}
		in.Tasks = append(in.Tasks, blind("one more", policy.New, 0))
		after := in.decide()
		check(t, in, after)
		bound := slices.ContainsFunc(after.Tasks, func(d policy.Decision) bool { return d.Rule == RuleBound })
		for i, d := range before.Tasks {
			if d.Kind == policy.Service && !bound && d.Bound() < 1 {
				must.GreaterEq(t, d.Bound()*(1-1e-9), after.Tasks[i].Bound())
			}
		}
	})
}

// Nobody starves on a node on which everything happens at random, a thousand runs in
// sequence: the limits of one are those in force in the next.
func TestDecide_sequence(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		maybe := func(scale float64) *float64 {
			if rnd.IntN(4) == 0 {
				return nil
			}
			return num(scale * rnd.Float64())
		}
		in := of()
		in.IntervalS, in.Params = 20, DefaultParams()
		if seed%2 == 1 {
			in.Params.Dqoes.Step = dqoes.StepPublished
		}
		for run := range 1000 {
			in.Event = policy.EventNone
			switch dice := rnd.IntN(10); {
			case dice == 0 && len(in.Tasks) < 12:
				in.Event = policy.EventJoin
				task := policy.Task{ID: fmt.Sprint(run), Kind: policy.Training, Entitlement: 1 + 7*rnd.Float64()}
				switch rnd.IntN(3) {
				case 0:
					task.Kind, task.ObjectiveS = policy.Service, num(10)
				case 1:
					task.Goal, task.Acceptable, task.Objective = policy.GoalMin, num(0.2), num(0.1)
				}
				in.Tasks = append(in.Tasks, task)
			case dice == 1 && len(in.Tasks) > 0:
				in.Event = policy.EventLeave
				i := rnd.IntN(len(in.Tasks))
				in.Tasks = slices.Delete(slices.Clone(in.Tasks), i, i+1)
			}
			for i := range in.Tasks {
				task := &in.Tasks[i]
				task.Use = policy.Share(rnd.Float64()*1.2) * task.Limit
				if task.Kind == policy.Service {
					task.ResponseS = maybe(30)
				} else {
					task.Growth, task.Value = maybe(1), maybe(10)
				}
			}
			must.NoError(t, in.check())
			out := in.decide()
			check(t, in, out)
			in.State, in.IntervalS = out.State, out.IntervalS
			for i, d := range out.Tasks {
				in.Tasks[i].Limit, in.Tasks[i].Category, in.Tasks[i].State = d.Bound(), d.Category, d.State
			}
		}
	}
}

// plan.Limits divides weights exactly as the policy says, with what it says about
// tasks that are unmeasured.
func TestDecide_plan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := in.decide()
		reqs := requests(in.Tasks, out)
		sum := 0.0
		for _, r := range reqs {
			sum += float64(r.Base.Shares)
		}
		fair := in.FairShares()
		for i, l := range plan.Limits(plan.ModeWeight, 4, reqs, plan.Options{Floor: out.Floor}) {
			part := out.Tasks[i].Bound()
			if part == 1 {
				part = fair[i]
			}
			must.InDelta(t, float64(part)*sum, float64(l.Shares), 2)
		}
	})
}

// requests are what the planner is asked for: shares as Nomad gives them.
func requests(tasks []policy.Task, out policy.Outcome) []plan.Request {
	reqs := make([]plan.Request, len(tasks))
	for i, d := range out.Tasks {
		reqs[i] = plan.Request{ID: d.ID, Limit: d.Bound(), Unknown: d.Unknown,
			Base: limits.Limits{Shares: uint64(1000 * tasks[i].Entitlement)}}
	}
	return reqs
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		in := input{Example(), DefaultParams()}
		tasks := in.Tasks
		in.Tasks = nil
		for i := range n {
			task := tasks[i%len(tasks)]
			task.ID = fmt.Sprintf("%08d-task", i)
			task.Limit /= policy.Share(n) / policy.Share(len(tasks))
			in.Tasks = append(in.Tasks, task)
		}
		b.Run(fmt.Sprintf("tasks=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in.decide()
			}
		})
	}
}
