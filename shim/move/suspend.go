// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
)

// A suspended job has no place and keeps what it has saved. It is held (cluster.Hold), and bound to
// its node, whose driver keeps the checkpoint and will adopt it (metaAdopt). So its document says all
// that is needed to resume it, by Release or, where an operator opens the hold, by Nomad itself.
//
//	check ──► save ──► hold ──► suspend ──► done
//	  │         │       │         │
//	  ▼         ▼       ▼         ▼
//	refused   thaw    thaw      unbind
//
//	save     As for a move.
//	hold     The job is registered with the hold and the binding. Nomad finds no place for it, so
//	         that the frozen allocation stays. If the answer is lost, the outcome is resolved as for a
//	         move.
//	suspend  The driver keeps the checkpoint and ends the task (EBBTIDE_SUSPEND). For Nomad the
//	         allocation is complete; but the job has a newer version, which waits for a place. If the
//	         task runs again, its lease having ended, the job is unbound and keeps its place.
//
// Nomad's own stop of an allocation would not do: Nomad stops it only once the job can be placed
// again, and then it is the held version's, which it takes for complete.

const (
	PhaseHold    Phase = "hold"
	PhaseSuspend Phase = "suspend"

	signalSuspend = "EBBTIDE_SUSPEND"
	// holdValue is the value of the attribute cluster.Hold on a node on which held jobs may run.
	holdValue = "released"
)

// Suspend ends an allocation of a batch job so that the job goes on later from what it has saved. The
// result says how far it came, also after an error.
func Suspend(ctx context.Context, nomad Nomad, req Request, opts Options) (Result, error) {
	m := newMover(nomad, req, opts)
	if err := m.step(ctx, PhaseCheck, m.checkSuspend); err != nil || req.DryRun {
		return m.result, err
	}
	r := m.newRecord(req.Why)
	r.Suspend = true
	err := m.execute(ctx, r, PhaseHold, m.hold, m.finishSuspend)
	return m.result, err
}

// finishSuspend completes the suspension of a held job. over is as for finish: as long as it is
// unknown whether the driver has suspended the task, the job stays held.
func (m *mover) finishSuspend(ctx context.Context) (over bool, err error) {
	err = m.step(ctx, PhaseSuspend, m.suspend)
	if err == nil {
		if err := m.detached(ctx, m.stillWaits); err != nil {
			return false, err
		}
	}
	var changed errChanged
	switch {
	case err == nil:
		m.result.Bound = false
		m.done(PhaseDone, "suspended")
		return true, nil
	case errors.Is(err, errRuns):
		if uerr := m.detached(ctx, m.unhold); uerr != nil {
			return false, errors.Join(err, uerr)
		}
		return true, err
	case errors.As(err, &changed):
		return true, errors.Join(err, m.detached(ctx, m.thaw))
	}
	return false, err
}

// checkSuspend collects the reasons against the suspension.
func (m *mover) checkSuspend(ctx context.Context) error {
	alloc, job, from, err := m.read(ctx)
	if err != nil {
		return err
	}
	m.result.To = from.ID
	tasks, reasons := suspendable(alloc, job.Job, from)
	if len(reasons) > 0 {
		return &Refused{Reasons: reasons, suspend: true}
	}
	m.alloc, m.job, m.from, m.to = alloc, job, from, from
	if err := m.nomad.Reach(ctx, from.ID); err != nil {
		return err
	}
	m.willSave(tasks)
	m.done(PhaseCheck, "%s of job %s may be suspended on %s", short(alloc.ID), alloc.JobID, from.Name)
	return nil
}

// suspendable returns the tasks that save their state, and every reason against a suspension.
func suspendable(alloc *api.Allocation, job *api.Job, node *api.Node) (tasks, reasons []string) {
	tasks, reasons = savable(alloc, job, node)
	if group := job.LookupTaskGroup(alloc.TaskGroup); group != nil {
		for _, o := range Obstacles(job, group) {
			if o.Field != "ephemeral_disk" && o.Field != "constraint" { // it goes on where it was
				reasons = append(reasons, o.Why)
			}
		}
	}
	if len(tasks) > 1 {
		reasons = append(reasons, fmt.Sprintf("its group has %d tasks that save, must be 1", len(tasks)))
	}
	if text(job.Type) != api.JobTypeBatch {
		reasons = append(reasons, fmt.Sprintf("its job's type is %q, must be batch", text(job.Type)))
	}
	return tasks, reasons
}

// hold returns a copy of the job that waits for its node, to resume there from what allocation adopt
// has left.
func hold(job *document.Job, group, node, id, adopt string) (*document.Job, error) {
	bound, err := bind(job, group, node, id, adopt)
	if err != nil {
		return nil, err
	}
	return bound.With(document.DropConstraints(group, isHold), document.AddConstraint(group, cluster.Hold, "=", holdValue))
}

func (m *mover) hold(ctx context.Context) error {
	r := m.record()
	held, err := hold(m.job, r.Group, r.Source, r.ID, r.Alloc)
	if err != nil {
		return err
	}
	index, err := m.registerSaved(ctx, PhaseHold, held, func(ctx context.Context) error { return m.nomad.Reach(ctx, r.Source) })
	if err != nil {
		return err
	}
	m.done(PhaseHold, "the job is held")
	return m.detached(ctx, func(ctx context.Context) error {
		return m.claim.update(ctx, func(r *Record) { r.Phase, r.After = PhaseSuspend, index })
	})
}

// runsFor is how long a task must be seen to run before its suspension is given up.
const runsFor = 5 * time.Second

// errRuns means that a task that was to be suspended runs.
var errRuns = errors.New("the task runs again: its freeze has ended")

// suspend has the driver suspend the task, and waits until Nomad knows that it has ended.
func (m *mover) suspend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.PlaceTimeout)
	defer cancel()
	r := m.record()
	task, signal := r.Tasks[0].Name, strings.TrimSpace(signalSuspend+" "+r.Why)
	asked := false
	var runs time.Time // since when it has been seen to run
	return m.until(ctx, "the allocation has ended", func() (bool, error) {
		now, err := m.nomad.Allocation(ctx, m.alloc.ID)
		switch {
		case notFound(err):
			return true, nil
		case err != nil:
			return false, err
		case terminal(now.ClientStatus):
			m.frozen.stop() // nothing left to keep frozen
			return true, nil
		}
		if !asked {
			if err := m.unchanged(ctx); err != nil {
				return false, err
			}
		}
		st, err := m.nomad.Status(ctx, m.alloc, task)
		if err != nil {
			return false, err
		}
		switch st.Move.State {
		case status.MoveReady:
			runs, asked = time.Time{}, true
			return false, m.whileClaimed(ctx, func(ctx context.Context) error {
				return m.nomad.Signal(ctx, m.alloc, task, signal)
			})
		case status.MoveSuspended:
			return false, nil
		}
		// A plugin that has just been restarted may not have told yet.
		if runs.IsZero() {
			runs = time.Now()
		}
		if time.Since(runs) > runsFor {
			return false, errRuns
		}
		return false, nil
	})
}

// stillWaits holds the job once more if a user has changed it while its task was being suspended, and
// Nomad has updated the allocation in place: it would take the job for complete.
func (m *mover) stillWaits(ctx context.Context) error {
	r := m.record()
	job, err := m.nomad.Job(ctx, r.Namespace, r.Job)
	switch {
	case notFound(err):
		return nil
	case err != nil:
		return err
	case stopped(job) || m.registered(job) == nil || job.LookupTaskGroup(r.Group) == nil:
		return nil
	}
	stubs, err := m.nomad.Allocations(ctx, r.Namespace, r.Job)
	if err != nil {
		return err
	}
	last := latest(stubs, func(s *api.AllocationListStub) bool { return s.TaskGroup == r.Group })
	if last == nil || last.ID != r.Alloc || last.JobVersion != *job.Version {
		return nil // Nomad runs it
	}
	held, err := hold(job, r.Group, r.Source, r.ID, r.Alloc)
	if err == nil {
		_, err = m.register(ctx, held)
	}
	return err
}

func isHold(left, _ string) bool { return left == cluster.Hold }

// Suspended says where the held job waits with what it has saved: the allocation that has left it,
// and its node; "" if it is not suspended.
func Suspended(job *document.Job, group string) (alloc, node string) {
	g := job.LookupTaskGroup(group)
	if g == nil || !slices.ContainsFunc(g.Constraints, func(c *api.Constraint) bool { return isHold(c.LTarget, c.RTarget) }) {
		return "", ""
	}
	if node, _, _ = boundTo(job, group); node == "" {
		return "", ""
	}
	return g.Meta[metaAdopt], node
}
