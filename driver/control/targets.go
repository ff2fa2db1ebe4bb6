// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"fmt"
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/target"
)

// watchTargets looks whether reports reach the task's targets. Every report
// counts, not every interval: an objective is acted on at once.
func (s *state) watchTargets(reports []progress.Report, now time.Time) {
	if s.Watch == nil {
		return
	}
	for _, at := range s.Watch.Observe(reports) {
		s.targetReached(at, now)
	}
	if why := s.Watch.Paused(); why != "" && why != s.saidPaused {
		s.saidPaused = why
		s.log.Warn("the task's targets pause", "why", why)
		s.speak.say("its targets pause: "+why, "targets")
	}
}

// targetReached writes down that a target was reached, and acts on it: once.
func (s *state) targetReached(at target.Reached, now time.Time) {
	s.reached = at.State
	text := fmt.Sprintf("%s target %.6g reached: %s = %.6g", at.State, at.Target, at.Metric, at.Value)
	if at.Step != nil {
		text += fmt.Sprintf(" at step %.0f", *at.Step)
	}
	if at.State == target.StateObjective {
		text += "; the task is asked to save and stop, and has succeeded"
	} else {
		text += "; from now on it yields CPU to tasks that still need it"
	}
	s.log.Info("target reached", "state", at.State, "value", at.Value, "target", at.Target, "metric", at.Metric)
	s.speak.tell(text, string(at.State), now, s.emit)
	s.happened(string(at.State))
	if s.writer != nil {
		s.failedWrite(s.writer.Marker(string(at.State), at))
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
