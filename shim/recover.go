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
		for name, g := range j.Groups {
			if g.Bound && !j.Stopped {
				bound[key] = name
			}
		}
	}
	t.moves.Go(func() {
		ctx, cancel := context.WithTimeout(t.leading, askWithin)
		defer cancel()
		records, err := t.claims.List(ctx)
		t.ended <- func(context.Context) {
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
		if strings.HasPrefix(r.Owner, ownerPrefix) && !t.moving[jobOf(r)] {
			abandoned = append(abandoned, r)
		}
	}
	for _, r := range abandoned {
		t.beside(jobOf(r), func(ctx context.Context) error {
			t.log.Info("finishing a move whose process is gone", "job", r.Job, "namespace", r.Namespace, "move", r.ID, "phase", string(r.Phase), "owner", r.Owner)
			res, err := move.Recover(ctx, t.nomad, r, t.options())
			if err == nil {
				t.log.Info("the move was finished", "job", r.Job, "namespace", r.Namespace, "move", r.ID, "phase", string(res.Phase))
			}
			return err
		})
	}
	for key, group := range bound {
		j := t.state.Jobs[key]
		if j == nil || t.left[key] == j.Index {
			continue
		}
		index := j.Index
		t.beside(key, func(ctx context.Context) error {
			said, err := move.Unbind(ctx, t.nomad, key.Namespace, key.ID, group)
			if err == nil {
				// One that has completed stays as it is.
				t.ended <- func(context.Context) { t.left[key] = index; t.sayOf(key, said) }
			}
			return err
		})
	}
}

func jobOf(r move.Record) cluster.JobKey { return cluster.JobKey{Namespace: r.Namespace, ID: r.Job} }

// beside does something about a job that no move of this process is about, beside the loop.
func (t *term) beside(key cluster.JobKey, do func(context.Context) error) {
	if t.moving[key] || t.releasing[key] {
		return
	}
	t.moving[key] = true
	t.moves.Go(func() {
		err := do(t.leading)
		t.ended <- func(context.Context) {
			delete(t.moving, key)
			if err != nil && !errors.Is(err, move.ErrClaimed) {
				t.log.Error("a job stays bound, or frozen for its lease", "job", key.ID, "namespace", key.Namespace, "error", err)
			}
		}
	})
}
