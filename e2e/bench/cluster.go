// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/e2e/mix"
	"github.com/ebbtide/ebbtide/shim"
	"github.com/ebbtide/ebbtide/shim/config"
)

// The cluster of FlowCon's experiment of 2022: 20 jobs on four nodes, which here share the pool
// equally.
const (
	clusterNodes = 4
	clusterJobs  = 20
)

// migrateMeta makes a job movable.
const migrateMeta = `
  meta {
    ebbtide_migrate = "true"
  }`

// clusterMix returns jobs with the total work, per pool, of the experiment of 15 jobs on one node.
func clusterMix(seed uint64, factor float64) []mix.Job {
	return mix.Overlapping(clusterJobs, seed, 13.5*clusterJobs*factor, time.Duration(factor*float64(20*time.Second)))
}

// startShim runs a shim in this process, ten times as fast as the default, as are the jobs. stop
// returns an earlier failure.
func (n *node) startShim(ctx context.Context, preset string) (stop func() error, err error) {
	c := config.Default()
	if preset != "" {
		if c, err = config.Parse([]byte(fmt.Sprintf("preset = %q", preset)), "preset"); err != nil {
			return nil, err
		}
	}
	c.Interval, c.Web.Address, c.Nomad.Address = time.Second, "", n.agent.Addr
	c.Relocation.Interval, c.Rebalance.Interval, c.Limits.Cooldown = c.Relocation.Interval/10, c.Rebalance.Interval/10, c.Limits.Cooldown/10
	client, err := c.Nomad.Client()
	if err != nil {
		return nil, fmt.Errorf("making the shim's client: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- shim.New(c, client, "bench", hclog.NewNullLogger()).Run(ctx) }()
	return func() error {
		early := ctx.Err() == nil
		select {
		case err := <-ended:
			cancel()
			if early {
				return fmt.Errorf("the shim has ended: %w", err)
			}
		default:
			cancel()
			<-ended
		}
		return nil
	}, nil
}
