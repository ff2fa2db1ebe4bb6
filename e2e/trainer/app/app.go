// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/ebbtide/ebbtide/e2e/trainer/record"
	"github.com/ebbtide/ebbtide/e2e/trainer/style"
	"github.com/ebbtide/ebbtide/e2e/trainer/train"
)

const (
	exitOK     = 0
	exitFailed = 1 // unreadable or unwritable file
	exitUsage  = 2 // bad option, or a checkpoint with other options
)

const (
	aboutTrain = `trainer trains a small model on generated data; what it prints looks like a well-known framework.

  trainer [train] [options]   trains
  trainer serve [options]     trains for a moment, then evaluates batches for clients over HTTP
  trainer load [options]      asks a service for batches and measures how long it takes to answer

"trainer serve -h" and "trainer load -h" have the options of these two. Those of training:
`
	aboutServe = `trainer serve trains a model for a moment, or takes one from a checkpoint, and then answers requests with it:

  POST /predict   evaluates a batch of generated inputs; an optional body {"work": 2, "first": 7} multiplies the batch's
                  cost and names the first input. The answer (JSON) has predictions by class, mean confidence, loss,
                  response_s and cpu_s
  GET /metrics    for Prometheus: response_seconds (a histogram), requests_total by result, queued_requests, busy
  GET /healthz    "ok" as soon as the model is there

Batches are evaluated one after the other, each by all threads: with one request at a time the response time is the
CPU time of a batch divided by the CPUs that the service gets. A line is printed for every period in which batches
were answered: how many in all, and the mean response time of the period,

  batches=123 response_s=0.0421 answered=48 p95_s=0.0502 longest_s=0.0533 rejected=0 failed=0

On SIGTERM the batch in progress is finished within -grace, all others are refused with status 503.
`
	aboutLoad = `trainer load asks a service for batches and measures how long it takes to answer. With -concurrency a number of
clients each wait for their answer before they ask again (closed loop); with -rate requests come whatever the service
does (open loop), and a response time counts from when the request was due. It waits for the service to come up,
prints a line a period and a summary:

  requests=120 response_s=0.0421 answered=48 p95_s=0.0502 longest_s=0.0533 errors=0

The exit status is 1 when the service did not come up, or answered no request at all.
`
)

func Main(args []string, stdout, stderr io.Writer) int {
	command := "train"
	if len(args) > 0 && slices.Contains([]string{"train", "serve", "load"}, args[0]) {
		command, args = args[0], args[1:]
	}
	switch command {
	case "serve":
		o, help, err := parseServe(args)
		if code, done := usage("trainer serve", aboutServe, help, err, stdout, stderr); done {
			return code
		}
		signals, stop := catch()
		defer stop()
		defer keepTo(o.threads)()
		return serveRun(o, stdout, stderr, signals)
	case "load":
		o, help, err := parseLoad(args)
		if code, done := usage("trainer load", aboutLoad, help, err, stdout, stderr); done {
			return code
		}
		signals, stop := catch()
		defer stop()
		return loadRun(o, stdout, stderr, signals)
	}
	o, help, err := parse(args)
	if code, done := usage("trainer", aboutTrain, help, err, stdout, stderr); done {
		return code
	}
	if o.list {
		list(stdout)
		return exitOK
	}
	signals, stop := catch(o.signal)
	defer stop()
	defer keepTo(o.threads)()
	return run(o, stdout, stderr, signals)
}

// usage prints help or an error, and reports whether that was all.
func usage(name, about, help string, err error, stdout, stderr io.Writer) (code int, done bool) {
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprintf(stdout, "%s\n%s", about, help)
		return exitOK, true
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "%s: %v\nrun %[1]s -h for all options\n", name, err)
		return exitUsage, true
	}
	return exitOK, false
}

// catch catches signals that end a run, and others.
func catch(others ...os.Signal) (caught <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 4)
	all := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	for _, s := range others {
		if s != nil {
			all = append(all, s)
		}
	}
	signal.Notify(signals, all...)
	return signals, func() { signal.Stop(signals) }
}

// keepTo limits the runtime, including the collector, to -threads CPUs. It also disables Go's
// adaptation to a cgroup's quota, which other trainers do not have.
func keepTo(threads int) (back func()) {
	before := runtime.GOMAXPROCS(threads)
	return func() { runtime.GOMAXPROCS(before) }
}

// session is one process of a run.
type session struct {
	options
	stderr   io.Writer
	trainer  *train.Trainer
	printer  style.Printer
	curve    *os.File
	before   train.Checkpoint // cost of earlier processes
	start    time.Time
	cpuStart float64
	reported style.Report
	lowest   float64
	kept     kept
	outlets  outlets

	metricsAt string
}

// kept is the best state so far, for -save-best.
type kept struct {
	state  *train.State // nil for none
	value  float64
	metric style.Metric
}

func run(o options, stdout, stderr io.Writer, signals <-chan os.Signal) (code int) {
	s := &session{options: o, stderr: stderr, start: time.Now(), lowest: math.Inf(1), cpuStart: cpuSeconds()}
	config := train.Config{Spec: o.spec, Seed: o.seed, Threads: o.threads, DivergeAt: o.divergeAt}
	s.trainer = train.New(config)
	defer s.trainer.Close()

	if o.resume {
		switch c, err := train.Load(o.checkpoint); {
		case errors.Is(err, fs.ErrNotExist): // first start of a job that always uses -resume
		case err != nil:
			s.complain(err)
			return exitFailed
		default:
			if err := s.trainer.Restore(c.State); err != nil {
				s.complain(fmt.Errorf("cannot resume from %s: %w", o.checkpoint, err))
				return exitUsage
			}
			s.before = c
		}
	}
	info := style.Run{
		Model: o.spec.Name, Params: s.trainer.Params(), Steps: o.steps, PerEpoch: config.StepsPerEpoch(), Batch: o.spec.Batch,
		HeldOut: o.spec.HeldOut, First: s.trainer.Done(), Metric: o.metric, Epochs: o.perEpoch,
	}
	s.printer = style.New(o.style, info, stdout, stderr)
	if code := s.loadBest(); code != exitOK {
		return code
	}
	if err := s.openCurve(); err != nil {
		s.complain(err)
		return exitFailed
	}
	s.outlets.run = info
	if o.progress != "" {
		f, err := record.Open(o.progress, o.progressFormat, info, s.before.Step > 0)
		if err != nil {
			s.complain(fmt.Errorf("failed to open -progress-file: %w", err))
			return exitFailed
		}
		defer func() { _ = f.Close() }()
		s.outlets.file = f.Report
	}
	if o.metrics != "" {
		s.outlets.gauges = newGauges()
		site, err := startSite(o.metrics, metricsHandler(s.outlets.gauges.registry))
		if err != nil {
			s.complain(fmt.Errorf("failed to serve -metrics: %w", err))
			return exitFailed
		}
		defer site.close()
		if o.steps > 0 {
			s.outlets.gauges.set("train_total_steps", "Steps of the run.", float64(o.steps))
		}
		s.metricsAt = site.address
	}
	stopped := ""
	defer func() {
		if err := s.finish(stopped); err != nil {
			s.complain(err)
			code = exitFailed
		}
	}()

	s.printer.Begin()
	if s.before.Step > 0 {
		s.printer.Message(fmt.Sprintf("Resuming from checkpoint %s at step %d", o.checkpoint, s.before.Step))
	}
	if s.metricsAt != "" {
		s.printer.Message("Serving metrics at http://" + s.metricsAt + "/metrics")
	}
	s.evaluate() // the initial value, for curve, best and summary only
	for o.steps == 0 || s.trainer.Done() < o.steps {
		select {
		case sig := <-signals:
			last := sig == syscall.SIGTERM || sig == syscall.SIGINT
			if err := errors.Join(s.save(), s.saveBest()); err != nil {
				s.complain(err)
				if last {
					stopped = sig.String()
					return exitFailed
				}
			}
			if last {
				stopped = sig.String()
				return o.exitCode
			}
		default:
		}
		s.trainer.Step()
		if o.wait > 0 {
			time.Sleep(o.wait)
		}
		if s.due(info) {
			r := s.evaluate()
			s.printer.Report(r)
			if err := s.outlets.report(r); err != nil {
				s.complain(err)
			}
		}
		if o.checkpointEvery > 0 && s.trainer.Done()%o.checkpointEvery == 0 && s.trainer.Done() != o.steps {
			if err := s.save(); err != nil {
				s.complain(err) // training continues on a full disk
			}
		}
	}
	if s.trainer.Done() > info.First {
		s.printer.End(s.reported)
		if err := errors.Join(s.save(), s.saveBest()); err != nil {
			s.complain(err)
			return exitFailed
		}
	}
	return exitOK
}

func (s *session) complain(err error) { _, _ = fmt.Fprintf(s.stderr, "\rtrainer: %v\n", err) }

func (s *session) due(info style.Run) bool {
	step := s.trainer.Done()
	if s.perEpoch {
		return info.EpochEnd(step)
	}
	return step%s.every == 0 || step == s.steps || s.printer.EveryEpoch() && info.EpochEnd(step)
}

// evaluate runs in every style, as a step's work must not depend on the style.
func (s *session) evaluate() style.Report {
	began := time.Now()
	loss, accuracy := s.trainer.Evaluate()
	if loss < s.lowest {
		s.lowest = loss
	}
	s.reported = style.Report{
		Step: s.trainer.Done(), Loss: loss, Accuracy: accuracy, TrainLoss: s.trainer.TrainLoss(), GradientNorm: s.trainer.GradientNorm(),
		Rate: s.trainer.Rate(), Elapsed: began.Sub(s.start), Evaluation: time.Since(began),
	}
	s.keep()
	if s.curve != nil {
		wall, cpu := s.spent()
		_, _ = fmt.Fprintf(s.curve, "%d,%.3f,%.3f,%.8g,%.6g\n", s.reported.Step, wall, cpu, loss, accuracy)
	}
	return s.reported
}

// spent returns the run's total cost.
func (s *session) spent() (wall, cpu float64) {
	return s.before.WallSeconds + time.Since(s.start).Seconds(), s.before.CPUSeconds + cpuSeconds() - s.cpuStart
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return math.NaN()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func (s *session) save() error {
	if s.checkpoint == "" {
		return nil
	}
	wall, cpu := s.spent()
	if err := train.Save(s.checkpoint, train.Checkpoint{State: s.trainer.State(), CPUSeconds: cpu, WallSeconds: wall}); err != nil {
		return err
	}
	s.printer.Message(fmt.Sprintf("Saved checkpoint %s at step %d", s.checkpoint, s.trainer.Done()))
	return nil
}

func (s *session) better(value float64) bool {
	switch {
	case math.IsNaN(value) || math.IsInf(value, 0):
		return false
	case s.kept.state == nil:
		return true
	case s.kept.metric == style.Accuracy:
		return value > s.kept.value
	}
	return value < s.kept.value
}

// keep stores the last evaluation's state if it is the best, by accuracy if only that is reported,
// else by loss.
func (s *session) keep() {
	if s.best == "" {
		return
	}
	value := s.reported.Loss
	if s.kept.metric == style.Accuracy {
		value = s.reported.Accuracy
	}
	if s.better(value) {
		state := s.trainer.State().Clone()
		s.kept.state, s.kept.value = &state, value
	}
}

func (s *session) saveBest() error {
	if s.kept.state == nil {
		return nil
	}
	wall, cpu := s.spent()
	c := train.Checkpoint{State: *s.kept.state, CPUSeconds: cpu, WallSeconds: wall, Metric: string(s.kept.metric), Value: s.kept.value}
	if err := train.Save(s.best, c); err != nil {
		return fmt.Errorf("-save-best: %w", err)
	}
	s.printer.Message(fmt.Sprintf("Saved best parameters %s: %s %.6g at step %d", s.best, c.Metric, c.Value, c.Step))
	return nil
}

// loadBest restores the best state of an earlier process.
func (s *session) loadBest() int {
	s.kept.metric = style.Loss
	if s.metric == style.Accuracy {
		s.kept.metric = style.Accuracy
	}
	if s.best == "" || s.before.Step == 0 {
		return exitOK
	}
	switch c, err := train.Load(s.best); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		s.complain(fmt.Errorf("-save-best: %w", err))
		return exitFailed
	default:
		err := s.trainer.Check(c.State)
		if err == nil && c.Metric != string(s.kept.metric) {
			err = fmt.Errorf("-metric: it was kept for its %s, this run keeps %s", c.Metric, s.kept.metric)
		}
		if err != nil {
			s.complain(fmt.Errorf("cannot continue with -save-best %s: %w", s.best, err))
			return exitUsage
		}
		s.kept.state, s.kept.value = &c.State, c.Value
	}
	return exitOK
}

func (s *session) openCurve() error {
	if s.options.curve == "" {
		return nil
	}
	mode := os.O_TRUNC
	if s.before.Step > 0 {
		mode = os.O_APPEND
	}
	f, err := os.OpenFile(s.options.curve, os.O_WRONLY|os.O_CREATE|mode, 0o644)
	if err != nil {
		return fmt.Errorf("failed to open -curve: %w", err)
	}
	if at, err := f.Seek(0, io.SeekEnd); err == nil && at == 0 {
		_, _ = fmt.Fprintln(f, "step,wall_s,cpu_s,loss,accuracy")
	}
	s.curve = f
	return nil
}

// Summary is written to -quality-file. Non-finite numbers are null.
type Summary struct {
	Model       string   `json:"model"`
	Seed        uint64   `json:"seed"`
	Threads     int      `json:"threads"`
	Step        int      `json:"step"`
	TotalSteps  int      `json:"total_steps"`  // 0 for no end
	ResumedFrom int      `json:"resumed_from"` // checkpoint's step; 0 for none
	Loss        *float64 `json:"loss"`         // of the held-out part, as the next
	Accuracy    *float64 `json:"accuracy"`
	BestLoss    *float64 `json:"best_loss"`
	Diverged    bool     `json:"diverged"`
	CPUSeconds  float64  `json:"cpu_s"`   // of all processes
	WallSeconds float64  `json:"wall_s"`  // of all processes
	Stopped     string   `json:"stopped"` // the signal that ended the run, or ""
}

func (s *session) finish(stopped string) error {
	if s.reported.Step != s.trainer.Done() {
		s.evaluate()
	}
	var err error
	if s.curve != nil {
		err = s.curve.Close()
	}
	if s.quality == "" {
		return err
	}
	finite := func(v float64) *float64 {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	wall, cpu := s.spent()
	text, marshalErr := json.MarshalIndent(Summary{
		Model: s.spec.Name, Seed: s.seed, Threads: s.threads, Step: s.trainer.Done(), TotalSteps: s.steps, ResumedFrom: s.before.Step,
		Loss: finite(s.reported.Loss), Accuracy: finite(s.reported.Accuracy), BestLoss: finite(s.lowest), Diverged: finite(s.reported.Loss) == nil,
		CPUSeconds: cpu, WallSeconds: wall, Stopped: stopped,
	}, "", "  ")
	if marshalErr != nil {
		return errors.Join(err, fmt.Errorf("failed to encode the summary: %w", marshalErr))
	}
	if writeErr := os.WriteFile(s.quality, append(text, '\n'), 0o644); writeErr != nil {
		return errors.Join(err, fmt.Errorf("failed to write -quality-file: %w", writeErr))
	}
	return err
}
