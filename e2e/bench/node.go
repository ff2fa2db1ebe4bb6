// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// cores is the size of the node: what tables are made for. A machine with fewer has
// fewer.
const cores = 2

// pool is the number of cores that the tasks share here.
func pool() int { return min(cores, runtime.NumCPU()) }

// Deadlines. A healthy run takes a fraction of them.
const (
	startDeadline = 90 * time.Second
	stopDeadline  = 60 * time.Second
)

// node is a Nomad agent of which the plugin's configuration changes.
type node struct {
	options
	h       *harness.Harness
	agent   *harness.Agent
	docker  *harness.Docker // nil without containers
	config  string
	version string // of the driver
	nomad   string
}

// pluginConfig is the plugin's configuration for a step. Containers are those of the
// daemon, if there is one.
func pluginConfig(s step, interval time.Duration, d *harness.Docker) string {
	engine := "engine = \"exec\""
	if d != nil {
		engine = "engine = \"docker\"\n    docker {\n" + d.PluginConfig("", "") + "\n    }"
	}
	return fmt.Sprintf("%s\n    policy = %q\n    mode = %q\n    interval = %q\n    pool_cores = %d\n    %s",
		engine, s.policy, s.kernelMode(), interval, pool(), s.extra)
}

// use makes the agent run as a step wants it, by a restart with another
// configuration, as an operator would do it.
func (n *node) use(ctx context.Context, s step) error {
	if n.what == result.Torch && n.docker == nil {
		if err := n.startDocker(ctx); err != nil {
			return err
		}
	}
	config := pluginConfig(s, n.interval, n.docker)
	if config == n.config {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if n.agent == nil {
		agent, err := n.h.StartAgent(ctx, harness.AgentConfig{
			Name: "bench", PluginName: "ebbtide-driver", Plugin: config, LogLevel: "INFO",
			ClientHCL: fmt.Sprintf("reservable_cores = \"0-%d\"", pool()-1),
		})
		n.agent = agent
		if err != nil {
			return fmt.Errorf("starting Nomad: %w", err)
		}
	} else if err := n.agent.Reconfigure(ctx, config); err != nil {
		return err
	}
	n.config = config
	node, err := n.agent.WaitPolicy(ctx, s.policy, s.kernelMode())
	if err != nil {
		return err
	}
	n.version, n.nomad = node.Attributes["driver.ebbtide.version"], node.Attributes["nomad.version"]
	return nil
}

// startDocker starts a daemon that has the image.
func (n *node) startDocker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	d, err := n.h.StartDocker(ctx, harness.DockerOptions{NoBridge: true})
	if err != nil {
		return fmt.Errorf("starting Docker: %w", err)
	}
	if err := d.ImportImages(ctx); err != nil {
		return err
	}
	n.docker = d
	return nil
}

// start submits a job and waits until a task of it has started.
func (n *node) start(ctx context.Context, hcl, task string) (jobID string, alloc *api.Allocation, err error) {
	jobID, err = n.agent.Run(ctx, hcl)
	if err != nil {
		return "", nil, err
	}
	alloc, err = n.agent.WaitAlloc(ctx, jobID, "started", func(a *api.Allocation) bool {
		ts := a.TaskStates[task]
		return harness.Terminal(a) || ts != nil && !ts.StartedAt.IsZero()
	})
	if err != nil {
		return jobID, nil, fmt.Errorf("starting job %s: %w", jobID, err)
	}
	return jobID, alloc, nil
}

// stop ends jobs and forgets them, all at the same time.
func (n *node) stop(ctx context.Context, jobs []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopDeadline)
	defer cancel()
	ended := make(chan error, len(jobs))
	for _, id := range jobs {
		go func() { ended <- n.agent.StopJob(ctx, id) }()
	}
	var errs []error
	for range jobs {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// file is a file of an allocation on this machine.
func (n *node) file(alloc, name string) string { return filepath.Join(n.agent.AllocDir(alloc), name) }
