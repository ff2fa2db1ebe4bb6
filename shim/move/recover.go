// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Recover finishes a move whose process is gone: a bound job is waited for, rolled back or
// unbound as the move would have done; otherwise the task is thawed. It takes over the claim;
// the error wraps ErrClaimed if another process has it.
func Recover(ctx context.Context, nomad Nomad, r Record, opts Options) (Result, error) {
	m := &mover{nomad: nomad, opts: opts}
	m.result = Result{
		Namespace: r.Namespace, Job: r.Job, Alloc: r.Alloc, From: r.Source, To: r.Target, Phase: r.Phase,
		Bound: true, Tasks: slices.Clone(r.Tasks), SaveS: status.Unknown(), DownS: status.Unknown(),
	}
	err := m.withClaim(ctx, r, func(ctx context.Context) (over bool, err error) {
		err = retry(ctx, opts.PollInterval, m.load)
		if err != nil {
			return false, err
		}
		defer m.frozen.stop()
		if r.Phase == PhaseSave { // nothing was registered
			m.result.Bound = false
			return true, m.detached(ctx, m.thaw)
		}
		if r.Phase == PhaseBind || r.Phase == PhaseHold {
			after, err := m.resolveDetached(ctx)
			if err != nil {
				return false, err
			}
			if after == 0 {
				m.result.Bound = false
				return true, m.detached(ctx, m.thaw)
			}
			next := PhaseWait
			if r.Suspend {
				next = PhaseSuspend
			}
			if err := m.claim.update(ctx, func(r *Record) { r.Phase, r.After = next, after }); err != nil {
				return false, err
			}
		}
		switch {
		case r.Suspend:
			return m.finishSuspend(ctx)
		case r.Left != "":
			return m.finishRelease(ctx)
		case r.Alloc == "": // a held job, which may run
			err = m.detached(ctx, m.restore)
			return err == nil, err
		case r.Phase == PhaseRollback:
			err = m.detached(ctx, m.rollBack)
			return err == nil, err
		}
		return m.finish(ctx)
	})
	return m.result, err
}

// load restores the move's state from its record.
func (m *mover) load(ctx context.Context) error {
	r := m.record()
	job, err := m.nomad.Job(ctx, r.Namespace, r.Job)
	if err != nil && !notFound(err) {
		return err
	}
	if !notFound(err) && job.LookupTaskGroup(r.Group) != nil {
		m.job = job
	}
	m.alloc, err = m.nomad.Allocation(ctx, r.Alloc)
	if r.Alloc == "" || notFound(err) {
		m.alloc, err = &api.Allocation{ID: r.Alloc, Namespace: r.Namespace, JobID: r.Job, TaskGroup: r.Group, NodeID: r.Source}, nil
	}
	if err != nil {
		return err
	}
	m.frozen = newFreeze(ctx, m.nomad, m.alloc)
	if m.job == nil || !running(m.alloc) {
		return nil
	}
	// Renewing keeps frozen tasks frozen; running ones are not frozen by it.
	var errs []error
	for _, t := range r.Tasks {
		lease := savingOf(taskOf(m.job.LookupTaskGroup(r.Group), t.Name)).lease
		errs = append(errs, m.frozen.keep(ctx, t.Name, signalRenew, lease))
	}
	if err := errors.Join(errs...); err != nil {
		m.opts.Report(m.result.Phase, "it is no longer frozen: "+err.Error())
	}
	return nil
}
