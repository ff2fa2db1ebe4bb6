// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package result holds what the demo measured and compares two runs of the same
// jobs. It is pure: no clock, no files.
//
// The curves come from the trainers' own output and the end of a job from Nomad,
// so that a run under the policy "none" is measured in exactly the same way as
// one under another, and neither by Ebbtide itself.
package result

import (
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// Number is a float64 that JSON can carry: what is not finite is null.
type Number = status.Number

// Experiment is all that was measured.
type Experiment struct {
	Version string    `json:"version"` // of the driver
	Nomad   string    `json:"nomad"`
	Time    time.Time `json:"time"`
	Cores   float64   `json:"cores"` // of the node: the pool
	Mode    string    `json:"mode"`  // weight, quota
	// Interval is the policy's initial interval, in seconds.
	Interval float64 `json:"interval_s"`
	Pairs    []Pair  `json:"pairs"`
}

// Pair is the same jobs with the same seeds under two policies.
type Pair struct {
	Seed uint64 `json:"seed"`
	None Run    `json:"none"`
	With Run    `json:"with"` // the policy is the run's
}

// Run is one run of all jobs. Its times are seconds since the first submission.
type Run struct {
	Policy string    `json:"policy"`
	Start  time.Time `json:"start"`
	Jobs   []Job     `json:"jobs"` // in order of submission
}

// Job is one job of a run.
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

// Sample is one line of Ebbtide's history of a task.
type Sample struct {
	T     float64 `json:"t_s"`
	CPU   Number  `json:"cpu_s"` // CPU-seconds used so far
	Limit Number  `json:"limit"` // fraction of the pool
}

// Samples turns the rows of a task's history into samples. start is the run's.
func Samples(rows []status.Row, start time.Time) []Sample {
	var out []Sample
	for _, r := range rows {
		out = append(out, Sample{T: r.Time.Sub(start).Seconds(), CPU: Number(r.CPUSeconds), Limit: Number(r.Limit)})
	}
	return out
}

// CPUSeconds is what the job used in all.
func (j Job) CPUSeconds() float64 {
	most := 0.0
	for _, s := range j.Samples {
		if c := float64(s.CPU); c > most {
			most = c
		}
	}
	return most
}

// Makespan is the time from the first submission to the last end, in seconds.
func (r Run) Makespan() float64 {
	end := math.NaN()
	for _, j := range r.Jobs {
		if !(j.Finished <= end) {
			end = j.Finished
		}
	}
	return end
}
