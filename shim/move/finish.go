// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
)

// metaAdopt is the key of a group's meta that names the allocation from which the driver
// takes the checkpoint, on the node that it came from.
const metaAdopt = "ebbtide_adopt"

// adopt sets it; with "" it is taken away.
func adopt(g *api.TaskGroup, alloc string) {
	if alloc == "" {
		delete(g.Meta, metaAdopt)
		return
	}
	if g.Meta == nil {
		g.Meta = make(map[string]string)
	}
	g.Meta[metaAdopt] = alloc
}

// finish takes a move to its end whose job is bound. over says that nothing of it is left to
// do, so that its record may go.
func (m *mover) finish(ctx context.Context) (over bool, err error) {
	err = m.step(ctx, PhaseWait, m.wait)
	if err == nil {
		err = m.step(ctx, PhaseVerify, m.verify)
	}
	if err == nil {
		if err = m.put(ctx, PhaseUnbind); err == nil {
			err = m.step(ctx, PhaseUnbind, func(ctx context.Context) error { return m.after(ctx, m.unbind) })
		}
		if err == nil {
			m.firstSteps(ctx)
			m.done(PhaseDone, "moved")
			return true, nil
		}
	}
	if cerr := m.put(ctx, m.record().Phase); cerr != nil {
		return false, errors.Join(err, cerr) // whoever has the record sees to it
	}
	if m.mayGoHome(ctx, err) {
		herr := m.put(ctx, PhaseHome)
		if herr == nil {
			herr = m.after(ctx, m.home)
		}
		if herr == nil {
			m.opts.Report(m.result.Phase, "it goes on where it was, from what it saved")
			return true, err
		}
		return false, errors.Join(err, fmt.Errorf("sending it back to where it was: %w", herr))
	}
	// Without the constraint nothing is left to wait for, and the old one, if it still
	// stands, runs on.
	if uerr := m.after(ctx, m.unbind); uerr != nil {
		return false, errors.Join(err, uerr)
	}
	return true, errors.Join(err, m.after(ctx, m.thaw))
}

// put writes down which step comes.
func (m *mover) put(ctx context.Context, phase Phase) error {
	return m.after(ctx, func(ctx context.Context) error {
		return m.claim.put(ctx, func(r *Record) { r.Phase = phase })
	})
}

// wait waits until the new allocation has been started, or has failed.
func (m *mover) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Place)
	defer cancel()
	r := m.record()
	if err := m.until(ctx, "Nomad is asked", func() (bool, error) { return true, m.unchanged(ctx) }); err != nil {
		return err
	}
	err := m.placed(ctx, r.After, "the new allocation runs", func(stubs []*api.AllocationListStub, next *api.AllocationListStub) (ok bool, err error) {
		if old := latest(stubs, func(s *api.AllocationListStub) bool { return s.ID == r.Alloc }); old != nil && ended(old.ClientStatus) {
			m.frozen.end() // there is nothing to keep
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
	if err != nil {
		return err
	}
	if !m.stood.IsZero() {
		m.result.DownS = status.Number(time.Since(m.stood).Seconds())
	}
	if m.next.ClientStatus == api.AllocClientStatusRunning {
		m.done(PhaseWait, "%s runs on the target", short(m.result.NewAlloc))
	}
	return nil
}

// errUnplaced says that Nomad has not placed what is bound, and why.
type errUnplaced struct{ why string }

func (e errUnplaced) Error() string { return "it is not placed: " + e.why }

// placed waits until Nomad has dealt with the job as it is bound at an index, and what it has
// placed on the node, or nil, is as it should be.
func (m *mover) placed(ctx context.Context, index uint64, what string, is func(all []*api.AllocationListStub, next *api.AllocationListStub) (bool, error)) error {
	r := m.record()
	missing, err := decided(ctx, m.nomad, m.opts.Poll, r.Namespace, r.Job, r.Group, index)
	if err != nil {
		return err
	}
	if missing != nil {
		return errUnplaced{unplaced(missing)}
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

// isNext says whether an allocation has come after the job was bound, on the node to which
// it is.
func (m *mover) isNext(s *api.AllocationListStub) bool {
	r := m.record()
	node := r.Target
	if r.Phase == PhaseHome {
		node = r.Source
	}
	return s.TaskGroup == r.Group && s.NodeID == node && s.ID != r.Alloc && s.JobVersion > r.Version
}

// errChanged says that what the user wants now may never run on the target.
type errChanged struct{ why string }

func (e errChanged) Error() string { return e.why }

// unchanged is an error when the job is not as the move has registered it any more.
func (m *mover) unchanged(ctx context.Context) error {
	r := m.record()
	job, err := m.nomad.Job(ctx, r.Namespace, r.Job)
	switch {
	case gone(err):
		return errChanged{"the job was removed meanwhile"}
	case err != nil:
		return err
	case stopped(job):
		return errChanged{"the job was stopped meanwhile"}
	}
	if _, id, ok := boundTo(job, r.Group); !ok || id != r.ID {
		return errChanged{"somebody has changed the job meanwhile"}
	}
	return nil
}

// verify looks whether the new tasks have found what was saved.
func (m *mover) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Verify)
	defer cancel()
	for i := range m.result.Tasks {
		t := &m.result.Tasks[i]
		if err := m.verifyTask(ctx, t); err != nil {
			return err
		}
	}
	if m.next.ClientStatus == api.AllocClientStatusComplete {
		m.done(PhaseVerify, "it has found what it saved, and has completed")
		return nil
	}
	m.done(PhaseVerify, "it has found what it saved")
	return nil
}

func (m *mover) verifyTask(ctx context.Context, t *Task) error {
	return m.until(ctx, fmt.Sprintf("the target tells what task %s has found", t.Name), func() (bool, error) {
		found, err := m.nomad.Restored(ctx, m.next, t.Name)
		if err == nil {
			bytes, ok := found[t.Path]
			switch {
			case !ok:
				return false, fmt.Errorf("%w: task %s saved %s, and did not find it. Nomad gives a task an empty disk when it cannot carry the old one over", ErrNotResumed, t.Name, t.Path)
			case bytes != t.Bytes:
				return false, fmt.Errorf("%w: task %s saved %d bytes in %s, and found %d", ErrNotResumed, t.Name, t.Bytes, t.Path, bytes)
			}
			return true, nil
		}
		now, aerr := m.nomad.Allocation(ctx, m.next.ID)
		if aerr != nil {
			return false, aerr
		}
		m.next = now
		switch {
		case now.ClientStatus == api.AllocClientStatusComplete:
			return true, nil // it had little left to do
		case ended(now.ClientStatus):
			return false, fmt.Errorf("%w: %s is %s: %s", ErrNotResumed, short(now.ID), now.ClientStatus, now.ClientDescription)
		case errors.Is(err, fs.ErrNotExist) && now.TaskStates[t.Name] != nil && !now.TaskStates[t.Name].StartedAt.IsZero():
			// Its driver could not write that down: nothing speaks against it either.
			return true, nil
		case errors.Is(err, fs.ErrNotExist):
			return false, nil
		}
		return false, err
	})
}

// unbind gives the job back to its user. While the target cannot be reached the job stays
// bound: that it is lost Nomad says only after a while, and then the job goes home.
func (m *mover) unbind(ctx context.Context) error {
	if m.next != nil {
		now, err := m.nomad.Allocation(ctx, m.next.ID)
		if err != nil {
			return err
		}
		if now.ClientStatus == api.AllocClientStatusLost {
			return fmt.Errorf("%w: the target is lost, and %s with it", ErrNotResumed, short(now.ID))
		}
		if !ended(now.ClientStatus) {
			if err := m.nomad.Reach(ctx, m.record().Target); err != nil {
				return err
			}
		}
	}
	return m.restore(ctx)
}

// firstSteps tells at which steps the tasks go on, if they soon report.
func (m *mover) firstSteps(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportsWithin)
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
			return err == nil && ended(now.ClientStatus), err
		})
		m.done(PhaseUnbind, "task %s %s", t.Name, resumed(*t))
	}
}

// mayGoHome says whether the job is to go back to where it was: its target has not what was
// saved, the source has, and the job is as the move has registered it.
func (m *mover) mayGoHome(ctx context.Context, err error) bool {
	if !errors.Is(err, ErrNotResumed) || m.job == nil || shared(m.job.LookupTaskGroup(m.record().Group)) {
		return false // with shared checkpoints it finds them on any node
	}
	return m.after(ctx, func(ctx context.Context) error {
		if err := m.unchanged(ctx); err != nil {
			return err
		}
		return m.nomad.Reach(ctx, m.record().Source)
	}) == nil
}

// home sends the job back to the node that it came from, where its last checkpoint is. If
// Nomad cannot place it there it may place it anywhere, and it begins anew.
func (m *mover) home(ctx context.Context) error {
	r := m.record()
	job, err := m.nomad.Job(ctx, r.Namespace, r.Job)
	if err != nil {
		return err
	}
	node, id, ok := boundTo(job, r.Group)
	if !ok || id != r.ID || stopped(job) {
		return m.restore(ctx) // it is somebody else's now
	}
	// What has begun anew there is not to complete meanwhile.
	still, over, err := standStill(ctx, m.nomad, job, r.Group)
	if still != nil {
		defer still.end()
	}
	switch {
	case err != nil:
		return err
	case over:
		return m.restore(ctx)
	}
	index := *job.JobModifyIndex
	if node != r.Source {
		if job, err = bind(job, r.Group, r.Source, r.ID); err != nil {
			return err
		}
		adopt(job.LookupTaskGroup(r.Group), r.Alloc)
		if index, err = m.register(ctx, job); err != nil {
			return err
		}
	}
	err = m.placed(ctx, index, "it runs where it was", func(_ []*api.AllocationListStub, next *api.AllocationListStub) (bool, error) {
		if next == nil || next.ClientStatus == api.AllocClientStatusPending {
			return false, nil
		}
		m.result.NewAlloc = next.ID
		return true, nil
	})
	var missing errUnplaced
	var changed errChanged
	if err != nil && !errors.As(err, &missing) && !errors.As(err, &changed) {
		return err
	}
	return m.restore(ctx)
}
