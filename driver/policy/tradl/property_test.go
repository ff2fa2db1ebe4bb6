// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"fmt"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

func inputs() *rapid.Generator[input] {
	values := rapid.OneOf(
		rapid.Just[*float64](nil),
		rapid.Map(rapid.SampledFrom([]float64{-1, 0, 0.25, 0.3, 1, 1e300}), num),
		rapid.Map(rapid.Float64Range(0, 1), num),
	)
	uses := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.1, 0.2, 0.25, 1e300}), rapid.Float64Range(0, 1.1))
	return rapid.Custom(func(t *rapid.T) input {
		in := input{policy.Snapshot{
			Tasks: make([]policy.Task, rapid.IntRange(0, 12).Draw(t, "n")),
			Gone:  policy.Share(rapid.SampledFrom([]float64{0, 0, 0.3}).Draw(t, "gone")),
		}, Params{Full: rapid.Float64Range(0.01, 1).Draw(t, "full")}}
		entitlement := rapid.Just(1.0)
		if rapid.Bool().Draw(t, "unequal") {
			entitlement = rapid.Float64Range(0.1, 16)
		}
		states := rapid.SampledFrom([][]policy.TargetState{
			{"", policy.InTraining, policy.Acceptable, policy.Objective}, {policy.Acceptable}, {policy.Acceptable, policy.Objective}, {policy.InTraining},
		}).Draw(t, "states")
		for i := range in.Tasks {
			task := policy.Task{
				ID:         fmt.Sprintf("task-%d", i),
				Goal:       rapid.SampledFrom([]policy.Goal{policy.GoalMin, policy.GoalMax}).Draw(t, "goal"),
				Value:      values.Draw(t, "value"),
				Acceptable: values.Draw(t, "acceptable"),
				Objective:  values.Draw(t, "objective"),
				State:      rapid.SampledFrom(states).Draw(t, "state"),
				Tracked:    rapid.Bool().Draw(t, "tracked"),
				Use:        policy.Share(uses.Draw(t, "use")),
				Limit:      policy.Share(rapid.Float64Range(1e-6, 1).Draw(t, "limit")),

				Entitlement: entitlement.Draw(t, "entitlement"),
			}
			if policy.CheckTargets(task.Goal, task.Acceptable, task.Objective) != nil {
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
		out := policytest.Decide(t, input.decide, in)

		must.Len(t, len(in.Tasks), out.Tasks)
		fair := in.FairShares()
		free := 0
		for i, d := range out.Tasks {
			was := in.Tasks[i]
			must.Eq(t, was.ID, d.ID)
			must.NotEq(t, "", d.Rule)
			must.NotEq(t, "", d.Why)
			must.GreaterEq(t, was.State.Rank(), d.State.Rank(), must.Sprint("nothing is taken back"))
			must.Eq(t, d.State == policy.Objective, d.Stop)
			must.Eq(t, d.Stop, d.Rule == RuleObjective)
			if d.Limit == nil {
				free++
				continue
			}
			must.NotEq(t, policy.InTraining, d.State, must.Sprint("only a task that has reached a target is limited"))
			must.Between(t, fair[i]/2, *d.Limit, 1)
			must.Less(t, 1, *d.Limit)
		}
		if len(in.Tasks) == 1 {
			must.Eq(t, 1, free)
		}

		for i, d := range out.Tasks {
			in.Tasks[i].State = d.State
		}
		for i, d := range in.decide().Tasks {
			must.Eq(t, out.Tasks[i].State, d.State)
			must.Eq(t, out.Tasks[i].Rule, d.Rule)
		}
	})
}

func TestDecide_unitOfEntitlement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "in")
		policytest.Entitled(t, func(s policy.Snapshot) policy.Outcome { return Decide(s, in.Params) }, in.Snapshot,
			rapid.SampledFrom([]float64{0x1p-10, 0.5, 8, 1024}).Draw(t, "factor"))
	})
}

// A watcher without a hold and Decide agree.
func TestWatcher_agrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		goal := rapid.SampledFrom([]policy.Goal{policy.GoalMin, policy.GoalMax}).Draw(t, "goal")
		values := rapid.SliceOf(rapid.Float64Range(0, 1)).Draw(t, "values")
		acceptable, objective := num(0.5), num(0.2)
		if goal == policy.GoalMax {
			objective = num(0.8)
		}
		watcher := target.NewWatcher("loss", goal, target.Targets{Acceptable: acceptable, Objective: objective})
		state := policy.InTraining
		for _, v := range values {
			watcher.Observe([]progress.Report{{Metric: "loss", Value: v}})
			state = of(policy.Task{
				ID: "a", Goal: goal, Value: &v, Acceptable: acceptable, Objective: objective, State: state, Limit: 1,
			}).decide().Tasks[0].State
			must.Eq(t, watcher.State(), state)
		}
	})
}
