// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package result holds what the demo measured and compares two runs of the same
// jobs. It is pure: no clock, no files.
//
// The curves come from the trainers' own output and the end of a job from Nomad,
// so that a run under the policy "none" is measured in exactly the same way as
// one under "flowcon", and neither by Ebbtide itself.
package result

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Number is a float64 that JSON can carry: what is not finite is null.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if !finite(float64(n)) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(n), 'g', 8, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("not a number or null: %w", err)
	}
	*n = Number(f)
	return nil
}

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
	Seed    uint64 `json:"seed"`
	Flowcon Run    `json:"flowcon"`
	None    Run    `json:"none"`
}

// Run is one run of all jobs. Its times are seconds since the first submission.
type Run struct {
	Policy string    `json:"policy"`
	Start  time.Time `json:"start"`
	Jobs   []Job     `json:"jobs"`
}

// Job is one job of a run.
type Job struct {
	Name      string   `json:"name"`
	Role      string   `json:"role"` // what it stands for
	Args      []string `json:"args"` // of the trainer
	Submitted float64  `json:"submitted_s"`
	Started   float64  `json:"started_s"`
	Finished  float64  `json:"finished_s"`
	Curve     []Point  `json:"curve"`   // from the trainer's output
	Samples   []Sample `json:"samples"` // from Ebbtide's history
}

// Point is one report of a trainer.
type Point struct {
	T     float64 `json:"t_s"`
	Step  float64 `json:"step"`
	Value float64 `json:"value"` // finite
}

// Sample is one line of Ebbtide's history of a task.
type Sample struct {
	T        float64 `json:"t_s"`
	CPU      Number  `json:"cpu_s"` // CPU-seconds used so far
	Growth   Number  `json:"growth"`
	Limit    Number  `json:"limit"`  // fraction of the pool
	Shares   uint64  `json:"shares"` // in force in the kernel, in units of cpu.shares
	Category string  `json:"category"`
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

// Busy is the part of the pool that the jobs got, on average over the makespan.
// Well below 1 means that something else was using the machine.
func (r Run) Busy(cores float64) float64 {
	sum := 0.0
	for _, j := range r.Jobs {
		sum += j.CPUSeconds()
	}
	return sum / (cores * r.Makespan())
}

// job finds a job by its name.
func (r Run) job(name string) (Job, bool) {
	for _, j := range r.Jobs {
		if j.Name == name {
			return j, true
		}
	}
	return Job{}, false
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
