// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package measure

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/target"
)

type source struct {
	mu      sync.Mutex
	goal    string
	waiting []progress.Report
	taken   int
	closed  bool
	err     error
}

func (s *source) Poll(context.Context) ([]progress.Report, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reports := s.waiting
	s.waiting = nil
	s.taken += len(reports)
	return reports, s.err
}

func (s *source) Goal() string          { s.mu.Lock(); defer s.mu.Unlock(); return s.goal }
func (s *source) Note() string          { return "note" }
func (s *source) Stats() progress.Stats { return progress.Stats{Lines: int64(s.taken)} }
func (s *source) Close() error          { s.closed = true; return nil }

func (s *source) Offset() json.RawMessage {
	data, _ := json.Marshal(s.taken)
	return data
}

func (s *source) SetOffset(data json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.Unmarshal(data, &s.taken)
}

type task struct {
	*source
	*Observer
	cpu     float64
	cpuErr  error
	openErr error
	step    float64
}

func (k *task) open() (progress.Source, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.source, k.openErr
}

func (k *task) used() (float64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cpu, k.cpuErr
}

func (k *task) set(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// observe starts an Observer. Tests act in the middle of its seconds.
func observe(t *testing.T, cfg Config) *task {
	k := &task{source: &source{goal: "min"}}
	cfg.Open, cfg.CPU = k.open, k.used
	cfg.Estimator, cfg.Every = cmp.Or(cfg.Estimator, growth.KindPublished), time.Second
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	k.Observer = Observe(ctx, cfg)
	time.Sleep(500 * time.Millisecond)
	return k
}

// report lets a second pass in which the task uses one core and reports values.
func (k *task) report(values ...float64) Measurement {
	k.set(func() {
		for _, v := range values {
			k.step++
			k.waiting = append(k.waiting, progress.Report{Metric: "loss", Value: v, Step: k.step, Total: 100})
		}
		k.cpu++
	})
	time.Sleep(time.Second)
	synctest.Wait()
	return k.Latest()
}

func (k *task) measure() Measurement {
	<-k.Measure(false)
	return k.Latest()
}

func in(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

func TestObserver_epoch(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		must.Eq(t, 0, k.measure().Epoch)
		k.report(2)
		must.Eq(t, 1, k.measure().Epoch)
		k.report()
		must.Eq(t, 1, k.measure().Epoch, must.Sprint("CPU time, but no report"))
		k.report(1.5, 1)
		must.Eq(t, 2, k.measure().Epoch)
		must.Eq(t, 2, k.measure().Epoch)
		k.set(func() { k.cpu-- })
		k.report(0.9)
		must.Eq(t, 2, k.measure().Epoch, must.Sprint("a report, but no CPU time"))
		k.set(func() { k.cpuErr = errors.New("gone") })
		k.report(0.8)
		m := k.measure()
		must.Eq(t, 0.8, m.Report.Value)
		must.Eq(t, 5, m.Reports)
	})
}

func TestObserver_growth(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		k.report(4)
		k.report(3, 1)
		m := k.measure()
		must.True(t, m.Estimate.Measured)
		must.InDelta(t, 2/0.5, m.Estimate.Growth, 1e-9, must.Sprint("from 4 to the mean of 3 and 1 in half a CPU-second"))
		must.Len(t, 2, m.Curve)
		must.Eq(t, "note", m.Note)
		must.Eq(t, 3, m.Lines)
	})
}

func TestObserver_immutable(t *testing.T) {
	in(t, func(t *testing.T) {
		low := 0.5
		targets := target.Targets{Acceptable: &low, Objective: new(float64)}
		k := observe(t, Config{Targets: target.NewWatcher("loss", policy.GoalMin, targets)})
		k.report(2)
		first := k.report(0.4)
		must.Len(t, 1, first.Reached)
		second := k.report(0)
		must.Len(t, 1, first.Reached)
		must.Eq(t, policy.Objective, second.Reached[1].State)
		must.Eq(t, 0.4, first.Report.Value)
	})
}

func TestObserver_service(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{Service: true})
		k.report(0.5, math.NaN(), 0.25)
		m := k.report(-1, 0.25)
		must.Eq(t, 3, m.Responses)
		must.Eq(t, 1, m.ResponseSum)
		must.False(t, m.Estimate.Measured)
	})
}

func TestObserver_anotherMetric(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		k.report(4)
		k.report(3)
		must.True(t, k.measure().Estimate.Measured)
		k.set(func() {
			k.waiting = append(k.waiting, progress.Report{Metric: "accuracy", Value: 0.1})
			k.goal = "max"
		})
		k.report()
		m := k.measure()
		must.False(t, m.Estimate.Measured)
		must.Eq(t, policy.GoalMax, m.Goal)
	})
}

func TestObserver_resume(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		k.report(4)
		k.report(3)
		m := k.measure()
		last := k.Finish(t.Context())
		must.True(t, k.closed)
		later := observe(t, Config{Resume: Resume{
			Offset: last.Offset, Epoch: m.Epoch, Report: last.Report, Reports: last.Reports, Goal: last.Goal, Curve: last.Curve,
		}})
		later.set(func() { must.Eq(t, 2, later.taken) })
		later.set(func() { later.cpu = k.cpu })
		must.True(t, later.Latest().Estimate.Measured)
		must.Eq(t, m.Epoch, later.measure().Epoch, must.Sprint("what was known is no new evidence"))
		later.report(2)
		must.Eq(t, m.Epoch+1, later.measure().Epoch)
		must.Eq(t, 3, later.Latest().Reports)
	})
}

// A failed open is retried, and there is a last poll at the end.
func TestObserver_source(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		torn := errors.New("torn")
		k.set(func() { k.err = torn })
		must.ErrorIs(t, k.report(1).Err, torn)
		k.set(func() { k.err = nil })
		m := k.report(1)
		must.NoError(t, m.Err)
		must.Eq(t, 1, m.Failures)
		must.ErrorIs(t, m.Failure, torn)

		other := &task{source: &source{goal: "min"}, openErr: errors.New("not there")}
		other.Observer = Observe(t.Context(), Config{
			Open: other.open, CPU: other.used, Estimator: growth.KindRobust, Every: time.Second,
		})
		time.Sleep(500 * time.Millisecond)
		must.ErrorContains(t, other.report(1).Err, "not there")
		other.set(func() { other.openErr = nil })
		must.NoError(t, other.report(1).Err)
		must.Eq(t, 2, other.Latest().Reports)
		other.set(func() { other.waiting = []progress.Report{{Metric: "loss", Value: 7}} })
		must.Eq(t, 7, other.Finish(t.Context()).Report.Value)
	})
}

func TestObserver_gain(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		k.report(1)
		<-k.Measure(true)
		k.report(0.5)
		<-k.Measure(true)
		g := k.Latest().Gain
		must.Eq(t, 2, g.Interval)
		must.Eq(t, 1, *g.Value)
		must.Nil(t, g.Previous)
		<-k.Measure(false)
		must.Eq(t, 2, k.Latest().Gain.Interval)
	})
}

// A training task's remaining work follows from its steps and declared totals, falls
// with CPU time, and is known to a later process at once.
func TestObserver_remaining(t *testing.T) {
	in(t, func(t *testing.T) {
		work := remaining.Declared{Steps: 200}
		k := observe(t, Config{Work: work})
		must.Nil(t, k.report(3).Remaining.CPUS)
		m := k.report(3)
		must.Eq(t, remaining.Meta, m.Remaining.Source)
		must.Eq(t, policy.CPUSeconds(198), *m.Remaining.CPUS)
		must.Eq(t, policy.CPUSeconds(197), *k.report().Remaining.CPUS)

		later := observe(t, Config{Work: work, Resume: Resume{Work: m.Work}})
		later.set(func() { later.cpu = m.CPU })
		must.Eq(t, policy.CPUSeconds(197), *later.report().Remaining.CPUS)
	})
}

// What an earlier run has shown of further cores counts until the task has shown it itself.
func TestObserver_overhead(t *testing.T) {
	in(t, func(t *testing.T) {
		earlier := 0.4
		k := observe(t, Config{})
		must.Nil(t, k.report(1).Overhead)
		k.Earlier(remaining.Run{CPUS: 100, Overhead: &earlier})
		for range 10 {
			must.Eq(t, earlier, *k.report(1).Overhead)
		}
		var m Measurement
		for range 10 { // on two and a half cores, on which a step takes a quarter more CPU time
			k.set(func() { k.cpu += 1.5 })
			m = k.report(1, 1)
		}
		must.InDelta(t, 0.25/1.5, *m.Overhead, 1e-9)
		must.Eq(t, *m.Overhead, *m.Run(m.CPU).Overhead)
	})
}

// The way to the objective counts if the curve reaches it before the end. The quality
// point is passed at the acceptable target.
func TestObserver_remainingToTargets(t *testing.T) {
	in(t, func(t *testing.T) {
		acceptable, objective := 0.5, 0.1
		wants := target.Targets{Acceptable: &acceptable, Objective: &objective}
		k := observe(t, Config{Estimator: growth.KindRobust, Work: remaining.Declared{Steps: 1e6}, Targets: target.NewWatcher("loss", policy.GoalMin, wants)})
		var m Measurement
		for i := range 30 {
			k.report(1 / (1 + 0.1*float64(i)))
			if m = k.measure(); i == 7 {
				must.Between(t, 1, float64(*m.Remaining.QualityCPUS), 10, must.Sprint("3 in truth"))
			}
		}
		must.Eq(t, remaining.Objective, m.Remaining.Source, must.Sprint(m.Remaining.Why))
		must.InDelta(t, 61, float64(*m.Remaining.CPUS), 20) // 91 in all
		must.Eq(t, 0, *m.Remaining.QualityCPUS)
	})
}

// bar lets a second pass in which the task uses one core and advances a bar by a step.
func (k *task) bar(step, total float64) Measurement {
	k.set(func() {
		k.waiting = append(k.waiting, progress.Report{Value: math.NaN(), Step: step, Total: total})
		k.cpu++
	})
	time.Sleep(time.Second)
	synctest.Wait()
	return k.Latest()
}

// Step reports tell the remaining work, and nothing about growth, gain and targets.
func TestObserver_stepReports(t *testing.T) {
	in(t, func(t *testing.T) {
		zero := 0.0
		k := observe(t, Config{Targets: target.NewWatcher("loss", policy.GoalMin, target.Targets{Acceptable: &zero})})
		for i := range 30 {
			k.bar(float64(i+1), 100)
		}
		<-k.Measure(true)
		m := k.Latest()
		must.Eq(t, 30, m.Reports)
		must.Eq(t, []float64{30, 100}, []float64{m.Report.Step, m.Report.Total})
		must.True(t, math.IsNaN(m.Report.Value))
		must.Eq(t, "", m.Report.Metric)
		must.Eq(t, policy.CPUSeconds(70), *m.Remaining.CPUS)
		must.Eq(t, growth.Estimate{}, m.Estimate)
		must.Eq(t, 0, m.Epoch)
		must.Nil(t, m.Gain.Value)
		must.SliceEmpty(t, m.Curve)
		must.SliceEmpty(t, m.Reached)
		must.Eq(t, "", m.Paused)

		later := observe(t, Config{Resume: Resume{Offset: m.Offset, Report: m.Report, Reports: m.Reports, Goal: m.Goal, Work: m.Work}})
		later.set(func() { later.cpu = k.cpu })
		m = later.report()
		must.Eq(t, policy.CPUSeconds(69), *m.Remaining.CPUS, must.Sprint("known to a later process at once"))
		must.Eq(t, 30, m.Report.Step)
		must.Eq(t, growth.Estimate{}, later.measure().Estimate)
	})
}

// A task may have step reports first and a metric later, or both.
func TestObserver_stepsAndMetric(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		for i := range 20 {
			k.bar(float64(i+1), 100)
		}
		value := func(v float64) Measurement { // without a step
			k.set(func() {
				k.waiting = append(k.waiting, progress.Report{Metric: "loss", Value: v, Step: math.NaN(), Total: math.NaN()})
			})
			return k.bar(21, 100)
		}
		value(4)
		m := value(3)
		must.Eq(t, 3, m.Report.Value)
		must.Eq(t, 21, m.Report.Step, must.Sprint("of the bar"))
		must.True(t, k.measure().Estimate.Measured)
		must.NotNil(t, m.Remaining.CPUS)

		k.report(2) // step 1 of 100
		m = k.report(1)
		must.Eq(t, 2, m.Report.Step, must.Sprint("the metric's own"))
		must.Eq(t, policy.CPUSeconds(98), *m.Remaining.CPUS)
		must.Eq(t, 2, k.bar(70, 300).Report.Step)

		for i := range 120 {
			m = k.bar(float64(i+70), 300)
		}
		must.Eq(t, 1, m.Report.Value)
		must.Eq(t, 189, m.Report.Step, must.Sprint("the bar remains"))
		must.Eq(t, policy.CPUSeconds(111), *m.Remaining.CPUS)
		must.Eq(t, "loss", m.Report.Metric)
	})
}

// The CPU time may be unknown at first.
func TestObserver_stepReportsWithoutCPU(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{})
		k.set(func() { k.cpuErr = errors.New("not yet") })
		m := k.bar(7, 100)
		must.Eq(t, []float64{7, 100}, []float64{m.Report.Step, m.Report.Total})
		must.Nil(t, m.Remaining.CPUS)
	})
}

func TestObserver_serviceIgnoresSteps(t *testing.T) {
	in(t, func(t *testing.T) {
		k := observe(t, Config{Service: true})
		m := k.bar(7, 100)
		must.Eq(t, 0, m.Reports)
		must.Eq(t, 0, m.Responses)
		must.True(t, math.IsNaN(m.Report.Step))
		must.Eq(t, 1, k.report(0.5).Reports)
	})
}
