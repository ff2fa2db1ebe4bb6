// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package engine knows the Nomad drivers that Ebbtide decorates: how an instance
// is made, how a task is prepared for it, and how the cgroup of a running task is
// found and limited.
package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/drivers/exec"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/limits"
)

// Names of the engines (config.Engines lists them).
const (
	Docker = config.EngineDocker
	Exec   = config.EngineExec
)

// Errors that a caller decides on.
var (
	// ErrGone says that the task's process or container no longer exists.
	ErrGone = errors.New("task is gone")
	// ErrUnreachable says that the engine's daemon did not answer in time.
	ErrUnreachable = errors.New("engine is unreachable")
)

// State is what an engine knows about a task's process, whatever Nomad's driver
// thinks of it.
type State struct {
	Running   bool
	ExitCode  int
	OOMKilled bool
	Removing  bool // it is being removed by the daemon
	PID       int  // on the host; 0 when not running
}

// Engine is one decorated driver.
type Engine interface {
	// Name is the decorated Nomad driver's name.
	Name() string

	// Prepare changes a task's configuration just before the decorated driver
	// starts it, and sees to it that no earlier copy of the task still runs.
	// The returned note, if any, is worth an event.
	Prepare(ctx context.Context, cfg *drivers.TaskConfig) (note string, err error)

	// Inspect asks for the state of a task's process. It returns ErrGone when
	// the task was removed and ErrUnreachable when the daemon does not answer.
	Inspect(ctx context.Context, handle *drivers.TaskHandle) (State, error)

	// CgroupName is what the task's cgroup is named after.
	CgroupName(handle *drivers.TaskHandle) (string, error)

	// Apply sets the limits of a running task.
	Apply(ctx context.Context, handle *drivers.TaskHandle, cg *limits.Cgroup, want limits.Limits) error

	// Reconnects says whether the decorated driver waits for a task's end on a
	// connection to a daemon, which can be lost while the task runs on.
	Reconnects() bool

	// OutlivesDaemon says whether tasks run on while the daemon is down.
	OutlivesDaemon(ctx context.Context) bool
}

// NewDriver makes an instance of a decorated Nomad driver.
func NewDriver(ctx context.Context, name string, logger hclog.Logger) (drivers.DriverPlugin, error) {
	switch name {
	case Docker:
		return docker.NewDockerDriver(ctx, logger), nil
	case Exec:
		return exec.NewExecDriver(ctx, logger), nil
	}
	return nil, fmt.Errorf("engine: must be one of %s, got %q", strings.Join(config.Engines(), ", "), name)
}
