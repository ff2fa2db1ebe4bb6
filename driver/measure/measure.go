// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package measure reads a task's progress: an Observer polls the task's source (package progress),
// relates reports to CPU time (package growth) and checks targets (package target).
//
// Each task has an Observer with its own goroutine and time budget, so a slow or hostile source
// delays only its own task. Observers publish immutable Measurements.
package measure

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Measurement is the known state of a task's progress.
type Measurement struct {
	// Epoch increases with each estimate based on new evidence: a report, and CPU time
	// since the last one.
	Epoch uint64

	// Report is the last report with a metric. Its step and total are those of step
	// reports while these tell the position. Numbers are NaN before the first report.
	Report  progress.Report
	Reports int64       // number of reports, step reports included
	Goal    policy.Goal // "" if unknown
	Lines   int64       // number of lines of output
	CPU     float64     // CPU-seconds used by the task; NaN if unknown

	Estimate growth.Estimate
	Curve    []growth.Point // for a later process

	// A service's responses: their number, and the sum of their times in seconds.
	Responses   float64
	ResponseSum float64

	Gain Gain

	Remaining remaining.Estimate // of a training task
	Work      remaining.State    // for a later process
	Pace      policy.Cores       // CPU use while it reported, recently; 0 if unknown
	Overhead  *float64           // of further cores (policy.Task.Overhead); nil if unknown
	Demand    Demand

	// Reached are the targets reached since the Observer started, in order.
	Reached []target.Reached
	// Paused is the reason why targets are not checked; "" if they are.
	Paused string

	Note string // of the source, for display
	Err  error  // of the last poll; nil if it succeeded
	// Failures counts failed polls, and Failure is the last error, which a source may
	// return only once.
	Failures int64
	Failure  error
	Offset   json.RawMessage // of the source, for a later process
}

// Gain is a task's gain over an interval (SpeCon, Algorithm 1).
type Gain struct {
	Interval        uint64 // number of closed intervals
	Value, Previous *float64
}

type Config struct {
	// Open opens the source of the task's progress.
	Open func() (progress.Source, error)
	// CPU returns the CPU-seconds used. Targets are checked even if it fails.
	CPU func() (float64, error)
	// Threads reads the threads of a training task; nil if its demand does not matter.
	Threads   func() limits.Threads
	Estimator string             // growth.KindRobust or growth.KindPublished
	Service   bool               // reports are response times
	Targets   *target.Watcher    // nil = none
	Work      remaining.Declared // declared size of a training task
	Every     time.Duration      // polling interval
	Resume    Resume
}

// Run returns the cost of the whole run of a task that ended after cpu CPU-seconds.
func (m Measurement) Run(cpu float64) remaining.Run {
	run := m.Work.Run(cpu)
	run.Overhead = m.Overhead
	return run
}

// Resume is the state of an earlier process.
type Resume struct {
	Offset json.RawMessage
	// Of the same run of the task only:
	Epoch   uint64
	Report  progress.Report
	Reports int64
	Goal    policy.Goal
	Curve   []growth.Point
	Work    remaining.State
	Demand  Demand
}

const (
	// pollShare is the fraction of a core that polling a task may use; it determines the wait after
	// a slow poll.
	pollShare = 0.05
	maxWait   = 30 * time.Second
)

// Observer measures one task.
type Observer struct {
	cfg      Config
	latest   atomic.Pointer[Measurement]
	requests chan request
	earlier  atomic.Pointer[remaining.Run] // set, but not yet applied
	finish   chan struct{}
	done     chan struct{}
	stop     context.CancelFunc

	// The fields below are owned by the goroutine.
	source    progress.Source
	now       Measurement
	estimator growth.Estimator // nil until the goal is known
	follows   series
	work      *remaining.Estimator
	pace      remaining.Pace
	meter     growth.Gain
	cpu       float64 // CPU-seconds at the last poll; NaN if unknown
	cpuAt     time.Time
	read      reading
	evidence  struct {
		reports int // of the estimator, without repetitions
		cpu     float64
	} // at the last epoch
	backOff time.Time // earliest next poll
}

// series identifies an estimator's metric: another metric restarts it.
type series struct {
	metric string
	goal   policy.Goal
}

type request struct {
	closeGain bool
	done      chan struct{}
}

// Observe measures a task until ctx is done or Finish is called.
func Observe(ctx context.Context, cfg Config) *Observer {
	ctx, stop := context.WithCancel(ctx)
	nan := math.NaN()
	o := &Observer{
		cfg: cfg, requests: make(chan request, 1), finish: make(chan struct{}), done: make(chan struct{}), stop: stop,
		now: Measurement{CPU: nan, Report: progress.Report{Value: nan, Step: nan, Total: nan}, Offset: cfg.Resume.Offset, Demand: cfg.Resume.Demand},
		cpu: nan, work: remaining.New(cfg.Work, cfg.Resume.Work),
	}
	o.now.Work = cfg.Resume.Work
	if r := cfg.Resume; r.Reports > 0 {
		o.now.Epoch, o.now.Report, o.now.Reports, o.now.Goal = r.Epoch, r.Report, r.Reports, r.Goal
		if o.follow() {
			for _, p := range r.Curve {
				o.estimator.Add(p)
				o.evidence.cpu = p.CPU
			}
			o.now.Estimate, o.now.Curve = o.estimator.Measure(), r.Curve
			o.evidence.reports = o.now.Estimate.Reports
		}
	}
	o.publish()
	go o.run(ctx)
	return o
}

// Earlier sets the cost of an earlier run. It does not block.
func (o *Observer) Earlier(run remaining.Run) { o.earlier.Store(&run) }

// Latest returns the newest measurement. It does not block.
func (o *Observer) Latest() Measurement { return *o.latest.Load() }

// Measure requests a new estimate, which closes a measurement interval and, with
// closeGain, an interval of SpeCon. The channel is closed when done; a busy Observer
// may take long. Requests are merged while one is pending.
func (o *Observer) Measure(closeGain bool) <-chan struct{} {
	r := request{closeGain, make(chan struct{})}
	select {
	case o.requests <- r:
	default:
		close(r.done)
	}
	return r.done
}

// Finish polls once more and stops the Observer. It returns the last measurement, or the latest one
// if ctx is done first.
func (o *Observer) Finish(ctx context.Context) Measurement {
	close(o.finish)
	select {
	case <-o.done:
	case <-ctx.Done():
	}
	o.stop()
	return o.Latest()
}

func (o *Observer) run(ctx context.Context) {
	defer close(o.done)
	defer func() {
		if o.source != nil {
			_ = o.source.Close()
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.finish:
			o.poll(ctx)
			o.publish()
			return
		case r := <-o.requests:
			if !time.Now().Before(o.backOff) {
				o.poll(ctx)
			}
			o.measure(r.closeGain)
			o.publish()
			close(r.done)
		case <-timer.C:
			o.poll(ctx)
			o.publish()
			timer.Reset(max(o.cfg.Every, time.Until(o.backOff)))
		}
	}
}

func (o *Observer) publish() {
	// The remaining work decreases with CPU time even without reports.
	if !o.cfg.Service {
		if run := o.earlier.Swap(nil); run != nil {
			o.work.Recall(*run)
		}
		o.now.Remaining = o.work.Estimate(o.cpu, o.curve())
		o.now.Work = o.work.State()
		o.now.Overhead = cmp.Or(o.pace.Overhead(), o.work.Earlier().Overhead)
	}
	m := o.now
	o.latest.Store(&m)
}

func (o *Observer) curve() remaining.Curve {
	c := remaining.Curve{Fit: o.now.Estimate.Fit, Plateau: o.now.Estimate.Plateau}
	if w := o.cfg.Targets; w != nil && o.now.Paused == "" {
		c.Acceptable, c.Objective = w.Targets()
		c.Passed = w.State().Rank() >= policy.Acceptable.Rank()
	}
	return c
}

func (o *Observer) poll(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	began := time.Now()
	defer func() {
		took := time.Since(began)
		o.backOff = time.Now().Add(min(time.Duration(float64(took)*(1/pollShare-1)), maxWait))
	}()
	before, beforeAt := o.cpu, o.cpuAt
	if cpu, err := o.cfg.CPU(); err == nil {
		o.cpu, o.cpuAt, o.now.CPU = cpu, began, cpu
		o.readDemand(began)
	}
	if o.source == nil {
		source, err := o.cfg.Open()
		if o.failed(err); err != nil {
			return
		}
		o.source = source
		o.source.SetOffset(o.now.Offset)
	}
	reports, err := o.source.Poll(ctx)
	if ctx.Err() != nil {
		return
	}
	o.failed(err)
	o.now.Note, o.now.Lines = o.source.Note(), o.source.Stats().Lines
	o.now.Goal = policy.Goal(o.source.Goal())
	if o.cfg.Service {
		reports = withMetric(reports) // steps are no response times
	}
	if len(reports) > 0 {
		o.now.Reports += int64(len(reports))
		o.take(reports, before, beforeAt)
	}
	o.now.Offset = o.source.Offset()
}

func (o *Observer) failed(err error) {
	if o.now.Err = err; err != nil {
		o.now.Failures++
		o.now.Failure = err
	}
}

func (o *Observer) take(reports []progress.Report, before float64, beforeAt time.Time) {
	values := withMetric(reports)
	if n := len(values); n > 0 {
		o.now.Report = values[n-1]
	}
	if o.cfg.Service {
		for _, r := range reports {
			if fields.NonNegative(r.Value) {
				o.now.Responses++
				o.now.ResponseSum += r.Value
			}
		}
		return
	}
	for _, r := range reports {
		o.work.Add(remaining.Point{CPU: o.cpu, Step: r.Step, Total: r.Total, PerEpoch: r.PerEpoch, StepOnly: r.StepOnly(), Bar: r.Bar})
	}
	o.pace.Add(seconds(o.cpuAt), o.cpu, o.work.At())
	o.now.Pace = o.pace.Cores()
	last := reports[len(reports)-1]
	step, total, ok := o.work.Position(o.cpu)
	if !ok && last.StepOnly() {
		step, total, ok = last.Step, last.Total, o.now.Report.StepOnly() // for display, while the CPU time is unknown
	}
	if ok {
		o.now.Report.Step, o.now.Report.Total, o.now.Report.Time = step, total, last.Time
	}
	if len(values) == 0 {
		return // steps tell nothing about growth and targets
	}
	if w := o.cfg.Targets; w != nil {
		// Every report counts, not only every interval's last. A Measurement's list is immutable.
		reached := o.now.Reached
		o.now.Reached = append(reached[:len(reached):len(reached)], w.Observe(values)...)
		o.now.Paused = w.Paused()
	}
	if o.estimator == nil || o.follows != (series{o.now.Report.Metric, o.now.Goal}) {
		if !o.follow() {
			return
		}
	}
	o.estimate(values, before, beforeAt)
	o.now.Curve = o.estimator.Curve()
}

// withMetric returns the reports that are no step reports.
func withMetric(reports []progress.Report) []progress.Report {
	if !slices.ContainsFunc(reports, progress.Report.StepOnly) {
		return reports
	}
	return slices.DeleteFunc(slices.Clone(reports), progress.Report.StepOnly)
}

// follow starts a new estimator once there is a metric and its direction is known.
func (o *Observer) follow() bool {
	if o.now.Goal == "" || o.now.Report.StepOnly() {
		return false
	}
	e, err := growth.New(o.cfg.Estimator, growth.Goal(o.now.Goal))
	if err != nil {
		o.now.Err = err
		return false
	}
	o.estimator, o.follows = e, series{o.now.Report.Metric, o.now.Goal}
	return true
}

// estimate passes a poll's reports to the estimator as one point, their mean, since their CPU time
// is known per poll only. Values that are not finite are passed individually.
func (o *Observer) estimate(reports []progress.Report, before float64, beforeAt time.Time) {
	var sum, step, lr float64
	var finite int
	for _, r := range reports {
		if r.Metric != o.follows.metric {
			continue
		}
		if !fields.Finite(r.Value) {
			o.estimator.Add(growth.Point{T: seconds(o.cpuAt), CPU: o.cpu, Value: r.Value, Step: r.Step, LR: r.LR})
			continue
		}
		finite++
		o.meter.Add(r.Value)
		sum += r.Value
		step, lr = r.Step, r.LR
	}
	if finite == 0 {
		return
	}
	// The reports are spread over the poll's interval, so their mean belongs to its middle.
	at, cpu := o.cpuAt, o.cpu
	if finite > 1 && !beforeAt.IsZero() && before <= cpu {
		at = beforeAt.Add(at.Sub(beforeAt) / 2)
		cpu = (before + cpu) / 2
	}
	o.estimator.Add(growth.Point{T: seconds(at), CPU: cpu, Value: sum / float64(finite), Step: step, LR: lr})
}

func (o *Observer) measure(closeGain bool) {
	if closeGain {
		o.now.Gain.Interval++
		o.now.Gain.Value, o.now.Gain.Previous = o.meter.Close()
	}
	if o.estimator == nil {
		return
	}
	o.now.Estimate = o.estimator.Measure()
	if reports := o.now.Estimate.Reports; reports != o.evidence.reports && o.cpu != o.evidence.cpu && fields.Finite(o.cpu) {
		o.evidence.reports, o.evidence.cpu = reports, o.cpu
		o.now.Epoch++
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
