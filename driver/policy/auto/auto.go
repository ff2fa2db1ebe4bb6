// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package auto divides a node's CPU among tasks of all kinds. It is Ebbtide's own:
//
//   - services get what their response times require, up to service_share;
//   - training tasks share the rest by fair finish (package fsp), where an acceptable
//     target is their quality point and an objective their end;
//   - tasks without progress data get their fair shares.
package auto

import (
	"fmt"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// Rules in addition to fsp's.
const (
	// RuleService: the service has what its response time requires.
	RuleService = "auto.service"
	// RuleKeep: satisfied, or not measured since the tasks last changed: its share stays.
	RuleKeep = "auto.service.keep"
	// RuleBound: services together need more than their maximum.
	RuleBound = "auto.service.bound"
	// RuleObjective: objective reached: fair share until the task stops.
	RuleObjective = "auto.objective"
)

// rounding is the relative tolerance of comparisons.
const rounding = 1e-9

// Decide divides the pool on a valid snapshot.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	services := divide(s, p)
	in := s
	in.Tasks = slices.Clone(s.Tasks)
	rest, left := policy.Share(1), policy.Share(1) // by limits; by use
	for i, t := range s.Tasks {
		switch {
		case t.Service():
			in.Tasks[i].Limit = services[i].limit
			rest -= services[i].limit
			left -= min(t.Use, services[i].limit)
		case t.Reached() == policy.Objective:
			in.Tasks[i].RemainingCPUS = nil
		}
	}
	out := fsp.Decide(in, p.Fsp)
	// Fair shares are Nomad's; as quotas they would only waste CPU.
	free := !slices.ContainsFunc(in.Tasks, func(t policy.Task) bool { return t.Service() || !t.Ended && t.RemainingCPUS != nil })
	for i, t := range s.Tasks {
		d := &out.Tasks[i]
		if t.Service() {
			d.Class, d.Rule, d.Limit, d.Unknown, d.Why = services[i].class, services[i].rule, &services[i].limit, false, services[i].why
			continue
		}
		d.State = t.Reached()
		switch {
		case free:
			d.Limit = nil
		case d.Limit != nil:
			*d.Limit *= max(rest, 0) / left // fsp also divides what services leave unused
		}
		if d.State == policy.Objective && !t.Ended {
			d.Stop, d.Rule = true, RuleObjective
			d.Why = "objective reached: stopping, with its fair share for the final save"
		}
	}
	return out
}

type service struct {
	need    policy.Share // to meet its objective
	minimum policy.Share // kept when services need more than their maximum
	limit   policy.Share

	class     policy.Class
	rule, why string
}

// divide returns the services' outcomes, by index in the snapshot. If they need more than their
// maximum together, those that miss their objectives are cut first, down to their fair shares: an
// unreachable objective costs other services nothing.
func divide(s policy.Snapshot, p Params) []service {
	out := make([]service, len(s.Tasks))
	claims := make([]waterfill.Claim, len(s.Tasks))
	var needs, leasts, floors, training policy.Share
	fair := s.FairShares()
	for i, t := range s.Tasks {
		if !t.Service() {
			training += fair[i]
			continue
		}
		o := need(t, s.Event, fair[i], p)
		claims[i] = waterfill.Claim{Weight: float64(fair[i]), Min: float64(o.minimum), Max: float64(o.need)}
		needs, leasts, floors = needs+o.need, leasts+o.minimum, floors+fair[i]/2
		out[i] = o
	}
	bound := policy.Share(1)
	switch {
	case training > 0:
		bound = min(needs, max(min(policy.Share(p.ServiceShare), 1-training/2), floors))
	case needs < 1: // there are no training tasks
		for i, c := range claims {
			claims[i] = waterfill.Claim{Weight: c.Max, Min: c.Max, Max: math.MaxFloat64}
		}
	}
	if leasts > bound {
		for i, o := range out {
			claims[i].Min, claims[i].Max = float64(min(fair[i]/2, o.minimum)), float64(o.minimum)
		}
	}
	for i, got := range waterfill.Divide(float64(bound), claims) {
		o := &out[i]
		if !s.Tasks[i].Service() {
			continue
		}
		if o.limit = min(policy.Share(got), 1); o.limit < o.need*(1-rounding) {
			o.rule = RuleBound
			o.why += fmt.Sprintf(", beyond what services may have together, %.4g", bound)
		}
		o.why += fmt.Sprintf("; limit %.4g → %.4g, use %.4g", s.Tasks[i].Bound(), o.limit, s.Tasks[i].Use)
	}
	return out
}

// need computes the share that a service needs to meet its objective, assuming that its response
// time is inversely proportional to the CPU it had: its use, or its limit while it responded. The
// aim is within the tolerance, on the safe side.
//
// On an event the response time was measured with another set of tasks, so a limit is kept: several
// events in an interval would otherwise apply it several times.
func need(t policy.Task, event policy.Event, fair policy.Share, p Params) service {
	o := service{class: class(t, p.Tolerance), rule: RuleKeep}
	within := func(part float64) policy.Share {
		return min(max(t.Use, t.Bound())*policy.Share(*t.ResponseS / *t.ObjectiveS / part), 1)
	}
	switch {
	case t.ResponseS == nil && t.Bound() == 1:
		o.need, o.why = fair, "no response time yet: its fair share"
	case t.ResponseS == nil:
		o.need, o.why = t.Limit, "no response time in this interval: keeps its limit"
	case event != policy.EventNone && t.Bound() < 1:
		o.need, o.why = t.Limit, "a task joined or left: keeps its limit until it is measured again"
	case o.class == policy.Satisfied && t.Bound() < 1 && t.Use <= t.Limit:
		o.need, o.why = t.Limit, fmt.Sprintf("its response time, %.4g s, meets its target, %.4g s: keeps its limit", *t.ResponseS, *t.ObjectiveS)
	default:
		o.rule, o.need = RuleService, within(1-p.Tolerance/2)
		o.why = fmt.Sprintf("response time %.4g s, target %.4g s: needs %.4g of the pool", *t.ResponseS, *t.ObjectiveS, o.need)
	}
	o.need = max(o.need, fair/2)
	switch o.class {
	case policy.Satisfied:
		o.minimum = o.need
	case policy.Good:
		o.minimum = min(o.need, max(fair/2, within(1+p.Tolerance/2)))
	default:
		o.minimum = min(o.need, fair)
	}
	return o
}

// class returns DQoES's class: better or worse than the objective by more than the tolerance, or
// satisfied.
func class(t policy.Task, tolerance float64) policy.Class {
	if t.ResponseS == nil {
		return policy.Unmeasured
	}
	switch off, edge := *t.ResponseS / *t.ObjectiveS, tolerance*(1+rounding); {
	case off < 1-edge:
		return policy.Good
	case off > 1+edge:
		return policy.Bad
	default:
		return policy.Satisfied
	}
}
