// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package engine is the interface to the Nomad drivers that Ebbtide decorates:
// instances, preparation of tasks, and their cgroups.
package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/engine/guard"
)

const (
	Docker = config.EngineDocker
	Exec   = config.EngineExec
)

var (
	// ErrGone means that the task's process or container no longer exists.
	ErrGone = errors.New("task is gone")
	// ErrUnreachable means that the engine's daemon did not respond in time.
	ErrUnreachable = errors.New("engine is unreachable")
)

// State is the state of a task's process as seen by the engine, which may differ from Nomad's
// driver.
type State struct {
	Running   bool
	ExitCode  int
	OOMKilled bool
	Removing  bool
	PID       int // on the host; 0 if not running
}

// Engine is a decorated driver.
type Engine interface {
	Name() string

	// Prepare modifies a task's configuration before the decorated driver starts it, and ends
	// earlier copies of the task. A non-empty note is sent as an event.
	Prepare(ctx context.Context, cfg *drivers.TaskConfig) (note string, err error)

	// Inspect returns the state of a task's process, ErrGone if the task was removed,
	// or ErrUnreachable.
	Inspect(ctx context.Context, handle *drivers.TaskHandle) (State, error)

	// CgroupName identifies the task's cgroup, see limits.FindFor.
	CgroupName(handle *drivers.TaskHandle) (string, error)

	// Reconnects reports whether the decorated driver waits for a task's end on a
	// connection to a daemon, which can break while the task runs.
	Reconnects() bool

	// OutlivesDaemon reports whether tasks keep running while the daemon is down.
	OutlivesDaemon(ctx context.Context) bool
}

func NewDriver(ctx context.Context, name string, logger hclog.Logger) (drivers.DriverPlugin, error) {
	switch name {
	case Docker:
		return guard.NewDocker(ctx, logger), nil
	case Exec:
		return guard.NewExec(ctx, logger), nil
	}
	return nil, fmt.Errorf("engine: must be one of %s, got %q", strings.Join(config.Engines(), ", "), name)
}
