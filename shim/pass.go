// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
)

// planner decides, and keeps what one pass needs of those before it. One pass at a time has it.
type planner struct {
	surveyor *surveyor
	queuer   *queuer
}

func newPlanner(files statusFiles, log hclog.Logger) *planner {
	return &planner{
		surveyor: &surveyor{nomad: files, log: log, sources: make(map[string]source), noStatus: make(map[string]time.Time)},
		queuer:   &queuer{jobs: make(map[cluster.JobKey]*queuedJob)},
	}
}

// outcome is what a pass tells besides its plans.
type outcome struct {
	held      []string // jobs held for placement, sorted; not nil
	queue     standing
	twins     []twin
	surveyed  bool
	summaries map[string]Summary
	ignored   map[string]string
}

// pass decides on a snapshot. It carries out each policy's plan as soon as there is one: a survey of
// the nodes may take long.
func (p *planner) pass(ctx context.Context, s *snapshot, carryOut func(plan)) (out outcome) {
	var first plan
	held := s.heldJobs(&first)
	out.held = []string{}
	for _, j := range held {
		out.held = append(out.held, j.Key.String())
	}
	if s.explained != nil {
		first.forgotten = s.outdated()
		first.add(s.unmoved())
	}
	waiting := p.queuer.take(s, &held)
	first.add(p.queuer.pass(s, waiting))
	carryOut(first)
	out.queue, out.twins = p.queuer.standing, p.queuer.twins()

	var young, asking []*cluster.Alloc
	moves := s.closed == ""
	if moves {
		young, asking = s.newlyStarted(), s.requesting()
	}
	relocate, rebalance := moves && s.relocate && s.anyMovable(), moves && s.rebalance
	if len(held)+len(young)+len(asking) == 0 && !relocate && !rebalance {
		return out
	}
	out.surveyed = true
	s.summaries, s.ignored = p.surveyor.survey(ctx, s)
	out.summaries, out.ignored = s.summaries, s.ignored
	if len(held)+len(young) > 0 {
		carryOut(s.place(held, young))
	}
	if relocate {
		carryOut(s.relocations())
	}
	if len(asking) > 0 {
		carryOut(s.migrate(asking))
	}
	if rebalance {
		carryOut(s.rebalancing())
	}
	return out
}
