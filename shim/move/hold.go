// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
)

// A job may wait until the shim has found a node for it: it has a constraint that no node
// fulfils (cluster.Hold), so Nomad keeps it waiting. Nothing of it runs yet, so there is
// nothing to save:
//
//	try ──► pin ──► placed ──► unpin
//	                  │
//	                  ▼
//	                unpin
//
//	try     Would Nomad place it there?
//	pin     The job is registered without the constraint for which it waited, and with one
//	        on the node.
//	placed  Nomad has made its allocation. If it cannot, Nomad may place it anywhere.
//	unpin   As for a move.

// ErrNotHeld says that a job does not wait for the shim any more.
var ErrNotHeld = errors.New("the job does not wait for a node any more")

// Try says why Nomad would not place a job that waits on a node; "" if it would, or does
// not tell (ErrNoPlan).
func Try(ctx context.Context, nomad Nomad, b Binding) (why string, err error) {
	job, err := released(ctx, nomad, b)
	if err != nil {
		return "", err
	}
	pinned, err := pin(job, b.Group, b.Node)
	if err != nil {
		return "", err
	}
	plan, err := nomad.Plan(ctx, pinned)
	if errors.Is(err, ErrNoPlan) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if metric := plan.FailedTGAllocs[b.Group]; metric != nil {
		return unplaced(metric), nil
	}
	return "", nil
}

// Release lets a job run that waits: on a node, or with no node where Nomad places it. It
// returns the ID of the allocation on that node. With an error a job that waits no more
// is not bound to the node either, so that Nomad may place it anywhere; unless it is still
// bound, for Nomad could not be told otherwise: somebody has to set it free (Unbind).
func Release(ctx context.Context, nomad Nomad, b Binding, opts Options) (alloc string, stillBound bool, err error) {
	job, err := released(ctx, nomad, b)
	if err != nil {
		return "", false, err
	}
	if b.Node == "" {
		_, err := nomad.Register(ctx, job)
		return "", false, err
	}
	pinned, err := pin(job, b.Group, b.Node)
	if err != nil {
		return "", false, err
	}
	if err := opts.Binds(ctx, &b); err != nil {
		return "", false, err
	}
	m := &mover{nomad: nomad, opts: opts, job: job}
	resp, err := nomad.Register(ctx, pinned)
	if err == nil {
		alloc, err = m.placed(ctx, b, resp.EvalID)
	}
	// Whatever has become of it. Of a registration perhaps only the answer was lost.
	stillBound = true
	err = errors.Join(err, m.after(ctx, func(ctx context.Context) error {
		if err := Unbind(ctx, nomad, b); err != nil {
			return err
		}
		stillBound = false
		return opts.Binds(ctx, nil)
	}))
	return alloc, stillBound, err
}

// placed waits until Nomad has placed a group on the node to which it is bound.
func (m *mover) placed(ctx context.Context, b Binding, eval string) (alloc string, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Place)
	defer cancel()
	err = m.until(ctx, "Nomad has placed it", func() (bool, error) {
		e, err := m.nomad.Evaluation(ctx, b.Namespace, eval)
		if err != nil {
			return false, err
		}
		if metric := e.FailedTGAllocs[b.Group]; metric != nil {
			return false, fmt.Errorf("it is not placed: %s", unplaced(metric))
		}
		stubs, err := m.nomad.Allocations(ctx, b.Namespace, b.Job)
		if err != nil {
			return false, err
		}
		for _, s := range stubs {
			if s.TaskGroup == b.Group && s.NodeID == b.Node && s.JobVersion > m.version() {
				alloc = s.ID
			}
		}
		return alloc != "", nil
	})
	return alloc, err
}

// released is a job without the constraint for which it waits.
func released(ctx context.Context, nomad Nomad, b Binding) (*api.Job, error) {
	job, err := nomad.Job(ctx, b.Namespace, b.Job)
	if err != nil {
		return nil, err
	}
	if job.Stop != nil && *job.Stop {
		return nil, ErrNotHeld
	}
	out, err := clone(job)
	if err != nil {
		return nil, err
	}
	held := false
	free := func(all []*api.Constraint) []*api.Constraint {
		return slices.DeleteFunc(all, func(c *api.Constraint) bool {
			held = held || c.LTarget == cluster.Hold
			return c.LTarget == cluster.Hold
		})
	}
	out.Constraints = free(out.Constraints)
	for _, g := range out.TaskGroups {
		g.Constraints = free(g.Constraints)
		for _, t := range g.Tasks {
			t.Constraints = free(t.Constraints)
		}
	}
	if !held {
		return nil, ErrNotHeld
	}
	return out, nil
}
