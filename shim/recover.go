// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// ownerPrefix identifies records of shims. The leader adopts them, as no other shim is active.
const ownerPrefix = "ebbtide shim on "

const readInterval = 10 * time.Second

// recovery tracks moves whose process has ended.
type recovery struct {
	watch   move.Watch // detects abandoned claims
	readAt  time.Time
	reading bool                      // a read is in progress
	unbound map[cluster.JobKey]uint64 // jobs bound without a record, by the job index at which they were handled
}

// recover finishes abandoned moves and unbinds jobs that are bound without a record.
func (t *term) recover() {
	if t.reading || time.Since(t.readAt) < readInterval || t.now().DryRun {
		return
	}
	t.reading, t.readAt = true, time.Now()
	// Read before the records: a move writes its record before it binds the job.
	bound := make(map[cluster.JobKey]string)
	for key, j := range t.state.Jobs {
		if group := j.Bound(); group != "" && !j.Dead { // a completed batch job stays bound
			bound[key] = group
		}
	}
	t.run(func() func() {
		ctx, cancel := context.WithTimeout(t.leading, queryTimeout)
		defer cancel()
		records, err := t.claims.List(ctx)
		return func() {
			t.reading = false
			if t.leading.Err() != nil {
				return
			}
			if err != nil {
				t.log.Warn("cannot read the records of moves", "error", err)
				return
			}
			t.takeOver(records, bound)
		}
	})
}

func (t *term) takeOver(records []move.Record, bound map[cluster.JobKey]string) {
	abandoned := t.watch.Abandoned(records)
	for _, r := range records {
		delete(bound, jobOf(r))
		if strings.HasPrefix(r.Owner, ownerPrefix) && !t.busy[jobOf(r)] {
			abandoned = append(abandoned, r)
		}
	}
	for _, r := range abandoned {
		t.withJob(jobOf(r), func(ctx context.Context) (func(), error) {
			t.log.Info("finishing an abandoned move", "job", r.Job, "namespace", r.Namespace, "move", r.ID, "phase", string(r.Phase), "owner", r.Owner)
			res, err := move.Recover(ctx, t.nomad, r, t.options())
			if err == nil {
				t.log.Info("finished an abandoned move", "job", r.Job, "namespace", r.Namespace, "move", r.ID, "phase", string(res.Phase))
			}
			return nil, err
		})
	}
	t.metrics.Orphans.Set(float64(len(bound)))
	for key, group := range bound {
		j := t.state.Jobs[key]
		if j == nil || t.unbound[key] == j.Index {
			continue
		}
		index := j.Index
		t.withJob(key, func(ctx context.Context) (func(), error) {
			said, err := move.Unbind(ctx, t.nomad, key.Namespace, key.ID, group, t.options())
			// A completed job stays bound; do not retry at this index.
			return func() { t.unbound[key] = index; t.explain(key, said) }, err
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
