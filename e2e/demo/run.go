// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/e2e/demo/view"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// follower is the state of a running job.
type follower struct {
	job  mix.Job
	task mix.Task
	id   string // Nomad job ID

	mu    sync.Mutex
	phase view.State
	alloc string // allocation ID
	out   result.Job
	err   error

	// Owned by the drawing goroutine.
	seen [3]status.Status // last readings, newest first
}

// run submits the jobs, shows the table until they end, and reads their records.
func (d *demo) run(ctx context.Context, policy string, seed uint64) (result.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, runDeadline)
	defer cancel()
	r := result.Run{Policy: policy, Start: time.Now()}
	var all []*follower
	var about []string
	for _, j := range d.jobs(seed) {
		task := j.Task(j.Steps(d.speeds[j.Model], pool()), pool(), seed)
		task.CPU = mix.NodeMHz / jobCount
		f := &follower{job: j, task: task, id: fmt.Sprintf("%s-%s-%d", j.Name, policy, seed)}
		f.out = result.Job{Name: j.Name, Model: j.Model, Args: task.Args}
		all = append(all, f)
		about = append(about, fmt.Sprintf("%s %.0f s, at %.0f s", j.Name, j.Pool, j.At.Seconds()))
	}
	d.screen.Logf("%d jobs, seed %d, each with the time it would take alone, and when it is submitted: %s.", len(all), seed, strings.Join(about, "; "))

	ended := make(chan struct{}, len(all))
	for _, f := range all {
		go func() {
			err := d.follow(ctx, f, r.Start)
			f.mu.Lock()
			f.err, f.phase = err, view.Done
			f.mu.Unlock()
			if err != nil {
				cancel()
			}
			ended <- struct{}{}
		}()
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for left := len(all); left > 0; {
		select {
		case <-ended:
			left--
		case <-tick.C:
		}
		d.screen.Show(d.frame(policy, all, r.Start))
	}
	d.screen.Settle()

	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return r, fmt.Errorf("the jobs have not ended within %v: this machine is slow, or other programs use its CPU; try shorter jobs: go run ./e2e/demo -scale 0.3", runDeadline)
	}
	var errs []error
	for _, f := range all {
		// Report the cause, not the cancellations it led to.
		if f.err != nil && (ctx.Err() == nil || !errors.Is(f.err, context.Canceled)) {
			errs = append(errs, f.err)
		}
	}
	if len(errs) > 0 {
		return r, errors.Join(errs...)
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	for _, f := range all {
		if err := d.collect(f, r.Start); err != nil {
			return r, fmt.Errorf("reading what job %s left: %w", f.id, err)
		}
		r.Jobs = append(r.Jobs, f.out)
	}
	d.screen.Logf("All jobs are done after %.0f s.", r.Makespan())
	return r, nil
}

// follow submits a job at its time and waits for its end.
func (d *demo) follow(ctx context.Context, f *follower, start time.Time) error {
	select {
	case <-time.After(time.Until(start.Add(f.job.At))):
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	f.phase = view.Starting
	f.out.Submitted = time.Since(start).Seconds()
	f.mu.Unlock()
	if _, err := d.agent.Run(ctx, mix.Jobspec(f.id, false, f.task)); err != nil {
		return err
	}
	alloc, err := d.agent.WaitAlloc(ctx, f.id, "started", func(a *api.Allocation) bool {
		ts := a.TaskStates[f.job.Name]
		return harness.Terminal(a) || ts != nil && !ts.StartedAt.IsZero()
	})
	if err != nil {
		return fmt.Errorf("starting job %s: %w%s", f.id, err, d.agentLog())
	}
	f.mu.Lock()
	f.phase, f.alloc = view.Running, alloc.ID
	f.mu.Unlock()
	alloc, err = d.agent.WaitAllocID(ctx, alloc.ID, "done", harness.Terminal)
	if err != nil {
		return err
	}
	ts := alloc.TaskStates[f.job.Name]
	if alloc.ClientStatus != api.AllocClientStatusComplete || ts == nil || ts.Failed {
		return d.whyFailed(ctx, f, alloc)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out.Started = ts.StartedAt.Sub(start).Seconds()
	f.out.Finished = ts.FinishedAt.Sub(start).Seconds()
	return nil
}

// whyFailed collects Nomad's and the task's messages about a failed job.
func (d *demo) whyFailed(ctx context.Context, f *follower, alloc *api.Allocation) error {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s failed: %s", f.id, alloc.ClientDescription)
	for _, e := range harness.Events(alloc, f.job.Name) {
		b.WriteString("\n  " + e)
	}
	if out, err := d.agent.Logs(ctx, alloc, f.job.Name, "stderr"); err == nil && strings.TrimSpace(out) != "" {
		lines := strings.Split(strings.TrimSpace(out), "\n")
		b.WriteString("\n  its stderr ends with: " + strings.Join(lines[max(0, len(lines)-5):], "\n    "))
	}
	return errors.New(b.String())
}

func (d *demo) file(alloc, name string) string { return filepath.Join(d.agent.AllocDir(alloc), name) }

// frame reads the status files for display.
func (d *demo) frame(policy string, all []*follower, start time.Time) view.Frame {
	f := view.Frame{Policy: policy, Elapsed: time.Since(start), Cores: float64(pool()), Alpha: math.NaN()}
	for _, j := range all {
		j.mu.Lock()
		phase, alloc, out := j.phase, j.alloc, j.out
		j.mu.Unlock()
		nan := math.NaN()
		l := view.Line{Name: j.job.Name, State: phase, Wait: time.Until(start.Add(j.job.At)),
			Value: nan, Step: nan, Total: nan, Ahead: nan, Limit: nan, Use: nan}
		if phase == view.Done {
			l.Took = time.Duration((out.Finished - out.Submitted) * float64(time.Second))
		}
		if alloc != "" {
			if st, err := status.ReadStatus(d.file(alloc, filepath.Join("alloc", status.Dir, j.job.Name+".json"))); err == nil {
				j.see(st)
				l.Category, l.Metric = st.Category, st.Metric
				l.Value, l.Step, l.Total = float64(st.Value), float64(st.Step), float64(st.Total)
				if policy != none {
					l.Ahead, l.Limit = float64(st.Fair.AheadCPUS), float64(st.Limit.Fraction)
				} else {
					l.Category = ""
				}
				l.Use = j.use()
				if phase == view.Running {
					f.Alpha = float64(st.Node.Alpha)
				}
			}
		}
		f.Jobs = append(f.Jobs, l)
	}
	return f
}

// see adds a new reading.
func (f *follower) see(st status.Status) {
	if !st.Updated.Equal(f.seen[0].Updated) {
		f.seen = [3]status.Status{st, f.seen[0], f.seen[1]}
	}
}

// use returns the fraction of the pool used over the last two to three seconds, by the kernel.
func (f *follower) use() float64 {
	last := f.seen[0]
	for _, before := range []status.Status{f.seen[2], f.seen[1]} {
		dt := last.Updated.Sub(before.Updated).Seconds()
		if !before.Updated.IsZero() && dt > 0 && before.CPUSeconds.Known() && last.CPUSeconds.Known() {
			return max(0, float64(last.CPUSeconds-before.CPUSeconds)) / (dt * float64(pool()))
		}
	}
	return math.NaN()
}

// collect reads a finished job's curve and history.
func (d *demo) collect(f *follower, start time.Time) error {
	curve, err := os.Open(d.file(f.alloc, mix.CurveFile))
	if err != nil {
		return err
	}
	defer curve.Close()
	if f.out.Curve, err = mix.ReadCurve(curve, f.out.Started); err != nil {
		return err
	}
	rows, err := status.ReadHistory(d.file(f.alloc, filepath.Join("alloc", status.Dir, f.job.Name+".csv")))
	if err != nil {
		return err
	}
	f.out.Samples = result.Samples(rows, start)
	return nil
}
