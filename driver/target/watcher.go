// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package target

import (
	"fmt"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Watcher detects when a task's reports reach its targets. Reports of another metric
// than the declared one pause the targets until it returns. It is not safe for
// concurrent use.
type Watcher struct {
	metric string
	goal   policy.Goal
	hold   int
	state  policy.TargetState
	tiers  [2]tier // the harder one last
	other  string  // metric of the last report; "" = the declared one
}

type tier struct {
	state  policy.TargetState
	target *float64
	row    int // consecutive reports that reached it
}

// NewWatcher returns a Watcher of a task that has reached no target. The metric's case
// does not matter. A nil target is never reached.
func NewWatcher(metric string, goal policy.Goal, t Targets) *Watcher {
	return &Watcher{
		metric: metric, goal: goal, hold: max(t.Hold, 1), state: policy.InTraining,
		tiers: [2]tier{{state: policy.Acceptable, target: t.Acceptable}, {state: policy.Objective, target: t.Objective}},
	}
}

// Observe returns the targets newly reached by reports, in order. A report that reaches
// both reaches only the objective.
func (w *Watcher) Observe(reports []progress.Report) []Reached {
	var reached []Reached
	for _, r := range reports {
		w.other = ""
		if !strings.EqualFold(r.Metric, w.metric) {
			w.other = r.Metric
			w.Restore(w.state)
			continue
		}
		var now *tier
		for i := range w.tiers {
			t := &w.tiers[i]
			if t.target == nil || !w.goal.Reached(r.Value, *t.target) {
				t.row = 0
			} else if t.row++; t.row >= w.hold && t.state.Rank() > w.state.Rank() {
				now = t
			}
		}
		if now == nil {
			continue
		}
		w.state = now.state
		at := Reached{State: now.state, Metric: r.Metric, Value: r.Value, Target: *now.target, Time: r.Time}
		if step := r.Step; fields.Finite(step) {
			at.Step = &step
		}
		reached = append(reached, at)
	}
	return reached
}

// Goal returns the direction of the declared metric.
func (w *Watcher) Goal() policy.Goal { return w.goal }

// Targets returns the values of the targets; nil is none.
func (w *Watcher) Targets() (acceptable, objective *float64) {
	return w.tiers[0].target, w.tiers[1].target
}

// Paused explains why the targets pause; "" if they do not.
func (w *Watcher) Paused() string {
	if w.other == "" || w.state == policy.Objective {
		return ""
	}
	return fmt.Sprintf("the output now reports %s instead of %s", w.other, w.metric)
}

// State returns the target reached so far.
func (w *Watcher) State() policy.TargetState { return w.state }

// Restore sets the state stored by an earlier process; an invalid one is
// policy.InTraining. The counts of consecutive reports restart.
func (w *Watcher) Restore(s policy.TargetState) {
	if w.state = policy.InTraining; s.Rank() > 0 {
		w.state = s
	}
	for i := range w.tiers {
		w.tiers[i].row = 0
	}
}
