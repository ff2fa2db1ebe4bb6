// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/internal/optin"
	"github.com/ebbtide/ebbtide/shim/document"
)

// metaAdopt is the group meta key that names the allocation whose checkpoint the driver adopts
// after a rollback.
const metaAdopt = optin.Adopt

// finish completes the move of a bound job. over means that nothing is left to do, so the claim
// can be dropped.
func (m *mover) finish(ctx context.Context) (over bool, err error) {
	err = m.step(ctx, PhaseWait, m.wait)
	if err == nil {
		err = m.step(ctx, PhaseVerify, m.verify)
	}
	if err == nil {
		if err = m.put(ctx, PhaseUnbind); err == nil {
			err = m.step(ctx, PhaseUnbind, func(ctx context.Context) error { return m.detached(ctx, m.unbind) })
		}
		if err == nil {
			m.firstSteps(ctx)
			m.done(PhaseDone, "moved")
			return true, nil
		}
	}
	if cerr := m.put(ctx, m.record().Phase); cerr != nil {
		return false, errors.Join(err, cerr) // the claim's next owner finishes the move
	}
	if m.canRollBack(ctx, err) {
		herr := m.put(ctx, PhaseRollback)
		if herr == nil {
			herr = m.detached(ctx, m.rollBack)
		}
		if herr == nil {
			m.opts.Report(m.result.Phase, "it resumes on its source from its checkpoint")
			return true, err
		}
		return false, errors.Join(err, fmt.Errorf("rolling back: %w", herr))
	}
	// Without the constraint there is nothing left to wait for; the old allocation, if frozen,
	// is thawed.
	if uerr := m.detached(ctx, m.unbind); uerr != nil {
		return false, errors.Join(err, uerr)
	}
	return true, errors.Join(err, m.detached(ctx, m.thaw))
}

// put records the next step.
func (m *mover) put(ctx context.Context, phase Phase) error {
	return m.detached(ctx, func(ctx context.Context) error {
		return m.claim.update(ctx, func(r *Record) { r.Phase = phase })
	})
}

// wait waits until the new allocation has started or failed.
func (m *mover) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.PlaceTimeout)
	defer cancel()
	r := m.record()
	if err := m.until(ctx, "the job is read", func() (bool, error) { return true, m.unchanged(ctx) }); err != nil {
		return err
	}
	err := m.waitPlaced(ctx, r.After, "the new allocation runs", func(stubs []*api.AllocationListStub, next *api.AllocationListStub) (ok bool, err error) {
		old := latest(stubs, func(s *api.AllocationListStub) bool { return s.ID == r.Alloc })
		switch {
		case old == nil:
		case terminal(old.ClientStatus):
			m.frozen.stop() // nothing left to keep frozen
		case old.JobVersion > r.Version && old.DesiredStatus == api.AllocDesiredStatusRun:
			return false, cmp.Or(m.unchanged(ctx), errInPlace)
		}
		if next == nil {
			return false, nil
		}
		m.result.NewAlloc = next.ID
		if next.ClientStatus == api.AllocClientStatusPending {
			return false, nil
		}
		m.next, err = m.nomad.Allocation(ctx, next.ID)
		return err == nil, err
	})
	var missing errUnplaced
	if errors.As(err, &missing) {
		// Nomad stops the old allocation only once it has placed another one, which has failed then.
		if here := m.detached(ctx, m.stillRunning); here != nil && !transient(here) {
			return fmt.Errorf("%w: %w, and %w", ErrNotResumed, err, here)
		}
	}
	if err != nil {
		return err
	}
	if !m.frozenAt.IsZero() {
		m.result.DownS = status.Number(time.Since(m.frozenAt).Seconds())
	}
	if m.next.ClientStatus == api.AllocClientStatusRunning {
		m.done(PhaseWait, "%s runs on the target", short(m.result.NewAlloc))
	}
	return nil
}

// errUnplaced means that Nomad could not place the bound job.
type errUnplaced struct{ why string }

func (e errUnplaced) Error() string { return "not placed: " + e.why }

// waitPlaced waits until Nomad has evaluated the job as bound at index and is accepts the
// newest allocation on the node (nil if there is none).
func (m *mover) waitPlaced(ctx context.Context, index uint64, what string, is func(all []*api.AllocationListStub, next *api.AllocationListStub) (bool, error)) error {
	r := m.record()
	missing, err := waitEvaluated(ctx, m.nomad, m.opts.PollInterval, r.Namespace, r.Job, r.Group, index)
	if err != nil {
		return err
	}
	if missing != nil {
		return errUnplaced{placementFailure(missing)}
	}
	return m.until(ctx, what, func() (bool, error) {
		stubs, err := m.nomad.Allocations(ctx, r.Namespace, r.Job)
		if err != nil {
			return false, err
		}
		if ok, err := is(stubs, latest(stubs, m.isNext)); ok || err != nil {
			return ok, err
		}
		return false, m.unchanged(ctx)
	})
}

// isNext reports whether the allocation was created on the target after the job was bound.
func (m *mover) isNext(s *api.AllocationListStub) bool {
	r := m.record()
	node := r.Target
	if r.Phase == PhaseRollback {
		node = r.Source
	}
	return s.TaskGroup == r.Group && s.NodeID == node && s.ID != r.Alloc && s.JobVersion > r.Version
}

// errChanged means that the user has changed the job, which may never run on the target.
type errChanged struct{ why string }

func (e errChanged) Error() string { return e.why }

// unchanged returns an error if the job is no longer as the move registered it.
func (m *mover) unchanged(ctx context.Context) error {
	r := m.record()
	job, err := m.nomad.Job(ctx, r.Namespace, r.Job)
	switch {
	case notFound(err):
		return errChanged{"the job was removed"}
	case err != nil:
		return err
	}
	return m.registered(job)
}

// registered returns an error if the job is not as the move registered it, or has since got an
// obstacle: a job that is scaled stays bound.
func (m *mover) registered(job *document.Job) error {
	r := m.record()
	if stopped(job) {
		return errChanged{"the job was stopped"}
	}
	if _, id, ok := boundTo(job, r.Group); !ok || id != r.ID {
		return errChanged{"the job was changed"}
	}
	for _, o := range Obstacles(job.Job, job.LookupTaskGroup(r.Group)) {
		switch {
		case o.Field == "constraint": // the move's own
		case r.Alloc == "" && o.Field != "count", r.Suspend && o.Field == "ephemeral_disk": // no obstacle here
		default:
			return errChanged{"the job was changed: " + o.Why}
		}
	}
	return nil
}

// verify checks that the new tasks found what was saved.
func (m *mover) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.VerifyTimeout)
	defer cancel()
	for i := range m.result.Tasks {
		t := &m.result.Tasks[i]
		if err := m.verifyTask(ctx, t); err != nil {
			return err
		}
	}
	if m.next.ClientStatus == api.AllocClientStatusComplete {
		m.done(PhaseVerify, "it found its checkpoint and has completed")
		return nil
	}
	m.done(PhaseVerify, "it found its checkpoint")
	return nil
}

func (m *mover) verifyTask(ctx context.Context, t *Task) error {
	return m.until(ctx, fmt.Sprintf("the target has recorded what task %s found", t.Name), func() (bool, error) {
		found, err := m.nomad.Restored(ctx, m.next, t.Name)
		if err == nil {
			bytes, ok := found[t.Path]
			switch {
			case !ok:
				return false, fmt.Errorf("%w: task %s saved %s and did not find it; Nomad starts a task with an empty disk if it cannot migrate the old one", ErrNotResumed, t.Name, t.Path)
			case bytes != t.Bytes:
				return false, fmt.Errorf("%w: task %s saved %d bytes in %s and found %d", ErrNotResumed, t.Name, t.Bytes, t.Path, bytes)
			}
			return true, nil
		}
		now, aerr := m.nomad.Allocation(ctx, m.next.ID)
		if aerr != nil {
			return false, aerr
		}
		m.next = now
		switch {
		case completed(now.ClientStatus, now.TaskStates):
			return true, nil // it had little left to do
		case now.ClientStatus == api.AllocClientStatusUnknown: // only if a user has just added a disconnect block
			return false, fmt.Errorf("the target is disconnected, with allocation %s", short(now.ID))
		case now.ClientStatus == api.AllocClientStatusComplete:
			return false, fmt.Errorf("%w: %s has ended without having been started", ErrNotResumed, short(now.ID))
		case terminal(now.ClientStatus):
			return false, fmt.Errorf("%w: %s is %s: %s", ErrNotResumed, short(now.ID), now.ClientStatus, now.ClientDescription)
		case errors.Is(err, fs.ErrNotExist) && now.TaskStates[t.Name] != nil && !now.TaskStates[t.Name].StartedAt.IsZero():
			// The driver could not record it; there is no evidence of a loss.
			return true, nil
		case errors.Is(err, fs.ErrNotExist):
			return false, nil
		}
		return false, err
	})
}

// unbind unbinds the job. While the target is unreachable the job stays bound, as Nomad reports
// a lost node only after a while, and then the move is rolled back.
func (m *mover) unbind(ctx context.Context) error {
	if m.next != nil {
		now, err := m.nomad.Allocation(ctx, m.next.ID)
		if err != nil {
			return err
		}
		if now.ClientStatus == api.AllocClientStatusLost {
			return fmt.Errorf("%w: the target is lost, with allocation %s", ErrNotResumed, short(now.ID))
		}
		if !terminal(now.ClientStatus) && now.ClientStatus != api.AllocClientStatusUnknown {
			if err := m.nomad.Reach(ctx, m.record().Target); err != nil {
				return err
			}
		}
	}
	return m.restore(ctx)
}

// firstSteps reports the steps at which the tasks resume, if they report soon.
func (m *mover) firstSteps(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstStepTimeout)
	defer cancel()
	for i := range m.result.Tasks {
		t := &m.result.Tasks[i]
		_ = m.until(ctx, fmt.Sprintf("task %s reports", t.Name), func() (bool, error) {
			st, err := m.nomad.Status(ctx, m.next, t.Name)
			if err == nil && st.Reports > 0 {
				t.Step = st.Step
				return true, nil
			}
			now, err := m.nomad.Allocation(ctx, m.next.ID)
			return err == nil && terminal(now.ClientStatus), err
		})
		m.done(PhaseUnbind, "task %s %s", t.Name, resumed(*t))
	}
}

// canRollBack reports whether the target lacks what was saved, the source still has it, and the
// job is unchanged.
func (m *mover) canRollBack(ctx context.Context, err error) bool {
	if !errors.Is(err, ErrNotResumed) || m.job == nil || shared(m.job.LookupTaskGroup(m.record().Group)) {
		return false // shared checkpoints are found on any node
	}
	return m.detached(ctx, func(ctx context.Context) error {
		if err := m.unchanged(ctx); err != nil {
			return err
		}
		return m.nomad.Reach(ctx, m.record().Source)
	}) == nil
}

// rollBack binds the job to its source, where its last checkpoint is. If Nomad cannot place it
// there, it may place it anywhere, and the job starts over.
func (m *mover) rollBack(ctx context.Context) error {
	r := m.record()
	job, err := m.nomad.Job(ctx, r.Namespace, r.Job)
	if err != nil {
		return err
	}
	if m.registered(job) != nil {
		return m.restore(ctx) // no longer this move's
	}
	node, _, _ := boundTo(job, r.Group)
	// The new allocation must not complete in the meantime.
	still, over, err := freezeBriefly(ctx, m.nomad, job, r.Group)
	if still != nil {
		defer still.stop()
	}
	switch {
	case err != nil:
		return err
	case over:
		return m.restore(ctx)
	}
	index := *job.JobModifyIndex
	if node != r.Source {
		if job, err = bind(job, r.Group, r.Source, r.ID, r.Alloc); err != nil {
			return err
		}
		if index, err = m.registerFrozen(ctx, still, job); err != nil {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	born := true
	err = m.waitPlaced(waiting, index, "it runs on its source", func(_ []*api.AllocationListStub, next *api.AllocationListStub) (bool, error) {
		if next == nil || next.ClientStatus == api.AllocClientStatusPending {
			return false, nil
		}
		born = !stillborn(next)
		m.result.NewAlloc = next.ID
		return born, nil
	})
	var missing errUnplaced
	var changed errChanged
	if err != nil && born && !errors.As(err, &missing) && !errors.As(err, &changed) {
		return err
	}
	return m.restore(ctx)
}
