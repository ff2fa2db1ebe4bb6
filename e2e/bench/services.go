// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

const upDeadline = 2 * time.Minute

// services runs DQoES's ten services. A seed's first run has no limits: its first half determines
// the objectives.
func (m *measurement) services(ctx context.Context, s step) (result.Run, error) {
	first := s.free
	var wanted []float64
	if !first {
		// That run may be from an earlier command.
		i := slices.IndexFunc(m.e.Runs, func(r result.Run) bool { return r.Variant == result.None && r.Seed == s.seed })
		if i < 0 {
			return result.Run{}, errors.New("it is not known what equal shares are")
		}
		wanted = objectivesOf(s.kase, m.e.Runs[i].Equal())
	}
	var tasks []result.Task
	for i := range objectives {
		t := result.Task{Name: fmt.Sprintf("service%d", i+1), Kind: result.Service, Acceptable: result.Unknown(), Objective: result.Unknown()}
		if !first {
			t.Objective = result.Number(wanted[i])
		}
		tasks = append(tasks, t)
	}
	w := newWatcher(m.node, s, tasks)
	var jobs []string
	for _, t := range tasks {
		jobs = append(jobs, id(t.Name, s))
	}
	err := m.serve(ctx, w, jobs, func(i int) string {
		if first {
			return serviceJob(jobs[i], s.seed, m.e.Calibration.Work, 0)
		}
		return serviceJob(jobs[i], s.seed, m.e.Calibration.Work, wanted[i])
	})
	if err == nil {
		err = w.restart()
	}
	if err == nil {
		err = w.watch(ctx, m.length, nil)
	}
	if err = errors.Join(err, m.stop(ctx, jobs)); err != nil {
		return *w.run, err
	}
	if first {
		equal := w.run.Equal()
		m.logf("Equal shares answer after %.1f ms; alone it was %.1f ms.", 1000*equal, 1000*m.e.Calibration.Alone)
		for i, o := range objectivesOf(s.kase, equal) {
			w.run.Tasks[i].Objective = result.Number(o)
		}
	}
	return *w.run, nil
}

// id returns a valid job ID.
func id(name string, s step) string {
	parts := []string{name, s.name, s.mode, s.kase, fmt.Sprint(s.seed)}
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.NewReplacer(" ", "-", ",", "").Replace(strings.Join(out, "-"))
}

// serve starts services and waits for their first responses.
func (m *measurement) serve(ctx context.Context, w *watcher, jobs []string, hcl func(i int) string) error {
	ctx, cancel := context.WithTimeout(ctx, upDeadline)
	defer cancel()
	errs := make(chan error, len(jobs))
	for i := range jobs {
		w.change(i, func(t *result.Task) { t.Submitted = w.since(time.Now()) })
		go func() {
			_, alloc, err := m.start(ctx, hcl(i), serviceName)
			if err == nil {
				w.follow(i, alloc.ID, serviceName, alloc.TaskStates[serviceName].StartedAt)
			}
			errs <- err
		}()
	}
	var all []error
	for range jobs {
		all = append(all, <-errs)
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	up := make([]bool, len(jobs))
	return harness.Poll(ctx, "all services answer", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range jobs {
			answers, _, err := w.tasks[i].records.read()
			if err != nil {
				return err
			}
			up[i] = up[i] || answers > 0
		}
		for i := range jobs {
			if !up[i] {
				return fmt.Errorf("%s has not", jobs[i])
			}
		}
		return nil
	})
}
