// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Unbind sets a group free that a process has bound which is no more. It is no error if
// it is free, or if the job is stopped, or gone.
func Unbind(ctx context.Context, nomad Nomad, b Binding) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	poll := DefaultOptions().Poll
	return persist(ctx, poll, func(ctx context.Context) error {
		_, err := free(ctx, nomad, b, poll)
		return err
	})
}

// free sets a group free, and says what became of it. What a user has made of the job
// meanwhile stays as it is, but for our constraint.
func free(ctx context.Context, nomad Nomad, b Binding, poll time.Duration) (said string, err error) {
	const as = "the job is left as it is: "
	job, err := nomad.Job(ctx, b.Namespace, b.Job)
	switch {
	case gone(err):
		return as + "it was removed", nil
	case err != nil:
		return "", fmt.Errorf("unbinding the job: %w", err)
	case stopped(job):
		return as + "it was stopped", nil
	case !isBound(job, b):
		return as + "it is not bound", nil
	}
	unbound, err := unpin(job, b.Group, b.Node)
	if err != nil {
		return "", err
	}
	stubs, err := nomad.Allocations(ctx, b.Namespace, b.Job)
	if err != nil {
		return "", fmt.Errorf("unbinding the job: %w", err)
	}
	if other := completed(job, b.Group, stubs); other != "" {
		return as + "group " + other + " has completed, and Nomad would run it again", nil
	}
	held, over, err := hold(ctx, nomad, job, b, stubs)
	switch {
	case err != nil:
		return "", errors.Join(fmt.Errorf("unbinding the job: %w", err), held.release(ctx, nomad, poll))
	case over:
		return as + "it has completed, and Nomad would run it again", nil
	}
	resp, err := nomad.Register(ctx, unbound)
	if err == nil {
		// Until Nomad has seen that nothing changes for what runs.
		_, err = decided(ctx, nomad, poll, b.Namespace, resp.EvalID)
	}
	if err = errors.Join(err, held.release(ctx, nomad, poll)); err != nil {
		return "", fmt.Errorf("unbinding the job: %w", err)
	}
	return "the job is not bound to the target any more", nil
}

// holding is what stands still while its job is set free.
type holding struct {
	alloc *api.Allocation
	tasks []string
}

// release lets it run on.
func (h holding) release(ctx context.Context, nomad Nomad, poll time.Duration) error {
	if len(h.tasks) == 0 {
		return nil
	}
	return persist(ctx, poll, func(ctx context.Context) error {
		_, err := release(ctx, nomad, h.alloc.ID, h.tasks)
		return err
	})
}

// release lets tasks of an allocation run on, unless it is ending. It says whether they do.
func release(ctx context.Context, nomad Nomad, id string, tasks []string) (runs bool, err error) {
	const failed = "releasing a task, which runs on when its lease ends: %w"
	alloc, err := nomad.Allocation(ctx, id)
	switch {
	case gone(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf(failed, err)
	case !stays(alloc):
		return false, nil
	}
	var errs []error
	for _, task := range tasks {
		if err := nomad.Signal(ctx, alloc, task, signalRelease); err != nil {
			errs = append(errs, fmt.Errorf(failed, fmt.Errorf("task %s: %w", task, err)))
		}
	}
	return len(errs) == 0, errors.Join(errs...)
}

// stays says whether an allocation runs, and is to run.
func stays(a *api.Allocation) bool {
	return a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun
}

// hold lets the tasks of a batch job stand still: Nomad runs what completes before it has
// seen a new version of the job a second time. It says whether they have completed.
func hold(ctx context.Context, nomad Nomad, job *api.Job, b Binding, stubs []*api.AllocationListStub) (h holding, over bool, err error) {
	if text(job.Type) != api.JobTypeBatch {
		return h, false, nil
	}
	var last *api.AllocationListStub
	for _, s := range stubs {
		if s.TaskGroup == b.Group && (last == nil || s.CreateIndex > last.CreateIndex) {
			last = s
		}
	}
	if last == nil || last.DesiredStatus != api.AllocDesiredStatusRun || last.ClientStatus != api.AllocClientStatusRunning {
		return h, last != nil && last.DesiredStatus == api.AllocDesiredStatusRun && last.ClientStatus == api.AllocClientStatusComplete, nil
	}
	if h.alloc, err = nomad.Allocation(ctx, last.ID); err != nil {
		return h, false, err
	}
	for _, t := range job.LookupTaskGroup(b.Group).Tasks {
		if state := h.alloc.TaskStates[t.Name]; t.Config["checkpoint"] == nil || state == nil || state.State != "running" {
			continue
		}
		if err := nomad.Signal(ctx, h.alloc, t.Name, signalFreeze); err != nil {
			return h, false, fmt.Errorf("task %s: %w", t.Name, err)
		}
		h.tasks = append(h.tasks, t.Name)
	}
	return h, false, nil
}

// isBound says whether a group is bound to the node.
func isBound(job *api.Job, b Binding) bool {
	group := job.LookupTaskGroup(b.Group)
	return group != nil && slices.ContainsFunc(group.Constraints, func(c *api.Constraint) bool { return c.LTarget == bound && c.RTarget == b.Node })
}

func stopped(job *api.Job) bool { return job.Stop != nil && *job.Stop }
