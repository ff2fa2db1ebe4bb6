// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/queue"
)

// leaves returns why a job is no more the queue's, "" if it is.
func (q *queuer) leaves(key cluster.JobKey) string {
	if o := q.orders.Of(key); o.Do == memory.DoLeave {
		return "out of the queue " + o.String()
	}
	return q.drained()
}

func (q *queuer) drained() string {
	if d := q.orders.Drained; d != nil {
		return "the queue is drained " + d.String()
	}
	return ""
}

// off returns why there is no queue, "" if there is.
func (q *queuer) off(c config.Config) string {
	if !c.Queue.Enabled {
		return "the queue is disabled by the shim's configuration"
	}
	return q.drained()
}

// obey adds to the policy's input what operators and owners ask for.
func (q *queuer) obey(in queue.Input, keys []cluster.JobKey) {
	for i, key := range keys {
		if j := q.state.Jobs[key]; j != nil {
			in.Jobs[i].Priority = j.Priority
		}
		switch o := q.orders.Of(key); o.Do {
		case memory.DoHold, memory.DoStop:
			in.Jobs[i].Hold = o.String()
		case memory.DoTop:
			in.Jobs[i].TopS = max(seconds(o.Since), 1)
		}
	}
}

// asked adds to a job's report what operators and its owner ask for.
func (q *queuer) asked(e memory.Queued, j *cluster.Job) memory.Queued {
	e.Order, e.Priority = q.orders.Of(j.Key).Do, j.Priority
	if j.PriorityError != "" {
		e.Why += "; " + j.PriorityError
	}
	return e
}

// settled is after how long an order for a job that the shim does not know is dropped: the job may
// be new.
const settled = time.Minute

// dropOrders removes the orders for jobs that are gone or over.
func (t *term) dropOrders() {
	if !t.synced || t.now().DryRun {
		return
	}
	gone := maps.Clone(t.orders.Jobs)
	maps.DeleteFunc(gone, func(name string, o memory.Order) bool {
		namespace, id, _ := strings.Cut(name, "/")
		j := t.state.Jobs[cluster.JobKey{Namespace: namespace, ID: id}]
		return time.Since(o.Since) < settled || j != nil && j.Queued && !j.Stopped && (j.Held || !j.Dead)
	})
	if len(gone) == 0 {
		return
	}
	t.journal.add(entry{warning: "cannot remove the orders for jobs that are gone", write: func(ctx context.Context) error {
		return t.journal.store.UpdateOrders(ctx, func(o *memory.Orders) error {
			maps.DeleteFunc(o.Jobs, func(name string, now memory.Order) bool {
				was, ok := gone[name]
				return ok && now.Since.Equal(was.Since) // no new order for a job of the same name
			})
			return nil
		})
	}})
}
