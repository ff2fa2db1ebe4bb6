// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policy is the vocabulary that all policies share. A policy decides how
// the tasks of a node divide its elastic pool: the CPU that Ebbtide may hand out.
//
// Each policy is a package of its own below this one and a pure function of its
// input: no clock, no I/O, no state, so that the same code runs on a node, in
// `ebbtide decide` and in a simulator, and the same input gives the same bytes.
package policy

// Category says where a task is in its training (FlowCon, TCC 2022, §5.2).
type Category string

// The categories of FlowCon.
const (
	// New is a task that no policy has seen yet.
	New Category = ""
	// NL ("new list") is growing fast.
	NL Category = "NL"
	// WL ("watching list") fell below the threshold once: near convergence.
	WL Category = "WL"
	// CL ("completing list") fell below the threshold again: converged.
	CL Category = "CL"
)

// Valid says whether c is one of the categories above.
func (c Category) Valid() bool {
	switch c {
	case New, NL, WL, CL:
		return true
	default:
		return false
	}
}

// Decision is what a policy decides for one task.
type Decision struct {
	// ID is the task's, as the input gave it.
	ID string `json:"id"`
	// Category is the task's category from now on; never New.
	Category Category `json:"category"`
	// Limit is the upper bound of the task's CPU as a fraction of the pool, in
	// (0, 1]; 1 means no limit. The limits of a node may sum to more than 1.
	Limit float64 `json:"limit"`
	// Rule is the stable name of the rule that set the limit, "flowcon.alg1.nl".
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}
