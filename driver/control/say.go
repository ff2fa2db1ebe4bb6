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

// said is what people have been told about a task.
type said struct {
	unreadable string    // why its progress cannot be read
	readAt     time.Time // when that was last logged
	empty      bool      // that nothing matches
	unlocated  bool      // that its cgroup cannot be found
	missed     int       // decisions in a row that found a service in class B
	misses     bool      // that it misses its target
	gpuWaits   bool      // that it has waited long for its card
	unparked   bool      // that its memory could not be moved
}

// metric names the task's evaluation function for people.
func (t *task) metric() string {
	if t.m.Report.Metric != "" {
		return t.m.Report.Metric
	}
	return "metric"
}

// where names what the task's progress is read from.
func (t *task) where() string {
	if t.Where == "" {
		return "its output"
	}
	return t.Where
}

// locatedWithin is how long a task's cgroup may be missing before an event says so.
const locatedWithin = 10 * time.Second

// notLocated says, once, that the task's cgroup cannot be found.
func (t *task) notLocated(err error) {
	if t.said.unlocated || time.Since(t.start) < locatedWithin {
		return
	}
	t.said.unlocated = true
	t.log.Warn("cannot find the task's cgroup; its CPU is neither measured nor limited", "error", err)
	t.show.Enqueue("cgroup", "its cgroup cannot be found, so its CPU is neither measured nor limited: "+err.Error())
}

// logEvery is the least time between two warnings about the same thing of a task.
const logEvery = 30 * time.Second

// sayProgress says what a person cares about in the task's progress: that it cannot be
// read, that there is none, that targets pause, that the model has diverged.
func (t *task) sayProgress(was measure.Measurement, now time.Time) {
	unreadable := ""
	switch {
	case t.m.Err != nil:
		unreadable = t.m.Err.Error()
	case t.m.Failures != was.Failures:
		unreadable = t.m.Failure.Error()
	}
	if (t.said.unreadable == "") != (unreadable == "") {
		level := hclog.Debug // a task can make it flip as often as it likes
		if now.Sub(t.said.readAt) >= logEvery {
			level, t.said.readAt = hclog.Warn, now
		}
		if unreadable == "" {
			t.log.Log(level, "the task's progress can be read again")
		} else {
			t.log.Log(level, "cannot read the task's progress; its growth is not measured", "error", unreadable)
			t.show.Enqueue("progress", "its progress cannot be read from "+t.where()+", so it is not measured; it keeps its share of the CPU: "+unreadable)
		}
	}
	t.said.unreadable = unreadable
	switch {
	case was.Paused == "" && t.m.Paused != "":
		t.show.Enqueue("targets", "its targets pause: "+t.m.Paused)
	case was.Paused != "" && t.m.Paused == "":
		t.show.Drop("targets")
	}
	if t.m.Estimate.Diverged && !was.Estimate.Diverged {
		t.show.Enqueue("diverged", "the model has diverged: its "+t.metric()+" is not a finite number. It gives way to the others")
		t.show.Happened("diverged")
	}
	if t.m.Reports == 0 && t.Limited && !t.said.empty && unreadable == "" && now.Sub(t.start) >= t.noProgressAfter {
		t.said.empty = true
		t.log.Info("no progress found", "where", t.where(), "lines", t.m.Lines)
		t.show.Enqueue("no-progress", t.noProgress())
	}
}

// noProgress says that nothing in the task's output looks like progress.
func (t *task) noProgress() string {
	switch {
	case t.Where != "":
		msg := "no value of a metric has been read from " + t.Where + " yet; the task keeps its fair share of the CPU"
		if t.m.Note != "" {
			msg += ". " + t.m.Note
		}
		return msg
	case t.m.Lines == 0:
		return "the task has written no output yet, so its growth cannot be measured; it keeps its fair share of the CPU. " +
			"Does it log to a file? Then set progress { file = … } in its config"
	}
	return fmt.Sprintf("none of the %d lines of output so far reports a value of a metric; the task keeps its fair share of the CPU. "+
		"Check its output with `ebbtide progress` and set progress { metric = … } or progress { pattern = … } in its config", t.m.Lines)
}

// sayLimits says, once, that a limit could not be set, and that it can again.
func (t *task) sayLimits(was error) {
	err := t.enforced.Err
	switch {
	case was == nil && err != nil:
		t.log.Warn("cannot set the task's limits; it runs on with those it has", "error", err)
		t.show.Happened("limit failed")
		t.show.Enqueue("limit-failed", "its CPU limit could not be set; the task runs on with the one it has: "+err.Error())
	case was != nil && err == nil:
		t.log.Info("the task's limits can be set again")
		t.show.Changed(false)
	}
}

// sayCategory says that the task has converged, and that it grows again. What has reported
// nothing has done neither, whatever an earlier run lets a policy assume.
func (t *task) sayCategory(d policy.Decision) {
	const kind = "category"
	if t.m.Reports == 0 {
		return
	}
	limit := fmt.Sprintf("it may use %.0f %% of the pool", 100*d.Bound())
	if d.Bound() == 1 {
		limit = "it is not limited"
	}
	switch {
	case d.Category == policy.CL && !t.m.Estimate.Diverged:
		if d.Bound() == 1 {
			limit += ", for nobody else is growing"
		}
		t.show.Enqueue(kind, fmt.Sprintf("converged: %s = %.4g hardly improves any more; %s", t.metric(), t.m.Report.Value, limit))
		t.show.Happened("converged")
	case t.decision.Category == policy.CL && d.Category == policy.NL:
		t.show.Enqueue(kind, fmt.Sprintf("growing again: %s = %.4g; %s", t.metric(), t.m.Report.Value, limit))
		t.show.Happened("growing again")
	default:
		t.show.Drop(kind)
	}
}

// missedOften is how many decisions in a row find a service worse than asked before an
// event says so.
const missedOften = 3

// sayClass says that a service misses its target, not just once, and that it meets it
// again.
func (t *task) sayClass(class policy.Class) {
	switch {
	case class == policy.Bad:
		if t.said.missed++; t.said.missed == missedOften && !t.said.misses && t.response != nil {
			t.said.misses = true
			t.show.Enqueue("qoe", fmt.Sprintf("response time %.3g s misses its target of %.3g s; it has %.0f %% of the pool",
				*t.response, t.Targets.QoE, 100*t.decision.Bound()))
			t.show.Happened("target missed")
		}
	case class != policy.Unmeasured:
		t.said.missed = 0
		if t.said.misses && t.response != nil {
			t.said.misses = false
			t.show.Enqueue("qoe", fmt.Sprintf("response time %.3g s meets its target of %.3g s again", *t.response, t.Targets.QoE))
			t.show.Happened("target met")
		}
	}
}

// targetReached writes down that a target was reached, and acts on it: once.
func (t *task) targetReached(r target.Reached, now time.Time) {
	t.reached = r.State
	text := fmt.Sprintf("%s target %.6g reached: %s = %.6g", r.State, r.Target, t.metric(), r.Value)
	if r.Step != nil {
		text += fmt.Sprintf(" at step %.0f", *r.Step)
	}
	if r.State == policy.Objective {
		text += "; the task is asked to save and stop, and has succeeded"
	} else {
		text += "; from now on tasks that are not there yet come first"
	}
	t.log.Info("target reached", "state", r.State, "value", r.Value, "target", r.Target, "metric", r.Metric)
	t.show.Send(string(r.State), text, now)
	t.show.Happened(string(r.State))
	t.show.Marker(string(r.State), r)
	if t.OnTarget != nil {
		go t.OnTarget(r)
	}
}
