// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// freeze keeps an allocation's tasks frozen by renewing the driver's leases. Leases are counted
// from the moment a signal was sent, by this process's clock: neither a node's clock nor
// anything a task can write matters.
type freeze struct {
	nomad Nomad
	alloc *api.Allocation

	mu     sync.Mutex
	tasks  map[string]lease
	cancel context.CancelFunc
	wait   sync.WaitGroup
	ctx    context.Context // of the renewals
}

type lease struct {
	length time.Duration
	until  time.Time // the task is certainly frozen until then
}

// newFreeze returns a freeze without tasks. Its renewals outlive ctx; stop ends them.
func newFreeze(ctx context.Context, nomad Nomad, alloc *api.Allocation) *freeze {
	f := &freeze{nomad: nomad, alloc: alloc, tasks: make(map[string]lease)}
	f.ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return f
}

// keep starts a task's lease by a signal that freezes the task, or that renews its freeze, and keeps
// the lease renewed.
func (f *freeze) keep(ctx context.Context, task, signal string, length time.Duration) error {
	if err := f.signal(ctx, task, signal, length); err != nil {
		return err
	}
	f.wait.Go(func() {
		every(f.ctx, length/3, func() {
			ctx, cancel := context.WithTimeout(f.ctx, max(length/3, time.Second))
			defer cancel()
			_ = f.signal(ctx, task, signalRenew, length) // retried at the next tick; frozenUntil reports the expiry
		})
	})
	return nil
}

func (f *freeze) signal(ctx context.Context, task, signal string, length time.Duration) error {
	sent := time.Now()
	if err := f.nomad.Signal(ctx, f.alloc, task, signal); err != nil {
		return fmt.Errorf("task %s: %w", task, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tasks[task] = lease{length, sent.Add(length)}
	return nil
}

// renew renews the leases of all tasks before the first ends.
func (f *freeze) renew(ctx context.Context) error {
	ctx, cancel := f.within(ctx)
	defer cancel()
	for _, task := range f.names() {
		f.mu.Lock()
		length := f.tasks[task].length
		f.mu.Unlock()
		if err := f.signal(ctx, task, signalRenew, length); err != nil {
			return err
		}
	}
	return nil
}

func (f *freeze) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.tasks))
}

// frozenUntil is the time until which all tasks are certainly frozen.
func (f *freeze) frozenUntil() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	var least time.Time
	for _, l := range f.tasks {
		if least.IsZero() || l.until.Before(least) {
			least = l.until
		}
	}
	return least
}

// within returns a context that ends when a task may run again.
func (f *freeze) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if f == nil || f.frozenUntil().IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, f.frozenUntil())
}

func (f *freeze) stop() {
	f.cancel()
	f.wait.Wait()
}

// thaw ends the renewals and thaws the tasks unless the allocation is stopping. It reports
// whether they run.
func (f *freeze) thaw(ctx context.Context, tasks []string) (runs bool, err error) {
	const failed = "thawing a task, which otherwise thaws when its lease ends: %w"
	f.stop()
	alloc, err := f.nomad.Allocation(ctx, f.alloc.ID)
	switch {
	case notFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf(failed, err)
	case !running(alloc):
		return false, nil
	}
	var errs []error
	for _, task := range tasks {
		if err := f.nomad.Signal(ctx, alloc, task, signalThaw); err != nil {
			errs = append(errs, fmt.Errorf(failed, fmt.Errorf("task %s: %w", task, err)))
		}
	}
	return len(errs) == 0, errors.Join(errs...)
}

// running reports whether the allocation runs and is meant to.
func running(a *api.Allocation) bool {
	return a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun
}

// terminal reports whether the node has reported the allocation's end.
func terminal(status string) bool {
	switch status {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// completed reports whether the tasks of an allocation have run to their end. Nomad also
// marks as complete one that its client could not create ("plugin is shut down"), once the
// client's agent has been restarted.
func completed(status string, tasks map[string]*api.TaskState) bool {
	return status == api.AllocClientStatusComplete && started(tasks)
}

func started(tasks map[string]*api.TaskState) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(tasks)), func(t *api.TaskState) bool {
		return !t.StartedAt.IsZero()
	})
}

// stillborn reports whether an allocation has ended without having been started. If Nomad replaces it,
// then on any node unless the job is still bound.
func stillborn(s *api.AllocationListStub) bool {
	return terminal(s.ClientStatus) && !started(s.TaskStates)
}
