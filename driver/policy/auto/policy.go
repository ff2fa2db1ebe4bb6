// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"errors"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/internal/fields"
)

func Policy() policy.Policy {
	return policy.Definition[Params]{
		Name:        "auto",
		Synopsis:    "services first, training tasks by fair finish",
		Defaults:    DefaultParams(),
		CheckParams: CheckParams,
		Options: slices.Concat(
			policy.Under("fsp", fsp.Options()),
			[]policy.Option{
				{Name: "service_share", Kind: policy.KindNumber, Default: `0.8`, Param: "service_share", Allowed: "> 0, ≤ 1",
					Doc: "Maximum fraction of the pool for all services while there are training tasks (`auto`)."},
				tolerance(),
			},
		),
		Needs:      []string{"now_s", "pool_cores", "tasks[].kind", "tasks[].use", "tasks[].limit"},
		Check:      func(s policy.Snapshot, p Params) error { return fsp.Check(s, p.Fsp) },
		Example:    Example(),
		Departures: departures(),
		Ghosts:     true,
		Decide:     Decide,
	}.Policy()
}

// tolerance returns DQoES's option, which also sets a parameter of this policy.
func tolerance() policy.Option {
	o := dqoes.Options()[0]
	o.Param = "tolerance"
	return o
}

// Params are the operator's settings.
type Params struct {
	// Fsp are those of fair finish.
	Fsp fsp.Params `json:"fsp" strict:"optional"`
	// ServiceShare is the maximum fraction of the pool, in (0, 1], for all services while there are
	// training tasks.
	ServiceShare float64 `json:"service_share" strict:"optional"`
	// Tolerance is the relative deviation of response times, in (0, 1), that satisfies
	// (α of DQoES).
	Tolerance float64 `json:"tolerance" strict:"optional"`
}

func DefaultParams() Params {
	return Params{Fsp: fsp.DefaultParams(), ServiceShare: 0.8, Tolerance: 0.1}
}

func CheckParams(p Params) error {
	var errs, wrong fields.Errors
	if errors.As(fsp.CheckParams(p.Fsp), &wrong) {
		errs = wrong.Under("fsp")
	}
	if s := p.ServiceShare; !(s > 0 && s <= 1) {
		errs.Add("service_share", "must be > 0 and ≤ 1, got %v", s)
	}
	if a := p.Tolerance; !(a > 0 && a < 1) {
		errs.Add("tolerance", "must be > 0 and < 1, got %v", a)
	}
	return errs.Err()
}

func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "FlowCon, TRADL and DQoES each manage a whole node",
			Ours:      "one node: services first; training tasks have the rest, at least half of their fair shares and 1 − `service_share`",
			Why:       "real nodes are mixed, and training tasks must not starve",
		}, {
			Published: "DQoES moves a limit by a step proportional to the error",
			Ours:      "the limit with which the service would have met its target, computed from its use or limit, whichever is larger",
			Why:       "a doubled load is served after two runs",
		}, {
			Published: "DQoES takes from class G and gives to class B",
			Ours:      "needs are met by entitlement, the smallest first",
			Why:       "an unreachable objective costs other services nothing",
		}, {
			Published: "TRADL and FlowCon hold back acceptable and converged tasks",
			Ours:      "these come later in the order of fair finish",
			Why:       "holding back a task near its end delays it and lowers no mean",
		},
	}
}

// Example returns a snapshot of a full node: a service slower and one faster than its
// objective, training tasks, one acceptable and one at its objective, and one task
// without progress data.
func Example() policy.Snapshot {
	number := func(x float64) *float64 { return &x }
	work := func(x policy.CPUSeconds) *policy.CPUSeconds { return &x }
	return policy.Snapshot{
		NowS: 1700000000, PoolCores: 4, IntervalS: 20, InitialIntervalS: 20, MaxIntervalS: 160,
		Tasks: []policy.Task{
			{ID: "resnet-api", Kind: policy.Service, Entitlement: 1, ObjectiveS: number(0.05), ResponseS: number(0.065), Use: 0.2, Limit: 0.2},
			{ID: "nasnet-api", Kind: policy.Service, Entitlement: 1, ObjectiveS: number(0.4), ResponseS: number(0.25), Use: 0.16, Limit: 0.16},
			{ID: "vae", Kind: policy.Training, Entitlement: 1, Use: 0.2, Limit: 0.2,
				CPUS: 60, FairCPUS: 50, RemainingCPUS: work(500), QualityCPUS: work(90)},
			{ID: "mnist", Kind: policy.Training, Entitlement: 1, Use: 0.09, Limit: 0.09,
				Goal: policy.GoalMin, Value: number(0.28), Acceptable: number(0.3), Objective: number(0.25),
				CPUS: 110, FairCPUS: 120, RemainingCPUS: work(200), QualityCPUS: work(0)},
			{ID: "rnn", Kind: policy.Training, Entitlement: 1, Use: 0.16, Limit: 0.16,
				Goal: policy.GoalMax, Value: number(0.94), Objective: number(0.93), State: policy.Objective,
				CPUS: 300, FairCPUS: 250, RemainingCPUS: work(0), QualityCPUS: work(0)},
			{ID: "preprocess", Kind: policy.Training, Entitlement: 1, Use: 0.1, Limit: 0.1, CPUS: 20, FairCPUS: 20},
		},
	}
}
