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

// Options returns the agent options of Params. The agent's default step is ours; dqoes_step =
// "published" with dqoes_headroom = false is the thesis.
func Options() []policy.Option {
	return []policy.Option{
		{Name: "dqoes_alpha", Kind: policy.KindNumber, Default: `0.1`, Param: "alpha", Allowed: "> 0, < 1",
			Doc: "Tolerance: a service within ± this fraction of its target is satisfied (`auto`, `dqoes`)."},
		{Name: "dqoes_beta", Kind: policy.KindNumber, Default: `0.1`, Param: "beta", Allowed: "> 0, ≤ 1",
			Doc: "DQoES with `dqoes_step = \"published\"`: fraction of the reclaimable CPU moved per interval."},
		{Name: "dqoes_step", Kind: policy.KindString, Default: `"proportional"`, Param: "step", Allowed: "`proportional`, `published`",
			Doc: "DQoES: a limit moves halfway to what the response time requires, by at most a factor of 2; `published`: by `dqoes_beta`."},
		{Name: "dqoes_headroom", Kind: policy.KindBool, Default: `true`, Param: "headroom", Allowed: "`true`, `false`",
			Doc: "DQoES with `dqoes_step = \"published\"`: idle CPU is reclaimable, too."},
	}
}

type Params struct {
	// Alpha is α, in (0, 1): a service is satisfied within (1 ± α)·o.
	Alpha float64 `json:"alpha" strict:"optional"`
	// Beta is β, in (0, 1]: the part of the reclaimable CPU that moves in one run.
	Beta float64 `json:"beta" strict:"optional"`
	// Headroom makes the idle part of the pool reclaimable.
	Headroom bool `json:"headroom" strict:"optional"`
	// Step is how limits move.
	Step Step `json:"step" strict:"optional"`
}

// DefaultParams returns the published α, β and step, with headroom.
func DefaultParams() Params {
	return Params{Alpha: 0.1, Beta: 0.1, Headroom: true, Step: StepPublished}
}

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

// Step is how limits move.
type Step string

const (
	// StepPublished moves limits by a part of R_G (Algorithm 2).
	StepPublished Step = "published"
	// StepProportional moves limits towards what the response times need. It is ours.
	//
	// A closed-loop service that uses u and answers in p needs about u·p/o. The aim is
	// (1 − α/2)·o, the middle of the faster half of the satisfied range:
	//
	//	     needs                     limit
	//	G    N = u · p / aim           L ← √(L·N), within L/2 and 2L, [φ/2, 1]
	//	S                              L
	//	B    N = max(u, L) · p / aim   L ← √(L·N), within L/2 and 2L, [φ/2, 1]
	//
	// Class B starts from L if that exceeds u: an open-loop service uses little on
	// average, but needs its limit while it computes. A service that used no CPU keeps
	// its limit.
	//
	// √(L·N) is half the way, in logarithms, so that the error halves with each run.
	// The full way would follow noise: in a single interval the kernel gives 5 to 30 %
	// more or less than the weight, and the reverse in the next, so limits would swing
	// by twice that.
	//
	// If the limits sum to more than the pool less the use of other tasks and
	// unmeasured services, the aim is (1 + α/4)·o for all, and satisfied services off
	// by more than α/4·o move as well, with N as in class B: no service keeps a reserve
	// that another lacks.
	//
	// If that is still too much, the largest limits are cut to one level of their fair
	// shares (weighted max-min fairness): a service below the level gets what it needs,
	// whatever the others ask for, and services with one unreachable objective end with
	// equal limits.
	StepProportional Step = "proportional"
)

// State is passed from one run to the next.
type State struct {
	// QGood is Q_G, the sum of q over class G, in seconds; ≥ 0.
	QGood float64 `json:"q_good" doc:"the sum by which class G was faster in the last run, in seconds"`
	// QBad is Q_B, the sum of q over class B, in seconds; ≤ 0.
	QBad float64 `json:"q_bad" doc:"the sum by which class B was slower in the last run, in seconds, ≤ 0"`
	// Satisfied is Q_S, the number of services in class S.
	Satisfied int `json:"satisfied" doc:"the number of services in class S in the last run"`
	// Trend counts the consecutive runs that brought both sums nearer to 0.
	Trend int `json:"trend" doc:"the number of consecutive runs that brought both sums nearer to 0"`
}

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

func stateOf(s policy.Snapshot) (state State, err error) {
	if len(s.State) > 0 {
		err = strictjson.Decode("state", s.State, &state)
	}
	return state, err
}

func (s State) Encode() json.RawMessage {
	data, err := json.Marshal(s)
	if err != nil {
		return nil // unreachable: no figure is infinite or NaN
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
