// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
	"github.com/ebbtide/ebbtide/shim/store"
)

// Preview decides like the shim without changing anything. Benchmarks use it.
type Preview struct {
	planner *planner
	state   *snapshot
}

// NewPreview returns a Preview, which only reads. jobs is the jobs' memory.
func NewPreview(client *api.Client, state cluster.Snapshot, jobs map[cluster.JobKey]store.Job) Preview {
	c := config.Default()
	return Preview{newPlanner(move.API{Client: client}, hclog.NewNullLogger()), &snapshot{Snapshot: state, transfers: newTransfers(c.Limits), config: c, jobs: jobs}}
}

// Summaries reads all nodes' summaries.
func (p Preview) Summaries(ctx context.Context) map[string]Summary {
	p.state.summaries, p.state.ignored = p.planner.surveyor.survey(ctx, p.state)
	return p.state.summaries
}

// Placing computes the nodes' loads once and returns a function that chooses a node for one
// allocation and builds its entry.
func (p Preview) Placing(c config.Config, nodes map[string]Summary) func(*cluster.Alloc) (placement.Output, store.Entry) {
	s := p.state
	s.config, s.summaries = c, nodes
	loads := s.nodeLoads()
	return func(a *cluster.Alloc) (placement.Output, store.Entry) {
		group, _ := s.group(a, policies.FlowConPlace)
		out := placement.Choose(s.candidates(s.Job(a.Job), group, a.Allocated, a.Node, []reading{{alloc: a}}, loads), placement.Params{CapacityAware: c.Placement.CapacityAware})
		it := proposal{alloc: a, to: out.Node, entry: store.Entry{Policy: policies.FlowConPlace, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)}}
		return out, it.record(s)
	}
}

// Rebalance returns the allocations to be moved, including those whose target could not take them or
// that may not have converged.
func (p Preview) Rebalance(now time.Time, nodes map[string]Summary) (rebalance.Output, error) {
	s := p.state
	s.summaries = nodes
	in, _ := s.rebalanceInput(now)
	if err := in.Validate(); err != nil {
		return rebalance.Output{}, fmt.Errorf("rebalancing: %w", err)
	}
	out := rebalance.Decide(in)
	for _, m := range out.Moves {
		s.canTake(s.Alloc(m.Task), m.To, policies.SpeConRebalance)
	}
	return out, nil
}
