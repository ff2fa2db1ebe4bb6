// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package target holds a job's targets and detects when its reports reach them.
//
// A target ends a job or makes it yield, so it is bound to a metric named by the job
// and its direction; other values of the job never reach it.
package target

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Targets are a job's declared targets.
type Targets struct {
	Acceptable *float64 // value of the metric at which the model is usable; nil = none
	Objective  *float64 // value of the metric at which the job has succeeded; nil = none
	Hold       int      // consecutive reports that must reach a target; below 1 = 1
	QoE        float64  // response time objective of a service, in seconds; 0 = no service
}

// Any reports whether there is a target for a training job.
func (t Targets) Any() bool { return t.Acceptable != nil || t.Objective != nil }

// Reached describes how a target was reached. It is stored as JSON.
type Reached struct {
	State  policy.TargetState `json:"state"`
	Metric string             `json:"metric"` // as reported
	Value  float64            `json:"value"`  // finite
	Target float64            `json:"target"` // finite
	Step   *float64           `json:"step"`   // steps done; nil = unknown
	Time   time.Time          `json:"time"`   // of the report
}
