// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import "encoding/json"

// Outcome is a policy's decision on a snapshot.
type Outcome struct {
	// Tasks has one decision per task of the snapshot, in its order. Policies without Ghosts omit
	// ended tasks.
	Tasks []Decision `json:"tasks"`
	// Alpha is FlowCon's threshold, in the unit of G; −1 means that categories were
	// kept, nil that the policy has none.
	Alpha *float64 `json:"alpha,omitempty"`
	// State is passed to the next run's snapshot.
	State json.RawMessage `json:"state,omitempty"`
	// IntervalS is the time until the next run, in seconds; 0 keeps the interval.
	IntervalS float64 `json:"interval_s,omitempty"`
	// Floor is the minimum part of its fair share, in (0, 1], that enforcement leaves
	// every task; 0 means the planner's default.
	Floor float64 `json:"floor,omitempty"`
	// SlackCPUS is the CPU time available for preferred orders before some task would
	// end later than under fair sharing; nil without such a guarantee.
	SlackCPUS *CPUSeconds `json:"slack_cpu_s,omitempty"`
}

type Decision struct {
	ID string `json:"id"`
	// Kind is Service for a service, in policies that have services.
	Kind Kind `json:"kind,omitempty"`
	// Category is a training task's new category, in policies that have categories.
	Category Category `json:"category,omitempty"`
	// State is the target that a training task has reached, in policies that have
	// targets.
	State TargetState `json:"state,omitempty"`
	// Class compares a service with its objective; "" if unmeasured.
	Class Class `json:"class,omitempty"`
	// Limit is the upper bound of the task's CPU, in (0, 1]; 1 and nil mean no limit. A
	// node's limits may sum to more than 1.
	Limit *Share `json:"limit"`
	// Stop requests a graceful stop of a task that has succeeded.
	Stop bool `json:"stop"`
	// Unknown means that the policy cannot determine a limit: the task gets its fair share,
	// whatever Limit is.
	Unknown bool `json:"unknown,omitempty"`
	// Fair compares the task with its twin, in policies that have twins.
	*Fair
	// Rule is the stable name of the rule applied, such as "flowcon.alg1.nl".
	Rule string `json:"rule"`
	// Why explains the decision in a sentence.
	Why string `json:"why"`
}

// Fair compares a task with its twin, which runs under fair sharing.
type Fair struct {
	// FairFinishS is the twin's expected end if no task joins, in seconds since the
	// Unix epoch; nil if it has ended or is unknown.
	FairFinishS *float64 `json:"fair_finish_s"`
	// FinishS is the task's expected end; nil likewise.
	FinishS *float64 `json:"finish_s"`
	// Late means that the twin has ended before the task.
	Late bool `json:"late"`
	// PastQuality means that the task's model is good enough (Task.QualityCPUS).
	PastQuality bool `json:"past_quality,omitempty"`
	// FairRateCores is the growth of FairCPUS per second until the next decision.
	FairRateCores Cores `json:"fair_rate_cores"`
}

// Bound returns the limit, 1 for none.
func (d Decision) Bound() Share {
	if d.Limit == nil {
		return 1
	}
	return *d.Limit
}
