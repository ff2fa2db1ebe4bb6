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

// book is what is remembered of jobs and written down of moves. What it writes is written
// beside the loop, in order.
type book struct {
	errands *errands
	writes  context.Context // ends a moment after the term: what is left then is not written
	store   memory.Store
	held    func() error
	log     hclog.Logger

	jobs    map[cluster.JobKey]memory.Job
	tried   map[cluster.JobKey]memory.Job // what a dry run would remember of jobs
	stale   map[cluster.JobKey]bool       // jobs that are forgotten here, but not in the store
	todo    []entry
	writing bool
}

// entry is one thing that is to be written.
type entry struct {
	job    cluster.JobKey
	write  func(context.Context) error
	failed string // what it means for people if that fails
	then   func() // likewise for the loop; nil: nothing
}

// writeWithin bounds how long Nomad has to take one.
const writeWithin = 10 * time.Second

// newBook returns an empty one. It is written to at the end of the term, too, as long as the
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

// flush writes what is to be written, and then what has come meanwhile.
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

// of is what is remembered of a job: in a dry run also what that would remember.
func (b *book) of(c config.Config, key cluster.JobKey) memory.Job {
	if j, ok := b.tried[key]; ok && c.DryRun {
		return j
	}
	return b.jobs[key]
}

// mark notes that it was decided about a job.
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

// forget drops jobs that are over, and returns those of which something was remembered.
// What Nomad could not be told is tried again, unless the job is remembered anew.
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
