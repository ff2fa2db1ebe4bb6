// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/internal/version"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/store"
)

// operators is what operators have set for all shims: the pause, and the queue's orders.
type operators struct {
	orders         store.Orders
	pause          *store.Pause
	paused         bool // in effect at the last read
	operatorsKnown bool // read at least once
	operatorsAt    time.Time
	asking         bool // a read is in progress
	remembers      bool // the jobs' memory has been read, once
}

// ask reads the operators' pause and orders and, at first, the jobs' memory. No decision is made before
// the first successful read.
func (l *leadership) ask() {
	if l.asking || time.Since(l.operatorsAt) < readInterval {
		return
	}
	l.asking, l.operatorsAt = true, time.Now()
	remembers := l.remembers
	l.run(func() func() {
		var jobs map[cluster.JobKey]store.Job
		var twins map[cluster.JobKey]store.Twin
		var err error
		if !remembers { // there may be ten thousands
			if jobs, err = l.writer.vars.Jobs(l.leading); err == nil {
				twins, err = l.writer.vars.Twins(l.leading)
			}
		}
		ctx, cancel := context.WithTimeout(l.leading, queryTimeout)
		defer cancel()
		var pause *store.Pause
		if err == nil {
			pause, err = l.writer.vars.LoadPause(ctx)
		}
		var orders store.Orders
		if err == nil {
			orders, err = l.writer.vars.LoadOrders(ctx)
		}
		return func() {
			l.asking = false
			if err != nil {
				l.log.Warn("cannot read the operators' pause and orders, and what is remembered of jobs; starting no moves", "error", err)
				return
			}
			if !remembers {
				l.remember(jobs)
				l.before, l.twinsAt = twins, time.Now()
			}
			was := l.paused
			l.pause, l.operatorsKnown, l.paused = pause, true, pause.Active(time.Now())
			l.urgent = l.urgent || !reflect.DeepEqual(orders, l.orders)
			l.orders = orders
			l.dropOrders()
			switch {
			case l.paused && !was:
				l.log.Info("not starting moves: " + pause.String())
			case !l.paused && was:
				l.log.Info("starting moves again")
			}
		}
	})
}

// remember applies what earlier leaders have remembered.
func (l *leadership) remember(jobs map[cluster.JobKey]store.Job) {
	l.writer.jobs, l.remembers = jobs, true
	now := time.Now()
	for key, j := range jobs {
		if j.Last.After(now) { // by the clock of an earlier leader
			j.Last = now
		}
		l.budget.Restore(key, j.Last, j.Failures)
	}
}

// closed returns why no move may start, "" if moves may.
func (x *executor) closed(c config.Config) string {
	now := time.Now()
	if x.pause.Active(now) {
		return x.pause.String()
	}
	return c.Closed(now)
}

// passed keeps what a pass tells.
func (l *leadership) passed(out outcome) {
	l.held, l.queue = out.held, out.queue
	if l.before, l.twins = nil, out.twins; time.Since(l.twinsAt) >= store.Heartbeat {
		l.saveTwins()
	}
	l.metrics.Held.Set(float64(len(out.held)))
	l.metrics.Queued.Set(float64(out.queue.waiting))
	l.metrics.QueuedLate.Set(float64(out.queue.late))
	l.metrics.Suspended.Set(float64(out.queue.suspended))
	if !out.surveyed {
		return
	}
	l.summaries = out.summaries
	l.metrics.Ignored.Set(float64(len(out.ignored)))
}

// saveTwins saves what the twins have had, for the next leader.
func (l *leadership) saveTwins() {
	if l.twinsAt.IsZero() || l.twins == nil || l.now().DryRun {
		return
	}
	all := l.twins
	l.twinsAt = time.Now()
	l.writer.add(entry{
		warning: "cannot save the queue's twins",
		write: func(ctx context.Context) error {
			twins := make(map[cluster.JobKey]store.Twin, len(all))
			for _, t := range all {
				twins[t.key] = t.Twin
			}
			return l.writer.vars.SaveTwins(ctx, twins)
		},
	})
}

// forget drops removed and completed jobs: a job that runs again may be moved again.
func (l *leadership) forget(state cluster.Snapshot) {
	completed := l.cluster.Completed()
	gone := func(key cluster.JobKey) bool {
		j := state.Job(key)
		return j == nil || j.Stopped
	}
	// The allocation of a suspended job is complete, the job is not.
	over := func(key cluster.JobKey) bool {
		return gone(key) || completed[key] && !state.Job(key).Held
	}
	for _, key := range l.writer.forget(over) {
		l.budget.Forget(key)
	}
	for key := range completed {
		delete(l.latest, key)
	}
	l.expireRejections()
	maps.DeleteFunc(l.unbound, func(key cluster.JobKey, _ uint64) bool { return gone(key) })
	maps.DeleteFunc(l.placed, func(id string, _ bool) bool { return state.Alloc(id) == nil })
}

// Bounds of a report, which must fit into a Nomad variable.
const (
	maxReasons   = 200
	maxHeld      = 50
	maxQueued    = 200
	maxOwners    = 50
	maxReasonLen = 200 // bytes
)

// firstJobs returns the first n jobs, sorted, without sorting the others: there may be ten
// thousands.
func firstJobs(all iter.Seq[cluster.JobKey], n int) (first []cluster.JobKey) {
	for key := range all {
		if len(first) == n && key.Compare(first[n-1]) > 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(first, key, cluster.JobKey.Compare)
		first = slices.Insert(first, i, key)
		first = first[:min(len(first), n)]
	}
	return first
}

// report writes the state for `ebbtide shim status` if it has changed, and as a sign of life.
func (l *leadership) report(c config.Config, state cluster.Snapshot) {
	now := time.Now()
	r := store.Report{
		Version: version.String(), DryRun: c.DryRun, Nodes: state.NumNodes(), Closed: l.closed(c),
		InFlightMax: c.Limits.InFlight, StartedMax: c.Limits.MovesPerMinute, Reasons: []store.Reason{},
		Held: l.held[:min(len(l.held), maxHeld)], Queue: l.queue.first, Owners: l.queue.owners, QueueOff: queueOff(c, l.orders),
	}
	r.InFlight, r.Started = l.budget.Usage(now)
	for _, key := range firstJobs(maps.Keys(l.latest), maxReasons) {
		r.Reasons = append(r.Reasons, store.Reason{Namespace: key.Namespace, Job: key.ID, Text: l.latest[key].text})
	}
	r.Omitted = len(l.latest) - len(r.Reasons)
	r.At, r.LongestStepS = l.lastReport.At, l.lastReport.LongestStepS
	if reflect.DeepEqual(r, l.lastReport) && now.Sub(r.At) < store.Heartbeat {
		return
	}
	r.At, r.LongestStepS = now, l.longestStep.Seconds()
	l.lastReport = r
	l.writer.add(entry{
		warning:   "cannot write the report",
		write:     func(ctx context.Context) error { return l.writer.vars.SaveReport(ctx, r) },
		onFailure: func() { l.lastReport = store.Report{} },
	})
}
