// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"fmt"
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/status"
)

// Targets are what a job says is good enough.
type Targets struct {
	Acceptable *float64 // value of the metric at which the model is usable; nil = none
	Objective  *float64 // value of the metric at which the job has succeeded; nil = none
	Hold       int      // reports in a row that must reach a target
	QoE        float64  // response time that a service is to have, in seconds; 0 = no service
}

// any says whether there is a target for a training job.
func (t Targets) any() bool { return t.Acceptable != nil || t.Objective != nil }

// Reached says that a target was reached, and by what.
type Reached = private.Reached

// watchTargets looks whether reports reach the task's targets. Every report
// counts, not every interval: an objective is acted on at once.
func (s *state) watchTargets(reports []progress.Report, now time.Time) {
	if !s.Targets.any() || s.reached == tradl.StateObjective {
		return
	}
	for _, r := range reports {
		goal := s.source.Goal()
		if r.Metric != s.last.Metric || goal == "" {
			continue
		}
		if s.tracker == nil && !s.track(tradl.Goal(goal)) {
			return
		}
		switch state := s.tracker.Observe(r.Value); state {
		case tradl.StateAcceptable:
			s.targetReached(state, *s.Targets.Acceptable, r, now)
		case tradl.StateObjective:
			s.targetReached(state, *s.Targets.Objective, r, now)
			return
		}
	}
}

// track begins to compare values with the targets, once it is known which way
// the metric improves.
func (s *state) track(goal tradl.Goal) bool {
	if err := tradl.CheckTargets(goal, s.Targets.Acceptable, s.Targets.Objective); err != nil {
		if !s.badTarget {
			s.badTarget = true
			s.log.Warn("the task's targets contradict its metric; they are ignored", "metric", s.metric(), "error", err)
			s.speak.say(fmt.Sprintf("its targets are ignored: %s is to go to its %simum, and %v. Set ebbtide_goal", s.metric(), goal, err), "targets")
		}
		return false
	}
	s.tracker = tradl.NewTracker(goal, s.Targets.Acceptable, s.Targets.Objective, s.Targets.Hold)
	s.tracker.Restore(s.reached)
	return true
}

// targetReached writes down that a target was reached, and acts on it: once.
func (s *state) targetReached(state tradl.State, target float64, r progress.Report, now time.Time) {
	s.reached = state
	at := Reached{
		State: state, Metric: r.Metric, Value: status.Number(r.Value), Target: status.Number(target),
		Step: status.Number(r.Step), Time: now,
	}
	text := fmt.Sprintf("%s target %.6g reached: %s = %.6g", state, target, s.metric(), r.Value)
	if !math.IsNaN(r.Step) {
		text += fmt.Sprintf(" at step %.0f", r.Step)
	}
	if state == tradl.StateObjective {
		text += "; the task is asked to save and stop, and has succeeded"
	} else {
		text += "; from now on it yields CPU to tasks that still need it"
	}
	s.log.Info("target reached", "state", state, "value", r.Value, "target", target, "step", r.Step)
	s.speak.tell(text, string(state), now, s.emit)
	s.happened(string(state))
	if s.writer != nil {
		s.failedWrite(s.writer.Marker(string(state), at))
	}
	if s.OnTarget != nil {
		go s.OnTarget(at)
	}
}

// service is what is known of an inference service.
type service struct {
	sum, count float64  // of the response times since the last decision
	response   *float64 // their mean, in seconds; nil = none
	last       *float64 // the last one that was known, for people
	missed     int      // decisions in a row that found it in class B
	said       bool     // that it misses its target
}

// take adds response times up. What is no time counts for nothing.
func (v *service) take(reports []progress.Report) {
	for _, r := range reports {
		if r.Value >= 0 && !math.IsInf(r.Value, 0) {
			v.sum += r.Value
			v.count++
		}
	}
}

// close ends a measurement interval.
func (v *service) close(seconds float64) {
	if seconds <= 0.05 {
		return
	}
	v.response = nil
	if v.count > 0 {
		mean := v.sum / v.count
		v.response, v.last = &mean, &mean
	}
	v.sum, v.count = 0, 0
}

// classified notes a service's class and says what a person cares about: that it
// misses its target, not just once, and that it meets it again.
func (s *state) classified(class dqoes.Class) {
	s.class = class
	v := &s.service
	switch {
	case class == dqoes.Bad:
		if v.missed++; v.missed == 3 && !v.said && v.response != nil {
			v.said = true
			s.speak.say(fmt.Sprintf("response time %.3g s misses its target of %.3g s; it has %.0f %% of the pool", *v.response, s.Targets.QoE, 100*s.limit), "qoe")
			s.happened("target missed")
		}
	case class != "":
		v.missed = 0
		if v.said && v.response != nil {
			v.said = false
			s.speak.say(fmt.Sprintf("response time %.3g s meets its target of %.3g s again", *v.response, s.Targets.QoE), "qoe")
			s.happened("target met")
		}
	}
}
