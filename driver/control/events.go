// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/target"
)

type reportedState struct {
	unreadable string    // reason why progress is unreadable
	readAt     time.Time // last warning about it
	empty      bool
	unlocated  bool // no cgroup found
	missed     int  // consecutive decisions with the service in class B
	misses     bool // target missed
	gpuWaits   bool // long wait for GPU memory
	unparked   bool // memory could not be parked
	phase      phase
}

func (t *task) metric() string {
	if t.m.Report.Metric != "" {
		return t.m.Report.Metric
	}
	return "metric"
}

func (t *task) where() string {
	if t.Where == "" {
		return "its output"
	}
	return t.Where
}

// locatedWithin is the time without a cgroup after which an event reports it.
const locatedWithin = 10 * time.Second

func (t *task) notLocated(err error) {
	if t.reported.unlocated || time.Since(t.start) < locatedWithin {
		return
	}
	t.reported.unlocated = true
	t.log.Warn("cannot find the task's cgroup; its CPU is neither measured nor limited", "error", err)
	t.show.Enqueue("cgroup", "cannot find its cgroup; its CPU is neither measured nor limited: "+err.Error())
}

// logEvery is the minimum time between two warnings about one problem of a task.
const logEvery = 30 * time.Second

func (t *task) reportProgress(was measure.Measurement, now time.Time) {
	unreadable := ""
	switch {
	case t.m.Err != nil:
		unreadable = t.m.Err.Error()
	case t.m.Failures != was.Failures:
		unreadable = t.m.Failure.Error()
	}
	if (t.reported.unreadable == "") != (unreadable == "") {
		level := hclog.Debug // a task can alternate it at will
		if now.Sub(t.reported.readAt) >= logEvery {
			level, t.reported.readAt = hclog.Warn, now
		}
		if unreadable == "" {
			t.log.Log(level, "the task's progress can be read again")
		} else {
			t.log.Log(level, "cannot read the task's progress; its growth is not measured", "error", unreadable)
			t.show.Enqueue("progress", "cannot read its progress from "+t.where()+"; it keeps its fair share of the CPU: "+unreadable)
		}
	}
	t.reported.unreadable = unreadable
	switch {
	case was.Paused == "" && t.m.Paused != "":
		t.show.Enqueue("targets", "its targets are paused: "+t.m.Paused)
	case was.Paused != "" && t.m.Paused == "":
		t.show.Drop("targets")
	}
	if t.m.Estimate.Diverged && !was.Estimate.Diverged {
		t.show.Enqueue("diverged", "the model has diverged: "+t.metric()+" is not finite; other tasks come first")
		t.show.Happened("diverged")
	}
	if lost := t.m.Remaining.Lost; lost != "" && was.Remaining.Lost == "" && t.hasTwin() {
		t.show.Enqueue("unsized", "its size is unknown again: "+lost)
	}
	missing := t.m.Reports == 0 || t.Watcher != nil && t.m.Report.StepOnly() // targets need a metric
	if missing && t.Limited && !t.reported.empty && unreadable == "" && (now.Sub(t.start) >= t.noProgressAfter || t.NoOutput && t.Where == "") {
		t.reported.empty = true
		t.log.Info("no progress found", "where", t.where(), "lines", t.m.Lines)
		t.show.Enqueue("no-progress", t.noProgress())
	}
}

func (t *task) noProgress() string {
	switch {
	case t.m.Reports > 0:
		return "its targets need a metric, and only steps have been read from " + t.where() + ". " +
			"Check its output with `ebbtide progress` and set progress { metric = … } or progress { pattern = … } in its config"
	case t.Where != "":
		msg := "no value of a metric has been read from " + t.Where + " yet; the task keeps its fair share of the CPU"
		if t.m.Note != "" {
			msg += ". " + t.m.Note
		}
		return msg
	case t.NoOutput:
		return "Nomad does not collect the task's output (logs { disabled = true }), so its growth cannot be measured; " +
			"it keeps its fair share of the CPU. Remove disabled, or set progress { file = … }, tensorboard or prometheus in its config"
	case t.m.Lines == 0:
		return "the task has written no output yet, so its growth cannot be measured; it keeps its fair share of the CPU. " +
			"If it logs to a file, set progress { file = … } in its config"
	}
	return fmt.Sprintf("none of the %d lines of output so far reports a value of a metric; the task keeps its fair share of the CPU. "+
		"Check its output with `ebbtide progress` and set progress { metric = … } or progress { pattern = … } in its config", t.m.Lines)
}

// reportLimits reports that a limit could not be set, and that it can be set again.
func (t *task) reportLimits(was error) {
	err := t.enforced.Err
	switch {
	case was == nil && err != nil:
		t.log.Warn("cannot set the task's limits; the previous ones stay in force", "error", err)
		t.show.Happened("limit failed")
		t.show.Enqueue("limit-failed", "cannot set its CPU limit; the previous one stays: "+err.Error())
	case was != nil && err == nil:
		t.log.Info("the task's limits can be set again")
		t.show.Changed(false)
	}
}

// phase is what events say about a task's curve.
type phase int

const (
	growing   phase = iota
	slowed          // in CL, which decides its limit
	converged       // in CL, with a flat curve
)

// reportPhase reports that the task's curve has slowed or is flat, and that it grows again.
func (t *task) reportPhase(d policy.Decision) {
	const kind = "category"
	was, now := t.reported.phase, t.reported.phase
	switch {
	case d.Category != policy.CL && d.Category != policy.WL || t.m.Estimate.Diverged:
		now = growing
	case d.Category == policy.CL && t.m.Estimate.Plateau:
		now = converged
	case d.Category == policy.CL && was == growing && d.Fair == nil:
		now = slowed
	}
	if now == was {
		return
	}
	t.reported.phase = now
	limit := fmt.Sprintf("it may use %.0f %% of the pool", 100*d.Bound())
	if d.Bound() == 1 {
		limit = "it is not limited"
	}
	value := fmt.Sprintf("%s = %.4g", t.metric(), t.m.Report.Value)
	switch {
	case now == converged:
		if d.Bound() == 1 {
			limit += ", as no other task is growing"
		}
		t.show.Enqueue(kind, "converged: "+value+" has nearly stopped improving; "+limit)
		t.show.Happened("converged")
	case now == slowed:
		t.show.Enqueue(kind, "slowed: "+value+" improves less per CPU than in other tasks; "+limit)
		t.show.Happened("slowed")
	case t.m.Estimate.Diverged:
		t.show.Drop(kind)
	default:
		t.show.Enqueue(kind, "growing again: "+value+"; "+limit)
		t.show.Happened("growing again")
	}
}

// reportQuality reports that the model is good enough.
func (t *task) reportQuality() {
	if t.m.Report.StepOnly() {
		return
	}
	t.show.Enqueue("quality", fmt.Sprintf("past its quality point: %s = %.4g", t.metric(), t.m.Report.Value))
	t.show.Happened("past its quality point")
}

// missedOften is the number of consecutive decisions with a service in class B after which an event
// reports it.
const missedOften = 3

// reportClass reports that a service repeatedly misses its target, and that it meets it again.
func (t *task) reportClass(class policy.Class) {
	switch {
	case class == policy.Bad:
		if t.reported.missed++; t.reported.missed == missedOften && !t.reported.misses && t.response != nil {
			t.reported.misses = true
			t.show.Enqueue("qoe", fmt.Sprintf("response time %.3g s misses its target of %.3g s; it has %.0f %% of the pool",
				*t.response, t.Targets.QoE, 100*t.decision.Bound()))
			t.show.Happened("target missed")
		}
	case class != policy.Unmeasured:
		t.reported.missed = 0
		if t.reported.misses && t.response != nil {
			t.reported.misses = false
			t.show.Enqueue("qoe", fmt.Sprintf("response time %.3g s meets its target of %.3g s again", *t.response, t.Targets.QoE))
			t.show.Happened("target met")
		}
	}
}

func (t *task) targetReached(r target.Reached, now time.Time) {
	t.reached = r.State
	text := fmt.Sprintf("%s target %.6g reached: %s = %.6g", r.State, r.Target, t.metric(), r.Value)
	if r.Step != nil {
		text += fmt.Sprintf(" at step %.0f", *r.Step)
	}
	if r.State == policy.Objective {
		text += "; stopping the task, which has succeeded"
	} else {
		text += "; tasks still below theirs now come first"
	}
	t.log.Info("target reached", "state", r.State, "value", r.Value, "target", r.Target, "metric", r.Metric)
	t.show.Send(string(r.State), text, now)
	t.show.Happened(string(r.State))
	t.show.Marker(string(r.State), r)
	if t.OnTarget != nil {
		go t.OnTarget(r)
	}
}
