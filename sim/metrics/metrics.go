// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package metrics compares how jobs fare under a policy and without it. In: Run and Job, plain
// measurements of real or simulated runs. Out: summaries, tables and CSV. Start with
// metrics.go, then summary.go.
//
// Averages hide losers, so each job is compared with itself in the base policy's run of the
// same scenario and seed, or with its mean over several such runs if luck matters, and the whole
// distribution is kept.
package metrics

import (
	"fmt"

	"github.com/ebbtide/ebbtide/internal/fields"
)

type Run struct {
	Scenario string `json:"scenario"`
	Policy   string `json:"policy"`
	Seed     uint64 `json:"seed"`
	// PoolCores are the cores shared by the jobs, summed over nodes.
	PoolCores float64 `json:"pool_cores"`
	// IdleCPUS is the unused part of the pool while jobs were present, in CPU-seconds.
	IdleCPUS float64 `json:"idle_cpu_s"`
	Jobs     []Job   `json:"jobs"`
	// Draws are runs of the same jobs, in this order, that differ by luck only. A base counts
	// with the means of itself and its draws.
	Draws []Run `json:"draws,omitempty"`
}

// Job has the measurements of one job. Times are in seconds since the run's start; nil if
// unknown or never reached.
type Job struct {
	// ID is the same in all runs of a scenario and seed.
	ID string `json:"id"`
	// Kind groups jobs, by application for example.
	Kind string `json:"kind,omitempty"`

	ArriveS float64  `json:"arrive_s"` // submission
	StartS  *float64 `json:"start_s"`  // first run
	EndS    *float64 `json:"end_s"`    // completion
	// TwinEndS is when the job's twin, as the driver keeps it, has had the job's work. Simulated.
	TwinEndS *float64 `json:"twin_end_s,omitempty"`

	// FairEndS is when it would have ended with its fair share of the cluster. Simulated, for jobs
	// that may wait for a place.
	FairEndS *float64 `json:"fair_end_s,omitempty"`

	// Quality50S etc. are when the job reached 50, 90 and 95 % of its final quality, counted
	// from its first report.
	Quality50S *float64 `json:"quality_50_s,omitempty"`
	Quality90S *float64 `json:"quality_90_s,omitempty"`
	Quality95S *float64 `json:"quality_95_s,omitempty"`
	// AcceptableS and ObjectiveS are when the targets were reached.
	AcceptableS *float64 `json:"acceptable_s,omitempty"`
	ObjectiveS  *float64 `json:"objective_s,omitempty"`

	CPUS     float64 `json:"cpu_s"`                // used, including lost work
	CapCores float64 `json:"cap_cores,omitempty"`  // the most it can use; 0 for the pool
	LostCPUS float64 `json:"lost_cpu_s,omitempty"` // of work done again
	// ThrottledS is the time in which a quota withheld usable CPU, like the kernel's throttled
	// time, in seconds.
	ThrottledS float64 `json:"throttled_s,omitempty"`
	Moves      int     `json:"moves,omitempty"`

	// QoEChecks counts checks of a service's response time, QoEHits those within the target.
	QoEChecks int `json:"qoe_checks,omitempty"`
	QoEHits   int `json:"qoe_hits,omitempty"`
}

func (j Job) since(moment *float64) (seconds float64, ok bool) {
	if moment == nil {
		return 0, false
	}
	return *moment - j.ArriveS, true
}

// Completion returns the time from arrival to end in seconds, including queueing and moves; ok is
// false for an unfinished job.
func (j Job) Completion() (seconds float64, ok bool) { return j.since(j.EndS) }

// Makespan returns the time from the first arrival to the last end, in seconds; 0 if no job
// finished.
func (r Run) Makespan() float64 {
	first, last := 0.0, 0.0
	for i, j := range r.Jobs {
		if i == 0 || j.ArriveS < first {
			first = j.ArriveS
		}
		if j.EndS != nil {
			last = max(last, *j.EndS)
		}
	}
	return max(last-first, 0)
}

// Unfinished counts unfinished jobs, except services, which never finish.
func (r Run) Unfinished() int {
	n := 0
	for _, j := range r.Jobs {
		if j.EndS == nil && j.QoEChecks == 0 {
			n++
		}
	}
	return n
}

// Validate reports impossible figures as a fields.Errors, by JSON path.
func (r Run) Validate() error {
	var errs fields.Errors
	if !fields.Positive(r.PoolCores) {
		errs.Add("pool_cores", "must be > 0, got %v", r.PoolCores)
	}
	if !fields.NonNegative(r.IdleCPUS) {
		errs.Add("idle_cpu_s", "must be ≥ 0, got %v", r.IdleCPUS)
	}
	if len(r.Jobs) == 0 {
		errs.Add("jobs", "must have one job at least")
	}
	ids := fields.IDs{List: "jobs"}
	for i, j := range r.Jobs {
		ids.Check(&errs, i, j.ID)
		j.validate(fields.Index("jobs", i), &errs)
	}
	return errs.Err()
}

func (j Job) validate(path string, errs *fields.Errors) {
	at := func(name string) string { return fields.Member(path, name) }
	if !fields.Finite(j.ArriveS) {
		errs.Add(at("arrive_s"), "must be a finite number, got %v", j.ArriveS)
	}
	for _, m := range []struct {
		name  string
		value *float64
	}{
		{"start_s", j.StartS}, {"end_s", j.EndS},
		{"quality_50_s", j.Quality50S}, {"quality_90_s", j.Quality90S}, {"quality_95_s", j.Quality95S},
		{"acceptable_s", j.AcceptableS}, {"objective_s", j.ObjectiveS},
	} {
		if m.value != nil && !(*m.value >= j.ArriveS && fields.Finite(*m.value)) {
			errs.Add(at(m.name), "must be a finite number ≥ arrive_s = %v, got %v", j.ArriveS, *m.value)
		}
	}
	for _, a := range []struct {
		name  string
		value float64
	}{{"cpu_s", j.CPUS}, {"cap_cores", j.CapCores}, {"lost_cpu_s", j.LostCPUS}, {"throttled_s", j.ThrottledS}} {
		if !fields.NonNegative(a.value) {
			errs.Add(at(a.name), "must be ≥ 0, got %v", a.value)
		}
	}
	if j.Moves < 0 {
		errs.Add(at("moves"), "must be ≥ 0, got %d", j.Moves)
	}
	if j.QoEHits < 0 || j.QoEHits > j.QoEChecks {
		errs.Add(at("qoe_hits"), "must be ≥ 0 and ≤ qoe_checks = %d, got %d", j.QoEChecks, j.QoEHits)
	}
}

// Name identifies the run in errors.
func (r Run) Name() string {
	return fmt.Sprintf("scenario %s, policy %s, seed %d", r.Scenario, r.Policy, r.Seed)
}
