// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"maps"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
)

// journal holds the jobs' memory, and writes it and the history of moves to the store, in order, off
// the loop.
type journal struct {
	background *background
	writes     context.Context // outlives the term by writeTimeout; later writes are dropped
	store      memory.Store
	held       func() error
	log        hclog.Logger

	jobs    map[cluster.JobKey]memory.Job
	dryRun  map[cluster.JobKey]memory.Job // like jobs, for a dry run
	stale   map[cluster.JobKey]bool       // forgotten here, but still in the store
	pending []entry
	writing bool
}

// entry is one pending write.
type entry struct {
	job       cluster.JobKey
	write     func(context.Context) error
	warning   string // log message of a failure
	onFailure func() // called by the loop after a failure; may be nil
}

const writeTimeout = 10 * time.Second

// newJournal returns an empty journal. While the lock is held, its writes continue briefly after
// the term.
func newJournal(term context.Context, e *background, store memory.Store, held func() error, log hclog.Logger) *journal {
	writes, over := context.WithCancel(context.WithoutCancel(term))
	context.AfterFunc(term, func() { time.AfterFunc(writeTimeout, over) })
	return &journal{
		background: e, writes: writes, store: store, held: held, log: log,
		jobs: make(map[cluster.JobKey]memory.Job), dryRun: make(map[cluster.JobKey]memory.Job), stale: make(map[cluster.JobKey]bool),
	}
}

func (b *journal) add(e entry) {
	b.pending = append(b.pending, e)
	b.flush()
}

// flush writes the pending entries, including those added meanwhile.
func (b *journal) flush() {
	if b.writing || len(b.pending) == 0 {
		return
	}
	todo := b.pending
	b.pending, b.writing = nil, true
	b.background.run(func() func() {
		var failed []func()
		for _, e := range todo {
			if err := b.put(e); err != nil {
				b.log.Warn(e.warning, "job", e.job.ID, "namespace", e.job.Namespace, "error", err)
				if e.onFailure != nil {
					failed = append(failed, e.onFailure)
				}
			}
		}
		return func() {
			b.writing = false
			for _, then := range failed {
				then()
			}
			b.flush()
		}
	})
}

func (b *journal) put(e entry) error {
	ctx, cancel := context.WithTimeout(b.writes, writeTimeout)
	defer cancel()
	if err := b.held(); err != nil {
		return err
	}
	return e.write(ctx)
}

// of returns a job's memory; in a dry run, the dry run's.
func (b *journal) of(c config.Config, key cluster.JobKey) memory.Job {
	if j, ok := b.dryRun[key]; ok && c.DryRun {
		return j
	}
	return b.jobs[key]
}

// mark records a decision about the job.
func (b *journal) mark(c config.Config, key cluster.JobKey, rebalanced bool) {
	j := b.of(c, key)
	j.Marked = time.Now()
	j.Rebalanced = j.Rebalanced || rebalanced
	if c.DryRun {
		b.dryRun[key] = j
		return
	}
	b.saveJob(key, j)
}

func (b *journal) saveJob(key cluster.JobKey, j memory.Job) {
	b.jobs[key] = j
	b.add(entry{
		job: key, warning: "cannot save the decision about a job",
		write: func(ctx context.Context) error { return b.store.SaveJob(ctx, key, j) },
	})
}

func (b *journal) record(e memory.Entry) {
	b.add(entry{
		job: cluster.JobKey{Namespace: e.Namespace, ID: e.Job}, warning: "cannot record the move",
		write: func(ctx context.Context) error { return b.store.AddEntry(ctx, e) },
	})
}

// forget drops finished jobs and returns them. Failed deletions are retried unless the job has new
// memory.
func (b *journal) forget(over func(cluster.JobKey) bool) (gone []cluster.JobKey) {
	maps.DeleteFunc(b.dryRun, func(key cluster.JobKey, _ memory.Job) bool { return over(key) })
	for key := range b.jobs {
		if over(key) {
			delete(b.jobs, key)
			gone = append(gone, key)
			b.stale[key] = true
		}
	}
	for key := range b.stale {
		delete(b.stale, key)
		if _, again := b.jobs[key]; again {
			continue
		}
		b.add(entry{
			job: key, warning: "cannot delete a finished job's memory",
			write:     func(ctx context.Context) error { return b.store.DeleteJob(ctx, key) },
			onFailure: func() { b.stale[key] = true },
		})
	}
	return gone
}
