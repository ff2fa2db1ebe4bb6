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

// Preview decides about a cluster as the shim would, and does nothing. It is there to
// measure what a decision costs.
type Preview struct{ term *term }

// NewPreview returns a Preview. The state is read only; jobs are what is remembered of
// them.
func NewPreview(client *api.Client, state *cluster.State, jobs map[cluster.JobKey]memory.Job) Preview {
	t := New(config.Default(), client, "", hclog.NewNullLogger()).term(context.Background(), move.API{Client: client}, memory.Store{}, func() error { return nil })
	t.state, t.book.jobs = state, jobs
	return Preview{t}
}

// Summaries asks the nodes how their tasks do.
func (p Preview) Summaries(ctx context.Context) map[string]Summary {
	s := p.term.surveyor
	all := s.questions(p.term.state, p.term.state.NodeIDs())
	s.ask(ctx, all)
	return s.take(all)
}

// Placing makes ready for placements what the nodes said of themselves, once for all that
// are decided at a time. What it returns decides where one allocation would be placed, and
// writes down what would be kept of that.
func (p Preview) Placing(c config.Config, nodes map[string]Summary) func(*cluster.Alloc) (placement.Output, memory.Entry) {
	loads := p.term.loads(p.term.state.NodeIDs(), nodes)
	return func(a *cluster.Alloc) (placement.Output, memory.Entry) { return p.place(c, a, loads) }
}

func (p Preview) place(c config.Config, a *cluster.Alloc, loads []loaded) (placement.Output, memory.Entry) {
	out := placement.Choose(p.term.candidatesOf(a, loads), placement.Params{CapacityAware: c.Placement.CapacityAware})
	return out, memory.Entry{
		Policy: policies.FlowConPlace, Alloc: a.ID, From: p.term.name(a.Node), To: p.term.name(out.Node),
		Rule: out.Rule, Why: p.term.readable(out.Why), Scores: p.term.readable(text(out.Scores)),
	}
}

// Rebalance decides which allocations would be moved for balance, those whose target
// could not take them among them.
func (p Preview) Rebalance(now time.Time, nodes map[string]Summary) (rebalance.Output, error) {
	in, byTask := rebalance.Input{NowS: seconds(now)}, make(map[string]*cluster.Alloc)
	p.term.spread(config.Config{}, p.term.state.NodeIDs(), nodes, &in, byTask)
	if err := in.Validate(); err != nil {
		return rebalance.Output{}, fmt.Errorf("rebalancing: %w", err)
	}
	out := rebalance.Decide(in)
	for _, m := range out.Moves {
		p.term.takes(byTask[m.Task], m.To, policies.SpeConRebalance)
	}
	return out, nil
}
