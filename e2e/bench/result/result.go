// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package result holds what the runs of e2e/bench measured, and makes the tables
// of it. It is pure: no clock, no files.
//
// What is compared comes from outside Ebbtide: values from the trainers' own
// records, response times from the clients, CPU and limits from the kernel. So runs
// under policy "none" are measured in exactly the same way as the others.
package result

import (
	"math"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Number is a float64 that JSON can carry: what is not finite is null.
type Number = status.Number

// Unknown is a Number that is not known.
func Unknown() Number { return Number(math.NaN()) }

// What can be measured.
const (
	TRADL = "tradl" // training jobs with targets
	DQoES = "dqoes" // services with response times
	Auto  = "auto"  // one node, all kinds
)

// Variants: how the node is run.
const (
	NoTargets = "no targets" // policy none, and the jobs say nothing of what is good enough
	None      = "none"       // policy none, with targets
	Published = "published"  // policy dqoes with the published step
)

// Cases of DQoES.
const (
	Varied      = "varied"
	Reachable   = "reachable"
	Unreachable = "unreachable"
)

// Experiment is all that was measured in one go.
type Experiment struct {
	Version  string    `json:"version"` // of the driver
	Nomad    string    `json:"nomad"`
	Machine  string    `json:"machine"`
	Time     time.Time `json:"time"`
	Cores    float64   `json:"cores"`      // the pool
	Interval float64   `json:"interval_s"` // of the policy, and the length of a window
	Runs     []Run     `json:"runs"`
}

// Run is some tasks on one node under one variant. Times are seconds since its start.
type Run struct {
	What    string    `json:"what"`
	Case    string    `json:"case,omitempty"`
	Variant string    `json:"variant"` // a policy, or one of the names above
	Mode    string    `json:"mode"`    // weight, quota; "" where there are no limits
	Seed    uint64    `json:"seed"`
	Start   time.Time `json:"start"`
	Joined  Number    `json:"joined_s"` // all of those that come later are there
	Tasks   []Task    `json:"tasks"`
	Samples []Sample  `json:"samples"`
}

// Kinds of tasks.
const (
	Training = "training"
	Service  = "service"
	Quiet    = "quiet" // reports nothing
)

// Task is one task of a run.
type Task struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	About      string `json:"about,omitempty"`
	Steps      int    `json:"steps,omitempty"` // of a training
	Acceptable Number `json:"acceptable"`      // values of its metric
	Objective  Number `json:"objective"`       // likewise; of a service: seconds

	Submitted Number `json:"submitted_s"`
	Started   Number `json:"started_s"`
	Finished  Number `json:"finished_s"`
	// When the targets were reached, by the trainer's own record.
	AcceptableAt Number `json:"acceptable_s"`
	ObjectiveAt  Number `json:"objective_s"`
	// When Ebbtide's markers say so.
	AcceptableMark Number `json:"acceptable_mark_s"`
	ObjectiveMark  Number `json:"objective_mark_s"`

	CPU  Number `json:"cpu_s"`       // used in all
	Base uint64 `json:"base_shares"` // what Nomad set
}

// Sample is one window.
type Sample struct {
	T       float64   `json:"t_s"` // its end
	Seconds float64   `json:"seconds"`
	Busy    float64   `json:"busy"`  // cores in use on the machine, by whatever
	Steal   float64   `json:"steal"` // cores that the machine's own host took, part of Busy
	Tasks   []Reading `json:"tasks"` // in the order of the run's; those that came later are missing
}

// Reading is one task in one window.
type Reading struct {
	Alive bool    `json:"alive"`
	Cores float64 `json:"cores"` // used
	// What the kernel had at the window's end.
	Shares uint64  `json:"shares"`
	Quota  float64 `json:"quota_cores"` // 0 = none
	// What the clients saw: answers that came in the window.
	Answers  int    `json:"answers"`
	Response Number `json:"response_s"` // their mean
	// What Ebbtide's status says.
	Class    string `json:"class,omitempty"`
	Category string `json:"category,omitempty"`
	State    string `json:"state,omitempty"`
	Limit    Number `json:"limit"`
	Rule     string `json:"rule,omitempty"`
}

// Limited says whether the kernel has less for the task than Nomad asked for.
func (r Reading) Limited(base uint64) bool {
	return r.Alive && (r.Shares < base || r.Quota > 0)
}

// Seeds lists the seeds of the runs that a filter keeps, in order.
func Seeds(runs []Run, keep func(Run) bool) []uint64 {
	var seeds []uint64
	for _, r := range runs {
		if keep(r) && !slices.Contains(seeds, r.Seed) {
			seeds = append(seeds, r.Seed)
		}
	}
	slices.Sort(seeds)
	return seeds
}

// find returns the run of a seed under a variant. A run without limits serves both
// modes.
func find(runs []Run, what, kase, variant, mode string, seed uint64) (Run, bool) {
	for _, r := range runs {
		if r.What == what && r.Case == kase && r.Variant == variant && r.Seed == seed && (r.Mode == mode || r.Mode == "") {
			return r, true
		}
	}
	return Run{}, false
}

// variants lists the variants of the runs of one kind, in order of appearance.
func variants(runs []Run, what, kase, mode string) []string {
	var names []string
	for _, r := range runs {
		if r.What == what && r.Case == kase && (r.Mode == mode || r.Mode == "") && !slices.Contains(names, r.Variant) {
			names = append(names, r.Variant)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// rank is the order of variants in tables: what is compared with comes first.
func rank(variant string) int {
	return slices.Index([]string{NoTargets, None, "flowcon", "tradl", Published, "dqoes", "auto"}, variant)
}

// Modes lists the modes of the runs of one kind.
func Modes(runs []Run, what string) []string {
	var modes []string
	for _, m := range []string{"weight", "quota"} {
		if slices.ContainsFunc(runs, func(r Run) bool { return r.What == what && r.Mode == m }) {
			modes = append(modes, m)
		}
	}
	return modes
}
