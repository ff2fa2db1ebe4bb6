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

// Actions at a task's targets (TRADL).
//
// At the acceptable target the job may request a signal, to save its best parameters. At the
// objective the task is stopped and has succeeded: Nomad gets exit code 0, whatever the process
// returns, so the task is complete and neither restarted nor rescheduled. This order survives the
// failure of any process:
//
//  1. The target is recorded where the task cannot write.
//  2. The task is stopped, and killed after its grace period.
//  3. Because of the record, exit code 0 is reported.
//
// A plugin or agent restarted between 1 and 3 continues at 2. If the process has ended by then and
// Nomad restarts the task, the driver reports success without starting it.

// targetReached is called once per target, outside the control loop.
func (d *Driver) targetReached(t *task, act options.Actions, at target.Reached) {
	cfg := t.handle.Config
	log := d.logger.With("task", cfg.Name, "alloc_id", cfg.AllocID)
	err := private.Update(cfg.AllocDir, cfg.Name, func(r *private.Record) {
		if at.State == policy.Objective {
			r.Objective = &at
		} else {
			r.Run, r.Acceptable = cfg.ID, &at
		}
	})
	if err != nil {
		// Lost only if the plugin restarts before the task ends.
		log.Error("cannot record the reached target; acting on it nevertheless", "error", err)
	}
	if at.State == policy.Objective {
		d.finish(t, act)
		return
	}
	if act.Signal == "" {
		return
	}
	if err := t.instance().SignalTask(cfg.ID, act.Signal); err != nil {
		log.Warn("cannot send the task the signal of its acceptable target", "signal", act.Signal, "error", err)
		d.say(t, "signal-failed", fmt.Sprintf("cannot send %s at the acceptable target: %v", act.Signal, err), nil)
	}
}

// finish stops a task that has reached its objective.
func (d *Driver) finish(t *task, act options.Actions) {
	t.succeeded.Store(true)
	d.releaseMove(t, "it has reached its objective and will not be moved")
	d.stopUntilSettled(t, act.Grace, act.StopSignal)
}

// stopUntilSettled stops a task. It retries, since Docker may be unavailable.
func (d *Driver) stopUntilSettled(t *task, grace time.Duration, signal string) {
	cfg := t.handle.Config
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		err := t.instance().StopTask(cfg.ID, grace, signal)
		if err == nil {
			return
		}
		d.logger.Warn("cannot stop the task, which is to end; trying again",
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

func (d *Driver) resumeTargets(t *task, opts *options.Task) policy.TargetState {
	cfg := t.handle.Config
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	switch {
	case err != nil:
		d.logger.Warn("cannot read the record of the task's targets", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	case rec.Objective != nil:
		t.succeeded.Store(true) // before WaitTask returns its result
		go d.finish(t, opts.Act)
		return policy.Objective
	case rec.Acceptable != nil && rec.Run == cfg.ID:
		return policy.Acceptable
	}
	return policy.InTraining
}

// succeeded returns a handle for a task that must not start because its allocation has reached the
// objective, or is suspended; nil otherwise.
func (d *Driver) succeeded(s *setup, cfg *drivers.TaskConfig) *drivers.TaskHandle {
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err != nil || rec.Objective == nil && !rec.Suspended {
		return nil
	}
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config = cfg
	handle.State = drivers.TaskStateRunning
	t := d.track(s, handle, finished{})
	if rec.Suspended {
		t.suspended.Store(true)
		return handle
	}
	t.succeeded.Store(true)
	d.say(t, "already-complete", fmt.Sprintf("not restarted: it has reached its objective, %s = %.6g, at %s",
		rec.Objective.Metric, rec.Objective.Value, rec.Objective.Time.UTC().Format(time.RFC3339)), nil)
	return handle
}

const handleVersion = 1

// finished replaces the decorated driver for succeeded tasks that have ended.
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
