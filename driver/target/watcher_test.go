// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package target

import (
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
)

func loss(value float64) progress.Report { return progress.Report{Metric: "loss", Value: value} }

func observe(t must.T, w *Watcher, r progress.Report) policy.TargetState {
	t.Helper()
	before := w.State()
	reached := w.Observe([]progress.Report{r})
	if len(reached) == 0 {
		must.Eq(t, before, w.State())
		return ""
	}
	must.Len(t, 1, reached)
	must.Eq(t, w.State(), reached[0].State)
	return reached[0].State
}

func TestWatcher(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	const a, o = policy.Acceptable, policy.Objective
	for _, tc := range []struct {
		name                  string
		goal                  policy.Goal
		acceptable, objective *float64
		hold                  int
		values                []float64
		want                  []policy.TargetState
	}{
		{"published: at once", policy.GoalMin, num(3), num(2), 1, []float64{4, 3, 1, 0, 9}, []policy.TargetState{"", a, o, "", ""}},
		{"hold below 1 is 1", policy.GoalMin, num(3), num(2), -5, []float64{4, 3, 1}, []policy.TargetState{"", a, o}},
		{"rising", policy.GoalMax, num(0.8), num(0.9), 1, []float64{0.7, 0.8, 0.85, 0.9}, []policy.TargetState{"", a, "", o}},
		{"both with one report: the objective", policy.GoalMin, num(3), num(2), 1, []float64{4, 1}, []policy.TargetState{"", o}},
		{"three in a row", policy.GoalMin, num(3), num(2), 3, []float64{3, 3, 4, 3, 3, 3, 3}, []policy.TargetState{"", "", "", "", "", a, ""}},
		{"three in a row, separately", policy.GoalMin, num(3), num(2), 3, []float64{3, 2, 1, 1}, []policy.TargetState{"", "", a, o}},
		{"both in a row: the objective", policy.GoalMin, num(3), num(2), 2, []float64{2, 2}, []policy.TargetState{"", o}},
		{"a worse report revokes nothing", policy.GoalMin, num(3), num(2), 2, []float64{3, 3, 9, 9, 3, 3, 2, 3, 2, 2}, []policy.TargetState{"", a, "", "", "", "", "", "", "", o}},
		{"NaN and infinity break the row", policy.GoalMin, num(3), num(2), 2, []float64{3, nan, 3, inf, 3, 3}, []policy.TargetState{"", "", "", "", "", a}},
		{"NaN and infinity reach nothing", policy.GoalMax, num(3), num(2), 1, []float64{nan, -inf, inf}, []policy.TargetState{"", "", ""}},
		{"only acceptable", policy.GoalMin, num(3), nil, 1, []float64{1, 0}, []policy.TargetState{a, ""}},
		{"only objective", policy.GoalMin, nil, num(2), 1, []float64{3, 2}, []policy.TargetState{"", o}},
		{"neither", policy.GoalMin, nil, nil, 1, []float64{1, 0}, []policy.TargetState{"", ""}},
		{"no direction", "", num(3), num(2), 1, []float64{1, 9}, []policy.TargetState{"", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := NewWatcher("loss", tc.goal, Targets{Acceptable: tc.acceptable, Objective: tc.objective, Hold: tc.hold})
			must.Eq(t, policy.InTraining, w.State())
			for i, v := range tc.values {
				must.Eq(t, tc.want[i], observe(t, w, loss(v)), must.Sprintf("report %d", i))
			}
			must.Eq(t, "", w.Paused())
		})
	}
}

func TestWatcher_Observe(t *testing.T) {
	at := time.Unix(1, 0)
	w := NewWatcher("Loss", policy.GoalMin, Targets{Acceptable: num(3), Objective: num(2)})
	must.Eq(t, []Reached{
		{State: policy.Acceptable, Metric: "loss", Value: 2.5, Target: 3, Time: at},
		{State: policy.Objective, Metric: "LOSS", Value: 1, Target: 2, Step: num(7), Time: at},
	}, w.Observe([]progress.Report{
		{Metric: "loss", Value: 4, Step: 5, Time: at}, {Metric: "loss", Value: 2.5, Step: math.NaN(), Time: at},
		{Metric: "LOSS", Value: 1, Step: 7, Time: at}, {Metric: "loss", Value: 0, Step: 8, Time: at},
	}))
	must.SliceEmpty(t, w.Observe(nil))
	must.Eq(t, "", w.Paused())
}

func TestWatcher_anotherMetric(t *testing.T) {
	accuracy := func(v float64) progress.Report { return progress.Report{Metric: "accuracy", Value: v} }
	w := NewWatcher("accuracy", policy.GoalMax, Targets{Objective: num(0.95)})
	// "Initial test accuracy: 0.098", then losses above the objective.
	must.SliceEmpty(t, w.Observe([]progress.Report{accuracy(0.098), loss(2.3), loss(2.1)}))
	must.Eq(t, "the output now reports loss instead of accuracy", w.Paused())
	// "loss=0.929 accuracy=0.3": neither counts for the other.
	must.SliceEmpty(t, w.Observe([]progress.Report{loss(0.929), accuracy(0.3)}))
	must.Eq(t, "", w.Paused())
	must.Eq(t, policy.Objective, observe(t, w, accuracy(0.95)))
	must.SliceEmpty(t, w.Observe([]progress.Report{loss(1)}))
	must.Eq(t, "", w.Paused(), must.Sprint("there is nothing left to pause"))

	// A longer name is another metric.
	w = NewWatcher("loss", policy.GoalMin, Targets{Objective: num(1)})
	for _, name := range []string{"val_loss", "val.loss", "train loss", "losses", ""} {
		must.Eq(t, "", observe(t, w, progress.Report{Metric: name, Value: 0}))
	}
}

// The count of consecutive reports restarts when the declared metric returns.
func TestWatcher_alternates(t *testing.T) {
	other := progress.Report{Metric: "val_loss", Value: 0}
	w := NewWatcher("loss", policy.GoalMin, Targets{Acceptable: num(3), Hold: 2})
	for range 5 {
		must.Eq(t, "", observe(t, w, loss(1)))
		must.Eq(t, "", w.Paused())
		must.Eq(t, "", observe(t, w, other))
		must.Eq(t, "the output now reports val_loss instead of loss", w.Paused())
	}
	must.Eq(t, "", observe(t, w, loss(1)))
	must.Eq(t, policy.Acceptable, observe(t, w, loss(1)))
}

func TestWatcher_Restore(t *testing.T) {
	w := NewWatcher("loss", policy.GoalMin, Targets{Acceptable: num(3), Objective: num(2), Hold: 2})
	must.Eq(t, "", observe(t, w, loss(3)))
	w.Restore(policy.InTraining) // as after a restart of the process
	must.Eq(t, "", observe(t, w, loss(3)))
	must.Eq(t, policy.Acceptable, observe(t, w, loss(3)))

	w.Restore(policy.Acceptable)
	must.Eq(t, policy.Acceptable, w.State())
	for _, v := range []float64{3, 3, 2} {
		must.Eq(t, "", observe(t, w, loss(v)))
	}
	must.Eq(t, policy.Objective, observe(t, w, loss(2)))

	w.Restore(policy.Objective)
	for range 2 {
		must.Eq(t, "", observe(t, w, loss(2)))
	}
	must.Eq(t, policy.Objective, w.State())

	for _, nonsense := range []policy.TargetState{"", "NL"} {
		w.Restore(nonsense)
		must.Eq(t, policy.InTraining, w.State())
	}
}

// A reached state is new, harder than the previous one, and reached by the required
// number of consecutive reports of the declared metric.
func TestWatcher_properties(t *testing.T) {
	values := rapid.OneOf(rapid.Float64Range(-2, 2), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, 1}))
	rapid.Check(t, func(t *rapid.T) {
		goal := rapid.SampledFrom([]policy.Goal{policy.GoalMin, policy.GoalMax}).Draw(t, "goal")
		targets := Targets{Acceptable: num(0.5), Objective: num(0), Hold: rapid.IntRange(1, 3).Draw(t, "hold")}
		if goal == policy.GoalMax {
			targets.Objective = num(1)
		}
		w := NewWatcher("loss", goal, targets)
		var seen []progress.Report
		state := policy.InTraining
		for range rapid.IntRange(0, 20).Draw(t, "polls") {
			reports := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) progress.Report {
				return progress.Report{Metric: rapid.SampledFrom([]string{"loss", "loss", "accuracy"}).Draw(t, "metric"), Value: values.Draw(t, "value")}
			}), 0, 4).Draw(t, "reports")
			alone := NewWatcher("loss", goal, targets) // one report per poll
			for _, r := range append(seen, reports...) {
				alone.Observe([]progress.Report{r})
			}
			for _, at := range w.Observe(reports) {
				must.Greater(t, state.Rank(), at.State.Rank())
				must.True(t, goal.Reached(at.Value, at.Target))
				state = at.State
			}
			seen = append(seen, reports...)
			must.Eq(t, state, w.State())
			must.Eq(t, alone.State(), w.State())
			must.Eq(t, alone.Paused(), w.Paused())
		}
		row, longest := 0, 0
		for _, r := range seen {
			if row++; r.Metric != "loss" || !goal.Reached(r.Value, *targets.Objective) {
				row = 0
			}
			longest = max(longest, row)
		}
		must.Eq(t, longest >= targets.Hold, w.State() == policy.Objective)
		if n := len(seen); n > 0 && w.State() != policy.Objective {
			must.Eq(t, seen[n-1].Metric != "loss", w.Paused() != "")
		}
	})
}
