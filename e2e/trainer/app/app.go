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
	"syscall"
	"time"

	"github.com/ebbtide/ebbtide/e2e/trainer/style"
	"github.com/ebbtide/ebbtide/e2e/trainer/train"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // a file that cannot be read or written
	exitUsage  = 2 // a bad option, or a checkpoint of a run with other options
)

// Main runs the trainer and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	o, help, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprintf(stdout, "trainer trains a small model on generated data; what it prints looks like a well-known framework.\n\n%s", help)
		return exitOK
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "trainer: %v\nrun trainer -h for all options\n", err)
		return exitUsage
	case o.list:
		list(stdout)
		return exitOK
	}
	signals := make(chan os.Signal, 4)
	caught := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if o.signal != nil {
		caught = append(caught, o.signal)
	}
	signal.Notify(signals, caught...)
	defer signal.Stop(signals)
	// -threads is a promise about CPUs, so the collector and the rest of the runtime keep it, too. Setting it also
	// ends Go's own adaptation to a cgroup's quota: like other trainers, this one stays with the threads it has.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.threads))
	return run(o, stdout, stderr, signals)
}

// session is one process's part of a run.
type session struct {
	options
	stderr   io.Writer
	trainer  *train.Trainer
	printer  style.Printer
	curve    *os.File
	before   train.Checkpoint // what earlier processes of the run have spent
	start    time.Time
	cpuStart float64
	reported style.Report // the latest
	best     float64
}

func run(o options, stdout, stderr io.Writer, signals <-chan os.Signal) (code int) {
	s := &session{options: o, stderr: stderr, start: time.Now(), best: math.Inf(1), cpuStart: cpuSeconds()}
	config := train.Config{Spec: o.spec, Seed: o.seed, Threads: o.threads, DivergeAt: o.divergeAt}
	s.trainer = train.New(config)
	defer s.trainer.Close()

	if o.resume {
		switch c, err := train.Load(o.checkpoint); {
		case errors.Is(err, fs.ErrNotExist): // the first start of a job that is always started with -resume
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
	if err := s.openCurve(); err != nil {
		s.complain(err)
		return exitFailed
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
	s.evaluate() // the value before the first step, for the curve and the summary only
	for o.steps == 0 || s.trainer.Done() < o.steps {
		select {
		case sig := <-signals:
			last := sig == syscall.SIGTERM || sig == syscall.SIGINT
			if err := s.save(); err != nil {
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
			s.printer.Report(s.evaluate())
		}
		if o.checkpointEvery > 0 && s.trainer.Done()%o.checkpointEvery == 0 && s.trainer.Done() != o.steps {
			if err := s.save(); err != nil {
				s.complain(err) // a full disk is no reason to stop training
			}
		}
	}
	if s.trainer.Done() > info.First {
		s.printer.End(s.reported)
		if err := s.save(); err != nil {
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

// evaluate measures the held-out part, in silence, too, so that the work of a step does not depend on the style.
func (s *session) evaluate() style.Report {
	began := time.Now()
	loss, accuracy := s.trainer.Evaluate()
	if loss < s.best { // not for NaN
		s.best = loss
	}
	s.reported = style.Report{
		Step: s.trainer.Done(), Loss: loss, Accuracy: accuracy, TrainLoss: s.trainer.TrainLoss(), GradientNorm: s.trainer.GradientNorm(),
		Rate: s.trainer.Rate(), Elapsed: began.Sub(s.start), Evaluation: time.Since(began),
	}
	if s.curve != nil {
		wall, cpu := s.spent()
		_, _ = fmt.Fprintf(s.curve, "%d,%.3f,%.3f,%.8g,%.6g\n", s.reported.Step, wall, cpu, loss, accuracy)
	}
	return s.reported
}

// spent is what the run has cost so far, in all its processes.
func (s *session) spent() (wall, cpu float64) {
	return s.before.WallSeconds + time.Since(s.start).Seconds(), s.before.CPUSeconds + cpuSeconds() - s.cpuStart
}

// cpuSeconds is the CPU time of this process.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return math.NaN()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// save writes the checkpoint, if the run has one.
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

// Summary is what -quality-file holds. Numbers that are not finite are null.
type Summary struct {
	Model       string   `json:"model"`
	Seed        uint64   `json:"seed"`
	Threads     int      `json:"threads"`
	Step        int      `json:"step"`
	TotalSteps  int      `json:"total_steps"`  // 0 = no end
	ResumedFrom int      `json:"resumed_from"` // step of the checkpoint; 0 = none
	Loss        *float64 `json:"loss"`         // of the held-out part, as is the next
	Accuracy    *float64 `json:"accuracy"`
	BestLoss    *float64 `json:"best_loss"`
	Diverged    bool     `json:"diverged"`
	CPUSeconds  float64  `json:"cpu_s"`   // over all processes of the run
	WallSeconds float64  `json:"wall_s"`  // likewise
	Stopped     string   `json:"stopped"` // the signal that ended the run; empty when it came to its end
}

// finish closes the curve and writes the summary.
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
		Loss: finite(s.reported.Loss), Accuracy: finite(s.reported.Accuracy), BestLoss: finite(s.best), Diverged: finite(s.reported.Loss) == nil,
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
