// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/device/seat"
	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

// state is what the loop knows about one task. It is owned by the loop.
type state struct {
	Task
	opts  Options
	log   hclog.Logger
	emit  func(Event)
	start time.Time // in this loop
	gone  bool
	final bool

	cgroup       Cgroup
	locateWarned bool

	source     progress.Source
	readError  string
	saidPaused string // why its targets pause
	service    service
	estimator  growth.Estimator // nil until the goal is known
	measures   series           // what the estimator follows
	estimate   growth.Estimate
	last       progress.Report
	reports    int64
	saidEmpty  bool // that nothing matches

	usage    limits.Usage // at the last poll
	usageAt  time.Time
	lastUse  limits.Usage // at the last decision
	decideAt time.Time
	use      float64 // fraction of the pool, over the last interval

	gpu       *seat.Report // nil: nothing is known of a seat
	saidWaits bool         // that it has waited long for its card

	saidUnparked bool // that its memory could not be moved

	resources  resources
	converging converging
	move       status.Move

	category policy.Category
	reached  target.State
	class    dqoes.Class
	since    time.Time
	growth   *float64 // G (FlowCon eq. 2); nil = unmeasured
	progress *float64 // P (FlowCon eq. 1)
	limit    float64
	fair     bool // the policy gives it its fair share, whatever limit says
	rule     string
	why      string

	resumed   *resume       // what an earlier process knew of this very task
	base      limits.Limits // what Nomad set
	want      limits.Limits
	inForce   limits.Limits
	applying  bool
	limitErr  string // the last one reported
	limitNext time.Time
	limitBack time.Duration

	ioWeight uint64 // that we have set; 0 = none yet
	ioFailed bool   // the kernel has none

	writer   *status.Writer
	writeErr string
	dirty    bool
	rowDue   bool
	written  time.Time
	drawn    bool
	mark     string // what happened since the last row

	speak speaker
}

// resume is what a later process needs beside the history and the status: it
// lies in the status file.
type resume struct {
	Log  json.RawMessage `json:"log,omitempty"` // of the source of progress
	Base limits.Limits   `json:"base"`
	// Conversion is how the runtime turned Nomad's shares into a weight.
	Conversion limits.Conversion `json:"conversion"`
	// Run is the task's ID, which changes when Nomad starts the task anew.
	Run string `json:"run"`
}

// newState takes a task up, with what an earlier process has left about it.
func newState(t Task, opts Options, log hclog.Logger, now time.Time) *state {
	s := &state{
		Task:    t,
		opts:    opts,
		log:     log.With("task", t.Name, "alloc_id", t.AllocID),
		start:   now,
		since:   now,
		limit:   1,
		last:    progress.Report{Value: math.NaN(), Step: math.NaN(), Total: math.NaN()},
		inForce: limits.Limits{},

		resources: newResources(),
		move:      status.Move{Step: status.Unknown()},
		dirty:     true,
		decideAt:  now,
	}
	s.speak.task = t
	s.reached = target.StateTraining
	if t.Watch != nil {
		t.Watch.Restore(t.Reached)
		s.reached = t.Watch.State()
	}
	var err error
	if s.source, err = t.Open(); err != nil {
		s.readFailed(err)
	}
	if s.writer, err = status.NewWriter(t.AllocDir, t.Name, status.Options{}); err != nil {
		s.failedWrite(err)
	} else {
		s.restore()
	}
	return s
}

// restore takes over what an earlier process left. Everything there may be
// missing or nonsense: the task can write to the same directory.
func (s *state) restore() {
	st, err := s.writer.ReadStatus()
	if err != nil {
		return
	}
	var r resume
	if json.Unmarshal(st.Resume, &r) != nil {
		return
	}
	if s.source != nil {
		s.source.SetOffset(r.Log) // also for a task started anew: its logs go on in the same files
	}
	if r.Run != s.ID {
		return
	}
	s.base, s.resumed = r.Base, &r
	if c := specon.Category(st.SpeCon.Category); c.Valid() {
		s.converging.category, s.converging.since = c, st.SpeCon.Since
	}
	switch c := policy.Category(st.Category); c {
	case policy.NL, policy.WL, policy.CL:
		s.category = c
	}
	if st.Since.Before(s.since) {
		s.since = st.Since
	}
	if l := float64(st.Limit.Fraction); l > 0 && l <= 1 {
		s.limit = l
	}
	s.rule, s.why = st.Rule, st.Why
	s.reports = max(st.Reports, 0)
	s.last.Metric, s.last.Value = st.Metric, float64(st.Value)
	s.last.Step, s.last.Total = float64(st.Step), float64(st.Total)
	if g := float64(st.Growth); g >= 0 {
		s.growth = &g
	}
	rows, err := s.writer.History()
	if err != nil {
		s.log.Warn("cannot read the task's history; its growth is measured anew", "error", err)
		return
	}
	if s.newEstimator(st.Goal) {
		for _, p := range growth.NewCurve(points(rows)).Points {
			s.estimator.Add(p)
		}
		s.estimate = s.estimator.Measure()
	}
}

// points are a history's rows as points.
func points(rows []status.Row) []growth.Point {
	ps := make([]growth.Point, len(rows))
	for i, r := range rows {
		ps[i] = growth.Point{T: seconds(r.Time), CPU: r.CPUSeconds, Value: r.Value, Step: r.Step}
	}
	return ps
}

// seconds is a time as the estimators take it.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// series is what an estimator follows: when the task begins to report another
// metric, what is known of the old one says nothing about it.
type series struct{ metric, goal string }

// newEstimator makes the estimator once it is known which way the metric improves.
func (s *state) newEstimator(goal string) bool {
	if goal == "" {
		return false
	}
	e, err := growth.New(s.opts.Estimator, growth.Goal(goal))
	if err != nil {
		s.log.Error("growth cannot be measured", "error", err)
		return false
	}
	s.estimator, s.measures = e, series{metric: s.last.Metric, goal: goal}
	return true
}

// attach gives the task its cgroup, reads what Nomad has set there, and sets the
// marks from which use is measured.
func (s *state) attach(cg Cgroup, now time.Time) {
	s.cgroup = cg
	if s.resumed != nil {
		cg.SetConversion(s.resumed.Conversion)
	}
	if in, err := cg.Read(); err == nil {
		s.inForce = in
		if s.base == (limits.Limits{}) {
			s.base = in
		}
	} else {
		s.log.Warn("cannot read the limits in force", "error", err)
	}
	if s.base.Shares == 0 {
		s.base.Shares = max(s.Shares, 2)
	}
	s.want = s.inForce
	if u, err := cg.Usage(); err == nil {
		s.usage, s.usageAt = u, now
		s.lastUse, s.decideAt = u, now
	}
	s.dirty = true
}

// poll reads what the task has used and what it has reported since the last poll.
func (s *state) poll(ctx context.Context, now time.Time) {
	s.speak.flush(now, s.emit)
	if s.cgroup == nil {
		return
	}
	before, beforeAt := s.usage, s.usageAt
	if u, err := s.cgroup.Usage(); err == nil {
		s.usage, s.usageAt = u, now
	}
	if s.source == nil {
		return
	}
	reports, err := s.source.Poll(ctx)
	s.readFailed(err)
	if len(reports) == 0 {
		s.sayEmpty(now)
		return
	}
	s.reports += int64(len(reports))
	s.last = reports[len(reports)-1]
	if s.Targets.QoE > 0 {
		s.service.take(reports)
	} else {
		s.watchTargets(reports, now)
		s.take(reports, before, beforeAt)
	}
	s.dirty, s.rowDue = true, true
}

// take feeds a poll's reports to the estimator as one point: their mean, which
// is also the least noisy reading. The cost of a report is known only as well as
// the poll is fine. A value that is not finite is passed on by itself.
func (s *state) take(reports []progress.Report, before limits.Usage, beforeAt time.Time) {
	if now := (series{metric: s.last.Metric, goal: s.source.Goal()}); s.estimator == nil || s.measures != now {
		if !s.newEstimator(now.goal) {
			return
		}
	}
	var sum, steps float64
	var finite int
	for _, r := range reports {
		if r.Metric != s.last.Metric {
			continue
		}
		if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
			s.estimator.Add(growth.Point{T: seconds(s.usageAt), CPU: s.usage.CPUSeconds, Value: r.Value, Step: r.Step})
			continue
		}
		finite++
		s.converging.meter.Add(r.Value)
		sum += r.Value
		steps = r.Step
	}
	if finite == 0 {
		return
	}
	// The reports of a poll lie spread over it: their mean belongs to its middle.
	at, cpu := s.usageAt, s.usage.CPUSeconds
	if finite > 1 && !beforeAt.IsZero() && before.CPUSeconds <= cpu {
		at = beforeAt.Add(s.usageAt.Sub(beforeAt) / 2)
		cpu = (before.CPUSeconds + s.usage.CPUSeconds) / 2
	}
	s.estimator.Add(growth.Point{T: seconds(at), CPU: cpu, Value: sum / float64(finite), Step: steps})
}

// readFailed notes a failure to read the task's progress, once, and its end.
func (s *state) readFailed(err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if text == s.readError {
		return
	}
	if s.readError == "" {
		s.log.Warn("cannot read the task's progress; its growth is not measured", "error", err)
		s.speak.say("its progress cannot be read from "+s.where()+", so it is not measured; it keeps its share of the CPU: "+text, "progress")
	} else if text == "" {
		s.log.Info("the task's progress can be read again")
	}
	s.readError = text
}

// where names what the task's progress is read from.
func (s *state) where() string {
	if s.Where == "" {
		return "its output"
	}
	return s.Where
}

// sayEmpty says, once, that nothing in the task's output looks like progress.
func (s *state) sayEmpty(now time.Time) {
	if s.saidEmpty || s.reports > 0 || !s.Limited || now.Sub(s.start) < s.opts.NoProgressAfter {
		return
	}
	s.saidEmpty = true
	lines := s.source.Stats().Lines
	var msg string
	switch note := s.source.Note(); {
	case s.Where != "":
		msg = "no value of a metric has been read from " + s.Where + " yet; the task keeps its fair share of the CPU"
		if note != "" {
			msg += ". " + note
		}
	case lines == 0:
		msg = "the task has written no output yet, so its growth cannot be measured; it keeps its fair share of the CPU. " +
			"Does it log to a file? Then set progress { file = … } in its config"
	default:
		msg = fmt.Sprintf("none of the %d lines of output so far reports a value of a metric; the task keeps its fair share of the CPU. "+
			"Check its output with `ebbtide progress` and set progress { metric = … } or progress { pattern = … } in its config", lines)
	}
	s.log.Info("no progress found", "where", s.where(), "lines", lines)
	s.speak.say(msg, "no-progress")
}

// measure closes a measurement interval: use, P and G.
func (s *state) measure(now time.Time) {
	dt := now.Sub(s.decideAt).Seconds()
	used := s.usage.CPUSeconds - s.lastUse.CPUSeconds
	if dt > 0.05 {
		s.use = max(used, 0) / (dt * s.opts.PoolCores)
		s.lastUse, s.decideAt = s.usage, now
	}
	s.service.close(dt)
	s.grow()
	if dt > 0.05 {
		s.resources.close(s.cgroup.Resources(), dt, s.opts.NodeMemory, s.progress)
	}
}

// grow measures P and G.
func (s *state) grow() {
	if s.estimator == nil {
		return
	}
	was := s.estimate.Diverged
	s.estimate = s.estimator.Measure()
	if s.estimate.Diverged && !was {
		s.speak.say("the model has diverged: its "+s.metric()+" is not a finite number. It gives way to the others", "diverged")
		s.happened("diverged")
	}
	s.growth, s.progress = nil, nil
	if s.estimate.Measured || s.estimate.Diverged {
		g := s.estimate.Growth * s.opts.PoolCores // eq. 2: P/R with R a fraction of the pool
		p := s.estimate.Progress
		s.growth, s.progress = &g, &p
	}
}

// metric names the task's evaluation function for people.
func (s *state) metric() string {
	if s.last.Metric != "" {
		return s.last.Metric
	}
	return "metric"
}

// happened marks the task's next row of history, and with it its picture.
func (s *state) happened(what string) {
	if s.mark != "" {
		what = s.mark + ", " + what
	}
	s.mark, s.rowDue, s.dirty = what, true, true
}
