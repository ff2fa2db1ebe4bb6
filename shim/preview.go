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
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
)

// Preview decides like the shim without changing anything. Benchmarks use it.
type Preview struct{ term *term }

// NewPreview returns a Preview, which only reads state. jobs is the jobs' memory.
func NewPreview(client *api.Client, state *cluster.State, jobs map[cluster.JobKey]memory.Job) Preview {
	t := New(config.Default(), client, "", hclog.NewNullLogger()).term(context.Background(), move.API{Client: client}, memory.Store{}, func() error { return nil })
	t.state.Replace(state)
	t.journal.jobs = jobs
	return Preview{t}
}

// Summaries reads all nodes' summaries.
func (p Preview) Summaries(ctx context.Context) map[string]Summary {
	s := p.term.surveyor
	all := s.queries(p.term.state, p.term.state.NodeIDs())
	s.run(ctx, all)
	return s.collect(all)
}

// Placing computes the nodes' loads once and returns a function that chooses a node for one
// allocation and builds its entry.
func (p Preview) Placing(c config.Config, nodes map[string]Summary) func(*cluster.Alloc) (placement.Output, memory.Entry) {
	loads := p.term.placer.nodeLoads(p.term.state.NodeIDs(), nodes)
	return func(a *cluster.Alloc) (placement.Output, memory.Entry) { return p.place(c, a, loads) }
}

func (p Preview) place(c config.Config, a *cluster.Alloc, loads []nodeLoad) (placement.Output, memory.Entry) {
	out := placement.Choose(p.term.placer.candidatesOf(a, loads), placement.Params{CapacityAware: c.Placement.CapacityAware})
	return out, memory.Entry{
		Policy: policies.FlowConPlace, Alloc: a.ID, From: p.term.name(a.Node), To: p.term.name(out.Node),
		Rule: out.Rule, Why: p.term.readable(out.Why), Scores: p.term.readable(text(out.Scores)),
	}
}

// Rebalance returns the allocations to be moved, including those whose target could not take them.
func (p Preview) Rebalance(now time.Time, nodes map[string]Summary) (rebalance.Output, error) {
	in, byTask := rebalance.Input{NowS: seconds(now)}, make(map[string]*cluster.Alloc)
	p.term.rebalancer.rebalanceInput(config.Config{}, p.term.state.NodeIDs(), nodes, &in, byTask)
	if err := in.Validate(); err != nil {
		return rebalance.Output{}, fmt.Errorf("rebalancing: %w", err)
	}
	out := rebalance.Decide(in)
	for _, m := range out.Moves {
		p.term.canTake(byTask[m.Task], m.To, policies.SpeConRebalance)
	}
	return out, nil
}
