// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
)

// A job is held for placement by a constraint that no node satisfies (cluster.Hold). Nothing
// runs yet, so there is nothing to save:
//
//	plan ──► bind ──► placed ──► unbind
//	                    │
//	                    ▼
//	                  unbind; or hold
//
//	plan    Would Nomad place it there?
//	bind    The hold is replaced by a constraint on the node, as for a move. A suspended job adopts
//	        there what it has saved.
//	placed  Nomad has created the allocation, and a suspended job has found what it had saved. If
//	        Nomad cannot place it, it may place it anywhere; a suspended job is held again, as its
//	        checkpoint is on that node. So is one whose allocation could not be started.
//	unbind  As for a move.

// ErrNotHeld means that the job is no longer held.
var ErrNotHeld = errors.New("the job is no longer held")

// Place is a held group and its node, "" for Nomad's choice.
type Place struct {
	Namespace, Job, Group, Node string
	// Saved are the tasks that a suspended job has saved, if known.
	Saved []Task
}

// CheckPlacement says why Nomad would not place a held job on its node, "" if it would or gives
// no plan (ErrNoPlan).
func CheckPlacement(ctx context.Context, nomad Nomad, p Place) (why string, err error) {
	job, err := nomad.Job(ctx, p.Namespace, p.Job)
	if err != nil {
		return "", err
	}
	job, err = withoutHold(job)
	if err != nil {
		return "", err
	}
	missing, err := planned(ctx, nomad, job, p.Group, p.Node)
	var refused *Refused
	switch {
	case errors.Is(err, ErrNoPlan):
		return "", nil
	case errors.As(err, &refused):
		return strings.Join(refused.Reasons, "; "), nil
	case err != nil:
		return "", err
	case missing != nil:
		return placementFailure(missing), nil
	}
	return "", nil
}

// Release releases a held job and returns the ID of the allocation on the node. After an error
// a job that is no longer held is not bound either, so that Nomad may place it anywhere; if
// unbinding failed too, the claim is left for Recover.
func Release(ctx context.Context, nomad Nomad, p Place, opts Options) (alloc string, err error) {
	was, err := nomad.Job(ctx, p.Namespace, p.Job)
	if err != nil {
		return "", err
	}
	job, err := withoutHold(was)
	if err != nil {
		return "", err
	}
	left, node := Suspended(was, p.Group)
	resumes := node != "" && (node == p.Node || shared(was.LookupTaskGroup(p.Group)))
	if p.Node == "" {
		_, err := nomad.Register(ctx, job)
		return "", err
	}
	m := &mover{nomad: nomad, opts: opts, job: job}
	r := Record{Namespace: p.Namespace, Job: p.Job, Group: p.Group, Target: p.Node, Phase: PhaseBind, Tasks: []Task{}, Version: *job.Version, Before: *job.JobModifyIndex}
	if resumes {
		r.Left, r.Source, r.Tasks = left, node, append(r.Tasks, p.Saved...)
	}
	err = m.withClaim(ctx, r, func(ctx context.Context) (over bool, err error) {
		bound, err := bind(job, p.Group, p.Node, m.record().ID, r.Left)
		if err != nil {
			return true, err
		}
		index, err := m.registerBound(ctx, bound)
		if err != nil {
			return !m.result.Bound, err
		}
		err = m.detached(ctx, func(ctx context.Context) error {
			return m.claim.update(ctx, func(r *Record) { r.Phase, r.After = PhaseWait, index })
		})
		if err != nil {
			return false, err
		}
		return m.finishRelease(ctx)
	})
	return m.result.NewAlloc, err
}

// finishRelease completes the release of a bound job. over is as for finish.
func (m *mover) finishRelease(ctx context.Context) (over bool, err error) {
	r := m.record()
	m.result.Tasks = slices.Clone(r.Tasks)
	err = m.waitPlacedHeld(ctx, r.After)
	if m.result.NewAlloc == "" && r.Left != "" {
		held := m.detached(ctx, m.holdAgain)
		return held == nil, errors.Join(err, held)
	}
	if err == nil && r.Left != "" {
		if m.next, err = m.nomad.Allocation(ctx, m.result.NewAlloc); err == nil {
			err = m.verify(ctx)
		}
	}
	// Unbind whether or not it was placed.
	unbound := m.detached(ctx, m.restore)
	return unbound == nil, errors.Join(err, unbound)
}

// holdAgain holds a suspended job that Nomad could not place. If Nomad has placed it meanwhile, the
// job is unbound.
func (m *mover) holdAgain(ctx context.Context) error {
	r := m.record()
	job, err := m.nomad.Job(ctx, r.Namespace, r.Job)
	switch {
	case notFound(err):
		return nil
	case err != nil:
		return err
	case m.registered(job) != nil:
		return m.restore(ctx) // no longer this release's
	}
	stubs, err := m.nomad.Allocations(ctx, r.Namespace, r.Job)
	if err != nil {
		return err
	}
	if next := latest(stubs, m.isNext); next != nil && !stillborn(next) {
		return m.unhold(ctx)
	}
	if _, node := Suspended(job, r.Group); node != "" {
		return nil
	}
	held, err := hold(job, r.Group, r.Source, r.ID, r.Left)
	if err != nil {
		return err
	}
	if _, err := m.register(ctx, held); err != nil {
		return err
	}
	return m.holdAgain(ctx)
}

func (m *mover) waitPlacedHeld(ctx context.Context, index uint64) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.PlaceTimeout)
	defer cancel()
	return m.waitPlaced(ctx, index, "Nomad has placed it", func(_ []*api.AllocationListStub, next *api.AllocationListStub) (bool, error) {
		resumes := m.record().Left != ""
		switch {
		case next == nil:
			return false, nil
		case resumes && stillborn(next):
			m.result.NewAlloc = ""
			return false, fmt.Errorf("%w: %s is %s, and was never started: %s", ErrNotResumed, short(next.ID), next.ClientStatus, next.ClientDescription)
		}
		m.result.NewAlloc = next.ID
		// What resumes may have little left to do: once it runs, it can be frozen while it is unbound.
		return !resumes || next.ClientStatus != api.AllocClientStatusPending, nil
	})
}

func withoutHold(job *document.Job) (*document.Job, error) {
	if stopped(job) {
		return nil, ErrNotHeld
	}
	held := false
	out, err := job.With(document.DropAllConstraints(func(left, _ string) bool {
		held = held || left == cluster.Hold
		return left == cluster.Hold
	}))
	if err == nil && !held {
		return nil, ErrNotHeld
	}
	return out, err
}
