// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import "encoding/json"

// Outcome is what a policy decides on a snapshot.
type Outcome struct {
	// Tasks has one decision for each task of the snapshot, in its order. Those that have
	// ended are left out by policies without ghosts.
	Tasks []Decision `json:"tasks"`
	// Alpha is FlowCon's threshold, in the unit of G; −1 means that categories were not
	// changed, and nil that the policy has none.
	Alpha *float64 `json:"alpha,omitempty"`
	// State is for the next run's snapshot.
	State json.RawMessage `json:"state,omitempty"`
	// IntervalS is the time until the next run, in seconds; 0 leaves it as it is.
	IntervalS float64 `json:"interval_s,omitempty"`
	// Floor is the part of its fair share that no task's limit may fall below when it
	// is enforced, in (0, 1]; 0 leaves it to the planner.
	Floor float64 `json:"floor,omitempty"`
	// SlackCPUS is what may be spent on an order of preference before a task would end
	// later than under fair sharing; nil if the policy has no such guarantee.
	SlackCPUS *CPUSeconds `json:"slack_cpu_s,omitempty"`
}

// Decision is what a policy decides for one task.
type Decision struct {
	// ID is the task's, as the snapshot gave it.
	ID string `json:"id"`
	// Kind is Service for a service, if the policy tells them apart.
	Kind Kind `json:"kind,omitempty"`
	// Category is that of a training task from now on, if the policy has categories.
	Category Category `json:"category,omitempty"`
	// State is what a training task has reached by now, if the policy has targets.
	State TargetState `json:"state,omitempty"`
	// Class says how a service is doing; "" if it was not measured.
	Class Class `json:"class,omitempty"`
	// Limit is the upper bound of the task's CPU, in (0, 1]; 1 and nil mean no limit.
	// The limits of a node may sum to more than 1.
	Limit *Share `json:"limit"`
	// Stop says that the task has succeeded and is to be stopped gracefully.
	Stop bool `json:"stop"`
	// Unknown says that the policy knows too little of the task to limit it: it has its
	// fair share, whatever Limit says.
	Unknown bool `json:"unknown,omitempty"`
	// Fair compares the task with its twin under fair sharing, if the policy has one.
	*Fair
	// Rule is the stable name of the rule that fired, such as "flowcon.alg1.nl".
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Fair compares a task with its twin, which runs under fair sharing.
type Fair struct {
	// FairFinishS is when the twin will end, in seconds since the Unix epoch, if no task
	// joins; nil when it has ended or that is not known.
	FairFinishS *float64 `json:"fair_finish_s"`
	// FinishS is when the task will end; nil likewise.
	FinishS *float64 `json:"finish_s"`
	// Late says that the twin has ended and the task has not.
	Late bool `json:"late"`
	// FairRateCores is what FairCPUS grows by in a second until the next decision.
	FairRateCores Cores `json:"fair_rate_cores"`
}

// Bound returns the limit, or 1 where there is none.
func (d Decision) Bound() Share {
	if d.Limit == nil {
		return 1
	}
	return *d.Limit
}
