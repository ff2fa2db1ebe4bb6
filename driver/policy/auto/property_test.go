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
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

// check checks what must hold after every run: shares are conserved, floors hold,
// nobody starves.
func check(t must.T, in Input, out Output) {
	t.Helper()
	must.Len(t, len(in.Tasks), out.Tasks)
	floor := (1 - 1e-9) / (2 * float64(len(in.Tasks)))
	sum, free := 0.0, true
	for i, d := range out.Tasks {
		must.Eq(t, in.Tasks[i].ID, d.ID)
		must.Eq(t, in.Tasks[i].Kind, d.Kind)
		must.NotEq(t, "", d.Rule)
		must.NotEq(t, "", d.Why)
		must.Between(t, floor, d.Limit, 1, must.Sprintf("%+v", d))
		must.Eq(t, d.State == tradl.StateObjective, d.Stop)
		if d.Kind == KindTraining {
			must.True(t, d.Category.Valid() && d.Category != policy.New)
			must.True(t, d.State.Valid() && d.State != "")
		}
		sum += d.Limit
		free = free && d.Limit == 1
	}
	if !free {
		must.InDelta(t, 1, sum, 1e-9)
	}
	must.False(t, math.IsNaN(out.Alpha))
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

func uses() *rapid.Generator[float64] {
	return rapid.OneOf(rapid.SampledFrom([]float64{0, 0.25, 0.5, 1, 1e308}), rapid.Float64Range(0, 1.1))
}

// boundLimits are limits as this policy leaves them, and such as it does not.
func boundLimits() *rapid.Generator[float64] {
	return rapid.OneOf(rapid.SampledFrom([]float64{1, 0.5, 0.25, 0.1}), rapid.Float64Range(1e-6, 1))
}

// services and trainings draw tasks.
func services() *rapid.Generator[Task] {
	return rapid.Custom(func(t *rapid.T) Task {
		return Task{
			Kind:       KindService,
			ObjectiveS: rapid.SampledFrom([]float64{1e-300, 0.01, 1, 10, 1e300}).Draw(t, "objective"),
			ResponseS:  maybe([]float64{0, 0.011, 1, 1.1, 9, 10, 1e300}, 0, 30).Draw(t, "response"),
			Use:        uses().Draw(t, "use"),
			Limit:      rapid.OneOf(rapid.Just(0.0), boundLimits()).Draw(t, "limit"),
		}
	})
}

func trainings() *rapid.Generator[Task] {
	return rapid.Custom(func(t *rapid.T) Task {
		task := Task{
			Kind:     KindTraining,
			Category: rapid.SampledFrom([]policy.Category{policy.New, policy.NL, policy.WL, policy.CL}).Draw(t, "category"),
			Growth:   maybe([]float64{0, 1e-300, 0.1, 0.3, 1e300}, 0, 2).Draw(t, "growth"),
			Value:    maybe([]float64{0.1, 0.2}, 0, 1).Draw(t, "value"),
			State: rapid.SampledFrom([]tradl.State{"", tradl.StateTraining, tradl.StateTraining, tradl.StateAcceptable,
				tradl.StateObjective}).Draw(t, "state"),
			Use:   uses().Draw(t, "use"),
			Limit: rapid.OneOf(rapid.Just(0.0), boundLimits()).Draw(t, "limit"),
		}
		if rapid.Bool().Draw(t, "targets") {
			task.Goal, task.Acceptable, task.Objective = tradl.GoalMin, num(0.2), num(0.1)
		}
		return task
	})
}

// inputs draws valid inputs.
func inputs() *rapid.Generator[Input] {
	return rapid.Custom(func(t *rapid.T) Input {
		in := Input{
			Services: dqoes.State{
				QGood: rapid.Float64Range(0, 50).Draw(t, "q good"), QBad: rapid.Float64Range(-50, 0).Draw(t, "q bad"),
				Satisfied: rapid.IntRange(0, 5).Draw(t, "satisfied"), Trend: rapid.IntRange(0, 3).Draw(t, "trend"),
			},
			IntervalS:        rapid.Float64Range(1, 200).Draw(t, "interval"),
			InitialIntervalS: 20,
			MaxIntervalS:     rapid.SampledFrom([]float64{20, 80, 1000}).Draw(t, "max interval"),
			Event:            rapid.SampledFrom([]flowcon.Event{"", "", flowcon.EventJoin, flowcon.EventLeave}).Draw(t, "event"),
			Params:           DefaultParams(),
		}
		in.Params.Flowcon.Beta = rapid.SampledFrom([]float64{1, 2, 10, 1e300}).Draw(t, "beta")
		in.Params.ServiceShare = rapid.SampledFrom([]float64{1e-9, 0.3, 0.8, 1}).Draw(t, "share")
		in.Params.Dqoes.Step = rapid.SampledFrom([]dqoes.Step{"", dqoes.StepPublished, dqoes.StepProportional}).Draw(t, "step")
		in.Params.Dqoes.Headroom = rapid.Bool().Draw(t, "headroom")
		in.Tasks = append(rapid.SliceOfN(services(), 0, 6).Draw(t, "services"), rapid.SliceOfN(trainings(), 0, 6).Draw(t, "trainings")...)
		for i := range in.Tasks {
			in.Tasks[i].ID = fmt.Sprintf("task-%d", i)
		}
		in.Tasks = rapid.Permutation(in.Tasks).Draw(t, "order")
		must.NoError(t, in.Validate())
		return in
	})
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := policytest.Decide(t, Decide, in)
		check(t, in, out)

		// What a run decides is what the next one can take.
		for i, d := range out.Tasks {
			in.Tasks[i].Limit, in.Tasks[i].Category, in.Tasks[i].State = d.Limit, d.Category, d.State
		}
		in.Services, in.IntervalS = out.Services, out.IntervalS
		must.NoError(t, in.Validate())
	})
}

// The order of the input may change the order of the decisions, and nothing else but
// the last bits of sums.
func TestDecide_orderFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		reversed := in
		reversed.Tasks = slices.Clone(in.Tasks)
		slices.Reverse(reversed.Tasks)

		one, other := Decide(in), Decide(reversed)
		slices.Reverse(other.Tasks)
		for i, d := range one.Tasks {
			o := other.Tasks[i]
			must.Eq(t, d.Category, o.Category)
			must.Eq(t, d.Class, o.Class)
			must.InDelta(t, d.Limit, o.Limit, 1e-6)
		}
	})
}

// What services get does not depend on how training goes: only on how much CPU it
// uses, and who of it is there.
func TestDecide_servicesFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		one := Decide(in)
		other := in
		other.Tasks = slices.Clone(in.Tasks)
		for i, task := range in.Tasks {
			if task.Kind == KindTraining && !one.Tasks[i].Stop {
				other.Tasks[i] = Task{ID: task.ID, Kind: KindTraining, Category: policy.CL, Growth: num(0), Use: task.Use, Limit: task.Limit}
			}
		}
		two := Decide(other)
		for i, d := range one.Tasks {
			if d.Kind == KindService {
				must.Eq(t, d.Limit, two.Tasks[i].Limit)
			}
		}
	})
}

// A service keeps what it needs, unless services may not have so much together.
func TestDecide_servicesKeep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := Decide(in)
		bound := slices.ContainsFunc(out.Tasks, func(d Decision) bool { return d.Rule == RuleBound })
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			if bound || d.Kind != KindService || was.Limit == 0 || was.Limit == 1 {
				continue
			}
			switch {
			case in.Event != flowcon.EventNone:
				must.GreaterEq(t, was.Limit*(1-1e-9), d.Limit)
			case d.Class == dqoes.Good || d.Class == dqoes.Satisfied:
				// With a limit of this size it would answer in (1+α/2)·o.
				must.GreaterEq(t, was.Limit*math.Min(1, *was.ResponseS/was.ObjectiveS/1.05)*(1-1e-9), d.Limit)
			case d.Class == dqoes.Bad && in.Params.Dqoes.Step != dqoes.StepProportional:
				must.GreaterEq(t, was.Limit*(1-1e-9), d.Limit)
			}
		}
	})
}

// One training task more on a node takes nothing from a service, unless the bound
// does: services that were within it have on the event what they had.
func TestDecide_join(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		in.Event = flowcon.EventNone
		before := Decide(in)
		in.Event = flowcon.EventJoin
		for i, d := range before.Tasks {
			in.Tasks[i].Limit, in.Tasks[i].Category, in.Tasks[i].State = d.Limit, d.Category, d.State
		}
		in.Tasks = append(in.Tasks, Task{ID: "one more", Kind: KindTraining})
		after := Decide(in)
		check(t, in, after)
		bound := slices.ContainsFunc(after.Tasks, func(d Decision) bool { return d.Rule == RuleBound })
		for i, d := range before.Tasks {
			if d.Kind == KindService && !bound && d.Limit < 1 {
				must.GreaterEq(t, d.Limit*(1-1e-9), after.Tasks[i].Limit)
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
		in := Input{IntervalS: 20, InitialIntervalS: 20, MaxIntervalS: 160, Params: DefaultParams()}
		if seed%2 == 1 {
			in.Params.Dqoes.Step = dqoes.StepPublished
		}
		for run := range 1000 {
			in.Event = flowcon.EventNone
			switch dice := rnd.IntN(10); {
			case dice == 0 && len(in.Tasks) < 12:
				in.Event = flowcon.EventJoin
				task := Task{ID: fmt.Sprint(run), Kind: KindTraining}
				switch rnd.IntN(3) {
				case 0:
					task.Kind, task.ObjectiveS = KindService, 10
				case 1:
					task.Goal, task.Acceptable, task.Objective = tradl.GoalMin, num(0.2), num(0.1)
				}
				in.Tasks = append(in.Tasks, task)
			case dice == 1 && len(in.Tasks) > 0:
				in.Event = flowcon.EventLeave
				i := rnd.IntN(len(in.Tasks))
				in.Tasks = slices.Delete(slices.Clone(in.Tasks), i, i+1)
			}
			for i := range in.Tasks {
				task := &in.Tasks[i]
				task.Use = rnd.Float64() * task.Limit * 1.2
				if task.Kind == KindService {
					task.ResponseS = maybe(30)
				} else {
					task.Growth, task.Value = maybe(1), maybe(10)
				}
			}
			must.NoError(t, in.Validate())
			out := Decide(in)
			check(t, in, out)
			in.Services, in.IntervalS = out.Services, out.IntervalS
			for i, d := range out.Tasks {
				in.Tasks[i].Limit, in.Tasks[i].Category, in.Tasks[i].State = d.Limit, d.Category, d.State
			}
		}
	}
}

// limits.Plan divides weights exactly as the policy says, with what it says about
// tasks that are unmeasured.
func TestDecide_plan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := Decide(in)
		reqs := make([]limits.Request, len(out.Tasks))
		for i, d := range out.Tasks {
			reqs[i] = limits.Request{ID: d.ID, Limit: d.Limit, Unmeasured: d.Unmeasured, BaseShares: 10000}
		}
		for i, l := range limits.Plan(limits.ModeWeight, 4, reqs, limits.Options{}) {
			want := 10000 * float64(len(reqs)) * out.Tasks[i].Limit
			if out.Tasks[i].Limit == 1 {
				want = 10000
			}
			must.InDelta(t, want, float64(l.Shares), 2)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		in := Example()
		tasks := in.Tasks
		in.Tasks = nil
		for i := range n {
			task := tasks[i%len(tasks)]
			task.ID = fmt.Sprintf("%08d-task", i)
			task.Limit /= float64(n) / float64(len(tasks))
			in.Tasks = append(in.Tasks, task)
		}
		b.Run(fmt.Sprintf("tasks=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Decide(in)
			}
		})
	}
}
