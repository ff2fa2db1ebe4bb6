// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
)

// The calls in this file go to the decorated driver unchanged, but for exec with
// streams under docker, the signals of a move, and a frozen task's end.

// StopTask stops a task. One that is frozen to be moved has saved what it is to save,
// and ends at once.
func (d *Driver) StopTask(taskID string, timeout time.Duration, signal string) error {
	t, err := d.task(taskID)
	if err != nil {
		return err
	}
	t.stopping.Store(true)
	d.endFrozen(t)
	return t.instance().StopTask(taskID, timeout, signal)
}

// DestroyTask forgets a task and removes what is left of it.
func (d *Driver) DestroyTask(taskID string, force bool) error {
	t, err := d.task(taskID)
	if err != nil {
		return err
	}
	t.stopping.Store(true)
	d.endFrozen(t)
	if err := t.instance().DestroyTask(taskID, force); err != nil {
		return err
	}
	d.disown(t.identity)
	d.forget(t)
	return nil
}

// InspectTask returns a task's status.
func (d *Driver) InspectTask(taskID string) (*drivers.TaskStatus, error) {
	t, err := d.task(taskID)
	if err != nil {
		return nil, err
	}
	return t.instance().InspectTask(taskID)
}

// TaskStats streams a task's resource usage.
func (d *Driver) TaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	t, err := d.task(taskID)
	if err != nil {
		return nil, err
	}
	return t.instance().TaskStats(ctx, taskID, interval)
}

// TaskEvents streams the decorated driver's events and ours.
func (d *Driver) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	return d.events.TaskEvents(ctx)
}

// SignalTask sends a signal to a task; Ebbtide's own are for us.
func (d *Driver) SignalTask(taskID string, signal string) error {
	t, err := d.task(taskID)
	if err != nil {
		return err
	}
	if run, ok := strings.CutPrefix(signal, history.Signal+" "); ok {
		return d.tellRun(t, run)
	}
	switch signal {
	case SignalCheckpoint:
		return d.prepareMove(t)
	case SignalFreeze:
		return d.freezeBriefly(t)
	case SignalRenew:
		return d.renewFreeze(t)
	case SignalRelease:
		d.releaseMove(t, "the move was called off")
		return nil
	}
	return t.instance().SignalTask(taskID, signal)
}

// ExecTask runs a command in a task, for script checks.
func (d *Driver) ExecTask(taskID string, cmd []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	t, err := d.task(taskID)
	if err != nil {
		return nil, err
	}
	return t.instance().ExecTask(taskID, cmd, timeout)
}

// ExecTaskStreamingRaw runs a command in a task with its streams connected. Nomad
// prefers this form to ExecTaskStreaming, so both engines are served by it. Under
// docker it is ours, because the decorated driver's loses output.
func (d *Driver) ExecTaskStreamingRaw(ctx context.Context, taskID string, command []string, tty bool, stream drivers.ExecTaskStream) error {
	t, err := d.task(taskID)
	if err != nil {
		return err
	}
	if e, ok := t.setup.engine.(*engine.DockerEngine); ok {
		return execStreaming(ctx, command, tty, stream, func(opts *drivers.ExecOptions) (*drivers.ExitResult, error) {
			return e.Exec(ctx, t.handle, opts)
		})
	}
	if inner, ok := t.instance().(drivers.ExecTaskStreamingRawDriver); ok {
		return inner.ExecTaskStreamingRaw(ctx, taskID, command, tty, stream)
	}
	return fmt.Errorf("the %s driver does not support exec", t.setup.Engine)
}

// execStreaming adapts the options form of exec to the raw stream, much as Nomad's
// own plugin server does for a driver that has only the former.
func execStreaming(ctx context.Context, command []string, tty bool, stream drivers.ExecTaskStream, exec func(*drivers.ExecOptions) (*drivers.ExitResult, error)) error {
	opts, errCh := drivers.StreamToExecOptions(ctx, command, tty, stream)
	result, err := exec(opts)
	_ = opts.Stdout.Close()
	_ = opts.Stderr.Close()
	if err != nil {
		return err
	}
	for {
		select {
		case err = <-errCh:
		case <-ctx.Done():
			err = fmt.Errorf("exec timed out: %w", ctx.Err())
		}
		// The command has ended and wants no more input. Its output goes on.
		if !errors.Is(err, io.ErrClosedPipe) {
			break
		}
	}
	if err != nil {
		return err
	}
	return stream.Send(drivers.NewExecStreamingResponseExit(result.ExitCode))
}

// CreateNetwork makes an allocation's network namespace where the decorated
// driver does that.
func (d *Driver) CreateNetwork(allocID string, req *drivers.NetworkCreateRequest) (*drivers.NetworkIsolationSpec, bool, error) {
	nm, err := d.networkManager()
	if err != nil {
		return nil, false, err
	}
	return nm.CreateNetwork(allocID, req)
}

// DestroyNetwork removes an allocation's network namespace.
func (d *Driver) DestroyNetwork(allocID string, spec *drivers.NetworkIsolationSpec) error {
	nm, err := d.networkManager()
	if err != nil {
		return err
	}
	return nm.DestroyNetwork(allocID, spec)
}

// networkManager returns the decorated driver as one that makes networks.
func (d *Driver) networkManager() (drivers.DriverNetworkManager, error) {
	s := d.setup.Load()
	if s == nil {
		return nil, errNotConfigured
	}
	if nm, ok := s.primary.(drivers.DriverNetworkManager); ok {
		return nm, nil
	}
	return nil, fmt.Errorf("the %s driver does not create networks", s.Engine)
}
