// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package metrics says how jobs fared under a policy, and how they would have fared
// without it. It works on what was measured of jobs, in a real run or a simulated one,
// and knows of neither: Run and Job are plain data, everything else is a pure function
// of them.
//
// Averages hide losers. So each job is compared with itself in the run of the base
// policy that has the same scenario and seed, and the whole distribution is kept.
package metrics

import (
	"fmt"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Run is one run of a scenario under a policy.
type Run struct {
	Scenario string `json:"scenario"`
	Policy   string `json:"policy"`
	Seed     uint64 `json:"seed"`
	// PoolCores is what the jobs shared, in cores: of a cluster the sum of its nodes.
	PoolCores float64 `json:"pool_cores"`
	// IdleCPUS is how much of the pool was not used while a job was there, in
	// CPU-seconds.
	IdleCPUS float64 `json:"idle_cpu_s"`
	Jobs     []Job   `json:"jobs"`
}

// Job is what was measured of one job. Moments are in seconds since the run began; one
// that never came, or that is not known, is nil.
type Job struct {
	// ID names the job; it is the same in all runs of a scenario with the same seed.
	ID string `json:"id"`
	// Kind groups jobs for people: the application, say.
	Kind string `json:"kind,omitempty"`

	ArriveS float64  `json:"arrive_s"` // when it was submitted
	StartS  *float64 `json:"start_s"`  // when it first ran
	EndS    *float64 `json:"end_s"`    // when it was done

	// Quality50S and so on are when the job had 50, 90 and 95 % of the quality that it
	// ended with, counted from its first report.
	Quality50S *float64 `json:"quality_50_s,omitempty"`
	Quality90S *float64 `json:"quality_90_s,omitempty"`
	Quality95S *float64 `json:"quality_95_s,omitempty"`
	// AcceptableS and ObjectiveS are when its targets were reached.
	AcceptableS *float64 `json:"acceptable_s,omitempty"`
	ObjectiveS  *float64 `json:"objective_s,omitempty"`

	CPUS     float64 `json:"cpu_s"`                // CPU-seconds used, lost ones included
	CapCores float64 `json:"cap_cores,omitempty"`  // the most that it can use; 0 = the pool
	LostCPUS float64 `json:"lost_cpu_s,omitempty"` // work that was done again, in CPU-seconds
	// ThrottledS is how long a quota kept it from CPU that it could have used, in
	// seconds: the kernel's throttled time.
	ThrottledS float64 `json:"throttled_s,omitempty"`
	Moves      int     `json:"moves,omitempty"`

	// QoEChecks is how often a service's response time was looked at, and QoEHits how
	// often it was as asked.
	QoEChecks int `json:"qoe_checks,omitempty"`
	QoEHits   int `json:"qoe_hits,omitempty"`
}

// since is the time from the job's arrival to a moment.
func (j Job) since(moment *float64) (seconds float64, ok bool) {
	if moment == nil {
		return 0, false
	}
	return *moment - j.ArriveS, true
}

// Completion is how long the job took, in seconds: from its arrival to its end, with all
// queueing and moves. It is not ok if the job has not ended.
func (j Job) Completion() (seconds float64, ok bool) { return j.since(j.EndS) }

// Makespan is the time from the first arrival to the last end, in seconds; 0 if no job
// has ended.
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

// Unfinished counts the jobs that have not ended. Services never do.
func (r Run) Unfinished() int {
	n := 0
	for _, j := range r.Jobs {
		if j.EndS == nil && j.QoEChecks == 0 {
			n++
		}
	}
	return n
}

// Validate reports figures that cannot have been measured, as a fields.Errors, by their
// path in JSON.
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

// Name says which run it is, for errors.
func (r Run) Name() string {
	return fmt.Sprintf("scenario %s, policy %s, seed %d", r.Scenario, r.Policy, r.Seed)
}
