// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package result holds the demo's measurements and compares runs of the same jobs. It is pure.
//
// Curves come from the trainers' output and ends from Nomad, so policy "none" is measured in the
// same way, independently of Ebbtide.
package result

import (
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// Number encodes non-finite values as null.
type Number = status.Number

type Experiment struct {
	Version string    `json:"version"` // of the driver
	Nomad   string    `json:"nomad"`
	Time    time.Time `json:"time"`
	Cores   float64   `json:"cores"` // the pool
	Mode    string    `json:"mode"`  // weight, quota
	// Interval is the policy's initial interval, in seconds.
	Interval float64 `json:"interval_s"`
	Pairs    []Pair  `json:"pairs"`
}

// Pair is the same jobs and seeds under two policies.
type Pair struct {
	Seed uint64 `json:"seed"`
	None Run    `json:"none"`
	With Run    `json:"with"` // with the run's policy
}

// Run has all jobs. Times are in seconds since the first submission.
type Run struct {
	Policy string    `json:"policy"`
	Start  time.Time `json:"start"`
	Jobs   []Job     `json:"jobs"` // in order of submission
}

type Job struct {
	Name      string    `json:"name"`
	Model     string    `json:"model"`
	Args      []string  `json:"args"` // of the trainer
	Submitted float64   `json:"submitted_s"`
	Started   float64   `json:"started_s"`
	Finished  float64   `json:"finished_s"`
	Curve     mix.Curve `json:"curve"`   // from the trainer's output
	Samples   []Sample  `json:"samples"` // from Ebbtide's history
}

// Sample is a line of Ebbtide's history.
type Sample struct {
	T     float64 `json:"t_s"`
	CPU   Number  `json:"cpu_s"` // used so far
	Limit Number  `json:"limit"` // fraction of the pool
}

// Samples converts a history. start is the run's.
func Samples(rows []status.Row, start time.Time) []Sample {
	var out []Sample
	for _, r := range rows {
		out = append(out, Sample{T: r.Time.Sub(start).Seconds(), CPU: Number(r.CPUSeconds), Limit: Number(r.Limit)})
	}
	return out
}

// CPUSeconds returns the job's total use.
func (j Job) CPUSeconds() float64 {
	most := 0.0
	for _, s := range j.Samples {
		if c := float64(s.CPU); c > most {
			most = c
		}
	}
	return most
}

// Makespan returns the time from first submission to last end, in seconds.
func (r Run) Makespan() float64 {
	end := math.NaN()
	for _, j := range r.Jobs {
		if !(j.Finished <= end) {
			end = j.Finished
		}
	}
	return end
}
