// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ebbtide/ebbtide/shim/actuator"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/relocate"
	"github.com/ebbtide/ebbtide/shim/web"
)

// flights are the jobs that this process moves, or lets run.
type flights struct {
	gate    *actuator.Gate
	busy    map[cluster.JobKey]bool // jobs of which a move is made or finished, or that are let run
	inbound map[string]int          // by node
	barred  map[cluster.JobKey]map[string]time.Time
}

func newFlights(limits config.Limits) *flights {
	return &flights{
		gate: actuator.NewGate(limits), busy: make(map[cluster.JobKey]bool), inbound: make(map[string]int),
		barred: make(map[cluster.JobKey]map[string]time.Time),
	}
}

// arrived notes that something is not on its way to a node any more.
func (f *flights) arrived(node string) {
	if f.inbound[node]--; f.inbound[node] <= 0 {
		delete(f.inbound, node)
	}
}

// Nomad knows more than is known here: constraints, devices, ports, volumes, quotas. It is
// asked whether it would place a job on the node that was chosen, and where it would not,
// the next best is chosen: so many nodes in all, and anew after a while.
const (
	tries  = 5
	barFor = 10 * time.Minute
)

// bar notes that Nomad would not place a job on a node.
func (f *flights) bar(job cluster.JobKey, node string) {
	if f.barred[job] == nil {
		f.barred[job] = make(map[string]time.Time)
	}
	f.barred[job][node] = time.Now()
}

// isBarred says whether Nomad is known not to place a job on a node, or on none of the best.
func (f *flights) isBarred(job cluster.JobKey, node string) bool {
	nodes := f.barred[job]
	return len(nodes) >= tries || !nodes[node].IsZero()
}

// unbar forgets what was a while ago.
func (f *flights) unbar() {
	for job, nodes := range f.barred {
		if maps.DeleteFunc(nodes, func(_ string, at time.Time) bool { return time.Since(at) > barFor }); len(nodes) == 0 {
			delete(f.barred, job)
		}
	}
}

// begin begins a move, if the gate is open. In a dry run it only asks Nomad.
func (t *term) begin(c config.Config, a *cluster.Alloc, to string, e memory.Entry) {
	if t.busy[a.Job] {
		return
	}
	reason, why := web.ReasonClosed, t.closed(c)
	if why == "" {
		reason, why = web.ReasonLimits, t.shut(a, to)
	}
	if why != "" {
		if t.say(a, why) {
			t.metrics.Refusals.WithLabelValues(reason).Inc()
		}
		return
	}
	e.Time, e.Namespace, e.Job, e.Alloc = time.Now(), a.Job.Namespace, a.Job.ID, a.ID
	e.From, e.To, e.DryRun = t.name(a.Node), t.name(to), c.DryRun
	e.Why, e.Scores = t.readable(e.Why), t.readable(e.Scores)
	f := flight{alloc: a, to: to, entry: e, end: func(time.Time, actuator.Outcome) {}}
	opts := t.options()
	opts.Report = func(phase move.Phase, what string) {
		t.log.Info(what, "phase", string(phase), "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
	}
	if c.DryRun {
		opts.Report = func(move.Phase, string) {}
	} else {
		t.log.Info("moving", "policy", e.Policy, "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
		f.end = t.gate.Begin(time.Now(), a.Job, a.Node, to)
		t.metrics.InFlight.Inc()
	}
	t.inbound[to]++
	t.busy[a.Job] = true
	pays := t.pays(a, to, e.Policy)
	t.send(func() func() {
		if why := pays(); why != "" {
			f.unpaid, f.err = true, &move.Refused{Reasons: []string{why}}
		} else {
			f.result, f.err = move.Move(t.leading, t.nomad, move.Request{Alloc: a.ID, Node: to, DryRun: c.DryRun}, opts)
		}
		return func() { t.finish(c, f) }
	})
}

// pays returns what says, beside the loop, why a move would not pay (relocate.Pays). What
// relocates has reckoned that itself.
func (t *term) pays(a *cluster.Alloc, to, policy string) func() (why string) {
	group, ok := t.group(a, policy)
	nodes := t.backlogs([]string{to}, t.nodes)
	if policy == policies.Relocate || !ok || len(group.Tasks) == 0 || len(nodes) == 0 {
		return func() string { return "" }
	}
	ask, cost := []reading{{alloc: a, task: group.Tasks[0]}}, t.costOf(a.Job)
	return func() string {
		t.read(ask)
		for _, task := range measured(ask, nil) {
			return relocate.Pays(task, nodes[0], cost)
		}
		return "" // nobody knows
	}
}

// costOf is for how long a move keeps a job from running, in seconds: as long as the last one
// did.
func (t *term) costOf(job cluster.JobKey) float64 {
	return cmp.Or(t.book.jobs[job].CostS, relocate.DefaultParams().CostS)
}

// options are those of a move by this process.
func (t *term) options() move.Options {
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = t.claims, ownerPrefix+t.holder
	return opts
}

// flight is a move.
type flight struct {
	alloc  *cluster.Alloc
	to     string
	entry  memory.Entry
	end    func(time.Time, actuator.Outcome)
	result move.Result
	err    error
	unpaid bool // it would not pay
}

// reason is why it was refused; "" if it was not.
func (f flight) reason() string {
	var refused *move.Refused
	switch {
	case f.unpaid:
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

// finish takes the end of a move over.
func (t *term) finish(c config.Config, f flight) {
	key, e := f.alloc.Job, f.entry
	delete(t.busy, key)
	t.arrived(f.to)
	if !c.DryRun {
		t.metrics.InFlight.Dec()
	}
	reason := f.reason()
	if reason != "" {
		t.metrics.Refusals.WithLabelValues(reason).Inc()
	}
	if reason == web.ReasonTarget {
		f.end(time.Now(), actuator.Never)
		t.log.Debug("another node is looked for", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", f.err)
		t.again(f.alloc, f.to, e.Policy)
		return
	}
	if c.DryRun {
		if f.err != nil {
			t.say(f.alloc, f.err.Error())
		} else {
			t.would(c, key, e)
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
		t.log.Warn("not moved", "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "error", f.err)
	}
	j := t.book.jobs[key]
	if f.err == nil {
		t.told[key] = "moved to " + e.To
		if cost := f.result.SaveS + f.result.DownS; cost.Known() {
			j.CostS = float64(cost)
		}
	}
	f.end(time.Now(), outcome)
	t.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	j.Failures, j.Last = t.gate.Failures(key)
	// What cannot be moved is not asked again; what failed is, after its back-off.
	if result != "failed" && converged(e.Policy) {
		j.Marked = time.Now()
		j.Rebalanced = j.Rebalanced || e.Policy == policies.SpeConRebalance
	}
	t.book.keep(key, j)
	t.book.note(e)
}

// again has the policy look for another node.
func (t *term) again(a *cluster.Alloc, node, policy string) {
	t.bar(a.Job, node)
	delete(t.placed, a.ID)
	switch policy {
	case policies.Relocate:
		t.relocation.again()
	case policies.SpeConRebalance:
		t.rebalances.again()
	}
	t.waiting = true
}

// would tells what a dry run would have done.
func (t *term) would(c config.Config, key cluster.JobKey, e memory.Entry) {
	if e.Policy == policies.Relocate && !t.sayOf(key, "would be moved to "+e.To) {
		return // it is asked at each look
	}
	t.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
	if converged(e.Policy) {
		t.book.mark(c, key, e.Policy == policies.SpeConRebalance)
	}
	t.log.Info("would be moved", "policy", e.Policy, "why", e.Why, "job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
	t.book.note(e)
}

// converged says whether a policy moves a job because it has converged.
func converged(name string) bool {
	return name == policies.SpeConMigrate || name == policies.SpeConRebalance
}

// cadence says when a policy is due that does not decide at every look.
type cadence struct {
	last    time.Time
	refused int // since it was due by time
}

func (k *cadence) due(every time.Duration) bool { return time.Since(k.last) >= every }

func (k *cadence) done() {
	if !k.last.IsZero() {
		k.refused = 0
	}
	k.last = time.Now()
}

// again has it due at once, some times.
func (k *cadence) again() {
	if k.refused++; k.refused < tries {
		k.last = time.Time{}
	}
}
