// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
)

// A job is bound by one constraint of its group, which names the node and the move:
//
//	${node.unique.id}  set_contains_any  NODE,ebbtide-move:ID
//
// So the binding and its cause are visible even if the claim is lost. Removing the constraint
// is an in-place update.
const (
	boundBy  = cluster.BoundBy
	moveMark = cluster.Mark
)

// bind returns a copy of the job with the group bound to a node for a move. The driver there
// adopts the checkpoint of allocation adopt, "" for none.
func bind(job *document.Job, group, node, id, adopt string) (*document.Job, error) {
	return job.With(document.DropConstraints(group, cluster.HasMark),
		document.AddConstraint(group, boundBy, api.ConstraintSetContainsAny, node+","+moveMark+id), document.SetMeta(group, metaAdopt, adopt))
}

// fence returns a copy of the job with a constraint that names the move but excludes no node.
func fence(job *document.Job, group, id string) (*document.Job, error) {
	return job.With(document.DropConstraints(group, cluster.HasMark), document.AddConstraint(group, boundBy, "!=", moveMark+id))
}

// unbind returns a copy of the job without a move's constraint on the group. It keeps adopt, as
// Nomad replaces an allocation whose meta changes.
func unbind(job *document.Job, group, adopt string) (*document.Job, error) {
	return job.With(document.DropConstraints(group, cluster.HasMark), document.SetMeta(group, metaAdopt, adopt))
}

func isMark(c *api.Constraint) bool { return cluster.HasMark(c.LTarget, c.RTarget) }

// boundTo returns the node ("" for a fence) and the move's ID. ok is false if the group is not
// bound.
func boundTo(job *document.Job, group string) (node, id string, ok bool) {
	g := job.LookupTaskGroup(group)
	if g == nil {
		return "", "", false
	}
	i := slices.IndexFunc(g.Constraints, isMark)
	if i < 0 {
		return "", "", false
	}
	_, id, _ = strings.Cut(g.Constraints[i].RTarget, moveMark)
	return cluster.BoundTo(g.Constraints[i].RTarget), id, true
}

// register registers the job at the index at which it was read, while the claim is valid, and
// returns the new index.
func (m *mover) register(ctx context.Context, job *document.Job) (index uint64, err error) {
	if err := m.claim.valid(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithDeadline(ctx, m.claim.ends())
	defer cancel()
	resp, err := m.nomad.Register(ctx, job)
	if err != nil {
		return 0, err
	}
	return resp.JobModifyIndex, nil
}

// registerFrozen registers the job while its tasks are certainly frozen.
func (m *mover) registerFrozen(ctx context.Context, f *freeze, job *document.Job) (index uint64, err error) {
	within, cancel := f.within(ctx)
	defer cancel()
	return m.register(within, job)
}

// registerBound registers the bound job; if the answer is lost, it finds out whether the job is
// bound. result.Bound is true unless the job is certainly not bound.
func (m *mover) registerBound(ctx context.Context, job *document.Job) (index uint64, err error) {
	index, err = m.register(ctx, job)
	if err == nil || rejected(err) {
		m.result.Bound = err == nil
		return index, err
	}
	m.result.Bound = true // unknown so far
	index, unknown := m.resolveDetached(ctx)
	if unknown != nil {
		return 0, errors.Join(err, unknown)
	}
	if m.result.Bound = index != 0; m.result.Bound {
		return index, nil
	}
	return 0, err
}

func (m *mover) resolveDetached(ctx context.Context) (after uint64, err error) {
	err = m.detached(ctx, func(ctx context.Context) (err error) {
		after, err = m.resolve(ctx, m.record().Before)
		return err
	})
	return after, err
}

// resolve finds out the outcome of a registration (at index before) with a lost answer. It may
// still be in flight, so an unchanged job proves nothing: registering a fence then advances the
// index, so that the lost one must fail. after is the job's index if it is bound, else 0.
func (m *mover) resolve(ctx context.Context, before uint64) (after uint64, err error) {
	err = retry(ctx, m.opts.PollInterval, func(ctx context.Context) error {
		job, err := m.nomad.Job(ctx, m.record().Namespace, m.record().Job)
		switch {
		case notFound(err):
			return nil
		case err != nil:
			return err
		}
		if node, id, ok := boundTo(job, m.record().Group); ok && id == m.record().ID {
			_, waits := Suspended(job, m.record().Group)
			switch {
			case node == "":
				return m.restore(ctx) // our fence
			case m.record().Suspend == (waits != ""):
				after = *job.JobModifyIndex
			}
			return nil // or our fence, of a job that waits
		}
		if *job.JobModifyIndex != before {
			return nil // another registration came first
		}
		if err := m.fence(ctx, job); err != nil {
			return err
		}
		return m.restore(ctx) // unless it waits
	})
	return after, err
}

// fence advances the job's index, unless the job has completed: then Nomad would run it again.
func (m *mover) fence(ctx context.Context, job *document.Job) error {
	r := m.record()
	fenced, err := fence(job, r.Group, r.ID)
	if alloc, node := Suspended(job, r.Group); node != "" { // it goes on waiting
		fenced, err = hold(job, r.Group, node, r.ID, alloc)
	}
	if err != nil {
		return err
	}
	still, over, err := freezeBriefly(ctx, m.nomad, job, m.record().Group)
	if err == nil && !over {
		_, err = m.registerFrozen(ctx, still, fenced)
	}
	if still != nil {
		still.stop() // restore takes over from here, or the lease ends
	}
	return err
}

// rejected reports whether Nomad has definitely refused the request.
func rejected(err error) bool {
	var response api.UnexpectedResponseError
	return errors.As(err, &response) && response.StatusCode() >= http.StatusBadRequest && response.StatusCode() < http.StatusInternalServerError
}

// restore unbinds the move's job. A suspended one waits on.
func (m *mover) restore(ctx context.Context) error { return m.unbindJob(ctx, false) }

// unhold unbinds the job, which is held although it runs.
func (m *mover) unhold(ctx context.Context) error { return m.unbindJob(ctx, true) }

func (m *mover) unbindJob(ctx context.Context, unhold bool) error {
	r := m.record()
	return m.whileClaimed(ctx, func(ctx context.Context) error {
		said, err := restore(ctx, m.nomad, r.Namespace, r.Job, r.Group, unhold, m.opts.PollInterval)
		if err == nil {
			m.result.Bound = false
			m.opts.Report(m.result.Phase, said)
		}
		return err
	})
}

// Unbind unbinds a job that is bound without a claim, and says what became of it. It claims the
// job, as a move of it may begin meanwhile; the error wraps ErrClaimed if one has.
func Unbind(ctx context.Context, nomad Nomad, namespace, job, group string, opts Options) (said string, err error) {
	opts.Report = func(_ Phase, text string) { said = text }
	m := &mover{nomad: nomad, opts: opts}
	r := Record{Namespace: namespace, Job: job, Group: group, Phase: PhaseUnbind, Tasks: []Task{}}
	err = m.withClaim(ctx, r, func(ctx context.Context) (over bool, err error) {
		return true, m.detached(ctx, m.restore)
	})
	return said, err
}

// errTransition means that an allocation is starting or stopping; callers wait.
var errTransition = errors.New("a task is starting or stopping")

// errDestructive means that unbinding now would stop a running allocation.
var errDestructive = errors.New("Nomad would stop a running allocation")

// restore removes a move's constraint from the group, keeping what the user has changed since,
// and says what became of the job. A suspended job waits on, unless its hold is to be removed as well.
func restore(ctx context.Context, nomad Nomad, namespace, id, group string, unhold bool, poll time.Duration) (said string, err error) {
	const as = "the job is left unchanged: "
	job, err := nomad.Job(ctx, namespace, id)
	if notFound(err) {
		return as + "it was removed", nil
	}
	if err != nil {
		return "", fmt.Errorf("unbinding the job: %w", err)
	}
	if _, _, ok := boundTo(job, group); !ok {
		return as + "it is not bound", nil
	}
	if _, node := Suspended(job, group); node != "" && !unhold {
		return as + "it is suspended", nil
	}
	if stopped(job) {
		return as + "it was stopped", nil
	}
	still, over, err := freezeBriefly(ctx, nomad, job, group)
	if err == nil && over {
		return as + "it has completed, and Nomad would run it again", nil
	}
	if err == nil {
		// Keep the tasks frozen until Nomad has evaluated the new version.
		err = retry(ctx, poll, func(ctx context.Context) error {
			return unbindFrozen(ctx, nomad, namespace, id, group, unhold, poll, still)
		})
	}
	if still != nil {
		err = errors.Join(err, retry(ctx, poll, func(ctx context.Context) error {
			_, err := still.thaw(ctx, still.names())
			return err
		}))
	}
	if err != nil {
		return "", fmt.Errorf("unbinding the job: %w", err)
	}
	return "the job is unbound", nil
}

// unbindFrozen registers the job without the constraint while its tasks are frozen, if that
// stops nothing, and waits for the evaluation.
func unbindFrozen(ctx context.Context, nomad Nomad, namespace, id, group string, unhold bool, poll time.Duration, still *freeze) error {
	job, err := nomad.Job(ctx, namespace, id)
	switch {
	case notFound(err):
		return nil
	case err != nil:
		return err
	case stopped(job):
		return nil // stopped by a user
	}
	index := *job.JobModifyIndex
	if _, _, ok := boundTo(job, group); ok {
		adopt, err := adoptAsRunning(ctx, nomad, job, group)
		if err != nil {
			return err
		}
		if job, err = unbind(job, group, adopt); err != nil {
			return err
		}
		if unhold {
			if job, err = job.With(document.DropConstraints(group, isHold)); err != nil {
				return err
			}
		}
		plan, err := nomad.Plan(ctx, job)
		if err == nil {
			err = stopsNothing(plan, group)
		}
		if err != nil && !errors.Is(err, ErrNoPlan) {
			return err
		}
		within, cancel := still.within(ctx)
		defer cancel()
		resp, err := nomad.Register(within, job)
		if err != nil {
			return err
		}
		index = resp.JobModifyIndex
	}
	_, err = waitEvaluated(ctx, nomad, poll, namespace, id, group, index)
	return err
}

// stopsNothing checks a plan for unbinding the group.
func stopsNothing(plan *api.JobPlanResponse, group string) error {
	if err := foreign(plan); err != nil {
		return err
	}
	if d := updates(plan, group); d.DestructiveUpdate+d.Migrate+d.Stop > 0 {
		return fmt.Errorf("%w: the plan has %d destructive updates, %d migrations, %d stops", errDestructive, d.DestructiveUpdate, d.Migrate, d.Stop)
	}
	return nil
}

// updates returns what a plan does to the group's allocations.
func updates(plan *api.JobPlanResponse, group string) api.DesiredUpdates {
	if a := plan.Annotations; a != nil && a.DesiredTGUpdates[group] != nil {
		return *a.DesiredTGUpdates[group]
	}
	return api.DesiredUpdates{}
}

// adoptAsRunning returns the running allocation's metaAdopt, as Nomad replaces an allocation
// whose meta changes; the job's own if none runs. They differ if the job was bound for or after a
// rollback that Nomad could not place.
func adoptAsRunning(ctx context.Context, nomad Nomad, job *document.Job, group string) (string, error) {
	own := job.LookupTaskGroup(group).Meta[metaAdopt]
	stubs, err := nomad.Allocations(ctx, *job.Namespace, *job.ID)
	if err != nil {
		return "", err
	}
	last := latest(stubs, func(s *api.AllocationListStub) bool {
		return s.TaskGroup == group && s.DesiredStatus == api.AllocDesiredStatusRun && !terminal(s.ClientStatus)
	})
	if last == nil {
		return own, nil
	}
	alloc, err := nomad.Allocation(ctx, last.ID)
	if err != nil {
		return "", err
	}
	return alloc.Job.LookupTaskGroup(group).Meta[metaAdopt], nil
}

// freezeBriefly freezes the running tasks of a batch job: a task that completes before Nomad
// has evaluated the job's new version would be run again. over means that the tasks have
// completed. The freeze is nil if there was nothing to freeze.
func freezeBriefly(ctx context.Context, nomad Nomad, job *document.Job, group string) (f *freeze, over bool, err error) {
	if g := job.LookupTaskGroup(group); text(job.Type) != api.JobTypeBatch || g == nil || g.Count != nil && *g.Count != 1 {
		return nil, false, nil // a user has scaled it: Nomad has run again what had completed
	}
	stubs, err := nomad.Allocations(ctx, *job.Namespace, *job.ID)
	if err != nil {
		return nil, false, err
	}
	last := latest(stubs, func(s *api.AllocationListStub) bool { return s.TaskGroup == group })
	if last == nil || last.DesiredStatus != api.AllocDesiredStatusRun || last.ClientStatus != api.AllocClientStatusRunning {
		over := last != nil && last.DesiredStatus == api.AllocDesiredStatusRun && completed(last.ClientStatus, last.TaskStates)
		return nil, over, nil
	}
	alloc, err := nomad.Allocation(ctx, last.ID)
	if err != nil {
		return nil, false, err
	}
	if !running(alloc) {
		return nil, false, errTransition
	}
	f = newFreeze(ctx, nomad, alloc)
	for _, t := range job.LookupTaskGroup(group).Tasks {
		state := alloc.TaskStates[t.Name]
		if t.Config["checkpoint"] == nil || state == nil {
			continue
		}
		if state.State != "running" {
			return f, false, errTransition
		}
		if err := f.keep(ctx, t.Name, signalFreeze, savingOf(t).lease); err != nil {
			return f, false, err
		}
	}
	return f, false, nil
}

// latest returns the newest of the matching allocations, nil if there is none.
func latest(stubs []*api.AllocationListStub, meant func(*api.AllocationListStub) bool) *api.AllocationListStub {
	var last *api.AllocationListStub
	for _, s := range stubs {
		if meant(s) && (last == nil || s.CreateIndex > last.CreateIndex) {
			last = s
		}
	}
	return last
}

func stopped(job *document.Job) bool { return job.Stop != nil && *job.Stop }
