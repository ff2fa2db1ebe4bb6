// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"maps"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

// leaves returns why a job is no more the queue's, "" if it is.
func (s *snapshot) leaves(key cluster.JobKey) string {
	if o := s.orders.Of(key); o.Do == store.DoLeave {
		return "out of the queue " + o.String()
	}
	return drained(s.orders)
}

func drained(o store.Orders) string {
	if d := o.Drained; d != nil {
		return "the queue is drained " + d.String()
	}
	return ""
}

// queueOff returns why there is no queue, "" if there is.
func queueOff(c config.Config, o store.Orders) string {
	if !c.Queue.Enabled {
		return "the queue is disabled by the shim's configuration"
	}
	return drained(o)
}

// obey adds to the policy's input what operators and owners ask for.
func (q *queuer) obey(s *snapshot, in queue.Input) {
	for i, k := range q.sorted {
		if k.is != nil {
			in.Jobs[i].Priority = k.is.Priority
		}
		switch o := s.orders.Of(k.key); o.Do {
		case store.DoHold, store.DoStop:
			in.Jobs[i].Hold = o.String()
		case store.DoTop:
			in.Jobs[i].TopS = max(seconds(o.Since), 1)
		}
	}
}

// asked adds to a job's report what operators and its owner ask for.
func (s *snapshot) asked(e store.Queued, j *cluster.Job) store.Queued {
	e.Order, e.Priority = s.orders.Of(j.Key).Do, j.Priority
	if j.QueueError != "" {
		e.Why += "; " + j.QueueError
	}
	return e
}

// settled is after how long an order for a job that the shim does not know is dropped: the job may
// be new.
const settled = time.Minute

// dropOrders removes the orders for jobs that are gone or over.
func (l *leadership) dropOrders() {
	state, current := l.cluster.Snapshot()
	if !current || l.now().DryRun {
		return
	}
	gone := maps.Clone(l.orders.Jobs)
	maps.DeleteFunc(gone, func(name string, o store.Order) bool {
		j := state.Job(cluster.ParseKey(name))
		return time.Since(o.Since) < settled || j != nil && j.Queued && !j.Stopped && (j.Held || !j.Dead)
	})
	if len(gone) == 0 {
		return
	}
	l.writer.add(entry{warning: "cannot remove the orders for jobs that are gone", write: func(ctx context.Context) error {
		return l.writer.vars.UpdateOrders(ctx, func(o *store.Orders) error {
			maps.DeleteFunc(o.Jobs, func(name string, now store.Order) bool {
				was, ok := gone[name]
				return ok && now.Since.Equal(was.Since) // no new order for a job of the same name
			})
			return nil
		})
	}})
}
