// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

// inputs draws valid inputs.
func inputs() *rapid.Generator[Input] {
	values := rapid.OneOf(
		rapid.Just[*float64](nil),
		rapid.Map(rapid.SampledFrom([]float64{-1, 0, 0.25, 0.3, 1, 1e300}), num),
		rapid.Map(rapid.Float64Range(0, 1), num),
	)
	uses := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.1, 0.2, 0.25, 1e300}), rapid.Float64Range(0, 1.1))
	return rapid.Custom(func(t *rapid.T) Input {
		in := Input{
			Tasks:  make([]Task, rapid.IntRange(0, 12).Draw(t, "n")),
			Gone:   rapid.SampledFrom([]float64{0, 0, 0.3}).Draw(t, "gone"),
			Params: Params{Full: rapid.Float64Range(0.01, 1).Draw(t, "full")},
		}
		states := rapid.SampledFrom([][]State{
			{"", StateTraining, StateAcceptable, StateObjective}, {StateAcceptable}, {StateAcceptable, StateObjective}, {StateTraining},
		}).Draw(t, "states")
		for i := range in.Tasks {
			task := Task{
				ID:         fmt.Sprintf("task-%d", i),
				Goal:       rapid.SampledFrom([]Goal{GoalMin, GoalMax}).Draw(t, "goal"),
				Value:      values.Draw(t, "value"),
				Acceptable: values.Draw(t, "acceptable"),
				Objective:  values.Draw(t, "objective"),
				State:      rapid.SampledFrom(states).Draw(t, "state"),
				Tracked:    rapid.Bool().Draw(t, "tracked"),
				Use:        uses.Draw(t, "use"),
				Limit:      rapid.Float64Range(1e-6, 1).Draw(t, "limit"),
			}
			if target.Check(task.Goal, task.Acceptable, task.Objective) != nil {
				task.Acceptable, task.Objective = task.Objective, task.Acceptable
			}
			in.Tasks[i] = task
		}
		must.NoError(t, in.Validate())
		return in
	})
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		out := policytest.Decide(t, Decide, in)

		must.Len(t, len(in.Tasks), out.Tasks)
		n := float64(len(in.Tasks))
		free := 0
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			must.Eq(t, was.ID, d.ID)
			must.NotEq(t, "", d.Rule)
			must.NotEq(t, "", d.Why)
			must.GreaterEq(t, was.State.Rank(), d.State.Rank(), must.Sprint("nothing is taken back"))
			must.Eq(t, d.State == StateObjective, d.Stop)
			must.Eq(t, d.Stop, d.Rule == RuleObjective)
			if d.Limit == nil {
				free++
				continue
			}
			must.NotEq(t, StateTraining, d.State, must.Sprint("only who has reached something is limited"))
			must.Between(t, 1/(2*n), *d.Limit, 1)
			must.Less(t, 1, *d.Limit)
		}
		if n == 1 {
			must.Eq(t, 1, free)
		}

		// The next run, with what this one has decided, knows the same states.
		for i, d := range out.Tasks {
			in.Tasks[i].State = d.State
		}
		for i, d := range Decide(in).Tasks {
			must.Eq(t, out.Tasks[i].State, d.State)
			must.Eq(t, out.Tasks[i].Rule, d.Rule)
		}
	})
}

// The order of the input may change the order of the decisions, and nothing else.
func TestDecide_orderFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		reversed := in
		reversed.Tasks = slices.Clone(in.Tasks)
		slices.Reverse(reversed.Tasks)
		one, other := Decide(in), Decide(reversed)
		slices.Reverse(other.Tasks)
		must.Eq(t, show(one), show(other))
	})
}

// A watcher without a hold and Decide say the same.
func TestWatcher_agrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		goal := rapid.SampledFrom([]Goal{GoalMin, GoalMax}).Draw(t, "goal")
		values := rapid.SliceOf(rapid.Float64Range(0, 1)).Draw(t, "values")
		acceptable, objective := num(0.5), num(0.2)
		if goal == GoalMax {
			objective = num(0.8)
		}
		watcher := target.NewWatcher("loss", goal, target.Targets{Acceptable: acceptable, Objective: objective})
		state := StateTraining
		for _, v := range values {
			watcher.Observe([]progress.Report{{Metric: "loss", Value: v}})
			state = Decide(input(Task{
				ID: "a", Goal: goal, Value: &v, Acceptable: acceptable, Objective: objective, State: state, Limit: 1,
			})).Tasks[0].State
			must.Eq(t, watcher.State(), state)
		}
	})
}
