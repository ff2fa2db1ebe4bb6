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

const trainingDeadline = 10 * time.Minute

// trainings runs TRADL's five jobs.
func (m *measurement) trainings(ctx context.Context, s step) (result.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, trainingDeadline)
	defer cancel()
	known := m.lengths
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
				cancel()
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

// trained is a successful job.
type trained struct {
	alloc                        *api.Allocation
	submitted, started, finished time.Time
	moves                        int
}

// run submits a one-task job at its time and waits for its end. started, if not nil, is called
// at the task's start.
func (n *node) run(ctx context.Context, at time.Time, hcl, task string, started func(*api.Allocation)) (trained, error) {
	var done trained
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
		return done, ctx.Err()
	}
	done.submitted = time.Now()
	_, alloc, err := n.start(ctx, hcl, task)
	if err != nil {
		return done, err
	}
	if started != nil {
		started(alloc)
	}
	for next := alloc.ID; ; {
		if done.alloc, err = n.agent.WaitAllocID(ctx, next, "done", harness.Terminal); err != nil {
			return done, err
		}
		if done.started.IsZero() {
			done.started = alloc.TaskStates[task].StartedAt
		}
		stubs, err := n.agent.Allocs(ctx, alloc.JobID)
		if err != nil {
			return done, err
		}
		if len(stubs) == 0 || stubs[0].ID == next {
			break
		}
		next = stubs[0].ID // moved by the shim
		done.moves++
	}
	ts := done.alloc.TaskStates[task]
	if done.alloc.ClientStatus != api.AllocClientStatusComplete || ts == nil || ts.Failed {
		return done, fmt.Errorf("it failed: %s: %s", done.alloc.ClientDescription, strings.Join(harness.Events(done.alloc, task), "; "))
	}
	done.finished = ts.FinishedAt
	return done, nil
}

// training runs one job and reads its record.
func (m *measurement) training(ctx context.Context, w *watcher, i int, at time.Duration, hcl string) error {
	name := w.run.Tasks[i].Name
	done, err := m.run(ctx, w.start.Add(at), hcl, name, func(a *api.Allocation) { w.follow(i, a.ID, name, a.TaskStates[name].StartedAt) })
	if err != nil {
		return err
	}
	alloc := done.alloc
	f, err := os.Open(m.file(alloc.ID, mix.CurveFile))
	if err != nil {
		return err
	}
	defer f.Close()
	curve, err := mix.ReadCurve(f, float64(w.since(done.started)))
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
		t.Submitted, t.Finished = w.since(done.submitted), w.since(done.finished)
		t.AcceptableAt = result.Number(curve.Reached(float64(t.Acceptable)))
		t.ObjectiveAt = result.Number(curve.Reached(float64(t.Objective)))
		t.AcceptableMark, t.ObjectiveMark = mark("acceptable"), mark("objective")
	})
	return nil
}
