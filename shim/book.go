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

// journal holds what is remembered of jobs, and writes it and the record of moves to the store,
// in order, off the loop.
type book struct {
	errands *errands
	writes  context.Context // outlives the term by writeTimeout; later writes are dropped
	store   memory.Store
	held    func() error
	log     hclog.Logger

	jobs    map[cluster.JobKey]memory.Job
	tried   map[cluster.JobKey]memory.Job // as jobs, for a dry run
	stale   map[cluster.JobKey]bool       // forgotten here, but still in the store
	todo    []entry
	writing bool
}

// entry is one pending write.
type entry struct {
	job    cluster.JobKey
	write  func(context.Context) error
	failed string // log message of a failure
	then   func() // called by the loop after a failure; may be nil
}

const writeWithin = 10 * time.Second

// newJournal returns an empty journal. Its writes continue briefly after the term while the
// lock is held.
func newBook(term context.Context, e *errands, store memory.Store, held func() error, log hclog.Logger) *book {
	writes, over := context.WithCancel(context.WithoutCancel(term))
	context.AfterFunc(term, func() { time.AfterFunc(writeWithin, over) })
	return &book{
		errands: e, writes: writes, store: store, held: held, log: log,
		jobs: make(map[cluster.JobKey]memory.Job), tried: make(map[cluster.JobKey]memory.Job), stale: make(map[cluster.JobKey]bool),
	}
}

func (b *book) add(e entry) {
	b.todo = append(b.todo, e)
	b.flush()
}

// flush writes what is pending, then what was added in the meantime.
func (b *book) flush() {
	if b.writing || len(b.todo) == 0 {
		return
	}
	todo := b.todo
	b.todo, b.writing = nil, true
	b.errands.send(func() func() {
		var failed []func()
		for _, e := range todo {
			if err := b.put(e); err != nil {
				b.log.Warn(e.failed, "job", e.job.ID, "namespace", e.job.Namespace, "error", err)
				if e.then != nil {
					failed = append(failed, e.then)
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

func (b *book) put(e entry) error {
	ctx, cancel := context.WithTimeout(b.writes, writeWithin)
	defer cancel()
	if err := b.held(); err != nil {
		return err
	}
	return e.write(ctx)
}

// of returns what is remembered of a job; in a dry run, what the dry run would remember.
func (b *book) of(c config.Config, key cluster.JobKey) memory.Job {
	if j, ok := b.tried[key]; ok && c.DryRun {
		return j
	}
	return b.jobs[key]
}

// mark records that a decision about the job was made.
func (b *book) mark(c config.Config, key cluster.JobKey, rebalanced bool) {
	j := b.of(c, key)
	j.Marked = time.Now()
	j.Rebalanced = j.Rebalanced || rebalanced
	if c.DryRun {
		b.tried[key] = j
		return
	}
	b.keep(key, j)
}

func (b *book) keep(key cluster.JobKey, j memory.Job) {
	b.jobs[key] = j
	b.add(entry{
		job: key, failed: "what was decided of a job will not be remembered",
		write: func(ctx context.Context) error { return b.store.Keep(ctx, key, j) },
	})
}

func (b *book) note(e memory.Entry) {
	b.add(entry{
		job: cluster.JobKey{Namespace: e.Namespace, ID: e.Job}, failed: "what was done is not written down",
		write: func(ctx context.Context) error { return b.store.Note(ctx, e) },
	})
}

// forget drops finished jobs and returns them. Failed deletions are retried unless the job is
// remembered again.
func (b *book) forget(over func(cluster.JobKey) bool) (gone []cluster.JobKey) {
	maps.DeleteFunc(b.tried, func(key cluster.JobKey, _ memory.Job) bool { return over(key) })
	for key := range b.jobs {
		if over(key) {
			delete(b.jobs, key)
			gone = append(gone, key)
			b.stale[key] = true
		}
	}
	for key := range b.stale {
		delete(b.stale, key)
		if _, anew := b.jobs[key]; anew {
			continue
		}
		b.add(entry{
			job: key, failed: "a job that is gone is still remembered",
			write: func(ctx context.Context) error { return b.store.Forget(ctx, key) },
			then:  func() { b.stale[key] = true },
		})
	}
	return gone
}
