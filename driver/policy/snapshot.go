// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"encoding/json"

	"github.com/ebbtide/ebbtide/internal/fields"
)

type (
	Cores float64
	// Share is a fraction of a node's elastic pool; 1 is all of it.
	Share      float64
	CPUSeconds float64
)

// Snapshot is the state of a node, the whole input of a decision: `ebbtide decide`
// reads it as JSON, `ebbtide snapshot` prints it.
type Snapshot struct {
	// Node is the node's name, for display.
	Node string `json:"node" strict:"optional"`
	// NowS is the time in seconds since the Unix epoch.
	NowS float64 `json:"now_s" strict:"optional" doc:"the time of the decision, in seconds since the Unix epoch"`
	// Policy made the last decision and owns State; "" in a handwritten snapshot means the policy
	// being run.
	Policy string `json:"policy" strict:"optional"`
	// PoolCores is the elastic pool that shares are fractions of.
	PoolCores Cores `json:"pool_cores" strict:"optional" doc:"the CPU that is divided, in cores"`
	// Event is the reason of the run.
	Event Event `json:"event" strict:"optional" doc:"the reason of the run: \"\" at the end of an interval, \"join\" or \"leave\""`
	// IntervalS is the current time between two runs, in seconds.
	IntervalS float64 `json:"interval_s" strict:"optional" doc:"the current time between two runs, in seconds"`
	// InitialIntervalS is the shortest interval, used after a join or leave.
	InitialIntervalS float64 `json:"initial_interval_s" strict:"optional" doc:"the shortest time between two runs, in seconds"`
	MaxIntervalS     float64 `json:"max_interval_s" strict:"optional" doc:"the longest time between two runs, in seconds"`
	// Gone is the use in the last interval of tasks that are not in the snapshot: those that have
	// left since and those exempt from limits.
	Gone Share `json:"gone" strict:"optional"`
	// State is Outcome.State of the last run; nil in the first one.
	State json.RawMessage `json:"state,omitempty" strict:"optional"`
	// Tasks are the node's tasks in order of arrival, possibly none.
	Tasks []Task `json:"tasks" doc:"the node's tasks in order of arrival"`
	// Params are the parameters of the policy being run.
	Params json.RawMessage `json:"params,omitempty" strict:"optional"`
	// Policies holds the node's configured parameters by policy, used without Params.
	Policies map[string]json.RawMessage `json:"policies,omitempty" strict:"optional"`
}

type Task struct {
	ID string `json:"id" doc:"the task's unique ID"`
	// Kind is Training if "".
	Kind Kind `json:"kind" strict:"optional" doc:"\"training\" or \"service\""`
	// Entitlement is what Nomad gave the task, > 0, relative to the others. In a handwritten snapshot
	// it is 1 by default: equal requests, as in the papers.
	Entitlement float64 `json:"entitlement" strict:"optional" default:"1"`
	// Limit is the limit in force, in (0, 1]; 1 means no limit, 0 none decided yet.
	Limit Share `json:"limit" strict:"optional" doc:"the limit in force, as a fraction of the pool; 1 for no limit, 0 for none decided yet"`
	// Use is the task's CPU over the last interval. It may exceed 1 if tasks use CPU
	// outside the pool.
	Use Share `json:"use" strict:"optional" doc:"the task's CPU over the last interval, as a fraction of the pool"`

	// Epoch increases with every new evidence of the task's progress (a report, and CPU
	// time); CategoryEpoch is that of the decision on Category. Categories change only
	// on new evidence. 0, in a handwritten snapshot, means always new.
	Epoch         uint64 `json:"epoch" strict:"optional"`
	CategoryEpoch uint64 `json:"category_epoch" strict:"optional"`
	// Category is the last run's decision, or New (training).
	Category Category `json:"category" strict:"optional" doc:"NL, WL or CL as last decided; \"\" for a new task"`
	// Growth is G, the growth efficiency for CPU (FlowCon, eq. 2): Progress divided by
	// Use; nil if unknown (training).
	Growth *float64 `json:"growth" strict:"optional" doc:"its progress per CPU; null if unknown"`
	// Progress is P per second (FlowCon, eq. 1); nil if unknown (training).
	Progress *float64 `json:"progress" strict:"optional" doc:"its progress per second; null if unknown"`

	// Goal is the direction of Value and the targets; "" if unknown (training).
	Goal Goal `json:"goal" strict:"optional" doc:"the direction in which its metric improves: \"min\" or \"max\"; \"\" without targets"`
	// Value is the last reported value; nil without a report (training).
	Value *float64 `json:"value" strict:"optional" doc:"the metric's last value; null without a report"`
	// Acceptable is the value at which the model becomes usable; nil for none
	// (training).
	Acceptable *float64 `json:"acceptable" strict:"optional" doc:"the metric's value at which the model is usable; null for none"`
	// Objective is the value at which training is done; nil for none (training).
	Objective *float64 `json:"objective" strict:"optional" doc:"the metric's value at which training is done; null for none"`
	// State is the target reached so far (training).
	State TargetState `json:"state" strict:"optional"`
	// Tracked means that State is authoritative, because the node tracks the reports and requires
	// several consecutive ones; Value is informational (training).
	Tracked bool `json:"tracked" strict:"optional"`

	// ObjectiveS is the required response time, in seconds per batch; nil for a
	// training task (service).
	ObjectiveS *float64 `json:"objective_s" strict:"optional" doc:"the required response time, in seconds; null for a training task"`
	// ResponseS is the response time over the last interval, in seconds per batch; nil
	// if no batch ended in it. On an event it is the last one measured (service).
	ResponseS *float64 `json:"response_s" strict:"optional" doc:"the response time over the last interval, in seconds; null if not measured"`

	// CapCores is the maximum CPU that the task can use; 0 means the pool (training).
	CapCores Cores `json:"cap_cores" strict:"optional"`
	// Overhead is how much more CPU time a step takes per further core: on k ≥ 1 cores
	// 1 + Overhead·(k−1) times as much as on one; nil if unknown (training).
	Overhead *float64 `json:"overhead" strict:"optional" doc:"how much more CPU time a step takes per further core, as a part of that on one; null if unknown"`
	// CPUS is the CPU time used (training).
	CPUS CPUSeconds `json:"cpu_s" strict:"optional" doc:"the CPU time used, in seconds"`
	// FairCPUS is the CPU time the task would have used under fair sharing: its twin's (training).
	FairCPUS CPUSeconds `json:"fair_cpu_s" strict:"optional" doc:"the CPU time that it would have used under fair sharing, in seconds"`
	// RemainingCPUS is the CPU time until the task ends; nil if unknown (training).
	RemainingCPUS *CPUSeconds `json:"remaining_cpu_s" strict:"optional" doc:"the CPU time until it ends, in seconds; null if unknown"`
	// QualityCPUS is the CPU time until the model is good enough; 0 when it is, nil if
	// unknown (training).
	QualityCPUS *CPUSeconds `json:"quality_cpu_s" strict:"optional" doc:"the CPU time until its model is good enough, in seconds; 0 if it is, null if unknown"`
	// Ended means that the task has ended before its twin (training).
	Ended bool `json:"ended" strict:"optional"`
}

// Fresh reports whether there is evidence newer than the task's category.
func (t Task) Fresh() bool { return t.Epoch == 0 || t.Epoch > t.CategoryEpoch }

// Service reports whether the task has a response time to keep.
func (t Task) Service() bool { return t.Kind == Service || t.Kind == "" && t.ObjectiveS != nil }

// Bound returns the limit in force, 1 if none has been decided.
func (t Task) Bound() Share {
	if t.Limit == 0 {
		return 1
	}
	return t.Limit
}

// Reached returns the target reached by now; never "".
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

// FairShares returns each task's entitlement as a fraction of the sum, > 0; 0 for ended tasks.
func (s Snapshot) FairShares() []Share {
	var most, sum float64
	for _, t := range s.Tasks {
		if !t.Ended {
			most = max(most, t.Entitlement)
		}
	}
	for _, t := range s.Tasks {
		if !t.Ended {
			sum += t.Entitlement / most // terms ≤ 1 cannot overflow
		}
	}
	out := make([]Share, len(s.Tasks))
	for i, t := range s.Tasks {
		if t.Ended {
			continue
		}
		out[i] = max(Share(t.Entitlement/most/sum), 0x1p-1000) // a fraction of it must not underflow
	}
	return out
}

// CheckIntervals reports invalid intervals.
func (s Snapshot) CheckIntervals() (errs fields.Errors) {
	if !fields.Positive(s.IntervalS) {
		errs.Add("interval_s", "must be > 0, got %v", s.IntervalS)
	}
	if !fields.Positive(s.InitialIntervalS) {
		errs.Add("initial_interval_s", "must be > 0, got %v", s.InitialIntervalS)
	}
	return errs
}

// Validate reports every field that no policy accepts as a fields.Errors, such as
// "tasks[2].growth: must be ≥ 0, got -1".
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
	known("overhead", t.Overhead, fields.NonNegative, "≥ 0")
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
		errs.Add(at("objective_s"), "is missing: a service needs its required response time, in seconds")
	case t.Kind == Training && t.ObjectiveS != nil:
		errs.Add(at("objective_s"), "is for services only, got %v for a training task", *t.ObjectiveS)
	case t.Service() && (t.Acceptable != nil || t.Objective != nil):
		errs.Add(at("kind"), "a service has no acceptable or objective")
	}
}

// CheckTargets validates a pair of targets, with the paths "goal", "acceptable" and
// "objective".
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

// Reached reports whether a value reaches a target. NaN and ±Inf have diverged and
// reach nothing, not even −∞ for a loss.
func (g Goal) Reached(value, target float64) bool {
	return fields.Finite(value) && (g == GoalMin && value <= target || g == GoalMax && value >= target)
}
