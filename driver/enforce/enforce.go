// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package enforce puts the limits of one task into force and sees that they are: a limit
// is believed once it has been read back from the kernel. Setting one may hang, as
// Docker's daemon may, so it happens beside the caller.
package enforce

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
)

// Cgroup is what is read of a task's cgroup (limits.Cgroup).
type Cgroup interface {
	Read() (limits.Limits, error)
	InForce(want, got limits.Limits) bool
}

// State is what a Limiter has come to.
type State struct {
	Want    limits.Limits
	InForce limits.Limits // as last read
	Err     error         // why Want is not in force; nil if it is, or is being set
	Setting bool
}

// Limiter sets the limits of one task.
type Limiter struct {
	cgroup  Cgroup
	set     func(context.Context, limits.Limits) error
	changed func()

	mu    sync.Mutex
	state State
	next  time.Time // no try before
	wait  time.Duration
}

// New returns a Limiter that sets limits with set. It calls changed, if that is not nil,
// when a limit was set or could not be, from a goroutine of its own.
func New(cgroup Cgroup, set func(context.Context, limits.Limits) error, changed func()) (*Limiter, error) {
	in, err := cgroup.Read()
	l := &Limiter{cgroup: cgroup, set: set, changed: changed, state: State{Want: in, InForce: in}}
	if err != nil {
		return l, fmt.Errorf("reading the limits in force: %w", err)
	}
	return l, nil
}

// State returns what the Limiter has come to.
func (l *Limiter) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Set sees that the kernel has these limits. It does not block. What fails is tried
// again with later calls, ever more slowly.
func (l *Limiter) Set(ctx context.Context, want limits.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Want = want
	l.start(ctx)
}

// start begins to set the limits if that is due. The caller holds the lock.
func (l *Limiter) start(ctx context.Context) {
	if l.state.Setting || time.Now().Before(l.next) {
		return
	}
	if in, err := l.cgroup.Read(); err == nil {
		l.state.InForce = in
	}
	if l.cgroup.InForce(l.state.Want, l.state.InForce) {
		l.state.Err = nil
		return
	}
	l.state.Setting = true
	want := l.state.Want
	go func() {
		err := l.set(ctx, want)
		got, readErr := l.cgroup.Read()
		l.done(ctx, want, got, err, readErr)
		if l.changed != nil {
			l.changed()
		}
	}()
}

// done takes the result of an attempt over.
func (l *Limiter) done(ctx context.Context, want, got limits.Limits, err, readErr error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Setting = false
	if readErr == nil {
		l.state.InForce = got
		if err == nil && !l.cgroup.InForce(want, got) {
			err = fmt.Errorf("the kernel has shares %d and a quota of %.2f cores instead of %d and %.2f",
				got.Shares, got.QuotaCores, want.Shares, want.QuotaCores)
		}
	}
	l.state.Err = err
	if err != nil {
		l.wait = min(max(2*l.wait, time.Second), time.Minute)
		l.next = time.Now().Add(l.wait)
		return
	}
	l.wait, l.next = 0, time.Time{}
	if ctx.Err() == nil {
		l.start(ctx) // another limit may be wanted by now
	}
}
