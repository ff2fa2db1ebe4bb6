// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/version"
)

// operatorState is what operators have set for all shims: the pause, and the queue's orders.
type operatorState struct {
	orders       memory.Orders
	pause        *memory.Pause
	paused       bool // in effect at the last read
	pauseKnown   bool // read at least once
	pauseReadAt  time.Time
	readingPause bool // a read is in progress
}

// readPause reads the operators' pause and orders. No decision is made before the first successful read.
func (t *term) readPause() {
	if t.readingPause || time.Since(t.pauseReadAt) < readInterval {
		return
	}
	t.readingPause, t.pauseReadAt = true, time.Now()
	t.run(func() func() {
		ctx, cancel := context.WithTimeout(t.leading, queryTimeout)
		defer cancel()
		pause, err := t.journal.store.LoadPause(ctx)
		var orders memory.Orders
		if err == nil {
			orders, err = t.journal.store.LoadOrders(ctx)
		}
		return func() {
			t.readingPause = false
			if err != nil {
				t.log.Warn("cannot read the operators' pause and orders; starting no moves", "error", err)
				return
			}
			was := t.paused
			t.pause, t.pauseKnown, t.paused = pause, true, pause.Active(time.Now())
			t.urgent = t.urgent || !reflect.DeepEqual(orders, t.orders)
			t.orders = orders
			t.dropOrders()
			switch {
			case t.paused && !was:
				t.log.Info("not starting moves: " + pause.String())
			case !t.paused && was:
				t.log.Info("starting moves again")
			}
		}
	})
}

// closed returns why no move may start, "" if moves may.
func (t *term) closed(c config.Config) string {
	now := time.Now()
	if t.pause.Active(now) {
		return t.pause.String()
	}
	return c.Closed(now)
}

// Bounds of a report, which must fit into a Nomad variable.
const (
	maxReasons   = 200
	maxHeld      = 50
	maxReasonLen = 200 // bytes
)

// firstJobs returns the first n jobs, sorted, without sorting the others: there may be ten
// thousands.
func firstJobs(all iter.Seq[cluster.JobKey], n int) (first []cluster.JobKey) {
	for key := range all {
		if len(first) == n && compareKeys(key, first[n-1]) > 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(first, key, compareKeys)
		first = slices.Insert(first, i, key)
		first = first[:min(len(first), n)]
	}
	return first
}

func compareKeys(a, b cluster.JobKey) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.ID, b.ID))
}

// report writes the state for `ebbtide shim status`, if it has changed.
func (t *term) report(c config.Config, held []*cluster.Job) {
	now := time.Now()
	r := memory.Report{
		Version: version.String(), DryRun: c.DryRun, Nodes: len(t.state.Nodes), Closed: t.closed(c),
		InFlightMax: c.Limits.InFlight, StartedMax: c.Limits.MovesPerMinute, Held: []string{}, Reasons: []memory.Reason{},
	}
	r.InFlight, r.Started = t.gate.Usage(now)
	for _, j := range held {
		r.Held = append(r.Held, j.Key.Namespace+"/"+j.Key.ID)
	}
	slices.Sort(r.Held)
	r.Held = r.Held[:min(len(r.Held), maxHeld)]
	r.Queue, r.QueueOff = t.queuer.order, t.queuer.off(c)
	for _, key := range firstJobs(maps.Keys(t.latest), maxReasons) {
		r.Reasons = append(r.Reasons, memory.Reason{Namespace: key.Namespace, Job: key.ID, Text: t.latest[key].text})
	}
	r.Omitted = len(t.latest) - len(r.Reasons)
	r.At, r.LongestStepS = t.lastReport.At, t.lastReport.LongestStepS
	if reflect.DeepEqual(r, t.lastReport) {
		return
	}
	r.At, r.LongestStepS = now, t.longestStep.Seconds()
	t.lastReport = r
	t.journal.add(entry{
		warning:   "cannot write the report",
		write:     func(ctx context.Context) error { return t.journal.store.SaveReport(ctx, r) },
		onFailure: func() { t.lastReport = memory.Report{} },
	})
}
