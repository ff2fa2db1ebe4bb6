// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// trainingDeadline is for a run of trainings. A healthy one takes about a minute.
const trainingDeadline = 10 * time.Minute

// trainings runs the five jobs of TRADL's experiment.
func (m *measurement) trainings(ctx context.Context, s step) (result.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, trainingDeadline)
	defer cancel()
	known := m.lengthsOf[s.seed]
	var tasks []result.Task
	for i, c := range courses(m.scale) {
		l := known[i]
		tasks = append(tasks, result.Task{
			Name: c.name, Kind: result.Training, About: c.model, Steps: l.Steps,
			Acceptable: result.Number(l.Acceptable), Objective: result.Number(l.Objective),
		})
	}
	w := newWatcher(m.node, s, tasks)
	at := submissions(len(tasks), s.seed, m.scale)

	jobs := make([]string, len(tasks))
	for i := range tasks {
		jobs[i] = id(tasks[i].Name, s)
	}
	var wait sync.WaitGroup
	errs := make([]error, len(tasks))
	for i, l := range known {
		wait.Go(func() {
			hcl := trainingJob(jobs[i], tasks[i].Name, l.Model, l.Steps, m.threads, s.seed, l.Acceptable, l.Objective)
			if s.name == result.NoTargets {
				hcl = trainingJob(jobs[i], tasks[i].Name, l.Model, l.Steps, m.threads, s.seed, 0, 0)
			}
			if errs[i] = m.training(ctx, w, i, at[i], hcl); errs[i] != nil {
				cancel() // the others need not wait
			}
		})
	}
	done := make(chan struct{})
	go func() { wait.Wait(); close(done) }()
	err := w.watch(ctx, 0, done)
	<-done
	for i, jobErr := range errs {
		if jobErr != nil && !errors.Is(jobErr, context.Canceled) {
			err = fmt.Errorf("%s: %w", jobs[i], jobErr)
		}
	}
	if err != nil {
		return *w.run, err
	}
	return *w.run, m.stop(ctx, jobs)
}

// training submits one job at its time, waits for its end and reads what it left.
func (m *measurement) training(ctx context.Context, w *watcher, i int, at time.Duration, hcl string) error {
	select {
	case <-time.After(time.Until(w.start.Add(at))):
	case <-ctx.Done():
		return ctx.Err()
	}
	w.change(i, func(t *result.Task) { t.Submitted = w.since(time.Now()) })
	name := w.run.Tasks[i].Name
	_, alloc, err := m.start(ctx, hcl, name)
	if err != nil {
		return err
	}
	w.follow(i, alloc.ID, name, alloc.TaskStates[name].StartedAt)
	if alloc, err = m.agent.WaitAllocID(ctx, alloc.ID, "done", harness.Terminal); err != nil {
		return err
	}
	ts := alloc.TaskStates[name]
	if alloc.ClientStatus != api.AllocClientStatusComplete || ts == nil || ts.Failed {
		return fmt.Errorf("it failed: %s: %s", alloc.ClientDescription, strings.Join(harness.Events(alloc, name), "; "))
	}
	f, err := os.Open(m.file(alloc.ID, mix.CurveFile))
	if err != nil {
		return err
	}
	defer f.Close()
	curve, err := mix.ReadCurve(f, float64(w.since(ts.StartedAt)))
	if err != nil {
		return err
	}
	mark := func(state string) result.Number {
		data, err := os.ReadFile(m.file(alloc.ID, filepath.Join("alloc", status.Dir, name+"."+state)))
		var marker struct {
			Time time.Time `json:"time"`
		}
		if err != nil || json.Unmarshal(data, &marker) != nil {
			return result.Unknown()
		}
		return w.since(marker.Time)
	}
	w.change(i, func(t *result.Task) {
		t.Finished = w.since(ts.FinishedAt)
		t.AcceptableAt = result.Number(curve.Reached(float64(t.Acceptable)))
		t.ObjectiveAt = result.Number(curve.Reached(float64(t.Objective)))
		t.AcceptableMark, t.ObjectiveMark = mark("acceptable"), mark("objective")
	})
	return nil
}
