// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/status"
)

// resume is a task's state for a later plugin process, sealed in the allocation's private
// directory.
type resume struct {
	// Run is the task's ID, which changes when Nomad restarts the task. All fields except Offset
	// are valid for this run only.
	Run    string          `json:"run"`
	Offset json.RawMessage `json:"offset,omitempty"` // in the source of progress

	Base limits.Limits `json:"base"`
	// Conversion is the runtime's conversion of Nomad's shares to a weight.
	Conversion limits.Conversion `json:"conversion"`

	Decision policy.Decision `json:"decision"`
	Decided  uint64          `json:"decided"` // epoch
	Since    time.Time       `json:"since"`
	SpeCon   specon.Category `json:"specon"`
	Sorted   time.Time       `json:"sorted"` // start of that category

	// Usage is shown until the task's cgroup is found again: counters never decrease.
	Usage limits.Usage `json:"usage"`

	Began time.Time         `json:"began"`
	Fair  policy.CPUSeconds `json:"fair"` // of the twin
	Used  policy.CPUSeconds `json:"used"` // by the task at that time
	Most  policy.Cores      `json:"most"` // the task's cap
	Over  time.Time         `json:"over,omitzero"`
	First policy.CPUSeconds `json:"first"`
	Ended bool              `json:"ended"`

	Epoch   uint64             `json:"epoch"`
	Reports int64              `json:"reports"`
	Metric  string             `json:"metric"`
	Goal    policy.Goal        `json:"goal"`
	Value   status.Number      `json:"value"`
	Step    status.Number      `json:"step"`
	Total   status.Number      `json:"total"`
	Curve   [][5]status.Number `json:"curve"` // time, CPU-seconds, value, step, learning rate
	Work    remaining.State    `json:"work,omitzero"`
}

const maxState = 1 << 20

func (t *task) state() []byte {
	r := resume{
		Run: t.ID, Offset: t.m.Offset, Base: t.base,
		Decision: t.decision, Decided: t.decided, Since: t.since,
		SpeCon: t.specon.category, Sorted: t.specon.since,
		Usage: t.usage, Began: t.began, Fair: t.fair.cpu, Used: t.fair.used, Most: t.demand().Most, Over: t.fair.over, First: t.fair.first, Ended: t.gone,
		Epoch: t.m.Epoch, Reports: t.m.Reports, Metric: t.m.Report.Metric, Goal: t.m.Goal,
		Value: status.Number(t.m.Report.Value), Step: status.Number(t.m.Report.Step), Total: status.Number(t.m.Report.Total),
		Curve: make([][5]status.Number, len(t.m.Curve)),
		Work:  t.m.Work,
	}
	if t.cgroup != nil {
		r.Conversion = t.cgroup.Conversion()
	} else if t.restored != nil {
		r.Conversion = t.restored.Conversion
	}
	for i, p := range t.m.Curve {
		r.Curve[i] = [5]status.Number{status.Number(p.T), status.Number(p.CPU), status.Number(p.Value), status.Number(p.Step), status.Number(p.LR)}
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.log.Error("cannot encode the task's state", "error", err)
	}
	return data
}

// restore restores the state stored by an earlier process, and returns the observer's part.
func (t *task) restore() measure.Resume {
	data, err := t.Private.ReadSealed(private.StateName(t.Name), maxState)
	var r resume
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.log.Warn("cannot read the task's earlier state; starting without it", "error", err)
		}
		return measure.Resume{}
	}
	if r.Run != t.ID {
		if !r.Ended && r.Used > r.Fair { // its end was missed: the machine failed
			t.earlier = &policy.Task{
				ID: r.Run, Kind: policy.Training, Entitlement: float64(r.Conversion.Weight(r.Base.Shares)), CapCores: r.Most,
				CPUS: r.Used, FairCPUS: r.Fair, Ended: true,
			}
		}
		return measure.Resume{Offset: r.Offset} // its logs continue in the same files
	}
	t.restored = &r
	t.usage, t.counted.usage = r.Usage, r.Usage
	t.began, t.fair = r.Began, fair{cpu: r.Fair, used: r.Used, over: r.Over, first: r.First}
	t.base, t.decision, t.decided, t.since = r.Base, r.Decision, r.Decided, r.Since
	if r.Decision.Category == policy.CL {
		t.reported.phase = converged // or slowed: either was reported
	}
	t.specon.category, t.specon.since = r.SpeCon, r.Sorted
	out := measure.Resume{
		Offset: r.Offset, Epoch: r.Epoch, Reports: r.Reports, Goal: r.Goal,
		Report: progress.Report{Metric: r.Metric, Value: float64(r.Value), Step: float64(r.Step), Total: float64(r.Total)},
		Curve:  make([]growth.Point, len(r.Curve)),
		Work:   r.Work,
		Demand: measure.Demand{Most: r.Most},
	}
	for i, p := range r.Curve {
		out.Curve[i] = growth.Point{T: float64(p[0]), CPU: float64(p[1]), Value: float64(p[2]), Step: float64(p[3]), LR: float64(p[4])}
	}
	return out
}
