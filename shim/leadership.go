// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
)

// leadership is one period in which this process leads. Its steps (serve) own all of its state but
// the cluster's store and the planner, which a pass has while it runs; they never block.
type leadership struct {
	*executor
	planner *planner
	recovery

	dryRun      bool          // at the last step
	changed     chan struct{} // a pass is due at once; holds one
	passing     bool
	held        []string // the jobs held for placement, by the last pass; nil before the first
	queue       standing
	before      map[cluster.JobKey]store.Twin // the twins, by earlier leaders; nil after the first pass
	twins       []twin                        // by the last pass; nil before the first
	twinsAt     time.Time                     // saved
	scan        schedule                      // of the jobs without a reason
	lastReport  store.Report
	longestStep time.Duration
}

func (s *Shim) leadership(leading context.Context, nomad move.Nomad, vars store.Store, held func() error) *leadership {
	b := newBackground()
	x := &executor{
		Shim: s, background: b, leading: leading, cluster: cluster.NewStore(), nomad: fenced{nomad, held}, claims: store.Claims{Store: vars},
		writer: newWriter(leading, b, vars, held, s.log), transfers: newTransfers(s.now().Limits),
		latest: make(map[cluster.JobKey]reason), placed: make(map[string]bool), releases: make(chan struct{}, maxParallel),
	}
	l := &leadership{executor: x, planner: newPlanner(move.API{Client: s.client}, s.log), changed: make(chan struct{}, 1)}
	l.recovery.unbound = make(map[cluster.JobKey]uint64)
	return l
}

// lead leads until ctx ends, then reverts moves in progress while it still holds the lock.
func (s *Shim) lead(ctx context.Context, held *leader.Term) error {
	c := s.now()
	l := s.leadership(ctx, move.API{Client: s.client, Agent: c.Nomad.Agent}, store.Store{Client: s.client, Namespace: c.Leader.Namespace, Path: c.Leader.Path}, held.Held)
	s.setLeads(true)
	s.metrics.Leader.Set(1)
	s.log.Info("leading")
	defer func() {
		m := s.metrics
		for _, figure := range []prometheus.Gauge{m.Leader, m.Connected, m.Nodes, m.Allocs, m.Held, m.Queued, m.QueuedLate, m.Suspended, m.Orphans, m.Unreadable, m.Ignored} {
			figure.Set(0) // the next leader reports them
		}
		s.setLeads(false)
		s.log.Info("stopped leading")
	}()
	defer func() {
		l.saveTwins()
		l.drain()
	}()
	f := &follower{Shim: s, leading: ctx, store: l.cluster, nomad: l.nomad, changed: l.changed, slots: make(chan struct{}, maxParallel)}
	l.run(func() func() { f.follow(); return nil })
	return l.serve(ctx)
}

// expediteDelay is the delay of an expedited pass; requests during it share the pass.
const expediteDelay = 250 * time.Millisecond

// serve runs the steps until ctx ends: one at each interval, which starts a pass, and the results of
// what runs in the background.
func (l *leadership) serve(ctx context.Context) error {
	due := time.NewTimer(l.now().Interval)
	defer due.Stop()
	expedited := false // the next step was expedited
	for {
		if l.urgent && !expedited && !l.passing {
			expedited = true
			due.Reset(min(expediteDelay, l.now().Interval))
		}
		select {
		case <-l.changed:
			l.urgent = true
		case r := <-l.results:
			l.timed("result", func() { l.complete(r) })
		case <-due.C:
			expedited = false
			due.Reset(l.now().Interval)
			l.timed("pass", l.reconcile)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// timed runs a step, and reports it if it is longer than all before it.
func (l *leadership) timed(kind string, step func()) {
	begun := time.Now()
	step()
	if took := time.Since(begun); took > l.longestStep {
		l.longestStep = took
		l.metrics.LongestStep.Set(took.Seconds())
		l.log.Debug("longest step so far", "kind", kind, "took", took)
	}
}

// reconcile starts a pass over the cluster, unless one runs.
func (l *leadership) reconcile() {
	c := l.now()
	if l.remembers && l.dryRun && !c.DryRun {
		l.remembers, l.operatorsKnown, l.operatorsAt = false, false, time.Time{} // without the dry run's decisions
	}
	l.dryRun = c.DryRun
	l.ask()
	state, current := l.cluster.Snapshot()
	if !current {
		return
	}
	l.recover(state)
	if !l.operatorsKnown {
		return
	}
	if l.passing { // l.urgent stays set for a later one
		if l.held != nil { // one has ended before
			l.report(c, state)
		}
		return
	}
	l.passing, l.urgent = true, false
	l.forget(state)
	s := l.snapshot(c, state)
	begun := time.Now()
	l.run(func() func() {
		out := l.planner.pass(l.leading, s, func(p plan) { l.tell(func() { l.carryOut(c, p) }) })
		return func() {
			l.passing = false
			l.passed(out)
			l.report(c, state)
			if out.surveyed {
				l.metrics.Decision.Observe(time.Since(begun).Seconds())
			}
		}
	})
}

// snapshot returns what a pass decides on.
func (l *leadership) snapshot(c config.Config, state cluster.Snapshot) *snapshot {
	l.metrics.Nodes.Set(float64(state.NumNodes()))
	l.metrics.Allocs.Set(float64(state.NumAllocs()))
	l.budget.SetLimits(c.Limits)
	s := &snapshot{
		Snapshot: state, transfers: l.transfers.clone(), config: c, closed: l.closed(c), jobs: maps.Clone(l.writer.jobs), orders: l.orders, twins: l.before, placed: maps.Clone(l.placed),
		relocate:  c.Relocation.Enabled && l.relocation.due(max(c.Relocation.Interval, time.Duration(state.NumNodes())*surveyPerNode)),
		rebalance: c.Rebalance.Enabled && l.rebalancing.due(c.Rebalance.Interval),
		read:      func(all []reading) { readStatuses(l.leading, l.nomad, all) },
	}
	if l.scan.due(max(scanInterval, time.Duration(state.NumJobs())*scanPerJob)) {
		l.scan.done()
		s.explained = maps.Clone(l.latest)
	}
	return s
}
