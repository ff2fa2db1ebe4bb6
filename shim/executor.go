// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/limits"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/relocate"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/shim/web"
)

// executor carries out the policies' proposals within the limits, and remembers what became of them.
// The leadership's steps own it.
type executor struct {
	*Shim
	*background
	transfers
	leading context.Context // until the end of the leadership; moves outlive the event stream
	cluster *cluster.Store
	nomad   move.Nomad
	claims  move.Claims
	writer  *writer

	operators                           // what keeps all moves from starting
	summaries map[string]Summary        // of the nodes, by the last survey
	latest    map[cluster.JobKey]reason // why a job is not moved or placed
	placed    map[string]bool           // allocations whose placement has been decided
	releases  chan struct{}             // limits concurrent releases
	urgent    bool                      // a pass is due at once

	relocation, rebalancing schedule
}

// view returns the cluster with the executor's own state, for the step that asks.
func (x *executor) view(c config.Config, state cluster.Snapshot) *snapshot {
	return &snapshot{Snapshot: state, transfers: x.transfers, config: c, closed: x.closed(c), jobs: x.writer.jobs, orders: x.orders, summaries: x.summaries}
}

// carryOut carries out a plan, unless the cluster's state has been lost meanwhile.
func (x *executor) carryOut(c config.Config, p plan) {
	state, current := x.cluster.Snapshot()
	if !current || x.leading.Err() != nil {
		return
	}
	switch p.policy {
	case policies.Relocate:
		x.relocation.done()
	case policies.SpeConRebalance:
		x.rebalancing.done()
	}
	for _, e := range p.errs {
		x.log.Error("skipping the decision: invalid input", "policy", e.policy, "error", e.err)
	}
	for key, is := range p.forgotten {
		if x.latest[key] == is {
			delete(x.latest, key)
		}
	}
	for _, n := range p.notes {
		x.note(n)
	}
	for _, id := range p.placed {
		x.placed[id] = true
	}
	for _, key := range p.marked {
		x.writer.mark(c, key, false)
	}
	for _, key := range p.startOver {
		j := x.writer.jobs[key]
		j.Served = nil
		x.writer.saveJob(key, j)
	}
	s := x.view(c, state)
	for _, it := range p.proposals {
		switch it.do {
		case moveTask:
			x.move(s, it)
		case suspendTask:
			x.suspend(s, it)
		case releaseJob:
			x.release(s, it)
		}
	}
}

// record is the entry of a proposal, in readable form.
func (it proposal) record(s *snapshot) store.Entry {
	e := it.entry
	e.Time, e.DryRun, e.Why, e.Scores = time.Now(), s.config.DryRun, s.readable(e.Why), s.readable(e.Scores)
	if a := it.alloc; a != nil {
		e.Namespace, e.Job, e.Alloc, e.From = a.Job.Namespace, a.Job.ID, a.ID, s.name(a.Node)
	}
	if it.to != "" {
		e.To = s.name(it.to)
	}
	if it.job != nil {
		e.Namespace, e.Job = it.job.Key.Namespace, it.job.Key.ID
	}
	if it.place.Node != "" {
		e.To = s.name(it.place.Node)
	}
	return e
}

// move starts a move unless a limit or pause forbids it. A dry run only plans it.
func (x *executor) move(s *snapshot, it proposal) {
	a, to := it.alloc, it.to
	if x.busy[a.Job] || s.Alloc(a.ID) == nil {
		return // or it has ended since the decision
	}
	why, reason := s.closed, web.ReasonClosed
	if why == "" {
		why, reason = s.blocked(a, to), web.ReasonLimits
	}
	if why != "" {
		if x.explainSkip(a, why) {
			x.metrics.Refusals.WithLabelValues(reason).Inc()
		}
		return
	}
	c, e := s.config, it.record(s)
	f := transfer{alloc: a, to: to, entry: e, end: func(time.Time, limits.Outcome) {}}
	opts := x.options()
	if !c.DryRun {
		opts.Report = func(phase move.Phase, what string) {
			x.log.Info(what, "phase", string(phase), "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
		}
		delete(x.latest, a.Job)
		x.log.Info("moving", "policy", e.Policy, "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
		f.end = x.begin(a, to)
	}
	x.inbound[to]++
	x.busy[a.Job] = true
	pays := x.gainCheck(s, it)
	x.run(func() func() {
		if why := pays(); why != "" {
			f.noGain, f.err = true, &move.Refused{Reasons: []string{why}}
		} else {
			f.result, f.err = move.Move(x.leading, x.nomad, move.Request{Alloc: a.ID, Node: to, Why: e.Why, DryRun: c.DryRun}, opts)
		}
		return func() { x.finish(c, f) }
	})
}

// begin charges a move or suspension to the limits; end must be called once.
func (x *executor) begin(a *cluster.Alloc, to string) (end func(time.Time, limits.Outcome)) {
	done := x.budget.Begin(time.Now(), a.Job, a.Node, to)
	x.metrics.InFlight.Inc()
	return func(at time.Time, o limits.Outcome) {
		x.metrics.InFlight.Dec()
		done(at, o)
	}
}

// gainCheck returns a function that reads the tasks' status, in the background, unless they are known,
// and returns why the move would not pay (relocate.Pays); "" if it would or that is unknown. The
// relocate policy has already checked.
func (x *executor) gainCheck(s *snapshot, it proposal) func() (why string) {
	a := it.alloc
	group, ok := s.group(a, it.entry.Policy)
	target, known := s.backlog(s.Node(it.to))
	if it.entry.Policy == policies.Relocate || !ok || len(group.Tasks) == 0 || !known {
		return func() string { return "" }
	}
	all, cost, at := tasksOf(a, group), s.costOf(a.Job, group), s.summaries[a.Node].At
	read := slices.DeleteFunc(slices.Clone(it.known), func(r reading) bool { return r.alloc.ID != a.ID || !slices.Contains(group.Tasks, r.task) })
	return func() string {
		if len(read) == len(all) {
			all = read
		} else {
			readStatuses(x.leading, x.nomad, all)
		}
		task, unknown := estimate(all, at)
		if unknown != "" {
			return ""
		}
		return relocate.Pays(task, target, cost)
	}
}

// saveTimeout keeps tasks that do not save from taking all of limits.in_flight for an hour, the longest
// checkpoint.timeout, and unaskedTimeout keeps decisions about tasks that save by themselves fresh.
const (
	saveTimeout    = 10 * time.Minute
	unaskedTimeout = 30 * time.Minute
)

func (x *executor) options() move.Options {
	opts := move.DefaultOptions()
	opts.SaveTimeout, opts.UnaskedTimeout = saveTimeout, unaskedTimeout
	opts.Claims, opts.Owner = x.claims, ownerPrefix+x.holder
	return opts
}

type transfer struct {
	alloc  *cluster.Alloc
	to     string
	entry  store.Entry
	end    func(time.Time, limits.Outcome)
	result move.Result
	err    error
	noGain bool // the job would not finish sooner
}

// reason returns the metric label of a refusal, "" if the move was not refused.
func (f transfer) reason() string {
	var refused *move.Refused
	switch {
	case f.noGain:
		return web.ReasonGain
	case errors.As(f.err, &refused) && refused.Target:
		return web.ReasonTarget
	case errors.As(f.err, &refused):
		return web.ReasonJob
	case errors.Is(f.err, move.ErrClaimed):
		return web.ReasonClaimed
	}
	return ""
}

// finish applies a move's result.
func (x *executor) finish(c config.Config, f transfer) {
	key, e := f.alloc.Job, f.entry
	delete(x.busy, key)
	x.doneInbound(f.to)
	reason := f.reason()
	if reason != "" {
		x.metrics.Refusals.WithLabelValues(reason).Inc()
	}
	if reason == web.ReasonTarget {
		f.end(time.Now(), limits.Unplaceable)
		x.explainFailure(f.alloc, f.result.NewAlloc, "to "+e.To+": "+f.err.Error())
		x.retryElsewhere(f.alloc, f.to, e.Policy)
		return
	}
	if c.DryRun {
		if f.err != nil {
			x.explainSkip(f.alloc, f.err.Error())
		} else {
			x.recordDryRun(c, key, e)
		}
		return
	}
	if f.result.DownS.Known() {
		f.entry.DownS = fmt.Sprintf("%.2f", float64(f.result.DownS))
		x.metrics.Down.Observe(float64(f.result.DownS))
	}
	j := x.writer.jobs[key]
	if cost := f.result.SaveS + f.result.DownS; f.err == nil && cost.Known() {
		j.CostS = float64(cost)
	}
	// Refusals are final until the task converges again; failures are retried after their back-off.
	if (f.err == nil || reason != "") && converged(e.Policy) {
		j.Marked = time.Now()
		j.Rebalanced = j.Rebalanced || e.Policy == policies.SpeConRebalance
	}
	x.settle(f, j, "moved", reason != "")
}

// settle records how a move or suspension has ended, with what its job is remembered by.
func (x *executor) settle(f transfer, j store.Job, done string, refused bool) {
	e, result, outcome := f.entry, done, limits.Moved
	e.Phase, e.NewAlloc = string(f.result.Phase), f.result.NewAlloc
	if f.err != nil {
		result, outcome = "failed", limits.Failed
		if refused {
			result, outcome = "refused", limits.Refused
		}
		e.Error = f.err.Error()
		x.explainFailure(f.alloc, f.result.NewAlloc, e.Error)
		x.log.Warn("not "+done, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "error", f.err)
	}
	f.end(time.Now(), outcome)
	x.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	j.Failures, j.Last = x.budget.Failures(f.alloc.Job)
	x.writer.saveJob(f.alloc.Job, j)
	x.writer.record(e)
}

// retryElsewhere makes the policy choose another node.
func (x *executor) retryElsewhere(a *cluster.Alloc, node, policy string) {
	x.reject(a.Job, node)
	delete(x.placed, a.ID)
	switch policy {
	case policies.Relocate:
		x.relocation.retryNow()
	case policies.SpeConRebalance:
		x.rebalancing.retryNow()
	}
	x.urgent = true
}

// recordDryRun records what a dry run would have moved.
func (x *executor) recordDryRun(c config.Config, key cluster.JobKey, e store.Entry) {
	if e.Policy == policies.Relocate && !x.note(note{key: key, level: hclog.Info, reason: reason{text: "would be moved to " + e.To, alloc: e.Alloc}}) {
		return // already recorded; relocate decides it again on each pass
	}
	x.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
	if converged(e.Policy) {
		x.writer.mark(c, key, e.Policy == policies.SpeConRebalance)
	}
	x.log.Info("would be moved", "policy", e.Policy, "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
	x.writer.record(e)
}

// converged reports whether the policy moves jobs because they have converged.
func converged(name string) bool {
	return name == policies.SpeConMigrate || name == policies.SpeConRebalance
}

// suspend suspends an allocation for a job before it. A dry run only says so.
func (x *executor) suspend(s *snapshot, it proposal) {
	a, c, e := it.alloc, s.config, it.record(s)
	if x.busy[a.Job] || s.Alloc(a.ID) == nil {
		return
	}
	if c.DryRun {
		if x.explain(a.Job, "would be suspended: "+e.Why) {
			x.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
			x.writer.record(e)
		}
		return
	}
	if s.closed != "" || s.blocked(a, "") != "" {
		return // since the decision; the next one sees it
	}
	delete(x.latest, a.Job)
	x.log.Info("suspending", "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From)
	f, served, opts := transfer{alloc: a, entry: e, end: x.begin(a, a.Node)}, it.served, x.options()
	opts.UnaskedTimeout = c.Queue.Patience
	x.busy[a.Job] = true
	x.run(func() func() {
		f.result, f.err = move.Suspend(x.leading, x.nomad, move.Request{Alloc: a.ID, Why: e.Why}, opts)
		return func() {
			delete(x.busy, a.Job)
			j := x.writer.jobs[a.Job]
			if f.err == nil {
				served.At, served.Tasks, served.SaveS = time.Now(), f.result.Tasks, float64(f.result.SaveS)
				if math.IsNaN(served.SaveS) {
					served.SaveS = 0
				}
				j.Served = &served
			}
			x.settle(f, j, "suspended", f.reason() != "")
		}
	})
}

// release releases a held job to a node, or to Nomad's scheduler. A dry run only plans it.
func (x *executor) release(s *snapshot, it proposal) {
	j, c, b, e := it.job, s.config, it.place, it.record(s)
	if now := s.Job(j.Key); x.busy[j.Key] || now == nil || !now.Held || !reflect.DeepEqual(now.Groups, j.Groups) {
		x.urgent = x.urgent || now != nil && now.Held // changed since the pass began
		return
	}
	if b.Node != "" {
		x.inbound[b.Node]++
	}
	x.busy[j.Key] = true
	left, _ := j.Suspended()
	opts := x.options()
	x.run(func() func() {
		x.releases <- struct{}{}
		defer func() { <-x.releases }()
		node, alloc, rejection := b.Node, "", ""
		var planErr, err error
		var took time.Duration
		if node != "" {
			rejection, planErr = move.CheckPlacement(x.leading, x.nomad, b)
		}
		if planErr != nil && it.overdue {
			out := holdExpired(c, planErr)
			e.Rule, e.Why, e.Scores, e.To, b.Node, planErr = out.Rule, out.Why, "", "", "", nil
		}
		if planErr == nil && rejection == "" && !c.DryRun {
			x.log.Info("releasing a held job", "job", e.Job, "namespace", e.Namespace, "to", e.To, "why", e.Why)
			begun := time.Now()
			alloc, err = move.Release(x.leading, x.nomad, b, opts)
			took = time.Since(begun)
		}
		return func() {
			delete(x.busy, j.Key)
			if node != "" {
				x.doneInbound(node)
			}
			switch {
			case planErr != nil && !errors.Is(planErr, move.ErrNotHeld):
				x.explain(j.Key, "held: "+planErr.Error())
			case rejection != "":
				x.log.Debug("trying another node", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", rejection)
				x.reject(j.Key, node)
				x.urgent = true
			case planErr == nil:
				x.released(j.Key, b.Node, e, alloc, err)
				if left != "" && alloc != "" {
					x.resumed(j.Key, took, err)
				}
			}
		}
	})
}

// released applies a release's result.
func (x *executor) released(key cluster.JobKey, node string, e store.Entry, alloc string, err error) {
	if errors.Is(err, move.ErrNotHeld) || errors.Is(err, move.ErrClaimed) {
		return // this state was stale, or another process releases the job
	}
	result := "placed"
	switch {
	case err != nil:
		result, e.Error = "failed", err.Error()
		x.log.Warn("cannot place a held job", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", err)
	case e.DryRun:
		if result = "dry"; !x.explain(key, "held; would be placed: "+e.Why) {
			return
		}
	case node == "":
		result = "released"
	default:
		x.placed[alloc] = true
	}
	e.NewAlloc = alloc
	x.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	if err == nil && !e.DryRun {
		delete(x.latest, key)
	}
	// A failure is retried, but recorded once.
	if err == nil || x.explain(key, e.Error) {
		x.writer.record(e)
	}
}

// resumed applies the release of a suspended job, which took a time until it ran.
func (x *executor) resumed(key cluster.JobKey, took time.Duration, err error) {
	j := x.writer.jobs[key]
	if j.Served == nil {
		return
	}
	switch {
	case errors.Is(err, move.ErrNotResumed): // it starts over
		j.Served = nil
	case err != nil:
		return
	default:
		j.CostS = j.Served.SaveS + took.Seconds()
	}
	x.writer.saveJob(key, j)
}
