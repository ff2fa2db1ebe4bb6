// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/actuator"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/queue"
)

// suspendable reports whether an allocation of the queue may be suspended now.
func (q *queuer) suspendable(c config.Config, a *cluster.Alloc, j *cluster.Job) bool {
	g := j.Groups[a.Group]
	return j.Type == api.JobTypeBatch && g.Movable && g.Count == 1 && len(g.Tasks) == 1 && !j.Template && !j.Child && a.Running &&
		!q.unreadable[j.Key] && q.closed(c) == "" && q.blocked(a, "") == ""
}

// servedBefore is how long a job had run when it was last suspended, in seconds.
func (q *queuer) servedBefore(key cluster.JobKey) float64 {
	if s := q.journal.jobs[key].Served; s != nil {
		return s.S
	}
	return 0
}

// startsOver forgets what a job had been served that waits without a checkpoint.
func (q *queuer) startsOver(key cluster.JobKey) {
	if j := q.journal.jobs[key]; j.Served != nil {
		j.Served = nil
		q.journal.saveJob(key, j)
	}
}

// suspendedAs is the service of a suspended job.
func (q *queuer) suspendedAs(j *cluster.Job, group string, k *queuedJob) queue.Job {
	is := queue.Job{FairS: k.FairS}
	if s := q.journal.jobs[j.Key].Served; s != nil {
		is.FairS, is.ServedS, is.RemainingS = max(k.FairS, s.FairS), s.S, s.RemainingS
	}
	if is.RemainingS == nil {
		is.RemainingS = q.expected(j, group, is.ServedS)
	}
	return is
}

// progressOf says where a job has been suspended.
func (q *queuer) progressOf(key cluster.JobKey) string {
	if s := q.journal.jobs[key].Served; s != nil {
		for _, t := range s.Tasks {
			if t.Saved.Known() {
				return fmt.Sprintf("suspended at step %.0f: ", float64(t.Saved))
			}
		}
	}
	return "suspended: "
}

// suspend suspends an allocation for a job before it. A dry run only says so.
func (q *queuer) suspend(c config.Config, k *queuedJob, a *cluster.Alloc, d queue.Decision) {
	e := memory.Entry{
		Time: time.Now(), Namespace: a.Job.Namespace, Job: a.Job.ID, Alloc: a.ID, From: q.name(a.Node), DryRun: c.DryRun,
		Policy: policies.Queue, Rule: d.Rule, Why: q.readable(d.Why),
	}
	if c.DryRun {
		if q.explain(a.Job, "would be suspended: "+e.Why) {
			q.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
			q.journal.record(e)
		}
		return
	}
	if why := q.closed(c); why != "" || q.blocked(a, "") != "" {
		return // since the decision; the next one sees it
	}
	delete(q.latest, a.Job)
	q.log.Info("suspending", "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From)
	served := memory.Served{S: k.ServedS, FairS: k.FairS, RemainingS: k.RemainingS}
	end := q.gate.Begin(time.Now(), a.Job, a.Node, a.Node)
	q.metrics.InFlight.Inc()
	q.busy[a.Job], k.suspending = true, true
	opts := q.options()
	q.run(func() func() {
		res, err := move.Suspend(q.leading, q.nomad, move.Request{Alloc: a.ID, Why: e.Why}, opts)
		return func() {
			delete(q.busy, a.Job)
			k.suspending = false
			q.metrics.InFlight.Dec()
			q.suspended(a, e, served, res, err, end)
		}
	})
}

// suspended applies a suspension's result.
func (q *queuer) suspended(a *cluster.Alloc, e memory.Entry, served memory.Served, res move.Result, err error, end func(time.Time, actuator.Outcome)) {
	result, outcome := "suspended", actuator.Moved
	var refused *move.Refused
	switch {
	case errors.As(err, &refused), errors.Is(err, move.ErrClaimed):
		result, outcome = "refused", actuator.Refused
	case err != nil:
		result, outcome = "failed", actuator.Failed
	}
	end(time.Now(), outcome)
	q.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	e.Phase = string(res.Phase)
	j := q.journal.jobs[a.Job]
	if err != nil {
		e.Error = err.Error()
		q.explainFailure(transfer{alloc: a}, e.Error)
		q.log.Warn("not suspended", "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "error", err)
	} else {
		served.At, served.Tasks, served.SaveS = time.Now(), res.Tasks, float64(res.SaveS)
		if math.IsNaN(served.SaveS) {
			served.SaveS = 0
		}
		j.Served = &served
	}
	j.Failures, j.Last = q.gate.Failures(a.Job)
	q.journal.saveJob(a.Job, j)
	q.journal.record(e)
}

// resumed applies the release of a suspended job, which took a time until it ran.
func (t *term) resumed(key cluster.JobKey, took time.Duration, err error) {
	j := t.journal.jobs[key]
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
	t.journal.saveJob(key, j)
}
