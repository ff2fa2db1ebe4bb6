// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tradl divides a node's CPU by two-tier targets, as TRADL does.
package tradl

// The rules that a Decision can name.
const (
	// RuleNotFull: the pool is not full, so nobody is limited.
	RuleNotFull = "tradl.not-full"
	// RuleAllAcceptable: all tasks have reached acceptable and compete freely.
	RuleAllAcceptable = "tradl.all-acceptable"
	// RuleObjective: the task has reached its objective and stops.
	RuleObjective = "tradl.objective"
	// RuleHalf: an acceptable task that used more than its fair share gets half of it.
	RuleHalf = "tradl.acceptable.half"
	// RuleEven: an acceptable task that used no more than that gets 1/(n+1).
	RuleEven = "tradl.acceptable.even"
	// RuleTraining: a task that has reached no target is not limited.
	RuleTraining = "tradl.training"
	// RuleUnmeasured: a task that has not reported is not limited.
	RuleUnmeasured = "tradl.unmeasured"
)

// Decision is what Decide decides for one task.
type Decision struct {
	// ID is the task's, as the input gave it.
	ID string `json:"id"`
	// State is what the task has reached by now; never "".
	State State `json:"state"`
	// Limit is the upper bound of the task's CPU as a fraction of the pool, in
	// (0, 1); nil means no limit.
	Limit *float64 `json:"limit"`
	// Stop says that the task has succeeded and is to be stopped gracefully.
	Stop bool `json:"stop"`
	// Rule is the stable name of the rule that fired.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Output is what Decide decides.
type Output struct {
	// Tasks has one decision for each task of the input, in the input's order.
	Tasks []Decision `json:"tasks"`
}

// Decide runs the algorithm on a valid input. It does not change the input.
func Decide(in Input) Output {
	out := Output{Tasks: make([]Decision, len(in.Tasks))}
	for i, t := range in.Tasks {
		out.Tasks[i] = Decision{ID: t.ID, State: StateTraining, Rule: RuleTraining}
	}
	return out
}
