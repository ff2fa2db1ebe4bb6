// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// ownerPrefix identifies records of shims. The leader adopts them, as no other shim is active.
const ownerPrefix = "ebbtide shim on "

const readInterval = 10 * time.Second

// recovery finishes moves whose process has ended.
type recovery struct {
	watch   move.Watch // detects abandoned claims
	readAt  time.Time
	reading bool                      // a read is in progress
	unbound map[cluster.JobKey]uint64 // jobs bound without a record, by the job index at which they were handled
	skipped []move.Unreadable
}

// recover finishes abandoned moves and unbinds jobs that are bound without a record.
func (l *leadership) recover(state cluster.Snapshot) {
	r := &l.recovery
	if r.reading || time.Since(r.readAt) < readInterval || l.now().DryRun {
		return
	}
	r.reading, r.readAt = true, time.Now()
	l.run(func() func() {
		bound := orphans(state) // before the records: a move writes its record before it binds the job
		ctx, cancel := context.WithTimeout(l.leading, queryTimeout)
		defer cancel()
		records, skipped, err := l.claims.List(ctx)
		return func() {
			r.reading = false
			if l.leading.Err() != nil {
				return
			}
			if err != nil {
				l.log.Warn("cannot read the records of moves", "error", err)
				return
			}
			l.skip(skipped, bound)
			l.takeOver(records, bound)
		}
	})
}

// orphans returns the bound groups of jobs, but of those that wait for the node of their checkpoint.
func orphans(state cluster.Snapshot) map[cluster.JobKey]string {
	bound := make(map[cluster.JobKey]string)
	for j := range state.Jobs() {
		group := j.Bound()
		if group == "" {
			continue
		}
		waits := j.Awaits()
		for range state.Of(j.Key) {
			waits = false
		}
		if !waits {
			bound[j.Key] = group
		}
	}
	return bound
}

// skip reports the records that cannot be read, and leaves their jobs alone.
func (l *leadership) skip(all []move.Unreadable, bound map[cluster.JobKey]string) {
	clear(l.unreadable)
	for _, u := range all {
		if !slices.Contains(l.skipped, u) {
			l.log.Warn("skipping the record of a move", "variable", u.Path, "job", u.Job, "namespace", u.Namespace, "error", u.Why)
		}
		if u.Job != "" {
			key := cluster.JobKey{Namespace: u.Namespace, ID: u.Job}
			l.unreadable[key] = true
			delete(bound, key)
			l.explain(key, "left alone: the record of its move cannot be read: "+u.String())
		}
	}
	l.skipped = all
	l.metrics.Unreadable.Set(float64(len(all)))
}

func (l *leadership) takeOver(records []move.Record, bound map[cluster.JobKey]string) {
	abandoned := l.watch.Abandoned(records)
	for _, rec := range records {
		delete(bound, jobOf(rec))
		if strings.HasPrefix(rec.Owner, ownerPrefix) && !l.busy[jobOf(rec)] {
			abandoned = append(abandoned, rec)
		}
	}
	for _, rec := range abandoned {
		l.withJob(jobOf(rec), func(ctx context.Context) (func(), error) {
			l.log.Info("finishing an abandoned move", "job", rec.Job, "namespace", rec.Namespace, "move", rec.ID, "phase", string(rec.Phase), "owner", rec.Owner)
			res, err := move.Recover(ctx, l.nomad, rec, l.options())
			if err == nil {
				l.log.Info("finished an abandoned move", "job", rec.Job, "namespace", rec.Namespace, "move", rec.ID, "phase", string(res.Phase))
			}
			return nil, err
		})
	}
	l.metrics.Orphans.Set(float64(len(bound)))
	state, _ := l.cluster.Snapshot()
	for key, group := range bound {
		j := state.Job(key)
		if j == nil || l.unbound[key] == j.Index {
			continue
		}
		index := j.Index
		l.withJob(key, func(ctx context.Context) (func(), error) {
			said, err := move.Unbind(ctx, l.nomad, key.Namespace, key.ID, group, l.options())
			// A completed job stays bound; do not retry at this index.
			return func() { l.unbound[key] = index; l.explain(key, said) }, err
		})
	}
}

func jobOf(r move.Record) cluster.JobKey { return cluster.JobKey{Namespace: r.Namespace, ID: r.Job} }

// withJob runs do in the background unless the job is busy. If do succeeds, a step calls its result.
func (x *executor) withJob(key cluster.JobKey, do func(context.Context) (func(), error)) {
	if x.busy[key] {
		return
	}
	x.busy[key] = true
	x.run(func() func() {
		then, err := do(x.leading)
		return func() {
			delete(x.busy, key)
			switch {
			case err == nil && then != nil:
				then()
			case err != nil && !errors.Is(err, move.ErrClaimed):
				x.log.Error("cannot unbind or thaw a job; a freeze ends with its lease", "job", key.ID, "namespace", key.Namespace, "error", err)
			}
		}
	})
}
