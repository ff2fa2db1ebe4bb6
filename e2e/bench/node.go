// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// cores is the node's size, unless the machine has fewer.
const cores = 2

// pool returns the number of shared cores.
func pool() int { return min(cores, runtime.NumCPU()) }

// Deadlines, several times a healthy run's duration.
const (
	startDeadline = 90 * time.Second
	stopDeadline  = 60 * time.Second
)

// node is a Nomad agent with changing plugin configuration.
type node struct {
	options
	h       *harness.Harness
	agent   *harness.Agent    // server and first client
	others  []*harness.Agent  // further clients
	dockers []*harness.Docker // one per node; none without containers
	config  string
	version string // of the driver
	nomad   string
}

// pluginConfig returns the configuration of node i's plugin for a step.
func (n *node) pluginConfig(s step, i int) string {
	engine := "engine = \"exec\""
	if i < len(n.dockers) {
		engine = "engine = \"docker\"\n    docker {\n" + n.dockers[i].PluginConfig("", "") + "\n    }"
	}
	set := fmt.Sprintf("policy = %q\n    mode = %q", s.policy, s.kernelMode())
	if s.preset != "" {
		set = fmt.Sprintf("preset = %q", s.preset)
	}
	// The interval is the jobs': shorter than the papers', as they are.
	return fmt.Sprintf("%s\n    %s\n    interval = %q\n    pool_cores = %g\n    %s", engine, set, n.interval, float64(pool())/float64(n.nodes()), s.extra)
}

// configure restarts the agents with a step's configuration, as an operator would.
func (n *node) configure(ctx context.Context, s step) error {
	if (n.what == result.Torch || n.what == result.Cluster) && n.dockers == nil {
		if err := n.startDocker(ctx); err != nil {
			return err
		}
	}
	config := n.pluginConfig(s, 0)
	if config == n.config {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if n.agent == nil {
		err := n.startAgents(ctx, s)
		if err != nil {
			return fmt.Errorf("starting Nomad: %w", err)
		}
	} else {
		for i, a := range append([]*harness.Agent{n.agent}, n.others...) {
			if err := a.Reconfigure(ctx, n.pluginConfig(s, i)); err != nil {
				return err
			}
		}
	}
	n.config = config
	for _, a := range n.others {
		if _, err := a.WaitPolicy(ctx, s.policy, s.kernelMode()); err != nil {
			return err
		}
	}
	node, err := n.agent.WaitPolicy(ctx, s.policy, s.kernelMode())
	if err != nil {
		return err
	}
	n.version, n.nomad = node.Attributes["driver.ebbtide.version"], node.Attributes["nomad.version"]
	return nil
}

// nodes returns the number of nodes sharing the pool.
func (n *node) nodes() int {
	if n.what == result.Cluster {
		return clusterNodes
	}
	return 1
}

// startAgents starts a server with a client, and further clients.
func (n *node) startAgents(ctx context.Context, s step) (err error) {
	c := harness.AgentConfig{
		Name: "bench", PluginName: "ebbtide-driver", Plugin: n.pluginConfig(s, 0), LogLevel: "INFO",
		ClientHCL: fmt.Sprintf("reservable_cores = \"0-%d\"", pool()-1),
	}
	if n.agent, err = n.h.StartAgent(ctx, c); err != nil || n.nodes() == 1 {
		return err
	}
	// Spread instead of binpack, like Docker Swarm, the papers' baseline.
	spread := &api.SchedulerConfiguration{SchedulerAlgorithm: api.SchedulerAlgorithmSpread}
	if _, _, err := n.agent.API.Operator().SchedulerSetConfiguration(spread, nil); err != nil {
		return fmt.Errorf("making the scheduler spread jobs: %w", err)
	}
	for i := 1; i < n.nodes(); i++ {
		c.Name, c.Join, c.Plugin = fmt.Sprintf("bench%d", i), n.agent, n.pluginConfig(s, i)
		a, err := n.h.StartAgent(ctx, c)
		if err != nil {
			return err
		}
		n.others = append(n.others, a)
	}
	return nil
}

// startDocker starts a daemon per node, with the image, and confines each of several nodes to its
// fraction of the pool.
func (n *node) startDocker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	for range n.nodes() {
		d, err := n.h.StartDocker(ctx, harness.DockerOptions{NoBridge: true})
		if err != nil {
			return fmt.Errorf("starting Docker: %w", err)
		}
		if err := d.ImportImages(ctx); err != nil {
			return err
		}
		if n.nodes() > 1 {
			if err := d.Confine(float64(pool()) / float64(n.nodes())); err != nil {
				return err
			}
		}
		n.dockers = append(n.dockers, d)
	}
	return nil
}

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

// stop stops and purges jobs concurrently.
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

func (n *node) file(alloc, name string) string {
	for _, a := range n.others {
		if _, err := os.Stat(a.AllocDir(alloc)); err == nil {
			return filepath.Join(a.AllocDir(alloc), name)
		}
	}
	return filepath.Join(n.agent.AllocDir(alloc), name)
}
