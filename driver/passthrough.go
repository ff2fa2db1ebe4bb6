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

// These calls are forwarded to the decorated driver, except exec with streams under docker, the
// signals of a move, and the stop of a task with checkpoints.

// StopTask stops a task. It kills a frozen task, which has saved its state; others are asked to save
// first, once.
func (d *Driver) StopTask(taskID string, timeout time.Duration, signal string) error {
	t, err := d.task(taskID)
	if err != nil {
		return err
	}
	again := t.stopping.Swap(true)
	t.setup.controller.Stopping(taskID)
	if frozen := d.endFrozen(t); !frozen && !again && t.savesFirst(timeout, signal) {
		timeout = d.saveFirst(t, timeout)
	}
	return t.instance().StopTask(taskID, timeout, signal)
}

// DestroyTask stops tracking a task and removes its remains.
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
	d.removeIdentity(t.identity)
	d.forget(t)
	return nil
}

func (d *Driver) InspectTask(taskID string) (*drivers.TaskStatus, error) {
	t, err := d.task(taskID)
	if err != nil {
		return nil, err
	}
	return t.instance().InspectTask(taskID)
}

func (d *Driver) TaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	t, err := d.task(taskID)
	if err != nil {
		return nil, err
	}
	return t.instance().TaskStats(ctx, taskID, interval)
}

// TaskEvents streams the decorated driver's events and Ebbtide's.
func (d *Driver) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	return d.events.TaskEvents(ctx)
}

// SignalTask sends a signal to a task, or handles one of Ebbtide's own.
func (d *Driver) SignalTask(taskID string, signal string) error {
	t, err := d.task(taskID)
	if err != nil {
		return err
	}
	if run, ok := strings.CutPrefix(signal, history.Signal+" "); ok {
		return d.receiveRun(t, run)
	}
	if why, ok := strings.CutPrefix(signal, SignalSuspend); ok {
		return d.suspend(t, strings.TrimSpace(why))
	}
	switch signal {
	case SignalCheckpoint:
		return d.prepareMove(t)
	case SignalFreeze:
		return d.freezeBriefly(t)
	case SignalRenew:
		return d.renewFreeze(t)
	case SignalRelease:
		d.releaseMove(t, "the move was cancelled")
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

// ExecTaskStreamingRaw runs a command in a task with its streams. Nomad prefers it to
// ExecTaskStreaming, so it serves both engines. Under docker it is Ebbtide's own implementation,
// because the decorated driver's loses output.
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

// execStreaming adapts ExecOptions to the raw stream, as Nomad's plugin server does for a driver
// without raw streams.
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
		// The command has exited and reads no more input; output continues.
		if !errors.Is(err, io.ErrClosedPipe) {
			break
		}
	}
	if err != nil {
		return err
	}
	return stream.Send(drivers.NewExecStreamingResponseExit(result.ExitCode))
}

// CreateNetwork creates an allocation's network namespace if the decorated driver supports it.
func (d *Driver) CreateNetwork(allocID string, req *drivers.NetworkCreateRequest) (*drivers.NetworkIsolationSpec, bool, error) {
	nm, err := d.networkManager()
	if err != nil {
		return nil, false, err
	}
	return nm.CreateNetwork(allocID, req)
}

func (d *Driver) DestroyNetwork(allocID string, spec *drivers.NetworkIsolationSpec) error {
	nm, err := d.networkManager()
	if err != nil {
		return err
	}
	return nm.DestroyNetwork(allocID, spec)
}

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
