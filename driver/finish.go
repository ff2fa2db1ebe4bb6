// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/target"
)

// What happens when a task reaches a target (TRADL).
//
// At the acceptable target the job may want a signal, to save its best
// parameters. At the objective the task is stopped and has succeeded: towards
// Nomad it exits with 0, whatever its process returns, so that it is complete
// and neither restarted nor rescheduled. The order makes that hold whichever process
// dies, at any time:
//
//  1. The target is recorded, where the task cannot write.
//  2. The task is asked to stop, and killed after its grace.
//  3. Its end is reported with exit code 0, because of the record.
//
// A plugin or an agent that comes back between 1 and 3 goes on at 2. If the task's
// process has ended by then and Nomad starts the task again, the driver does not: it
// has succeeded.

// targetReached acts on a target. It is called once for each, outside the control loop.
func (d *Driver) targetReached(t *task, act options.Actions, at target.Reached) {
	cfg := t.handle.Config
	log := d.logger.With("task", cfg.Name, "alloc_id", cfg.AllocID)
	t.records.Lock()
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err != nil {
		log.Warn("what was known of the task's targets is lost", "error", err)
	}
	if at.State == policy.Objective {
		rec.Objective = &at
	} else {
		rec.Run, rec.Acceptable = cfg.ID, &at
	}
	if err := rec.Save(cfg.AllocDir, cfg.Name); err != nil {
		// Only a plugin that is restarted before the end will not know.
		log.Error("the target is acted on, but cannot be recorded", "error", err)
	}
	t.records.Unlock()
	if at.State == policy.Objective {
		d.finish(t, act)
		return
	}
	if act.Signal == "" {
		return
	}
	if err := t.instance().SignalTask(cfg.ID, act.Signal); err != nil {
		log.Warn("cannot send the task the signal of its acceptable target", "signal", act.Signal, "error", err)
		d.say(t, "signal-failed", fmt.Sprintf("%s could not be sent at the acceptable target: %v", act.Signal, err), nil)
	}
}

// finish stops a task that has succeeded. It retries on errors: Docker may be down for
// a while.
func (d *Driver) finish(t *task, act options.Actions) {
	t.succeeded.Store(true)
	d.releaseMove(t, "it has reached its objective, and is not moved any more")
	cfg := t.handle.Config
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		err := t.instance().StopTask(cfg.ID, act.Grace, act.StopSignal)
		if err == nil {
			return
		}
		d.logger.Warn("cannot stop the task that has reached its objective; trying again",
			"task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
		select {
		case <-t.settled:
			return
		case <-d.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// resumeTargets returns the target that the task had reached before this process, and
// completes what was begun then.
func (d *Driver) resumeTargets(t *task, opts *options.Task) policy.TargetState {
	cfg := t.handle.Config
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	switch {
	case err != nil:
		d.logger.Warn("what was known of the task's targets is lost", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	case rec.Objective != nil:
		t.succeeded.Store(true) // before its result is asked for
		go d.finish(t, opts.Act)
		return policy.Objective
	case rec.Acceptable != nil && rec.Run == cfg.ID:
		return policy.Acceptable
	}
	return policy.InTraining
}

// succeeded returns a handle for a task that is not to be started, because its
// allocation has reached the objective before; nil for any other.
func (d *Driver) succeeded(s *setup, cfg *drivers.TaskConfig) *drivers.TaskHandle {
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err != nil || rec.Objective == nil {
		return nil
	}
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config = cfg
	handle.State = drivers.TaskStateRunning
	t := d.track(s, handle, finished{})
	t.succeeded.Store(true)
	d.say(t, "already-complete", fmt.Sprintf("not started again: it has reached its objective, %s = %.6g, at %s",
		rec.Objective.Metric, rec.Objective.Value, rec.Objective.Time.UTC().Format(time.RFC3339)), nil)
	return handle
}

// handleVersion is the version of a handle without a decorated driver's state.
const handleVersion = 1

// finished stands for the decorated driver of tasks that have succeeded and whose
// processes have ended.
type finished struct{ drivers.DriverPlugin }

func (finished) WaitTask(context.Context, string) (<-chan *drivers.ExitResult, error) {
	ch := make(chan *drivers.ExitResult, 1)
	ch <- &drivers.ExitResult{}
	return ch, nil
}

func (finished) RecoverTask(*drivers.TaskHandle) error        { return nil }
func (finished) StopTask(string, time.Duration, string) error { return nil }
func (finished) DestroyTask(string, bool) error               { return nil }
func (finished) SignalTask(string, string) error              { return drivers.ErrTaskNotFound }
func (finished) InspectTask(id string) (*drivers.TaskStatus, error) {
	return &drivers.TaskStatus{ID: id, State: drivers.TaskStateExited, ExitResult: &drivers.ExitResult{}}, nil
}

func (finished) TaskStats(context.Context, string, time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	return nil, drivers.ErrTaskNotFound
}

func (finished) ExecTask(string, []string, time.Duration) (*drivers.ExecTaskResult, error) {
	return nil, drivers.ErrTaskNotFound
}
