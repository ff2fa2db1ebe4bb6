// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/actuator"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/relocate"
	"github.com/ebbtide/ebbtide/shim/web"
)

// transfers tracks the jobs that this process is moving or releasing.
type transfers struct {
	gate       *actuator.Gate
	busy       map[cluster.JobKey]bool // jobs being moved, recovered or released
	inbound    map[string]int          // being moved to the node, by node
	rejected   map[cluster.JobKey]map[string]time.Time
	unreadable map[cluster.JobKey]bool // jobs with a record that cannot be read
}

func newTransfers(limits config.Limits) *transfers {
	return &transfers{
		gate: actuator.NewGate(limits), busy: make(map[cluster.JobKey]bool), inbound: make(map[string]int),
		rejected: make(map[cluster.JobKey]map[string]time.Time), unreadable: make(map[cluster.JobKey]bool),
	}
}

func (f *transfers) doneInbound(node string) {
	if f.inbound[node]--; f.inbound[node] <= 0 {
		delete(f.inbound, node)
	}
}

// The shim cannot check everything that Nomad's scheduler does (constraints, devices, ports,
// volumes, quotas), so it plans each move first. After a rejection the next best node is planned,
// up to maxAttempts nodes; rejections expire.
const (
	maxAttempts  = 5
	rejectionTTL = 10 * time.Minute
)

// reject records that Nomad would not place the job on the node.
func (f *transfers) reject(job cluster.JobKey, node string) {
	if f.rejected[job] == nil {
		f.rejected[job] = make(map[string]time.Time)
	}
	f.rejected[job][node] = time.Now()
}

// isRejected reports whether Nomad rejected the job for this node, or for maxAttempts nodes.
func (f *transfers) isRejected(job cluster.JobKey, node string) bool {
	nodes := f.rejected[job]
	return len(nodes) >= maxAttempts || !nodes[node].IsZero()
}

func (f *transfers) expireRejections() {
	for job, nodes := range f.rejected {
		if maps.DeleteFunc(nodes, func(_ string, at time.Time) bool { return time.Since(at) > rejectionTTL }); len(nodes) == 0 {
			delete(f.rejected, job)
		}
	}
}

// startMove starts a move unless a limit or pause forbids it. A dry run only plans it.
func (t *term) startMove(c config.Config, a *cluster.Alloc, to string, e memory.Entry, known ...reading) {
	if t.busy[a.Job] {
		return
	}
	reason, why := web.ReasonClosed, t.closed(c)
	if why == "" {
		reason, why = web.ReasonLimits, t.blocked(a, to)
	}
	if why != "" {
		if t.explainSkip(a, why) {
			t.metrics.Refusals.WithLabelValues(reason).Inc()
		}
		return
	}
	e.Time, e.Namespace, e.Job, e.Alloc = time.Now(), a.Job.Namespace, a.Job.ID, a.ID
	e.From, e.To, e.DryRun = t.name(a.Node), t.name(to), c.DryRun
	e.Why, e.Scores = t.readable(e.Why), t.readable(e.Scores)
	f := transfer{alloc: a, to: to, entry: e, end: func(time.Time, actuator.Outcome) {}}
	opts := t.options()
	opts.Report = func(phase move.Phase, what string) {
		t.log.Info(what, "phase", string(phase), "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
	}
	if c.DryRun {
		opts.Report = func(move.Phase, string) {}
	} else {
		delete(t.latest, a.Job)
		t.log.Info("moving", "policy", e.Policy, "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
		f.end = t.gate.Begin(time.Now(), a.Job, a.Node, to)
		t.metrics.InFlight.Inc()
	}
	t.inbound[to]++
	t.busy[a.Job] = true
	pays := t.gainCheck(a, to, e.Policy, known)
	t.run(func() func() {
		if why := pays(); why != "" {
			f.noGain, f.err = true, &move.Refused{Reasons: []string{why}}
		} else {
			f.result, f.err = move.Move(t.leading, t.nomad, move.Request{Alloc: a.ID, Node: to, Why: e.Why, DryRun: c.DryRun}, opts)
		}
		return func() { t.finish(c, f) }
	})
}

// gainCheck returns a function that reads the tasks' status, off the loop, unless they are in known,
// and returns why the move would not pay (relocate.Pays); "" if it would or that is unknown. The
// relocate policy has already checked.
func (t *term) gainCheck(a *cluster.Alloc, to, policy string, known []reading) func() (why string) {
	group, ok := t.group(a, policy)
	nodes := t.backlogs([]string{to}, t.nodes)
	if policy == policies.Relocate || !ok || len(group.Tasks) == 0 || len(nodes) == 0 {
		return func() string { return "" }
	}
	all, cost, at := tasksOf(a, group), t.costOf(a.Job, group), t.nodes[a.Node].At
	known = slices.DeleteFunc(slices.Clone(known), func(r reading) bool { return r.alloc.ID != a.ID || !slices.Contains(group.Tasks, r.task) })
	return func() string {
		if len(known) == len(all) {
			all = known
		} else {
			t.read(all)
		}
		task, unknown := estimate(all, at)
		if unknown != "" {
			return ""
		}
		return relocate.Pays(task, nodes[0], cost)
	}
}

// diskMBs is the assumed speed at which Nomad copies a disk, in MB per second: that of 1 Gbit/s.
const diskMBs = 100

// costOf returns the expected duration of a move of the group in seconds: that of the job's last move.
// Before the first, how much the job has saved is unknown; it is taken to fill its ephemeral disk.
func (t *term) costOf(job cluster.JobKey, group cluster.Group) float64 {
	if cost := t.journal.jobs[job].CostS; cost > 0 && cost <= relocate.MaxS {
		return cost
	}
	cost := relocate.DefaultParams().CostS
	if group.MovesDisk {
		cost += float64(max(0, group.Requested.DiskMB)) / diskMBs
	}
	return min(cost, relocate.MaxS)
}

// saveTimeout keeps tasks that do not save from taking all of limits.in_flight for an hour, the longest
// checkpoint.timeout, and unaskedTimeout keeps decisions about tasks that save by themselves fresh.
const (
	saveTimeout    = 10 * time.Minute
	unaskedTimeout = 30 * time.Minute
)

func (t *term) options() move.Options {
	opts := move.DefaultOptions()
	opts.SaveTimeout, opts.UnaskedTimeout = saveTimeout, unaskedTimeout
	opts.Claims, opts.Owner = t.claims, ownerPrefix+t.holder
	return opts
}

type transfer struct {
	alloc  *cluster.Alloc
	to     string
	entry  memory.Entry
	end    func(time.Time, actuator.Outcome)
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
func (t *term) finish(c config.Config, f transfer) {
	key, e := f.alloc.Job, f.entry
	delete(t.busy, key)
	t.doneInbound(f.to)
	if !c.DryRun {
		t.metrics.InFlight.Dec()
	}
	reason := f.reason()
	if reason != "" {
		t.metrics.Refusals.WithLabelValues(reason).Inc()
	}
	if reason == web.ReasonTarget {
		f.end(time.Now(), actuator.Unplaceable)
		t.explainFailure(f, "to "+e.To+": "+f.err.Error())
		t.retryElsewhere(f.alloc, f.to, e.Policy)
		return
	}
	if c.DryRun {
		if f.err != nil {
			t.explainSkip(f.alloc, f.err.Error())
		} else {
			t.recordDryRun(c, key, e)
		}
		return
	}
	e.Phase, e.NewAlloc = string(f.result.Phase), f.result.NewAlloc
	if f.result.DownS.Known() {
		e.DownS = fmt.Sprintf("%.2f", float64(f.result.DownS))
		t.metrics.Down.Observe(float64(f.result.DownS))
	}
	result, outcome := "moved", actuator.Moved
	if f.err != nil {
		result, outcome = "failed", actuator.Failed
		if reason != "" {
			result, outcome = "refused", actuator.Refused
		}
		e.Error = f.err.Error()
		t.explainFailure(f, e.Error)
		t.log.Warn("not moved", "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "error", f.err)
	}
	j := t.journal.jobs[key]
	if f.err == nil {
		if cost := f.result.SaveS + f.result.DownS; cost.Known() {
			j.CostS = float64(cost)
		}
	}
	f.end(time.Now(), outcome)
	t.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	j.Failures, j.Last = t.gate.Failures(key)
	// Refusals are final until the task converges again; failures are retried after their back-off.
	if result != "failed" && converged(e.Policy) {
		j.Marked = time.Now()
		j.Rebalanced = j.Rebalanced || e.Policy == policies.SpeConRebalance
	}
	t.journal.saveJob(key, j)
	t.journal.record(e)
}

// retryElsewhere makes the policy choose another node.
func (t *term) retryElsewhere(a *cluster.Alloc, node, policy string) {
	t.reject(a.Job, node)
	delete(t.placer.decided, a.ID)
	switch policy {
	case policies.Relocate:
		t.relocator.retryNow()
	case policies.SpeConRebalance:
		t.rebalancer.retryNow()
	}
	t.urgent = true
}

// recordDryRun records what a dry run would have moved.
func (t *term) recordDryRun(c config.Config, key cluster.JobKey, e memory.Entry) {
	if e.Policy == policies.Relocate && !t.set(hclog.Info, key, reason{text: "would be moved to " + e.To, alloc: e.Alloc}) {
		return // already recorded; relocate decides it again on each pass
	}
	t.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
	if converged(e.Policy) {
		t.journal.mark(c, key, e.Policy == policies.SpeConRebalance)
	}
	t.log.Info("would be moved", "policy", e.Policy, "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
	t.journal.record(e)
}

// converged reports whether the policy moves jobs because they have converged.
func converged(name string) bool {
	return name == policies.SpeConMigrate || name == policies.SpeConRebalance
}

// schedule is the schedule of a policy that does not run on every pass.
type schedule struct {
	last    time.Time
	refused int // since the last regular run
}

func (k *schedule) due(every time.Duration) bool { return time.Since(k.last) >= every }

func (k *schedule) done() {
	if !k.last.IsZero() {
		k.refused = 0
	}
	k.last = time.Now()
}

// retryNow makes the policy due immediately, at most maxAttempts times in a row.
func (k *schedule) retryNow() {
	if k.refused++; k.refused < maxAttempts {
		k.last = time.Time{}
	}
}
