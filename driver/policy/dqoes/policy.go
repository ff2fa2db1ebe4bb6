// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"encoding/json"
	"errors"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/internal/strictjson"
)

// Policy returns policy dqoes.
func Policy() policy.Policy {
	return policy.Definition[Params]{
		Name:        "dqoes",
		Synopsis:    "limits by the response times of services (DQoES)",
		Defaults:    DefaultParams(),
		CheckParams: CheckParams,
		Options:     Options(),
		Needs: []string{
			"interval_s", "initial_interval_s", "max_interval_s",
			"tasks[].objective_s", "tasks[].response_s", "tasks[].use", "tasks[].limit",
		},
		Check:      func(s policy.Snapshot, _ Params) error { return Check(s) },
		Example:    Example(),
		Departures: departures(),
		Decide:     Decide,
	}.Policy()
}

// Options are the agent options that set Params. The agent's step is ours; with
// dqoes_step = "published" and dqoes_headroom = false it is the published form.
func Options() []policy.Option {
	return []policy.Option{
		{Name: "dqoes_alpha", Kind: policy.KindNumber, Default: `0.1`, Param: "alpha", Allowed: "> 0, < 1",
			Doc: "A service is satisfied within ± this fraction of its target (`auto`, `dqoes`)."},
		{Name: "dqoes_beta", Kind: policy.KindNumber, Default: `0.1`, Param: "beta", Allowed: "> 0, ≤ 1",
			Doc: "DQoES with `dqoes_step = \"published\"`: fraction of the reclaimable CPU moved per interval."},
		{Name: "dqoes_step", Kind: policy.KindString, Default: `"proportional"`, Param: "step", Allowed: "`proportional`, `published`",
			Doc: "DQoES: a limit moves half of the way to what the response time needs, at most to half or double; or by `dqoes_beta`."},
		{Name: "dqoes_headroom", Kind: policy.KindBool, Default: `true`, Param: "headroom", Allowed: "`true`, `false`",
			Doc: "DQoES: idle CPU can be taken, too."},
	}
}

// Params are the operator's settings.
type Params struct {
	// Alpha is α, in (0, 1): a service is satisfied within (1 ± α)·o.
	Alpha float64 `json:"alpha" strict:"optional"`
	// Beta is β, in (0, 1]: how much of what can be taken moves in one run.
	Beta float64 `json:"beta" strict:"optional"`
	// Headroom adds the idle part of the pool to what can be taken.
	Headroom bool `json:"headroom" strict:"optional"`
	// Step says how limits move.
	Step Step `json:"step" strict:"optional"`
}

// DefaultParams returns the published α, β and step, with headroom.
func DefaultParams() Params {
	return Params{Alpha: 0.1, Beta: 0.1, Headroom: true, Step: StepPublished}
}

// CheckParams reports wrong parameters as a fields.Errors.
func CheckParams(p Params) error {
	var errs fields.Errors
	if !(p.Alpha > 0 && p.Alpha < 1) {
		errs.Add("alpha", "must be > 0 and < 1, got %v", p.Alpha)
	}
	if !(p.Beta > 0 && p.Beta <= 1) {
		errs.Add("beta", "must be > 0 and ≤ 1, got %v", p.Beta)
	}
	if p.Step != StepPublished && p.Step != StepProportional {
		errs.Add("step", `must be one of "published", "proportional", got %q`, string(p.Step))
	}
	return errs.Err()
}

// Step says how limits move.
type Step string

// The ways in which limits move.
const (
	// StepPublished moves them by a part of what the good ones use (Algorithm 2).
	StepPublished Step = "published"
	// StepProportional moves them towards what the response times ask for, instead of
	// by a small part of it. It is ours.
	//
	// A closed-loop service that uses u and answers in p needs about u·p/o. The aim is
	// (1 − α/2)·o, the middle of the faster half of what satisfies:
	//
	//	     needs                     limit
	//	G    N = u · p / aim           L ← √(L·N), within L/2 and 2L, [φ/2, 1]
	//	S                              L
	//	B    N = max(u, L) · p / aim   L ← √(L·N), within L/2 and 2L, [φ/2, 1]
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
	// If these limits sum to more than what services can have, the pool less what other
	// tasks and unmeasured services use, the aim is (1 + α/4)·o for all, and
	// satisfied services that are off by more than α/4·o move towards it as well, with N
	// as in class B: nobody keeps a reserve that another one lacks.
	//
	// If that is still too much, the largest limits are cut to one level of their fair
	// shares, so that the sum fits (weighted max-min fairness): a service that asks for
	// less than the level gets it, whatever others ask for, and services with one
	// unreachable objective end with equal limits from wherever they started.
	StepProportional Step = "proportional"
)

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

// Validate reports wrong figures as a fields.Errors.
func (s State) Validate() error {
	var errs fields.Errors
	if !fields.NonNegative(s.QGood) {
		errs.Add("q_good", "must be ≥ 0, got %v", s.QGood)
	}
	if !fields.NonNegative(-s.QBad) {
		errs.Add("q_bad", "must be ≤ 0, got %v", s.QBad)
	}
	if s.Satisfied < 0 {
		errs.Add("satisfied", "must be ≥ 0, got %d", s.Satisfied)
	}
	if s.Trend < 0 {
		errs.Add("trend", "must be ≥ 0, got %d", s.Trend)
	}
	return errs.Err()
}

// stateOf reads the state of the last run; it is zero at the start.
func stateOf(s policy.Snapshot) (state State, err error) {
	if len(s.State) > 0 {
		err = strictjson.Decode("state", s.State, &state)
	}
	return state, err
}

// Encode returns the state as the next snapshot has it.
func (s State) Encode() json.RawMessage {
	data, err := json.Marshal(s)
	if err != nil {
		return nil // no figure of it is infinite or NaN
	}
	return data
}

// Check reports intervals and a state that cannot be adapted.
func Check(s policy.Snapshot) error {
	errs := s.CheckIntervals()
	if !(s.MaxIntervalS >= s.InitialIntervalS) {
		errs.Add("max_interval_s", "must be ≥ initial_interval_s = %v, got %v", s.InitialIntervalS, s.MaxIntervalS)
	}
	var wrong fields.Errors
	if _, err := stateOf(s); errors.As(err, &wrong) {
		errs.Merge(wrong.Under("state"))
	}
	return errs.Err()
}

// Example returns a valid snapshot in which most rules fire.
func Example() policy.Snapshot {
	service := func(id string, objective, response float64, use, limit policy.Share) policy.Task {
		return policy.Task{ID: id, Entitlement: 1, ObjectiveS: &objective, ResponseS: &response, Use: use, Limit: limit}
	}
	s := policy.Snapshot{
		Tasks: []policy.Task{
			service("vgg", 75, 31.6, 0.2, 0.2),
			service("nasnet", 53, 46.2, 0.2, 0.2),
			service("inception", 44, 45.1, 0.2, 0.2),
			service("resnet", 5, 15.8, 0.3, 0.4),
			service("xception", 25, 0, 0.05, 1),
		},
		State:            State{QGood: 51.3, QBad: -12.2, Satisfied: 1, Trend: 1}.Encode(),
		IntervalS:        40,
		InitialIntervalS: 20,
		MaxIntervalS:     160,
	}
	s.Tasks[4].ResponseS = nil // no batch ended in the interval
	return s
}
