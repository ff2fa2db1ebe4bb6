// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"errors"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Policy returns policy auto.
func Policy() policy.Policy {
	return policy.Definition[Params]{
		Name:        "auto",
		Synopsis:    "services first, the rest by growth and targets",
		Defaults:    DefaultParams(),
		CheckParams: CheckParams,
		Options: slices.Concat(
			policy.Under("flowcon", flowcon.Options()),
			policy.Under("tradl", tradl.Options()),
			policy.Under("dqoes", dqoes.Options()),
			[]policy.Option{{Name: "service_share", Kind: policy.KindNumber, Default: `0.8`, Param: "service_share"}},
		),
		Needs: []string{
			"interval_s", "initial_interval_s", "max_interval_s", "event",
			"tasks[].kind", "tasks[].use", "tasks[].limit",
		},
		Check:      func(s policy.Snapshot, _ Params) error { return dqoes.Check(s) },
		Example:    Example(),
		Departures: departures(),
		Decide:     Decide,
	}.Policy()
}

// Params are the operator's settings.
type Params struct {
	// Flowcon are those of growth efficiency. β bounds the parts in which training
	// tasks divide their rest; the floor of the node is φ/2 whatever it is.
	Flowcon flowcon.Params `json:"flowcon" strict:"optional"`
	// Tradl are those of two-tier targets.
	Tradl tradl.Params `json:"tradl" strict:"optional"`
	// Dqoes are those of response times.
	Dqoes dqoes.Params `json:"dqoes" strict:"optional"`
	// ServiceShare is the part of the pool, in (0, 1], that services may have
	// together while training tasks are there.
	ServiceShare float64 `json:"service_share" strict:"optional"`
}

// DefaultParams returns the defaults of the three policies, a service share of 0.8, and
// for services the proportional step: see Decide.
func DefaultParams() Params {
	services := dqoes.DefaultParams()
	services.Step = dqoes.StepProportional
	return Params{
		Flowcon: flowcon.DefaultParams(), Tradl: tradl.DefaultParams(), Dqoes: services, ServiceShare: 0.8,
	}
}

// CheckParams reports wrong parameters as a fields.Errors.
func CheckParams(p Params) error {
	var errs fields.Errors
	for _, of := range []struct {
		path string
		err  error
	}{
		{"flowcon", flowcon.CheckParams(p.Flowcon)},
		{"tradl", tradl.CheckParams(p.Tradl)},
		{"dqoes", dqoes.CheckParams(p.Dqoes)},
	} {
		var wrong fields.Errors
		if errors.As(of.err, &wrong) {
			errs = append(errs, wrong.Under(of.path)...)
		}
	}
	if s := p.ServiceShare; !(s > 0 && s <= 1) {
		errs.Add("service_share", "must be > 0 and ≤ 1, got %v", s)
	}
	return errs.Err()
}

// departures lists where auto differs from the policies that it is composed of; it has
// theirs as well.
func departures() []policy.Departure {
	return []policy.Departure{
		{
			Published: "FlowCon, TRADL and DQoES each have a node of their own",
			Ours:      "one node: services first, training tasks divide the rest R, in which FlowCon and TRADL run as on a node",
			Why:       "real nodes are mixed",
		}, {
			Published: "limits are upper bounds that may sum to more than 1",
			Ours:      "while any task is limited, all limits sum to the pool",
			Why:       "as weights they are divided exactly so",
		}, {
			Published: "FlowCon: a task grows or has converged",
			Ours:      "a task with a target that it has not reached has its fair share of R at least; an acceptable one counts as converged",
			Why:       "its job has said that it is not done, or that it is good enough",
		}, {
			Published: "DQoES: class G gives away what it does not use",
			Ours:      "a service that is not worse than asked is not cut below its own objective in one run",
			Why:       "the unreachable objective of another service should cost it nothing",
		}, {
			Published: "DQoES: the pool is the services'",
			Ours:      "together they have `service_share` at most while training tasks are there",
			Why:       "training tasks must not starve",
		},
	}
}

// Example returns a valid snapshot of a full node in which most rules fire: a service
// that is worse than asked and one that is better, a training task that grows, one
// that has begun to slow down, one that is acceptable, one that has reached its
// objective, and one of which nothing is known.
func Example() policy.Snapshot {
	known := func(x float64) *float64 { return &x }
	return policy.Snapshot{
		Tasks: []policy.Task{
			{ID: "resnet-api", Kind: policy.Service, Entitlement: 1, ObjectiveS: known(0.05), ResponseS: known(0.065), Use: 0.2, Limit: 0.2},
			{ID: "nasnet-api", Kind: policy.Service, Entitlement: 1, ObjectiveS: known(0.4), ResponseS: known(0.25), Use: 0.16, Limit: 0.16},
			{ID: "vae", Kind: policy.Training, Entitlement: 1, Category: policy.NL, Growth: known(0.6), Progress: known(0.12),
				Goal: policy.GoalMin, Value: known(131.5), Acceptable: known(120), Objective: known(110), Use: 0.2, Limit: 0.2},
			{ID: "rnn", Kind: policy.Training, Entitlement: 1, Category: policy.NL, Growth: known(0.1), Progress: known(0.02),
				Goal: policy.GoalMax, Value: known(0.61), Objective: known(0.93), Use: 0.16, Limit: 0.16},
			{ID: "mnist", Kind: policy.Training, Entitlement: 1, Category: policy.WL, Growth: known(0.05), Progress: known(0.01),
				Goal: policy.GoalMin, Value: known(0.28), Acceptable: known(0.3), Objective: known(0.25), Use: 0.09, Limit: 0.09},
			{ID: "gru", Kind: policy.Training, Entitlement: 1, Category: policy.CL,
				Goal: policy.GoalMin, Value: known(0.0079), Acceptable: known(0.01), Objective: known(0.008),
				State: policy.Acceptable, Use: 0.09, Limit: 0.09},
			{ID: "preprocess", Kind: policy.Training, Entitlement: 1, Category: policy.NL, Use: 0.1, Limit: 0.1},
		},
		State:            dqoes.State{QGood: 0.12, QBad: -0.02, Satisfied: 1}.Encode(),
		IntervalS:        20,
		InitialIntervalS: 20,
		MaxIntervalS:     160,
	}
}
