// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package auto divides a node's CPU among tasks of all kinds. It is ours:
//
//   - services get what their response times need, up to service_share;
//   - training tasks share the rest by fair finish (package fsp): an acceptable target
//     is their quality point, an objective their end;
//   - a task of which nothing is known has its fair share.
package auto

import (
	"fmt"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// The rules that a Decision can name, besides those of fsp.
const (
	// RuleService: the service has what its response time needs.
	RuleService = "auto.service"
	// RuleKeep: the service is as asked, or not measured on the node as it is now: its share stays.
	RuleKeep = "auto.service.keep"
	// RuleBound: services need more than they may have together.
	RuleBound = "auto.service.bound"
	// RuleObjective: the training task stops at its objective, with its fair share until then.
	RuleObjective = "auto.objective"
)

// rounding is the relative error that comparisons forgive.
const rounding = 1e-9

// Decide divides the pool on a valid snapshot.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	services := divide(s, p)
	in := s
	in.Tasks = slices.Clone(s.Tasks)
	rest, left := policy.Share(1), policy.Share(1) // by limits, and by what is used
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
	// Fair shares are what Nomad gave them: as a ceiling they would only waste CPU.
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
			*d.Limit *= max(rest, 0) / left // fsp divides what services do not use, too
		}
		if d.State == policy.Objective && !t.Ended {
			d.Stop, d.Rule = true, RuleObjective
			d.Why = "objective reached: it stops, and has its fair share until it has saved"
		}
	}
	return out
}

// service is what becomes of a service.
type service struct {
	need  policy.Share // to answer as asked
	least policy.Share // what it keeps if services need more than they may have
	limit policy.Share

	class     policy.Class
	rule, why string
}

// divide returns what services get, by their place in the snapshot. If they need more
// than they may have together, those that miss their objectives are cut first, down to
// their fair shares: an objective that cannot be reached costs nobody else theirs.
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
		claims[i] = waterfill.Claim{Weight: float64(fair[i]), Min: float64(o.least), Max: float64(o.need)}
		needs, leasts, floors = needs+o.need, leasts+o.least, floors+fair[i]/2
		out[i] = o
	}
	bound := policy.Share(1)
	switch {
	case training > 0:
		bound = min(needs, max(min(policy.Share(p.ServiceShare), 1-training/2), floors))
	case needs < 1: // nobody else wants the rest
		for i, c := range claims {
			claims[i] = waterfill.Claim{Weight: c.Max, Min: c.Max, Max: math.MaxFloat64}
		}
	}
	if leasts > bound {
		for i, o := range out {
			claims[i].Min, claims[i].Max = float64(min(fair[i]/2, o.least)), float64(o.least)
		}
	}
	for i, got := range waterfill.Divide(float64(bound), claims) {
		o := &out[i]
		if !s.Tasks[i].Service() {
			continue
		}
		if o.limit = min(policy.Share(got), 1); o.limit < o.need*(1-rounding) {
			o.rule = RuleBound
			o.why += fmt.Sprintf(", which is more than there is for services (at most %.4g together)", bound)
		}
		o.why += fmt.Sprintf("; limit %.4g → %.4g, use %.4g", s.Tasks[i].Bound(), o.limit, s.Tasks[i].Use)
	}
	return out
}

// need says what a service needs of the pool to answer within its objective. It had what
// it used, or could have used its limit while it answered; the response time is as long
// as that is small. The aim lies within the tolerance, on the safe side.
//
// On an event the response time belongs to a node that is no more, so a limit that was
// set already stays: several events in an interval would else count it several times.
func need(t policy.Task, event policy.Event, fair policy.Share, p Params) service {
	o := service{class: class(t, p.Tolerance), rule: RuleKeep}
	within := func(part float64) policy.Share {
		return min(max(t.Use, t.Bound())*policy.Share(*t.ResponseS / *t.ObjectiveS / part), 1)
	}
	switch {
	case t.ResponseS == nil && t.Bound() == 1:
		o.need, o.why = fair, "no response time yet: its fair share"
	case t.ResponseS == nil:
		o.need, o.why = t.Limit, "no response time in this interval: keeps what it has"
	case event != policy.EventNone && t.Bound() < 1:
		o.need, o.why = t.Limit, "a task has joined or left: keeps what it has until it is measured again"
	case o.class == policy.Satisfied && t.Bound() < 1 && t.Use <= t.Limit:
		o.need, o.why = t.Limit, fmt.Sprintf("answers in %.4g s, as asked (%.4g s)", *t.ResponseS, *t.ObjectiveS)
	default:
		o.rule, o.need = RuleService, within(1-p.Tolerance/2)
		o.why = fmt.Sprintf("answers in %.4g s, asked for %.4g s: needs %.4g of the pool", *t.ResponseS, *t.ObjectiveS, o.need)
	}
	o.need = max(o.need, fair/2)
	switch o.class {
	case policy.Satisfied:
		o.least = o.need
	case policy.Good:
		o.least = min(o.need, max(fair/2, within(1+p.Tolerance/2)))
	default:
		o.least = min(o.need, fair)
	}
	return o
}

// class is DQoES's: better or worse than asked by more than the tolerance, or as asked.
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
