// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package guard closes holes in Nomad's docker and exec drivers that later versions of Nomad closed;
// docs/operations.md lists them. Each type decorates a driver and checks a task right before the
// driver makes its container. What a driver of Nomad 2.0.4 or later, which is recognised by its option
// allowed_modes, does as well is left to it.
package guard

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/drivers/exec"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Docker guards Nomad's docker driver.
type Docker struct {
	*docker.Driver
	modes     *allowedModes // nil: any, or checked by the driver
	logs      bool          // the driver mounts the logs read-only
	hostPaths bool          // volumes.enabled
}

// NewDocker returns Nomad's docker driver, guarded; it ends with ctx.
func NewDocker(ctx context.Context, logger hclog.Logger) *Docker {
	return &Docker{Driver: docker.NewDockerDriver(ctx, logger).(*docker.Driver)}
}

// ConfigSchema adds allowed_modes, unless the driver has it.
func (d *Docker) ConfigSchema() (*hclspec.Spec, error) {
	spec, err := d.Driver.ConfigSchema()
	if err != nil {
		return nil, err
	}
	return withModes(spec), nil
}

// SetConfig reads the options that the checks need; the driver ignores those it does not know.
func (d *Docker) SetConfig(c *base.Config) error {
	var cfg struct {
		AllowPrivileged bool         `codec:"allow_privileged"`
		AllowedModes    allowedModes `codec:"allowed_modes"`
		Volumes         struct {
			Enabled bool `codec:"enabled"`
		} `codec:"volumes"`
	}
	if len(c.PluginConfig) > 0 {
		if err := base.MsgPackDecode(c.PluginConfig, &cfg); err != nil {
			return fmt.Errorf("decoding the docker config: %w", err)
		}
	}
	spec, err := d.Driver.ConfigSchema()
	if err != nil {
		return err
	}
	d.hostPaths, d.logs, d.modes = cfg.Volumes.Enabled, hasModes(spec), nil
	if !cfg.AllowPrivileged && !hasModes(spec) {
		d.modes = &cfg.AllowedModes
	}
	if err := cfg.AllowedModes.validate(); err != nil {
		return err
	}
	return d.Driver.SetConfig(c)
}

func (d *Docker) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	var task dockerTask
	if err := cfg.DecodeDriverConfig(&task); err != nil {
		return nil, nil, fmt.Errorf("decoding the docker task config: %w", err)
	}
	if d.modes != nil {
		if err := d.modes.check(&task.TaskConfig); err != nil {
			return nil, nil, fmt.Errorf("ebbtide: %w", err)
		}
	}
	guarded, err := withLogsReadOnly(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("ebbtide: %w", err)
	}
	if d.logs {
		guarded.Mounts = cfg.Mounts
	}
	if !d.hostPaths {
		release, err := pinMounts(guarded, &task)
		if err != nil {
			return nil, nil, fmt.Errorf("ebbtide: %w", err)
		}
		defer release()
	}
	handle, network, err := d.Driver.StartTask(guarded)
	if handle != nil {
		handle.Config = cfg // without paths that exist only during the start
	}
	return handle, network, err
}

// dockerTask keeps Ebbtide's block when it is encoded again.
type dockerTask struct {
	docker.TaskConfig
	Progress map[string]any `codec:"progress"`
}

// Exec guards Nomad's exec driver.
type Exec struct{ *exec.Driver }

// NewExec returns Nomad's exec driver, guarded; it ends with ctx.
func NewExec(ctx context.Context, logger hclog.Logger) *Exec {
	return &Exec{exec.NewExecDriver(ctx, logger).(*exec.Driver)}
}

func (d *Exec) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	guarded, err := withLogsReadOnly(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("ebbtide: %w", err)
	}
	handle, network, err := d.Driver.StartTask(guarded)
	if handle != nil {
		handle.Config = cfg
	}
	return handle, network, err
}
