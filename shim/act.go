// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
)

// begin begins a move, if the gate is open.
func (t *term) begin(ctx context.Context, c config.Config, a *cluster.Alloc, to string, e memory.Entry) {
	if closed := t.gate.Closed(time.Now(), a.Job, a.Node, to); closed != "" {
		t.say(a, closed)
		return
	}
	e.Time, e.Namespace, e.Job, e.Alloc = time.Now(), a.Job.Namespace, a.Job.ID, a.ID
	e.From, e.To, e.DryRun = t.name(a.Node), t.name(to), c.DryRun
	e.Why, e.Scores = t.readable(e.Why), t.readable(e.Scores)
	log := t.log.With("job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
	if c.DryRun {
		if e.Policy == policies.Relocate && !t.sayOf(a.Job, "would be moved to "+e.To) {
			return // it is asked at each look
		}
		t.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
		if converged(e.Policy) {
			t.mark(ctx, c, a.Job, e.Policy == policies.SpeConRebalance)
		}
		log.Info("would be moved", "policy", e.Policy, "why", e.Why)
		t.note(ctx, e)
		return
	}
	log.Info("moving", "policy", e.Policy, "why", e.Why)
	end := t.gate.Begin(time.Now(), a.Job, a.Node, to)
	t.inbound[to]++
	t.metrics.InFlight.Inc()
	opts := t.options()
	opts.Report = func(phase move.Phase, what string) { log.Info(what, "phase", string(phase)) }
	t.moving[a.Job] = true
	t.moves.Go(func() {
		res, err := move.Move(t.leading, t.nomad, move.Request{Alloc: a.ID, Node: to}, opts)
		t.ended <- func(ctx context.Context) {
			delete(t.moving, a.Job)
			t.finish(ctx, ended{job: a.Job, to: to, entry: e, result: res, err: err, end: end})
		}
	})
}

// options are those of a move by this process.
func (t *term) options() move.Options {
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = t.claims, ownerPrefix+t.holder
	return opts
}

// arrived notes that nothing is on its way to a node any more.
func (t *term) arrived(node string) {
	if t.inbound[node]--; t.inbound[node] <= 0 {
		delete(t.inbound, node)
	}
}

// ended is a move that has ended.
type ended struct {
	job    cluster.JobKey
	to     string
	entry  memory.Entry
	result move.Result
	err    error
	end    func(time.Time, bool)
}

// finish takes the end of a move over.
func (t *term) finish(ctx context.Context, e ended) {
	e.end(time.Now(), e.err == nil)
	t.metrics.InFlight.Dec()
	t.arrived(e.to)
	e.entry.Phase, e.entry.NewAlloc = string(e.result.Phase), e.result.NewAlloc
	if e.result.DownS.Known() {
		e.entry.DownS = fmt.Sprintf("%.2f", float64(e.result.DownS))
		t.metrics.Down.Observe(float64(e.result.DownS))
	}
	var refused *move.Refused
	result := "moved"
	switch {
	case errors.As(e.err, &refused), errors.Is(e.err, move.ErrClaimed):
		result = "refused"
	case e.err != nil:
		result = "failed"
	}
	t.metrics.Moves.WithLabelValues(e.entry.Policy, result).Inc()
	if e.err != nil {
		e.entry.Error = e.err.Error()
		t.log.Warn("not moved", "job", e.entry.Job, "namespace", e.entry.Namespace, "alloc_id", e.entry.Alloc, "error", e.err)
	}
	failures, last := t.gate.Failures(e.job)
	j := t.jobs[e.job]
	j.Failures, j.Last = failures, last
	// What cannot be moved is not asked again; what failed is, after its back-off.
	if result != "failed" && converged(e.entry.Policy) {
		j.Marked = time.Now()
		j.Rebalanced = j.Rebalanced || e.entry.Policy == policies.SpeConRebalance
	}
	t.keep(ctx, e.job, j)
	t.note(ctx, e.entry)
}

// converged says whether a policy moves a job because it has converged.
func converged(name string) bool {
	return name == policies.SpeConMigrate || name == policies.SpeConRebalance
}

// remembered is what is remembered of a job: in a dry run also what that would remember.
func (t *term) remembered(c config.Config, key cluster.JobKey) memory.Job {
	if j, ok := t.tried[key]; ok && c.DryRun {
		return j
	}
	return t.jobs[key]
}

// mark notes that it was decided about a job.
func (t *term) mark(ctx context.Context, c config.Config, key cluster.JobKey, rebalanced bool) {
	j := t.remembered(c, key)
	j.Marked = time.Now()
	j.Rebalanced = j.Rebalanced || rebalanced
	if c.DryRun {
		t.tried[key] = j
		return
	}
	t.keep(ctx, key, j)
}

func (t *term) keep(ctx context.Context, key cluster.JobKey, j memory.Job) {
	t.jobs[key] = j
	err := t.held.Held()
	if err == nil {
		err = t.store.Keep(ctx, key, j)
	}
	if err != nil {
		t.log.Warn("what was decided of a job will not be remembered", "job", key.ID, "namespace", key.Namespace, "error", err)
	}
}

func (t *term) note(ctx context.Context, e memory.Entry) {
	err := t.held.Held()
	if err == nil {
		err = t.store.Note(ctx, e)
	}
	if err != nil {
		t.log.Warn("what was done is not written down", "job", e.Job, "namespace", e.Namespace, "error", err)
	}
}
