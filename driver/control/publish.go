// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/version"
)

// publishEvery is how often a task's status is written while something changes:
// once a second for a few tasks, less often for many, so that writing costs a
// small constant part of a core.
func (c *Controller) publishEvery() time.Duration {
	return max(time.Second, time.Duration(len(c.tasks))*200*time.Millisecond)
}

// firstPicture is how many reports a picture needs to show anything.
const firstPicture = 5

// publish writes a task's status and history when they have changed.
func (c *Controller) publish(s *state, now time.Time) {
	if s.writer == nil || s.cgroup == nil {
		return
	}
	if !s.final && (!s.dirty || now.Sub(s.written) < c.publishEvery()) {
		return
	}
	s.written, s.dirty = now, false
	st := c.status(s, now)
	err := errors.Join(s.writer.Status(st), s.keep(st))
	if s.rowDue || s.final {
		s.rowDue = false
		row := s.row(now)
		s.mark = ""
		err = errors.Join(err, s.writer.Append(row))
		switch {
		case s.final:
			c.artist.want(s.writer, last)
		case row.Event != "" || !s.drawn && s.reports >= firstPicture:
			s.drawn = true
			c.artist.want(s.writer, soon)
		case s.drawn:
			c.artist.want(s.writer, whenDue)
		}
	}
	s.failedWrite(err)
}

// keep writes the status once more where the task cannot: what acts on it reads that.
func (s *state) keep(st status.Status) error {
	data, err := st.Encode()
	if err != nil {
		return err
	}
	return private.Open(filepath.Dir(s.AllocDir)).WriteFile(private.StatusName(s.Name), data, false)
}

// failedWrite notes that files cannot be written, once, and that they can again.
func (s *state) failedWrite(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if (text == "") == (s.writeErr == "") {
		return
	}
	s.writeErr = text
	switch {
	case err == nil:
		s.log.Info("the task's status can be written again")
	case errors.Is(err, fs.ErrNotExist):
		s.log.Debug("the allocation's directory is gone", "error", err)
	default:
		s.log.Warn("cannot write the task's status; the task is not affected", "error", err)
		s.speak.say("its status files cannot be written; the task and its limits are not affected: "+err.Error(), "status")
	}
}

// status is a task's status as it is shown.
func (c *Controller) status(s *state, now time.Time) status.Status {
	st := status.Status{
		Version:   version.Version,
		Task:      s.Name,
		Alloc:     s.AllocID,
		Job:       s.JobID,
		Engine:    c.opts.Engine,
		Policy:    c.opts.Policy,
		Estimator: c.opts.Estimator,
		Mode:      string(c.mode()),
		Kind:      string(s.kind()),
		Category:  string(s.category),
		Class:     string(s.class),
		Since:     s.since,
		Target: status.Target{
			State:      string(s.reached),
			Acceptable: number(s.Targets.Acceptable),
			Objective:  number(s.Targets.Objective),
			Hold:       s.Targets.Hold,
			QoE:        number(s.qoe()),
			Response:   number(s.service.response),
		},
		SpeCon:           s.converging.status(),
		Move:             s.move,
		Resources:        s.resources.status(),
		GPU:              s.gpu,
		Metric:           s.last.Metric,
		Value:            status.Number(s.last.Value),
		Step:             status.Number(s.last.Step),
		Total:            status.Number(s.last.Total),
		Progress:         number(s.progress),
		Growth:           number(s.growth),
		Reports:          s.reports,
		Plateau:          s.estimate.Plateau,
		Diverged:         s.estimate.Diverged,
		Use:              status.Number(s.use),
		CPUSeconds:       status.Number(s.usage.CPUSeconds),
		Periods:          s.usage.Periods,
		ThrottledPeriods: s.usage.Throttled,
		Throttled:        status.Number(s.usage.ThrottledSeconds),
		Limit: status.Limit{
			Fraction: status.Number(s.limit),
			Kernel:   status.Kernel{Shares: s.want.Shares, QuotaCores: status.Number(s.want.QuotaCores)},
			InForce:  status.Kernel{Shares: s.inForce.Shares, QuotaCores: status.Number(s.inForce.QuotaCores)},
			Error:    s.limitErr,
		},
		Rule:    s.rule,
		Why:     s.explanation(c.opts.Policy),
		Updated: now,
		Node: status.Node{
			PoolCores: status.Number(c.pool),
			Tasks:     len(c.tasks),
			Counts:    make(map[string]int),
			Classes:   make(map[string]int),
			GrowthSum: make(map[string]status.Number),
			SpeCon:    make(map[string]int),
			Alpha:     status.Number(c.alpha),
			IntervalS: status.Number(c.interval.Seconds()),
		},
	}
	if s.source != nil {
		st.Goal = s.source.Goal()
	}
	for _, o := range c.tasks {
		st.Node.Use += status.Number(o.use)
		if !o.Limited {
			continue // it takes no part
		}
		if o.kind() == auto.KindService {
			st.Node.Classes[string(o.class)]++
			continue
		}
		st.Node.Counts[string(o.category)]++
		st.Node.SpeCon[string(o.converging.category)]++
		if o.growth != nil {
			st.Node.GrowthSum[string(o.category)] += status.Number(*o.growth)
		}
	}
	r := resume{Base: s.base, Run: s.ID, Conversion: s.cgroup.Conversion()}
	if s.source != nil {
		r.Log = s.source.Offset()
	}
	if raw, err := json.Marshal(r); err == nil {
		st.Resume = raw
	}
	return st
}

// explanation is the sentence that says why the task has the CPU it has.
func (s *state) explanation(p string) string {
	switch {
	case !s.Limited && s.Pinned > 0:
		return "the task has cores of its own (`cores`) and is not limited"
	case !s.Limited:
		return "the job asked not to be limited (ebbtide_limit = \"off\")"
	case p == policies.None:
		return "policy none: the task has what Nomad gave it"
	}
	if s.reached == tradl.StateObjective {
		return "the objective is reached: the task is being stopped and has succeeded"
	}
	text := s.why
	if s.estimate.Why != "" {
		text += ". " + s.estimate.Why
	}
	if s.source != nil {
		if note := s.source.Note(); note != "" {
			text += ". " + note
		}
	}
	return text
}

// row is a line of the task's history.
func (s *state) row(now time.Time) status.Row {
	r := s.resources
	row := status.Row{
		Time:       now,
		CPUSeconds: s.usage.CPUSeconds,
		Step:       s.last.Step,
		Total:      s.last.Total,
		Value:      s.last.Value,
		Growth:     float64(number(s.growth)),
		Progress:   float64(number(s.progress)),
		Category:   string(s.category),
		Limit:      s.limit,
		Shares:     s.inForce.Shares,
		QuotaCores: s.inForce.QuotaCores,
		Use:        s.use,
		Throttled:  s.usage.ThrottledSeconds,
		Rule:       s.rule,
		Event:      s.mark,
		Class:      string(s.class),
		MemoryMiB:  r.memory, MemoryG: r.memoryG,
		BlockMiBs: r.block, BlockG: r.blockG,
		NetworkMiBs: r.network, NetworkG: r.networkG,
	}
	if s.Targets.any() {
		row.State = string(s.reached)
	}
	return row
}

// qoe is the response time that a service is to have; nil for another task.
func (s *state) qoe() *float64 {
	if s.Targets.QoE > 0 {
		return &s.Targets.QoE
	}
	return nil
}

// number is a figure that may be unknown.
func number(f *float64) status.Number {
	if f == nil {
		return status.Number(math.NaN())
	}
	return status.Number(*f)
}
