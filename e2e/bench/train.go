// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

// trainee is a training job of a run.
type trainee struct {
	mix.Job
	task  mix.Task
	curve func(ctx context.Context, done trained, task string) (mix.Curve, error) // its record
}

func (m *measurement) trainees(s step) []trainee {
	var all []trainee
	jobs := m.jobsOf(s)
	for i, j := range jobs {
		t := trainee{Job: j}
		speed := m.e.Calibration.Speeds[j.Model]
		switch {
		case m.what == result.Torch:
			t.task, t.curve = torchTask(j, j.Steps(m.e.Calibration.Speeds[torchName], pool()), m.threads, s.seed, m.h.Tools.Root), m.torchCurve
		case s.mix == waits && i%2 == 1:
			// As long, alone, as with the whole pool: a third of each step computes.
			t.task, t.curve = j.Task(j.Steps(speed/3, 1), 1, s.seed), m.curve
			t.task.Args = append(t.task.Args, "-wait", time.Duration(2/speed*float64(time.Second)).String())
		case s.mix == single:
			t.task, t.curve = j.Task(j.Steps(speed, pool()), 1, s.seed), m.curve
		default:
			t.task, t.curve = j.Task(j.Steps(speed, pool()), m.threads, s.seed), m.curve
		}
		if m.what == result.Cluster {
			t.task.Image, t.task.Moves = harness.Image, true
		}
		t.task.CPU = mix.NodeMHz / len(jobs)
		all = append(all, t)
	}
	return all
}

func (m *measurement) jobsOf(s step) []mix.Job {
	switch m.what {
	case result.Torch:
		return torchMix(s.seed, m.scale)
	case result.Cluster:
		return clusterMix(s.seed, m.scale)
	}
	return mix.Papers(s.jobs, s.seed, m.scale)
}

// train runs a mix of training jobs to completion.
func (m *measurement) train(ctx context.Context, s step) (run result.Run, err error) {
	all := m.trainees(s)
	work := 0.0
	for _, t := range all {
		work += t.Pool
	}
	// Longer than five times the work means a hanging run.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+time.Duration(5*work*float64(time.Second)))
	defer cancel()
	body := ""
	if s.shim {
		stop, failed := m.startShim(ctx, s.moves)
		if failed != nil {
			return result.Run{}, failed
		}
		defer func() { err = errors.Join(err, stop()) }()
		body = migrateMeta
	}
	before, err := readMachine()
	if err != nil {
		return result.Run{}, err
	}
	start := time.Now()
	run = result.Run{
		What: m.what, Case: s.kase, Variant: s.name, Mode: s.mode, Seed: s.seed, Start: start.UTC(), Joined: result.Unknown(),
		Jobs: make([]metrics.Job, len(all)),
	}
	var wait sync.WaitGroup
	errs, ids := make([]error, len(all)), make([]string, len(all))
	for i, t := range all {
		ids[i] = id(t.Name, s)
		wait.Go(func() {
			if run.Jobs[i], errs[i] = m.trainOne(ctx, t, mix.JobspecWith(ids[i], false, body, t.task), start); errs[i] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return run, fmt.Errorf("%s: %w", ids[i], err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return run, err
	}
	after, err := readMachine()
	if err != nil {
		return run, err
	}
	account(&run, after.busy-before.busy, float64(pool()))
	return run, m.stop(ctx, ids)
}

// account computes the pool's idle CPU, and other processes' use, while jobs were present. busy is
// the machine's, in CPU-seconds.
func account(run *result.Run, busy, cores float64) {
	r := metrics.Run{Jobs: run.Jobs}
	used := 0.0
	for _, j := range run.Jobs {
		used += j.CPUS
	}
	run.Other = max(0, busy-used)
	run.Idle = max(0, r.Present()*cores-busy)
}

// trainOne submits a job at its time, waits for its end and reads its record.
func (m *measurement) trainOne(ctx context.Context, t trainee, hcl string, start time.Time) (metrics.Job, error) {
	out := metrics.Job{ID: t.Name, Kind: t.Model}
	done, err := m.run(ctx, start.Add(t.At), hcl, t.Name, nil)
	if err != nil {
		return out, err
	}
	out.Moves = done.moves
	since := func(at time.Time) *float64 { s := round(at.Sub(start).Seconds()); return &s }
	out.ArriveS, out.StartS, out.EndS = *since(done.submitted), since(done.started), since(done.finished)
	curve, err := t.curve(ctx, done, t.Name)
	if err != nil {
		return out, err
	}
	for part, moment := range map[float64]**float64{0.5: &out.Quality50S, 0.9: &out.Quality90S, 0.95: &out.Quality95S} {
		if at := curve.Quality(part); at != nil {
			// Nomad's and the trainer's start differ slightly.
			s := min(*since(done.started.Add(time.Duration(*at * float64(time.Second)))), *out.EndS)
			*moment = &s
		}
	}
	rows, err := status.ReadHistory(m.file(done.alloc.ID, filepath.Join("alloc", status.Dir, t.Name+".csv")))
	if err != nil {
		return out, err
	}
	if len(curve) > 0 {
		out.CPUS = round(curve[len(curve)-1].CPU)
	}
	for _, r := range rows {
		out.CPUS, out.ThrottledS = round(max(out.CPUS, r.CPUSeconds)), round(max(out.ThrottledS, r.Throttled))
	}
	return out, nil
}

// curve returns the trainer's record; times count from the task's start.
func (m *measurement) curve(_ context.Context, done trained, _ string) (mix.Curve, error) {
	f, err := os.Open(m.file(done.alloc.ID, mix.CurveFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mix.ReadCurve(f, 0)
}
