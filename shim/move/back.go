// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

// errLost says that the target was lost with the new allocation. Nomad would look for its
// disk there.
var errLost = errors.New("the target is lost, and the new allocation with it")

// metaAdopt is the key of a group's meta that names the allocation from which the driver
// takes the checkpoint, on the node that it came from.
const metaAdopt = "ebbtide_adopt"

// lost is errLost if the new allocation is lost, and the source has what was saved.
func (m *mover) lost(ctx context.Context) error {
	if m.job == nil || shared(m.job.LookupTaskGroup(m.alloc.TaskGroup)) {
		return nil // whatever node it gets, it finds its checkpoint
	}
	stub, err := m.newest(ctx)
	if err != nil {
		return err
	}
	if stub != nil && stub.ClientStatus == api.AllocClientStatusLost {
		return errLost
	}
	return nil
}

// back sends the job back to the node that it came from, where its last checkpoint is. If
// Nomad cannot place it there it may place it anywhere, and it begins anew.
func (m *mover) back(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.opts.Place)
	defer cancel()
	home := m.binding()
	home.Node = m.alloc.NodeID
	err := persist(ctx, m.opts.Poll, func(ctx context.Context) error { return m.bindHome(ctx, home) })
	err = errors.Join(err, m.after(ctx, func(ctx context.Context) error {
		for _, b := range []Binding{m.binding(), home} {
			if _, err := free(ctx, m.nomad, b, m.opts.Poll); err != nil {
				return err
			}
		}
		m.result.Bound = false
		return m.opts.Binds(ctx, nil)
	}))
	if err != nil {
		return fmt.Errorf("sending it back to where it was: %w", err)
	}
	m.opts.Report(m.result.Phase, "it goes on where it was, from what it saved")
	return nil
}

// bindHome binds the job to the node that it came from, and waits until it is placed.
func (m *mover) bindHome(ctx context.Context, home Binding) error {
	if err := m.ours(ctx); err != nil {
		return err
	}
	job, err := m.nomad.Job(ctx, home.Namespace, home.Job)
	if err != nil {
		return err
	}
	if job, err = unpin(job, home.Group, m.req.Node); err != nil {
		return err
	}
	if job, err = pin(job, home.Group, home.Node); err != nil {
		return err
	}
	group := job.LookupTaskGroup(home.Group)
	if group.Meta == nil {
		group.Meta = make(map[string]string)
	}
	group.Meta[metaAdopt] = m.alloc.ID
	if err := m.opts.Binds(ctx, &home); err != nil {
		return err
	}
	resp, err := m.nomad.Register(ctx, job)
	if err != nil {
		return err
	}
	m.index = resp.JobModifyIndex
	_, err = m.placed(ctx, home, resp.EvalID)
	return err
}
