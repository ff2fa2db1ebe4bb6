// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
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
//	                  unbind
//
//	plan    Would Nomad place it there?
//	bind    The hold is replaced by a constraint on the node, as for a move.
//	placed  Nomad has created the allocation. If it cannot, it may place it anywhere.
//	unbind  As for a move.

// ErrNotHeld means that the job is no longer held.
var ErrNotHeld = errors.New("the job is no longer held")

// Place is a held group and its node, "" for Nomad's choice.
type Place struct{ Namespace, Job, Group, Node string }

// CheckPlacement says why Nomad would not place a held job on its node, "" if it would or gives
// no plan (ErrNoPlan).
func CheckPlacement(ctx context.Context, nomad Nomad, p Place) (why string, err error) {
	job, err := withoutHold(ctx, nomad, p)
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
	job, err := withoutHold(ctx, nomad, p)
	if err != nil {
		return "", err
	}
	if p.Node == "" {
		_, err := nomad.Register(ctx, job)
		return "", err
	}
	m := &mover{nomad: nomad, opts: opts, job: job}
	r := Record{Namespace: p.Namespace, Job: p.Job, Group: p.Group, Target: p.Node, Phase: PhaseBind, Tasks: []Task{}, Version: *job.Version, Before: *job.JobModifyIndex}
	err = m.withClaim(ctx, r, func(ctx context.Context) (over bool, err error) {
		bound, err := bind(job, p.Group, p.Node, m.record().ID, "")
		if err != nil {
			return true, err
		}
		index, err := m.registerBound(ctx, bound)
		if err != nil {
			return !m.result.Bound, err
		}
		alloc, err = m.waitPlacedHeld(ctx, index)
		// Unbind whether or not it was placed.
		unbound := m.detached(ctx, m.restore)
		return unbound == nil, errors.Join(err, unbound)
	})
	return alloc, err
}

func (m *mover) waitPlacedHeld(ctx context.Context, index uint64) (alloc string, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.PlaceTimeout)
	defer cancel()
	err = m.waitPlaced(ctx, index, "Nomad has placed it", func(_ []*api.AllocationListStub, next *api.AllocationListStub) (bool, error) {
		if next != nil {
			alloc = next.ID
		}
		return next != nil, nil
	})
	return alloc, err
}

func withoutHold(ctx context.Context, nomad Nomad, p Place) (*document.Job, error) {
	job, err := nomad.Job(ctx, p.Namespace, p.Job)
	if err != nil {
		return nil, err
	}
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
