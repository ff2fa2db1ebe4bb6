// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	containerapi "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

const (
	// LabelNode identifies the Nomad node that started a container of Ebbtide's, so Reap spares
	// stock containers and those of other clients of the same daemon.
	LabelNode = "io.ebbtide.node_id"

	// LabelAllocID is set by Nomad's docker driver on all its containers.
	LabelAllocID = "com.hashicorp.nomad.alloc_id"

	// labelTask names the task for docker ps.
	labelTask = "io.ebbtide.task"
)

// DockerEngine decorates Nomad's docker driver.
type DockerEngine struct {
	client  *client.Client
	timeout time.Duration
}

// NewDocker returns the engine of Nomad's docker driver. config is that driver's config
// (msgpack); timeout bounds every call to the daemon, which need not be up.
func NewDocker(config []byte, timeout time.Duration) (*DockerEngine, error) {
	var cfg docker.DriverConfig
	if err := base.MsgPackDecode(config, &cfg); err != nil {
		return nil, fmt.Errorf("decoding the docker config: %w", err)
	}
	opts := []client.Opt{client.FromEnv}
	if cfg.Endpoint != "" {
		opts = []client.Opt{client.WithHost(cfg.Endpoint)}
		if t := cfg.TLS; t.Cert+t.Key+t.CA != "" {
			opts = append(opts, client.WithTLSClientConfig(t.CA, t.Cert, t.Key))
		}
	}
	c, err := client.NewClientWithOpts(append(opts, client.WithAPIVersionNegotiation())...)
	if err != nil {
		return nil, fmt.Errorf("making a client for the Docker endpoint %q: %w", cfg.Endpoint, err)
	}
	return &DockerEngine{client: c, timeout: timeout}, nil
}

func (e *DockerEngine) Name() string { return Docker }

// Reconnects returns true: the docker driver waits on a request to the daemon.
func (e *DockerEngine) Reconnects() bool { return true }

// OutlivesDaemon reports whether Docker's live-restore is on.
func (e *DockerEngine) OutlivesDaemon(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	info, err := e.client.Info(ctx)
	return err == nil && info.LiveRestoreEnabled
}

type dockerState struct {
	ContainerID string
}

func ContainerID(handle *drivers.TaskHandle) (string, error) {
	var st dockerState
	if err := handle.GetDriverState(&st); err != nil {
		return "", fmt.Errorf("decoding the handle of task %q: %w", handle.Config.Name, err)
	}
	if st.ContainerID == "" {
		return "", fmt.Errorf("the handle of task %q names no container", handle.Config.Name)
	}
	return st.ContainerID, nil
}

// Prepare labels the container. It need not end earlier copies of the task: Nomad's driver finds
// the container by its name.
func (e *DockerEngine) Prepare(_ context.Context, cfg *drivers.TaskConfig) (string, error) {
	// Ebbtide's own block must survive the round trip: recovery reads the configuration
	// from the handle.
	var raw struct {
		docker.TaskConfig
		Progress map[string]any `codec:"progress"`
	}
	if err := cfg.DecodeDriverConfig(&raw); err != nil {
		return "", fmt.Errorf("decoding the docker task config: %w", err)
	}
	if err := checkMounts(cfg, &raw.TaskConfig); err != nil {
		return "", err
	}
	labels := hclutils.MapStrStr{LabelNode: cfg.NodeID, labelTask: cfg.Name}
	for k, v := range raw.Labels {
		labels[k] = v
	}
	raw.Labels = labels
	if err := cfg.EncodeConcreteDriverConfig(&raw); err != nil {
		return "", fmt.Errorf("encoding the docker task config: %w", err)
	}
	return "", nil
}

func (e *DockerEngine) Inspect(ctx context.Context, handle *drivers.TaskHandle) (State, error) {
	id, err := ContainerID(handle)
	if err != nil {
		return State{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	c, err := e.client.ContainerInspect(ctx, id)
	if err != nil {
		return State{}, dockerError("inspecting container "+short(id), err)
	}
	return State{
		Running:   c.State.Running,
		ExitCode:  c.State.ExitCode,
		OOMKilled: c.State.OOMKilled,
		Removing:  c.State.Status == "removing",
		PID:       c.State.Pid,
	}, nil
}

// CgroupName returns the container's ID.
func (e *DockerEngine) CgroupName(handle *drivers.TaskHandle) (string, error) {
	return ContainerID(handle)
}

// ReapOptions restrict which containers Reap removes.
type ReapOptions struct {
	NodeID  string          // limit to this node's containers; "" = none
	All     bool            // also those started by Nomad's own docker driver
	Tracked map[string]bool // IDs of known tasks' containers, and of allocations with a task being started
	// AllocEnded reports that an allocation of this node has certainly ended.
	AllocEnded func(allocID string) bool
	Grace      time.Duration // minimum age
	DryRun     bool          // list only
}

// Reap removes untracked running containers of this node, and network (pause)
// containers of ended allocations. It returns the removed IDs.
func (e *DockerEngine) Reap(ctx context.Context, opts ReapOptions, now time.Time) ([]string, error) {
	lctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	list, err := e.client.ContainerList(lctx, containerapi.ListOptions{})
	if err != nil {
		return nil, dockerError("listing containers", err)
	}
	var removed []string
	var errs []error
	for _, c := range list {
		alloc := c.Labels[LabelAllocID]
		mine := opts.NodeID != "" && c.Labels[LabelNode] == opts.NodeID
		stock := opts.All && c.Labels[LabelNode] == "" && alloc != ""
		if alloc != "" && isPause(c.Names) {
			// It has neither a task nor Ebbtide's labels. Nomad's driver removes it with the
			// allocation's network, but Nomad does not call the plugin if it has lost the network's
			// specification.
			mine, stock = opts.AllocEnded(alloc), false
		}
		if !mine && !stock || opts.Tracked[c.ID] || opts.Tracked[alloc] || now.Sub(time.Unix(c.Created, 0)) < opts.Grace {
			continue
		}
		if opts.DryRun {
			removed = append(removed, c.ID)
			continue
		}
		rctx, cancel := context.WithTimeout(ctx, e.timeout)
		err := e.client.ContainerRemove(rctx, c.ID, containerapi.RemoveOptions{Force: true})
		cancel()
		if err != nil {
			errs = append(errs, dockerError("removing container "+short(c.ID), err))
			continue
		}
		removed = append(removed, c.ID)
	}
	return removed, errors.Join(errs...)
}

func isPause(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "/nomad_init_") })
}

func dockerError(doing string, err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrGone, err)
	case client.IsErrConnectionFailed(err), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w: %w", doing, ErrUnreachable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}
