// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// mix runs two services and a silent task; later three endless training jobs join.
func (m *measurement) mix(ctx context.Context, s step) (result.Run, error) {
	var tasks []result.Task
	for i, times := range mixObjectives {
		tasks = append(tasks, result.Task{
			Name: fmt.Sprintf("service%d", i+1), Kind: result.Service, Acceptable: result.Unknown(), Objective: result.Number(times * m.e.Calibration.Alone),
		})
	}
	quiet := len(tasks)
	tasks = append(tasks, result.Task{Name: "quiet", Kind: result.Quiet, Acceptable: result.Unknown(), Objective: result.Unknown()})
	for _, model := range mixModels {
		tasks = append(tasks, result.Task{Name: model, Kind: result.Training, About: model, Acceptable: result.Unknown(), Objective: result.Unknown()})
	}
	w := newWatcher(m.node, s, tasks)
	var jobs []string
	for _, t := range tasks {
		jobs = append(jobs, id("mix-"+t.Name, s))
	}
	err := m.mixed(ctx, w, s, jobs, quiet)
	return *w.run, errors.Join(err, m.stop(ctx, jobs))
}

func (m *measurement) mixed(ctx context.Context, w *watcher, s step, jobs []string, quiet int) error {
	start := func(i int, hcl, task string) error {
		ctx, cancel := context.WithTimeout(ctx, upDeadline)
		defer cancel()
		w.change(i, func(t *result.Task) { t.Submitted = w.since(time.Now()) })
		_, alloc, err := m.start(ctx, hcl, task)
		if err == nil {
			w.follow(i, alloc.ID, task, alloc.TaskStates[task].StartedAt)
		}
		return err
	}
	if err := start(quiet, quietJob(jobs[quiet], s.seed), "quiet"); err != nil {
		return err
	}
	err := m.serve(ctx, w, jobs[:quiet], func(i int) string {
		return serviceJob(jobs[i], s.seed, m.e.Calibration.Work, float64(w.run.Tasks[i].Objective))
	})
	if err != nil {
		return err
	}
	if err := w.restart(); err != nil {
		return err
	}
	before := time.Duration(mixJoin * float64(m.length))
	watched := make(chan error, 1)
	done := make(chan struct{})
	go func() { watched <- w.watch(ctx, 0, done) }()
	select {
	case <-time.After(before):
	case <-ctx.Done():
	}
	errs := make(chan error, len(mixModels))
	for k, model := range mixModels {
		go func() {
			i := quiet + 1 + k
			errs <- start(i, trainingJob(jobs[i], model, model, 0, m.threads, s.seed, 0, 0), model)
		}()
	}
	for range mixModels {
		err = errors.Join(err, <-errs)
	}
	if err == nil {
		w.mu.Lock()
		w.run.Joined = w.since(time.Now())
		w.mu.Unlock()
		select {
		case <-time.After(m.length - before):
		case <-ctx.Done():
		}
	}
	close(done)
	return errors.Join(err, <-watched)
}
