// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package enforce applies the limits of one task and verifies them: a limit is in force once it has
// been read back from the kernel. A write can wait for the kernel's locks, so limits are applied in
// the background.
package enforce

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
)

// Cgroup is a task's cgroup (limits.Cgroup).
type Cgroup interface {
	Read() (limits.Limits, error)
	Set(limits.Limits) error
	InForce(want, got limits.Limits) bool
}

// State is the state of a Limiter.
type State struct {
	Want    limits.Limits
	InForce limits.Limits // as last read
	Err     error         // why Want is not in force; nil if it is or is being applied
	Setting bool
}

type Limiter struct {
	cgroup  Cgroup
	changed func()

	mu    sync.Mutex
	state State
	next  time.Time // earliest retry
	wait  time.Duration
}

// New returns a Limiter. It calls changed, if not nil, after every attempt, from another
// goroutine.
func New(cgroup Cgroup, changed func()) (*Limiter, error) {
	in, err := cgroup.Read()
	l := &Limiter{cgroup: cgroup, changed: changed, state: State{Want: in, InForce: in}}
	if err != nil {
		return l, fmt.Errorf("reading the limits in force: %w", err)
	}
	return l, nil
}

func (l *Limiter) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Set applies limits without blocking. Failures are retried by later calls, with
// back-off.
func (l *Limiter) Set(ctx context.Context, want limits.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Want = want
	l.start(ctx)
}

// start applies the limits if due. The caller holds mu.
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
		err := l.cgroup.Set(want)
		got, readErr := l.cgroup.Read()
		l.done(ctx, want, got, err, readErr)
		if l.changed != nil {
			l.changed()
		}
	}()
}

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
		l.start(ctx) // the wanted limits may have changed since
	}
}
