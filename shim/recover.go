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

// ownerPrefix begins the names of shims as owners of moves. Their records are taken over by
// the one that leads: no other one changes anything.
const ownerPrefix = "ebbtide shim on "

// lookEvery is the time between two looks at the records of moves.
const lookEvery = 10 * time.Second

// recovery is what is known of moves whose processes are gone.
type recovery struct {
	watch   move.Watch                // of the records of moves
	looked  time.Time                 // when they were looked at last
	looking bool                      // they are
	left    map[cluster.JobKey]uint64 // jobs that were bound without a record, as they were when that was seen to
}

// recover finishes the moves whose processes are gone, whosever they were, and gives back
// jobs that are bound although there is no record of a move.
func (t *term) recover() {
	if t.looking || time.Since(t.looked) < lookEvery || t.now().DryRun {
		return
	}
	t.looking, t.looked = true, time.Now()
	// Of before the records are read: a move writes its record before it binds its job.
	bound := make(map[cluster.JobKey]string)
	for key, j := range t.state.Jobs {
		if group := j.Bound(); group != "" {
			bound[key] = group
		}
	}
	t.send(func() func() {
		ctx, cancel := context.WithTimeout(t.leading, askWithin)
		defer cancel()
		records, err := t.claims.List(ctx)
		return func() {
			t.looking = false
			if t.leading.Err() != nil {
				return
			}
			if err != nil {
				t.log.Warn("the records of moves cannot be read", "error", err)
				return
			}
			t.takeOver(records, bound)
		}
	})
}

// takeOver finishes what is abandoned.
func (t *term) takeOver(records []move.Record, bound map[cluster.JobKey]string) {
	abandoned := t.watch.Abandoned(records)
	for _, r := range records {
		delete(bound, jobOf(r))
		if strings.HasPrefix(r.Owner, ownerPrefix) && !t.busy[jobOf(r)] {
			abandoned = append(abandoned, r)
		}
	}
	for _, r := range abandoned {
		t.beside(jobOf(r), func(ctx context.Context) (func(), error) {
			t.log.Info("finishing a move whose process is gone", "job", r.Job, "namespace", r.Namespace, "move", r.ID, "phase", string(r.Phase), "owner", r.Owner)
			res, err := move.Recover(ctx, t.nomad, r, t.options())
			if err == nil {
				t.log.Info("the move was finished", "job", r.Job, "namespace", r.Namespace, "move", r.ID, "phase", string(res.Phase))
			}
			return nil, err
		})
	}
	t.metrics.Orphans.Set(float64(len(bound)))
	for key, group := range bound {
		j := t.state.Jobs[key]
		if j == nil || t.left[key] == j.Index {
			continue
		}
		index := j.Index
		t.beside(key, func(ctx context.Context) (func(), error) {
			said, err := move.Unbind(ctx, t.nomad, key.Namespace, key.ID, group)
			// One that has completed stays as it is.
			return func() { t.left[key] = index; t.sayOf(key, said) }, err
		})
	}
}

func jobOf(r move.Record) cluster.JobKey { return cluster.JobKey{Namespace: r.Namespace, ID: r.Job} }

// beside does something about a job that is not busy otherwise. What it returns the loop
// does when that has succeeded.
func (t *term) beside(key cluster.JobKey, do func(context.Context) (func(), error)) {
	if t.busy[key] {
		return
	}
	t.busy[key] = true
	t.send(func() func() {
		then, err := do(t.leading)
		return func() {
			delete(t.busy, key)
			switch {
			case err == nil && then != nil:
				then()
			case err != nil && !errors.Is(err, move.ErrClaimed):
				t.log.Error("a job stays bound, or frozen for its lease", "job", key.ID, "namespace", key.Namespace, "error", err)
			}
		}
	})
}
