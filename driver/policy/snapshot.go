// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"encoding/json"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Units of what is measured and decided.
type (
	// Cores is an amount of CPU.
	Cores float64
	// Share is a fraction of a node's elastic pool; 1 is all of it.
	Share float64
	// CPUSeconds is an amount of CPU time.
	CPUSeconds float64
)

// Snapshot is a node at one moment: the whole input of a decision. It is the JSON that
// `ebbtide decide` reads and `ebbtide snapshot` prints.
type Snapshot struct {
	// Node names the node, for people.
	Node string `json:"node" strict:"optional"`
	// NowS is the time, in seconds since the Unix epoch.
	NowS float64 `json:"now_s" strict:"optional"`
	// Policy is the one that decided here last, to which State belongs; "" in a
	// snapshot written by hand stands for whichever is asked.
	Policy string `json:"policy" strict:"optional"`
	// PoolCores is the elastic pool: of it all shares are fractions.
	PoolCores Cores `json:"pool_cores" strict:"optional"`
	// Event says why the policy runs.
	Event Event `json:"event" strict:"optional"`
	// IntervalS is the time between two runs so far, in seconds.
	IntervalS float64 `json:"interval_s" strict:"optional"`
	// InitialIntervalS is the shortest interval, and the one after a join or a leave.
	InitialIntervalS float64 `json:"initial_interval_s" strict:"optional"`
	// MaxIntervalS is the longest interval.
	MaxIntervalS float64 `json:"max_interval_s" strict:"optional"`
	// Gone is what tasks that are not in the snapshot used in the last interval: those
	// that have left since, and those that are not to be limited. They do not count, but
	// the pool was as full as it was.
	Gone Share `json:"gone" strict:"optional"`
	// State is Outcome.State of the last run; nil at the start.
	State json.RawMessage `json:"state,omitempty" strict:"optional"`
	// Tasks are the node's tasks in order of arrival. There may be none.
	Tasks []Task `json:"tasks"`
	// Params are the parameters of the policy that is asked.
	Params json.RawMessage `json:"params,omitempty" strict:"optional"`
	// Policies holds the parameters that the node's configuration gives each policy, by
	// its name. They count where there are no Params.
	Policies map[string]json.RawMessage `json:"policies,omitempty" strict:"optional"`
}

// Task is one task of a node.
type Task struct {
	// ID names the task; unique in the snapshot.
	ID string `json:"id"`
	// Kind says what the task does; "" is Training.
	Kind Kind `json:"kind" strict:"optional"`
	// Entitlement is what Nomad gave the task, > 0 and relative to the other tasks'. In
	// a snapshot written by hand it may be left out: all requests are equal then.
	Entitlement float64 `json:"entitlement" strict:"optional"`
	// Limit is the limit in force, in (0, 1]; 1 means no limit, and 0 that none has
	// been decided yet.
	Limit Share `json:"limit" strict:"optional"`
	// Use is the task's CPU over the last interval. It may exceed 1 where tasks borrow
	// CPU from outside the pool.
	Use Share `json:"use" strict:"optional"`

	// Epoch grows with each new piece of evidence about the task's progress (a report,
	// and CPU time), and CategoryEpoch is the one that Category was decided on. A
	// category changes only on new evidence. 0 in a snapshot written by hand: each run
	// has new evidence.
	Epoch         uint64 `json:"epoch" strict:"optional"`
	CategoryEpoch uint64 `json:"category_epoch" strict:"optional"`
	// Category is the one that the last run decided, or New (training).
	Category Category `json:"category" strict:"optional"`
	// Growth is G, the growth efficiency for CPU (FlowCon, eq. 2): progress per second
	// divided by Use. nil when it is not known (training).
	Growth *float64 `json:"growth" strict:"optional"`
	// Progress is P, per second (FlowCon, eq. 1); nil when it is not known (training).
	Progress *float64 `json:"progress" strict:"optional"`

	// Goal is the direction of Value and the targets; "" if unknown (training).
	Goal Goal `json:"goal" strict:"optional"`
	// Value is what the task reported last; nil when it has not reported (training).
	Value *float64 `json:"value" strict:"optional"`
	// Acceptable is the value from which on the model can be used; nil for none (training).
	Acceptable *float64 `json:"acceptable" strict:"optional"`
	// Objective is the value at which the training is done; nil for none (training).
	Objective *float64 `json:"objective" strict:"optional"`
	// State is what the task had reached before (training).
	State TargetState `json:"state" strict:"optional"`
	// Tracked says that State is all that counts, because the node follows the reports
	// and asks for several in a row: Value is for people only (training).
	Tracked bool `json:"tracked" strict:"optional"`

	// ObjectiveS is the response time that is asked for, in seconds per batch; nil for
	// a training task (service).
	ObjectiveS *float64 `json:"objective_s" strict:"optional"`
	// ResponseS is the response time over the last interval, in seconds per batch; nil
	// when no batch ended in it. On an event it is the last one measured (service).
	ResponseS *float64 `json:"response_s" strict:"optional"`

	// CapCores is the most CPU that the task can use; 0 stands for the pool (training).
	CapCores Cores `json:"cap_cores" strict:"optional"`
	// CPUS is the CPU time that the task has used (training).
	CPUS CPUSeconds `json:"cpu_s" strict:"optional"`
	// FairCPUS is what it would have used by now under fair sharing: the service of its
	// twin (training).
	FairCPUS CPUSeconds `json:"fair_cpu_s" strict:"optional"`
	// RemainingCPUS is what the task will still use until it ends; nil when it is not
	// known (training).
	RemainingCPUS *CPUSeconds `json:"remaining_cpu_s" strict:"optional"`
	// QualityCPUS is what it will still use until its model is good enough; 0 when it
	// is, nil when that is not known (training).
	QualityCPUS *CPUSeconds `json:"quality_cpu_s" strict:"optional"`
	// Ended says that the task has ended, but not its twin (training).
	Ended bool `json:"ended" strict:"optional"`
}

// Fresh says whether there is evidence that the task's category was not decided on.
func (t Task) Fresh() bool { return t.Epoch == 0 || t.Epoch > t.CategoryEpoch }

// Service says whether the task is a service with a response time to keep.
func (t Task) Service() bool { return t.Kind == Service || t.Kind == "" && t.ObjectiveS != nil }

// Bound returns the limit in force, or 1 where none has been decided yet.
func (t Task) Bound() Share {
	if t.Limit == 0 {
		return 1
	}
	return t.Limit
}

// Reached returns what the task has reached by now; never "".
func (t Task) Reached() TargetState {
	state := t.State
	if state == "" {
		state = InTraining
	}
	if t.Tracked || t.Value == nil {
		return state
	}
	reaches := func(target *float64, s TargetState) {
		if target != nil && t.Goal.Reached(*t.Value, *target) && s.Rank() > state.Rank() {
			state = s
		}
	}
	reaches(t.Acceptable, Acceptable)
	reaches(t.Objective, Objective)
	return state
}

// FairShares returns what each task is entitled to, > 0: its entitlement of the sum.
// With equal entitlements that is 1/n for all. A task that has ended is entitled to 0.
func (s Snapshot) FairShares() []Share {
	var most, sum float64
	for _, t := range s.Tasks {
		if !t.Ended {
			most = max(most, t.Entitlement)
		}
	}
	for _, t := range s.Tasks {
		if !t.Ended {
			sum += t.Entitlement / most // no sum of numbers up to 1 overflows
		}
	}
	out := make([]Share, len(s.Tasks))
	for i, t := range s.Tasks {
		if t.Ended {
			continue
		}
		out[i] = max(Share(t.Entitlement/most/sum), 0x1p-1000) // a part of it is not 0
	}
	return out
}

// CheckIntervals reports intervals with which a policy that adapts them cannot work.
func (s Snapshot) CheckIntervals() (errs fields.Errors) {
	if !fields.Positive(s.IntervalS) {
		errs.Add("interval_s", "must be > 0, got %v", s.IntervalS)
	}
	if !fields.Positive(s.InitialIntervalS) {
		errs.Add("initial_interval_s", "must be > 0, got %v", s.InitialIntervalS)
	}
	return errs
}

// Validate reports every field whose value no policy accepts, as a fields.Errors, by its
// path: "tasks[2].growth: must be ≥ 0, got -1".
func (s Snapshot) Validate() error {
	var errs fields.Errors
	s.Event.check(&errs)
	check := func(path string, value float64, ok bool, allowed string) {
		if !ok {
			errs.Add(path, "must be %s, got %v", allowed, value)
		}
	}
	check("pool_cores", float64(s.PoolCores), fields.NonNegative(s.PoolCores), "≥ 0")
	check("gone", float64(s.Gone), fields.NonNegative(s.Gone), "≥ 0")
	check("interval_s", s.IntervalS, fields.NonNegative(s.IntervalS), "≥ 0")
	check("initial_interval_s", s.InitialIntervalS, fields.NonNegative(s.InitialIntervalS), "≥ 0")
	check("max_interval_s", s.MaxIntervalS, fields.NonNegative(s.MaxIntervalS), "≥ 0")
	ids := fields.IDs{List: "tasks"}
	for i, t := range s.Tasks {
		ids.Check(&errs, i, t.ID)
		t.validate(func(name string) string { return fields.Member(fields.Index("tasks", i), name) }, &errs)
	}
	return errs.Err()
}

func (t Task) validate(at func(string) string, errs *fields.Errors) {
	check := func(name string, value float64, ok bool, allowed string) {
		if !ok {
			errs.Add(at(name), "must be %s, got %v", allowed, value)
		}
	}
	known := func(name string, value *float64, ok func(float64) bool, allowed string) {
		if value != nil {
			check(name, *value, ok(*value), allowed)
		}
	}
	check("entitlement", t.Entitlement, fields.Positive(t.Entitlement), "> 0")
	check("limit", float64(t.Limit), t.Limit >= 0 && t.Limit <= 1, "> 0 and ≤ 1, or 0 for none yet")
	check("use", float64(t.Use), fields.NonNegative(t.Use), "≥ 0")
	known("growth", t.Growth, fields.NonNegative, "≥ 0")
	known("progress", t.Progress, fields.NonNegative, "≥ 0")
	known("value", t.Value, fields.Finite, "a finite number")
	known("objective_s", t.ObjectiveS, fields.Positive, "> 0")
	known("response_s", t.ResponseS, fields.NonNegative, "≥ 0")
	check("cap_cores", float64(t.CapCores), fields.NonNegative(t.CapCores), "≥ 0")
	known("cpu_s", (*float64)(&t.CPUS), fields.NonNegative, "≥ 0")
	known("fair_cpu_s", (*float64)(&t.FairCPUS), fields.NonNegative, "≥ 0")
	known("remaining_cpu_s", (*float64)(t.RemainingCPUS), fields.NonNegative, "≥ 0")
	known("quality_cpu_s", (*float64)(t.QualityCPUS), fields.NonNegative, "≥ 0")
	if !t.Category.Valid() {
		errs.Add(at("category"), `must be one of "NL", "WL", "CL" or "" for a new task, got %q`, string(t.Category))
	}
	if !t.State.Valid() {
		errs.Add(at("state"), `must be one of "training", "acceptable", "objective", got %q`, string(t.State))
	}
	for _, e := range CheckTargets(t.Goal, t.Acceptable, t.Objective) {
		errs.Add(at(e.Path), "%s", e.Problem)
	}
	switch {
	case t.Kind != "" && t.Kind != Training && t.Kind != Service:
		errs.Add(at("kind"), `must be one of "training", "service", got %q`, string(t.Kind))
	case t.Kind == Service && t.ObjectiveS == nil:
		errs.Add(at("objective_s"), "is missing, a service needs one")
	case t.Kind == Training && t.ObjectiveS != nil:
		errs.Add(at("objective_s"), "is for services only, got %v for a training task", *t.ObjectiveS)
	case t.Service() && (t.Acceptable != nil || t.Objective != nil):
		errs.Add(at("kind"), "a service has no acceptable or objective")
	}
}

// CheckTargets says what is wrong with a pair of targets, with the paths "goal",
// "acceptable" and "objective".
func CheckTargets(goal Goal, acceptable, objective *float64) fields.Errors {
	var errs fields.Errors
	usable := true
	if targets := acceptable != nil || objective != nil; !goal.Valid() && (targets || goal != "") {
		errs.Add("goal", `must be "min" or "max", got %q`, string(goal))
		usable = false
	}
	for _, t := range []struct {
		name   string
		target *float64
	}{{"acceptable", acceptable}, {"objective", objective}} {
		if t.target != nil && !fields.Finite(*t.target) {
			errs.Add(t.name, "must be a finite number, got %v", *t.target)
			usable = false
		}
	}
	if !usable || acceptable == nil || objective == nil || goal.Reached(*objective, *acceptable) {
		return errs
	}
	harder, way := "≤", "lower values are better"
	if goal == GoalMax {
		harder, way = "≥", "higher values are better"
	}
	errs.Add("objective", `must be %s acceptable = %v, because goal is %q: %s; got %v, which is easier`,
		harder, *acceptable, string(goal), way, *objective)
	return errs
}

// Reached says whether a value reaches a target: a loss by falling to it, an accuracy
// by rising to it. A model whose value is NaN or infinite has diverged and reaches
// nothing, not even −∞ for a loss.
func (g Goal) Reached(value, target float64) bool {
	return fields.Finite(value) && (g == GoalMin && value <= target || g == GoalMax && value >= target)
}
