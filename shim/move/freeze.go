// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// freeze keeps tasks of an allocation standing still. The driver ends a freeze at the end
// of its lease, so each is renewed in time. What is known of it counts from the moment in
// which a signal was sent, by our own clock: no clock of a node and nothing that a task
// could write has a part in it.
type freeze struct {
	nomad Nomad
	alloc *api.Allocation

	mu    sync.Mutex
	until map[string]time.Time // of each task: it surely stands still until then
	stop  context.CancelFunc
	wait  sync.WaitGroup
	ctx   context.Context // of the renewals
}

// newFreeze begins with no task. Its renewals outlive ctx: end ends them.
func newFreeze(ctx context.Context, nomad Nomad, alloc *api.Allocation) *freeze {
	f := &freeze{nomad: nomad, alloc: alloc, until: make(map[string]time.Time)}
	f.ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	return f
}

// add renews the freeze of a task from now on.
func (f *freeze) add(task string, lease time.Duration) {
	f.wait.Go(func() {
		every(f.ctx, lease/3, func() {
			ctx, cancel := context.WithTimeout(f.ctx, max(lease/3, time.Second))
			defer cancel()
			_ = f.renew(ctx, task, lease) // there is time for another try; sure tells
		})
	})
}

// renew begins a task's lease anew.
func (f *freeze) renew(ctx context.Context, task string, lease time.Duration) error {
	sent := time.Now()
	if err := f.nomad.Signal(ctx, f.alloc, task, signalRenew); err != nil {
		return fmt.Errorf("task %s: %w", task, err)
	}
	f.stands(task, sent.Add(lease))
	return nil
}

// stands notes until when a task surely stands still.
func (f *freeze) stands(task string, until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until[task] = until
}

// sure is until when all tasks surely stand still.
func (f *freeze) sure() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	var least time.Time
	for _, until := range f.until {
		if least.IsZero() || until.Before(least) {
			least = until
		}
	}
	return least
}

// within is a context that ends when a task may run again.
func (f *freeze) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if f == nil || f.sure().IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, f.sure())
}

// end ends the renewals.
func (f *freeze) end() {
	f.stop()
	f.wait.Wait()
}

// thaw ends the renewals and lets the tasks run on, unless the allocation is ending. It
// says whether they do.
func (f *freeze) thaw(ctx context.Context, tasks []string) (runs bool, err error) {
	const failed = "thawing a task, which runs on when its lease ends: %w"
	f.end()
	alloc, err := f.nomad.Allocation(ctx, f.alloc.ID)
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
		if err := f.nomad.Signal(ctx, alloc, task, signalThaw); err != nil {
			errs = append(errs, fmt.Errorf(failed, fmt.Errorf("task %s: %w", task, err)))
		}
	}
	return len(errs) == 0, errors.Join(errs...)
}

// stays says whether an allocation runs, and is to run.
func stays(a *api.Allocation) bool {
	return a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun
}

// ended says whether nothing of an allocation runs any more, as its node has said.
func ended(status string) bool {
	switch status {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}
