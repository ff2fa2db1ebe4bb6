// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package leader elects one of several processes by a lock with a TTL.
//
// A leader that cannot renew the lock must stop before another one starts. It stops TTL/5 before
// the lock expires, counted from when the last successful renewal was sent. Callers check Term.Held
// right before each change, as a suspended process does not know that it has lost the lock. On
// shutdown a leader keeps renewing while it reverts unfinished work, then releases the lock.
//
// The API's LockLeaser does not cancel the protected work when a renewal is rejected.
package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

var (
	// ErrHeld means that another process holds the lock.
	ErrHeld = errors.New("another process holds the lock")
	// ErrLost means that this process may no longer hold the lock.
	ErrLost = errors.New("lost the lock")
)

type Lock interface {
	// Acquire acquires the lock. The error is ErrHeld if another process holds it.
	Acquire(context.Context) error
	// Renew extends the lock by a TTL. The error is ErrLost if this process does not hold it.
	Renew(context.Context) error
	Release(context.Context) error
}

type Options struct {
	// TTL is the lock's lifetime without renewal. It is renewed every TTL/3.
	TTL time.Duration
	// Retry is the approximate interval of attempts to acquire the lock.
	Retry time.Duration
	// Report receives errors, and ErrHeld once when another process leads.
	Report func(error)
}

// Term is a period of leadership.
type Term struct {
	mu    sync.Mutex
	until time.Time
	over  bool
}

// Held returns ErrLost unless this process certainly holds the lock. It succeeds while lead
// shuts down.
func (t *Term) Held() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || !time.Now().Before(t.until) {
		return ErrLost
	}
	return nil
}

func (t *Term) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// extend records a successful renewal by the time at which it was sent.
func (t *Term) extend(sent time.Time, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = sent.Add(ttl - ttl/5)
}

func (t *Term) remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.until)
}

const releaseTimeout = 5 * time.Second

// Run waits for the lock, calls lead while holding it, and starts over if the lock is lost. lead's
// context ends with the lock and with ctx; Run waits for lead to return. If lead returns while the
// lock is held, Run releases it and returns lead's error. Otherwise Run returns when ctx ends.
func Run(ctx context.Context, lock Lock, opts Options, lead func(context.Context, *Term) error) error {
	reported := false
	for {
		sent := time.Now()
		err := acquire(ctx, lock, opts.TTL)
		if err == nil {
			reported = false
			err = hold(ctx, lock, opts, sent, lead)
			if !errors.Is(err, ErrLost) {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if held := errors.Is(err, ErrHeld); !held || !reported {
			opts.Report(err)
			reported = held
		}
		// Jittered, so that standbys do not all try simultaneously.
		wait := opts.Retry/2 + rand.N(opts.Retry+1)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func acquire(ctx context.Context, lock Lock, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, ttl/3)
	defer cancel()
	if err := lock.Acquire(ctx); err != nil {
		return fmt.Errorf("acquiring the lock: %w", err)
	}
	return nil
}

// hold runs lead until it returns or the lock is lost.
func hold(ctx context.Context, lock Lock, opts Options, sent time.Time, lead func(context.Context, *Term) error) error {
	leading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	term := new(Term)
	term.extend(sent, opts.TTL)
	result := make(chan error, 1)
	go func() { result <- lead(leading, term) }()
	// Renewals continue until lead has returned.
	ctx = context.WithoutCancel(ctx)

	renew := time.NewTicker(opts.TTL / 3)
	defer renew.Stop()
	over := time.NewTimer(term.remaining())
	defer over.Stop()
	lost := func(why error) error {
		term.end()
		cancel(why)
		<-result
		return why
	}
	for {
		select {
		case err := <-result:
			term.end()
			return errors.Join(err, release(ctx, lock))
		case <-over.C:
			return lost(fmt.Errorf("%w: it could not be renewed in time", ErrLost))
		case <-renew.C:
		}
		sent := time.Now()
		within, done := context.WithTimeout(ctx, min(opts.TTL/3, term.remaining()))
		err := lock.Renew(within)
		done()
		switch {
		case err == nil:
			term.extend(sent, opts.TTL)
			over.Reset(term.remaining())
		case errors.Is(err, ErrLost):
			return lost(fmt.Errorf("renewing the lock: %w", err))
		default:
			opts.Report(fmt.Errorf("renewing the lock: %w", err)) // retried at the next tick
		}
	}
}

func release(ctx context.Context, lock Lock) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if err := lock.Release(ctx); err != nil {
		return fmt.Errorf("releasing the lock: %w", err)
	}
	return nil
}
