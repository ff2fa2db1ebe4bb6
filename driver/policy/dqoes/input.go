// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"math"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// The published parameters.
const (
	DefaultAlpha = 0.1
	DefaultBeta  = 0.1
)

// Step says how limits move.
type Step string

// The ways in which limits move.
const (
	// StepPublished moves them by a part of what the good ones use (Algorithm 2). It
	// is the default, "".
	StepPublished Step = "published"
	// StepProportional moves them towards what the response times ask for, instead of
	// by a small part of it. It is ours.
	//
	// A closed-loop service that uses u and answers in p needs about u·p/o. The aim is
	// (1 − α/2)·o, the middle of the faster half of what satisfies:
	//
	//	     needs                     limit
	//	G    N = u · p / aim           L ← √(L·N), within L/2 and 2L, [1/(2n), 1]
	//	S                              L
	//	B    N = max(u, L) · p / aim   L ← √(L·N), within L/2 and 2L, [1/(2n), 1]
	//
	// Class B starts from L where that is more than u: an open-loop service uses little
	// on average and still needs its limit while it computes. A service that used no
	// CPU keeps its limit.
	//
	// √(L·N) is half of the way, in logarithms: what is missing is halved with each
	// run. To go all of it would follow the chance of single intervals: the kernel
	// gives a service 5 to 30 % more or less than its weight for one, and less after
	// more, so limits would swing by twice that.
	//
	// If these limits sum to more than what services can have, 1 − Params.Others +
	// Params.Extra less what unmeasured ones use, the aim is (1 + α/4)·o for all, and
	// satisfied services that are off by more than α/4·o move towards it as well, with N
	// as in class B: nobody keeps a reserve that another one lacks.
	//
	// If that is still too much, the largest limits are cut to one level, so that the
	// sum fits (max-min fairness): who asks for less than the level gets it, whatever
	// others ask for, and services with one unreachable objective end with equal limits
	// from wherever they started.
	StepProportional Step = "proportional"
)

// Valid says whether s is one of the steps above, or "".
func (s Step) Valid() bool { return s == "" || s == StepPublished || s == StepProportional }

// Input is the snapshot of a node that Decide works on.
type Input struct {
	// Tasks are the node's services in any order. There may be none.
	Tasks []Task `json:"tasks"`
	// State is that of the last run's Output; zero at the start.
	State State `json:"state" strict:"optional"`
	// IntervalS is the time between two runs so far, in seconds.
	IntervalS float64 `json:"interval_s"`
	// InitialIntervalS is the shortest interval, in seconds.
	InitialIntervalS float64 `json:"initial_interval_s"`
	// MaxIntervalS is the longest interval, in seconds.
	MaxIntervalS float64 `json:"max_interval_s"`
	// Params are the operator's settings.
	Params Params `json:"params" strict:"optional"`
}

// Task is one service in the snapshot of a node.
type Task struct {
	// ID names the service; unique in the snapshot.
	ID string `json:"id"`
	// ObjectiveS is o, the response time that is asked for, in seconds per batch.
	ObjectiveS float64 `json:"objective_s"`
	// ResponseS is p, the response time over the last interval, in seconds per batch;
	// nil when no batch ended in it.
	ResponseS *float64 `json:"response_s"`
	// Use is the service's CPU over the last interval, as a fraction of the pool. It
	// may exceed 1 where tasks borrow CPU from outside the pool.
	Use float64 `json:"use"`
	// Limit is the limit in force, as a fraction of the pool, in (0, 1].
	Limit float64 `json:"limit"`
}

// State is what one run hands to the next one.
type State struct {
	// QGood is Q_G, the sum of q over class G, in seconds; ≥ 0.
	QGood float64 `json:"q_good"`
	// QBad is Q_B, the sum of q over class B, in seconds; ≤ 0.
	QBad float64 `json:"q_bad"`
	// Satisfied is Q_S, the number of services in class S.
	Satisfied int `json:"satisfied"`
	// Trend counts the runs in a row that brought both sums nearer to 0.
	Trend int `json:"trend"`
}

// Params are the operator's settings. DefaultParams returns the usual ones.
type Params struct {
	// Alpha is α, in (0, 1): a service is satisfied within (1 ± α)·o.
	Alpha float64 `json:"alpha" strict:"optional"`
	// Beta is β, in (0, 1]: how much of what can be taken moves in one run.
	Beta float64 `json:"beta" strict:"optional"`
	// Headroom adds the idle part of the pool to what can be taken.
	Headroom bool `json:"headroom" strict:"optional"`
	// Step says how limits move; "" is StepPublished.
	Step Step `json:"step" strict:"optional"`
	// Tasks is n of the floor 1/(2n), where others than services count as well;
	// 0 is the number of services.
	Tasks int `json:"n" strict:"optional"`
	// Others is what tasks that are not services use, as a fraction of the pool: it
	// is not idle.
	Others float64 `json:"others" strict:"optional"`
	// Extra is the part of Others that may be taken from them.
	Extra float64 `json:"extra" strict:"optional"`
}

// DefaultParams returns the published α, β and step, with headroom.
func DefaultParams() Params {
	return Params{Alpha: DefaultAlpha, Beta: DefaultBeta, Headroom: true, Step: StepPublished}
}

// Validate returns every error in the input as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	ids := fields.IDs{List: "tasks"}
	for i, t := range in.Tasks {
		at := func(name string) string { return fields.Member(fields.Index("tasks", i), name) }
		ids.Check(&errs, i, t.ID)
		if !positive(t.ObjectiveS) {
			errs.Add(at("objective_s"), "must be > 0, got %v", t.ObjectiveS)
		}
		if t.ResponseS != nil && !nonNegative(*t.ResponseS) {
			errs.Add(at("response_s"), "must be ≥ 0, got %v", *t.ResponseS)
		}
		if !nonNegative(t.Use) {
			errs.Add(at("use"), "must be ≥ 0, got %v", t.Use)
		}
		if !(t.Limit > 0 && t.Limit <= 1) {
			errs.Add(at("limit"), "must be > 0 and ≤ 1, got %v", t.Limit)
		}
	}
	if q := in.State.QGood; !nonNegative(q) {
		errs.Add("state.q_good", "must be ≥ 0, got %v", q)
	}
	if q := in.State.QBad; !nonNegative(-q) {
		errs.Add("state.q_bad", "must be ≤ 0, got %v", q)
	}
	if n := in.State.Satisfied; n < 0 {
		errs.Add("state.satisfied", "must be ≥ 0, got %d", n)
	}
	if n := in.State.Trend; n < 0 {
		errs.Add("state.trend", "must be ≥ 0, got %d", n)
	}
	if !positive(in.IntervalS) {
		errs.Add("interval_s", "must be > 0, got %v", in.IntervalS)
	}
	if !positive(in.InitialIntervalS) {
		errs.Add("initial_interval_s", "must be > 0, got %v", in.InitialIntervalS)
	}
	switch {
	case !positive(in.MaxIntervalS):
		errs.Add("max_interval_s", "must be > 0, got %v", in.MaxIntervalS)
	case positive(in.InitialIntervalS) && in.MaxIntervalS < in.InitialIntervalS:
		errs.Add("max_interval_s", "must be ≥ initial_interval_s = %v, got %v", in.InitialIntervalS, in.MaxIntervalS)
	}
	p := in.Params
	if !(p.Alpha > 0 && p.Alpha < 1) {
		errs.Add("params.alpha", "must be > 0 and < 1, got %v", p.Alpha)
	}
	if !(p.Beta > 0 && p.Beta <= 1) {
		errs.Add("params.beta", "must be > 0 and ≤ 1, got %v", p.Beta)
	}
	if !p.Step.Valid() {
		errs.Add("params.step", `must be one of "published", "proportional", got %q`, string(p.Step))
	}
	if p.Tasks != 0 && p.Tasks < len(in.Tasks) {
		errs.Add("params.n", "must be 0 or ≥ the number of tasks, %d, got %d", len(in.Tasks), p.Tasks)
	}
	if !nonNegative(p.Others) {
		errs.Add("params.others", "must be ≥ 0, got %v", p.Others)
	}
	if !nonNegative(p.Extra) {
		errs.Add("params.extra", "must be ≥ 0, got %v", p.Extra)
	}
	return errs.Err()
}

func nonNegative(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }

func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }

// Example returns a valid input in which most rules fire.
func Example() Input {
	known := func(x float64) *float64 { return &x }
	return Input{
		Tasks: []Task{
			{ID: "vgg", ObjectiveS: 75, ResponseS: known(31.6), Use: 0.2, Limit: 0.2},
			{ID: "nasnet", ObjectiveS: 53, ResponseS: known(46.2), Use: 0.2, Limit: 0.2},
			{ID: "inception", ObjectiveS: 44, ResponseS: known(45.1), Use: 0.2, Limit: 0.2},
			{ID: "resnet", ObjectiveS: 5, ResponseS: known(15.8), Use: 0.3, Limit: 0.4},
			{ID: "xception", ObjectiveS: 25, Use: 0.05, Limit: 1},
		},
		State:            State{QGood: 51.3, QBad: -12.2, Satisfied: 1, Trend: 1},
		IntervalS:        40,
		InitialIntervalS: 20,
		MaxIntervalS:     160,
		Params:           DefaultParams(),
	}
}
