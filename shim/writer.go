// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/store"
)

// writer holds the jobs' memory, and writes it and the history of moves to the store, in order, in the
// background.
type writer struct {
	background *background
	writes     context.Context // outlives the leadership by writeTimeout; later writes are dropped
	vars       store.Store
	held       func() error
	log        hclog.Logger

	jobs    map[cluster.JobKey]store.Job
	stale   map[cluster.JobKey]bool // forgotten here, but still in the store
	pending []entry
	writing bool
}

// entry is one pending write.
type entry struct {
	job       cluster.JobKey
	write     func(context.Context) error
	warning   string // log message of a failure
	onFailure func() // called by a step after a failure; may be nil
}

const writeTimeout = 10 * time.Second

// newWriter returns an empty writer. While the lock is held, its writes continue briefly after
// the leadership.
func newWriter(leading context.Context, b *background, vars store.Store, held func() error, log hclog.Logger) *writer {
	writes, over := context.WithCancel(context.WithoutCancel(leading))
	context.AfterFunc(leading, func() { time.AfterFunc(writeTimeout, over) })
	return &writer{
		background: b, writes: writes, vars: vars, held: held, log: log,
		jobs: make(map[cluster.JobKey]store.Job), stale: make(map[cluster.JobKey]bool),
	}
}

func (w *writer) add(e entry) {
	w.pending = append(w.pending, e)
	w.flush()
}

// flush writes the pending entries, including those added meanwhile.
func (w *writer) flush() {
	if w.writing || len(w.pending) == 0 {
		return
	}
	todo := w.pending
	w.pending, w.writing = nil, true
	w.background.run(func() func() {
		var failed []func()
		for _, e := range todo {
			if err := w.put(e); err != nil {
				w.log.Warn(e.warning, "job", e.job.ID, "namespace", e.job.Namespace, "error", err)
				if e.onFailure != nil {
					failed = append(failed, e.onFailure)
				}
			}
		}
		return func() {
			w.writing = false
			for _, then := range failed {
				then()
			}
			w.flush()
		}
	})
}

func (w *writer) put(e entry) error {
	ctx, cancel := context.WithTimeout(w.writes, writeTimeout)
	defer cancel()
	if err := w.held(); err != nil {
		return err
	}
	return e.write(ctx)
}

// mark records a decision about the job. A dry run's is not written.
func (w *writer) mark(c config.Config, key cluster.JobKey, rebalanced bool) {
	j := w.jobs[key]
	j.Marked = time.Now()
	j.Rebalanced = j.Rebalanced || rebalanced
	if c.DryRun {
		w.jobs[key] = j
		return
	}
	w.saveJob(key, j)
}

func (w *writer) saveJob(key cluster.JobKey, j store.Job) {
	w.jobs[key] = j
	w.add(entry{
		job: key, warning: "cannot save the decision about a job",
		write: func(ctx context.Context) error { return w.vars.SaveJob(ctx, key, j) },
	})
}

func (w *writer) record(e store.Entry) {
	w.add(entry{
		job: cluster.JobKey{Namespace: e.Namespace, ID: e.Job}, warning: "cannot record the move",
		write: func(ctx context.Context) error { return w.vars.AddEntry(ctx, e) },
	})
}

// forget drops finished jobs and returns them. Failed deletions are retried unless the job has new
// memory.
func (w *writer) forget(over func(cluster.JobKey) bool) (gone []cluster.JobKey) {
	for key := range w.jobs {
		if over(key) {
			delete(w.jobs, key)
			gone = append(gone, key)
			w.stale[key] = true
		}
	}
	for key := range w.stale {
		delete(w.stale, key)
		if _, again := w.jobs[key]; again {
			continue
		}
		w.add(entry{
			job: key, warning: "cannot delete a finished job's memory",
			write:     func(ctx context.Context) error { return w.vars.DeleteJob(ctx, key) },
			onFailure: func() { w.stale[key] = true },
		})
	}
	return gone
}
