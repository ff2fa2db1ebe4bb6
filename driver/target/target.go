// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package target says what a job wants to reach, and when its reports have reached it.
//
// A target ends a job or makes it yield, so it is bound to a metric that the job
// names and to the direction in which that metric improves: no other value that the
// job reports reaches it.
package target

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Targets are what a job says is good enough.
type Targets struct {
	Acceptable *float64 // value of the metric at which the model is usable; nil = none
	Objective  *float64 // value of the metric at which the job has succeeded; nil = none
	Hold       int      // reports in a row that must reach a target; below 1 = 1
	QoE        float64  // response time that a service is to have, in seconds; 0 = no service
}

// Any says whether there is a target for a training job.
func (t Targets) Any() bool { return t.Acceptable != nil || t.Objective != nil }

// Reached says that a target was reached, and by what. It is stored as JSON.
type Reached struct {
	State  policy.TargetState `json:"state"`
	Metric string             `json:"metric"` // as it was reported
	Value  float64            `json:"value"`  // finite
	Target float64            `json:"target"` // finite
	Step   *float64           `json:"step"`   // steps done; nil = unknown
	Time   time.Time          `json:"time"`   // of the report
}
