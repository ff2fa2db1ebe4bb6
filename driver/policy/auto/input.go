// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"errors"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// DefaultServiceShare is the part of the pool that services may have together
// while training tasks are there.
const DefaultServiceShare = 0.8

// Kind says what a task does.
type Kind string

// The kinds of tasks.
const (
	// KindTraining is a task that trains, with targets or without. A task without
	// any progress is one of which nothing is known: Growth stays nil.
	KindTraining Kind = "training"
	// KindService is a task that answers requests and has a response time to keep.
	KindService Kind = "service"
)

// Input is the snapshot of a node that Decide works on.
type Input struct {
	// Tasks are the node's tasks in any order. There may be none.
	Tasks []Task `json:"tasks"`
	// Services is what the last run's Output handed over; zero at the start.
	Services dqoes.State `json:"services" strict:"optional"`
	// IntervalS is the time between two runs so far, in seconds.
	IntervalS float64 `json:"interval_s"`
	// InitialIntervalS is the shortest interval, and the one after a task has joined
	// or left, in seconds.
	InitialIntervalS float64 `json:"initial_interval_s"`
	// MaxIntervalS is the longest interval, in seconds.
	MaxIntervalS float64 `json:"max_interval_s"`
	// Event says why the policy runs.
	Event flowcon.Event `json:"event"`
	// Gone is what tasks that have left since used in the last interval, as a fraction
	// of the pool: see tradl.Input.
	Gone float64 `json:"gone" strict:"optional"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

// Task is one task in the snapshot of a node. The fields of the other kind are left
// out.
type Task struct {
	// ID names the task; unique in the snapshot.
	ID string `json:"id"`
	// Kind says what the task does.
	Kind Kind `json:"kind"`

	// Category is the one that the last run decided, or policy.New (training).
	Category policy.Category `json:"category" strict:"optional"`
	// Growth is G, the growth efficiency; nil when it is not known (training).
	Growth *float64 `json:"growth" strict:"optional"`
	// Progress is P, per second; nil when it is not known (training).
	Progress *float64 `json:"progress" strict:"optional"`
	// Goal is the direction of Value and the targets; "" without targets (training).
	Goal tradl.Goal `json:"goal" strict:"optional"`
	// Value is what the task reported last; nil when it has not reported (training).
	Value *float64 `json:"value" strict:"optional"`
	// Acceptable is the value from which on the model can be used (training).
	Acceptable *float64 `json:"acceptable" strict:"optional"`
	// Objective is the value at which the training is done (training).
	Objective *float64 `json:"objective" strict:"optional"`
	// State is what the task had reached before (training).
	State tradl.State `json:"state" strict:"optional"`
	// Tracked says that State is all that counts: see tradl.Task (training).
	Tracked bool `json:"tracked" strict:"optional"`

	// ObjectiveS is the response time that is asked for, in seconds per batch
	// (service).
	ObjectiveS float64 `json:"objective_s" strict:"optional"`
	// ResponseS is the response time over the last interval; nil when no batch ended
	// in it. On an event it is the last one that was measured (service).
	ResponseS *float64 `json:"response_s" strict:"optional"`

	// Use is the task's CPU over the last interval, as a fraction of the pool. It
	// may exceed 1 where tasks borrow CPU from outside the pool.
	Use float64 `json:"use"`
	// Limit is the limit in force, as a fraction of the pool, in (0, 1]; 1 means no
	// limit, and 0 that none has been decided yet.
	Limit float64 `json:"limit"`
}

// Params are the operator's settings. DefaultParams returns the usual ones.
type Params struct {
	// Flowcon are those of growth efficiency. β bounds the parts in which training
	// tasks divide their rest; the floor of the node is 1/(2n) whatever it is.
	Flowcon flowcon.Params `json:"flowcon" strict:"optional"`
	// Tradl are those of two-tier targets.
	Tradl tradl.Params `json:"tradl" strict:"optional"`
	// Dqoes are those of response times. n, others and extra stay 0: they follow from
	// the node.
	Dqoes dqoes.Params `json:"dqoes" strict:"optional"`
	// ServiceShare is the part of the pool, in (0, 1], that services may have
	// together while training tasks are there.
	ServiceShare float64 `json:"service_share" strict:"optional"`
}

// DefaultParams returns the defaults of the three policies, DefaultServiceShare,
// and for services the proportional step: see Decide.
func DefaultParams() Params {
	services := dqoes.DefaultParams()
	services.Step = dqoes.StepProportional
	return Params{
		Flowcon:      flowcon.DefaultParams(),
		Tradl:        tradl.DefaultParams(),
		Dqoes:        services,
		ServiceShare: DefaultServiceShare,
	}
}

// Validate returns every error in the input as a fields.Errors, by JSON path:
// "tasks[2].growth: must be ≥ 0, got -1".
func (in Input) Validate() error {
	var errs fields.Errors
	ids := fields.IDs{List: "tasks"}
	for i, t := range in.Tasks {
		task := fields.Index("tasks", i)
		at := func(name string) string { return fields.Member(task, name) }
		ids.Check(&errs, i, t.ID)
		switch t.Kind {
		case KindTraining:
			t.validateTraining(at, &errs)
		case KindService:
			t.validateService(at, &errs)
		default:
			errs.Add(at("kind"), `must be one of "training", "service", got %q`, string(t.Kind))
		}
		if !nonNegative(t.Use) {
			errs.Add(at("use"), "must be ≥ 0, got %v", t.Use)
		}
		if !(t.Limit >= 0 && t.Limit <= 1) {
			errs.Add(at("limit"), "must be > 0 and ≤ 1, or 0 for none yet, got %v", t.Limit)
		}
	}
	in.validateServices(&errs)
	if !nonNegative(in.Gone) {
		errs.Add("gone", "must be ≥ 0, got %v", in.Gone)
	}
	switch in.Event {
	case flowcon.EventNone, flowcon.EventJoin, flowcon.EventLeave:
	default:
		errs.Add("event", `must be one of "", "join", "leave", got %q`, string(in.Event))
	}
	in.Params.validate(&errs)
	return errs.Err()
}

// validateTraining checks the fields of a training task.
func (t Task) validateTraining(at func(string) string, errs *fields.Errors) {
	if !t.Category.Valid() {
		errs.Add(at("category"), `must be one of "NL", "WL", "CL" or "" for a new task, got %q`, string(t.Category))
	}
	if t.Growth != nil && !nonNegative(*t.Growth) {
		errs.Add(at("growth"), "must be ≥ 0, got %v", *t.Growth)
	}
	if t.Progress != nil && !nonNegative(*t.Progress) {
		errs.Add(at("progress"), "must be ≥ 0, got %v", *t.Progress)
	}
	if t.Value != nil && !finite(*t.Value) {
		errs.Add(at("value"), "must be a finite number, got %v", *t.Value)
	}
	for _, e := range fieldErrors(target.Check(t.Goal, t.Acceptable, t.Objective)) {
		errs.Add(at(e.Path), "%s", e.Problem)
	}
	if !t.State.Valid() {
		errs.Add(at("state"), `must be one of "training", "acceptable", "objective", got %q`, string(t.State))
	}
	if t.ObjectiveS != 0 {
		errs.Add(at("objective_s"), "is for services only, got %v for a training task", t.ObjectiveS)
	}
	if t.ResponseS != nil {
		errs.Add(at("response_s"), "is for services only, got %v for a training task", *t.ResponseS)
	}
}

// validateService checks the fields of a service.
func (t Task) validateService(at func(string) string, errs *fields.Errors) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"category", t.Category != ""},
		{"growth", t.Growth != nil},
		{"progress", t.Progress != nil},
		{"goal", t.Goal != ""},
		{"value", t.Value != nil},
		{"acceptable", t.Acceptable != nil},
		{"objective", t.Objective != nil},
		{"state", t.State != ""},
		{"tracked", t.Tracked},
	} {
		if f.given {
			errs.Add(at(f.name), "is for training tasks only, must not be given for a service")
		}
	}
	if !(t.ObjectiveS > 0) || math.IsInf(t.ObjectiveS, 1) {
		errs.Add(at("objective_s"), "must be > 0, got %v", t.ObjectiveS)
	}
	if t.ResponseS != nil && !nonNegative(*t.ResponseS) {
		errs.Add(at("response_s"), "must be ≥ 0, got %v", *t.ResponseS)
	}
}

// validateServices checks what dqoes checks in an input without tasks: the state of
// the last run, the intervals and the parameters.
func (in Input) validateServices(errs *fields.Errors) {
	services := dqoes.Input{
		State:     in.Services,
		IntervalS: in.IntervalS, InitialIntervalS: in.InitialIntervalS, MaxIntervalS: in.MaxIntervalS,
		Params: in.Params.Dqoes,
	}
	for _, e := range fieldErrors(services.Validate()) {
		switch name, below, _ := strings.Cut(e.Path, "."); name {
		case "state":
			e.Path = fields.Member("services", below)
		case "params":
			e.Path = "params.dqoes." + below
		}
		errs.Add(e.Path, "%s", e.Problem)
	}
}

// validate checks the parameters that dqoes does not.
func (p Params) validate(errs *fields.Errors) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"n", p.Dqoes.Tasks > 0},
		{"others", p.Dqoes.Others > 0},
		{"extra", p.Dqoes.Extra > 0},
	} {
		if f.given {
			errs.Add("params.dqoes."+f.name, "must be 0: it follows from the node's tasks")
		}
	}
	if a, fixed := p.Flowcon.Alpha.Fixed(); fixed && !nonNegative(a) {
		errs.Add("params.flowcon.alpha", `must be "adaptive" or a number ≥ 0, got %v`, a)
	}
	if b := p.Flowcon.Beta; !(b >= 1) || math.IsInf(b, 1) {
		errs.Add("params.flowcon.beta", "must be ≥ 1, got %v", b)
	}
	if f := p.Tradl.Full; !(f > 0 && f <= 1) {
		errs.Add("params.tradl.full", "must be > 0 and ≤ 1, got %v", f)
	}
	if s := p.ServiceShare; !(s > 0 && s <= 1) {
		errs.Add("params.service_share", "must be > 0 and ≤ 1, got %v", s)
	}
}

// fieldErrors returns the errors by field, nil without any.
func fieldErrors(err error) fields.Errors {
	var errs fields.Errors
	errors.As(err, &errs)
	return errs
}

func nonNegative(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Example returns a valid input of a full node in which most rules fire: a service
// that is worse than asked and one that is better, a training task that grows, one
// that has begun to slow down, one that is acceptable, one that has reached its
// objective, and one of which nothing is known.
func Example() Input {
	known := func(x float64) *float64 { return &x }
	return Input{
		Tasks: []Task{
			{ID: "resnet-api", Kind: KindService, ObjectiveS: 0.05, ResponseS: known(0.065), Use: 0.2, Limit: 0.2},
			{ID: "nasnet-api", Kind: KindService, ObjectiveS: 0.4, ResponseS: known(0.25), Use: 0.16, Limit: 0.16},
			{ID: "vae", Kind: KindTraining, Category: policy.NL, Growth: known(0.6), Progress: known(0.12),
				Goal: tradl.GoalMin, Value: known(131.5), Acceptable: known(120), Objective: known(110), Use: 0.2, Limit: 0.2},
			{ID: "rnn", Kind: KindTraining, Category: policy.NL, Growth: known(0.1), Progress: known(0.02),
				Goal: tradl.GoalMax, Value: known(0.61), Objective: known(0.93), Use: 0.16, Limit: 0.16},
			{ID: "mnist", Kind: KindTraining, Category: policy.WL, Growth: known(0.05), Progress: known(0.01),
				Goal: tradl.GoalMin, Value: known(0.28), Acceptable: known(0.3), Objective: known(0.25), Use: 0.09, Limit: 0.09},
			{ID: "gru", Kind: KindTraining, Category: policy.CL,
				Goal: tradl.GoalMin, Value: known(0.0079), Acceptable: known(0.01), Objective: known(0.008),
				State: tradl.StateAcceptable, Use: 0.09, Limit: 0.09},
			{ID: "preprocess", Kind: KindTraining, Use: 0.1, Limit: 0.1, Category: policy.NL},
		},
		Services:         dqoes.State{QGood: 0.12, QBad: -0.02, Satisfied: 1},
		IntervalS:        20,
		InitialIntervalS: 20,
		MaxIntervalS:     160,
		Params:           DefaultParams(),
	}
}
