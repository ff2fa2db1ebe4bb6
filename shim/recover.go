// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"maps"
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
	*term
	watch   move.Watch // detects abandoned claims
	readAt  time.Time
	reading bool                      // a read is in progress
	unbound map[cluster.JobKey]uint64 // jobs bound without a record, by the job index at which they were handled
	skipped []move.Unreadable
}

// recover finishes abandoned moves and unbinds jobs that are bound without a record.
func (r *recovery) recover() {
	if r.reading || time.Since(r.readAt) < readInterval || r.now().DryRun {
		return
	}
	r.reading, r.readAt = true, time.Now()
	// Read before the records: a move writes its record before it binds the job.
	bound := make(map[cluster.JobKey]string)
	adopting := make(map[cluster.JobKey]bool) // released to Nomad without a place, they wait for the node of their checkpoint
	for key, j := range r.state.Jobs {
		if group := j.Bound(); group != "" {
			bound[key] = group
			if g := j.Groups[group]; g.Adopts != "" && g.Node != "" {
				adopting[key] = true
			}
		}
	}
	if len(adopting) > 0 { // few: there may be 100,000 allocations
		for _, a := range r.state.Allocs {
			delete(adopting, a.Job)
		}
		maps.DeleteFunc(bound, func(key cluster.JobKey, _ string) bool { return adopting[key] })
	}
	r.run(func() func() {
		ctx, cancel := context.WithTimeout(r.leading, queryTimeout)
		defer cancel()
		records, skipped, err := r.claims.List(ctx)
		return func() {
			r.reading = false
			if r.leading.Err() != nil {
				return
			}
			if err != nil {
				r.log.Warn("cannot read the records of moves", "error", err)
				return
			}
			r.skip(skipped, bound)
			r.takeOver(records, bound)
		}
	})
}

// skip reports the records that cannot be read, and leaves their jobs alone.
func (r *recovery) skip(all []move.Unreadable, bound map[cluster.JobKey]string) {
	clear(r.unreadable)
	for _, u := range all {
		if !slices.Contains(r.skipped, u) {
			r.log.Warn("skipping the record of a move", "variable", u.Path, "job", u.Job, "namespace", u.Namespace, "error", u.Why)
		}
		if u.Job != "" {
			key := cluster.JobKey{Namespace: u.Namespace, ID: u.Job}
			r.unreadable[key] = true
			delete(bound, key)
			r.explain(key, "left alone: the record of its move cannot be read: "+u.String())
		}
	}
	r.skipped = all
	r.metrics.Unreadable.Set(float64(len(all)))
}

func (r *recovery) takeOver(records []move.Record, bound map[cluster.JobKey]string) {
	abandoned := r.watch.Abandoned(records)
	for _, rec := range records {
		delete(bound, jobOf(rec))
		if strings.HasPrefix(rec.Owner, ownerPrefix) && !r.busy[jobOf(rec)] {
			abandoned = append(abandoned, rec)
		}
	}
	for _, rec := range abandoned {
		r.withJob(jobOf(rec), func(ctx context.Context) (func(), error) {
			r.log.Info("finishing an abandoned move", "job", rec.Job, "namespace", rec.Namespace, "move", rec.ID, "phase", string(rec.Phase), "owner", rec.Owner)
			res, err := move.Recover(ctx, r.nomad, rec, r.options())
			if err == nil {
				r.log.Info("finished an abandoned move", "job", rec.Job, "namespace", rec.Namespace, "move", rec.ID, "phase", string(res.Phase))
			}
			return nil, err
		})
	}
	r.metrics.Orphans.Set(float64(len(bound)))
	for key, group := range bound {
		j := r.state.Jobs[key]
		if j == nil || r.unbound[key] == j.Index {
			continue
		}
		index := j.Index
		r.withJob(key, func(ctx context.Context) (func(), error) {
			said, err := move.Unbind(ctx, r.nomad, key.Namespace, key.ID, group, r.options())
			// A completed job stays bound; do not retry at this index.
			return func() { r.unbound[key] = index; r.explain(key, said) }, err
		})
	}
}

func jobOf(r move.Record) cluster.JobKey { return cluster.JobKey{Namespace: r.Namespace, ID: r.Job} }

// withJob runs do off the loop unless the job is busy. If do succeeds, its result is called on the
// loop.
func (t *term) withJob(key cluster.JobKey, do func(context.Context) (func(), error)) {
	if t.busy[key] {
		return
	}
	t.busy[key] = true
	t.run(func() func() {
		then, err := do(t.leading)
		return func() {
			delete(t.busy, key)
			switch {
			case err == nil && then != nil:
				then()
			case err != nil && !errors.Is(err, move.ErrClaimed):
				t.log.Error("cannot unbind or thaw a job; a freeze ends with its lease", "job", key.ID, "namespace", key.Namespace, "error", err)
			}
		}
	})
}
