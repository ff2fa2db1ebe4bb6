// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package leader sees to it that one of several processes leads: the one that holds a
// lock.
//
// The lock is held for a time and has to be renewed. A leader that cannot renew it must
// have stopped before another one begins, so it stops early: at TTL/5 before the lock's
// end, counted from the moment in which the last renewal that succeeded was sent. Nomad
// frees the lock later than that. Who changes something asks the Term right before:
// a process that was asleep meanwhile does not know yet that it is none any more.
//
// A leader that is told to end goes on renewing the lock while it undoes what it has
// begun, and gives it back then.
//
// The API's own LockLeaser does not end what it protects when a renewal is refused.
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
	// ErrHeld says that another process holds the lock.
	ErrHeld = errors.New("another process holds the lock")
	// ErrLost says that this process does not hold the lock any more, or not surely.
	ErrLost = errors.New("the lock is lost")
)

// Lock is a lock that is held for a time.
type Lock interface {
	// Acquire takes the lock. The error is ErrHeld if another process has it.
	Acquire(context.Context) error
	// Renew keeps it for a TTL more. The error is ErrLost if it is not ours any more.
	Renew(context.Context) error
	// Release gives it back.
	Release(context.Context) error
}

// Options say how a lock is kept.
type Options struct {
	// TTL is how long the lock is held without a renewal. It is renewed three times in
	// that time.
	TTL time.Duration
	// Retry is about how long a process waits that has not got the lock.
	Retry time.Duration
	// Report is told what fails, and that another process leads: ErrHeld, once.
	Report func(error)
}

// Term is the time for which a process leads.
type Term struct {
	mu    sync.Mutex
	until time.Time
	over  bool
}

// Held returns ErrLost unless this process surely holds the lock now. It is held, too,
// while lead ends because it was told to.
func (t *Term) Held() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || !time.Now().Before(t.until) {
		return ErrLost
	}
	return nil
}

// end ends the term.
func (t *Term) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// extend is told when a renewal that succeeded was sent.
func (t *Term) extend(sent time.Time, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = sent.Add(ttl - ttl/5)
}

func (t *Term) left() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.until)
}

// releaseWithin bounds the last request of a process that ends.
const releaseWithin = 5 * time.Second

// Run waits for the lock, calls lead while this process holds it, and begins anew when
// it has lost it. The context of lead ends with the lock and with ctx, and Run waits
// until lead has returned. If lead returns while the lock is held, it is given back, and
// Run returns what lead returned. Otherwise Run returns when ctx ends.
func Run(ctx context.Context, lock Lock, opts Options, lead func(context.Context, *Term) error) error {
	told := false
	for {
		sent := time.Now()
		err := acquire(ctx, lock, opts.TTL)
		if err == nil {
			told = false
			err = hold(ctx, lock, opts, sent, lead)
			if !errors.Is(err, ErrLost) {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if held := errors.Is(err, ErrHeld); !held || !told {
			opts.Report(err)
			told = held
		}
		// Not all at once when the lock gets free.
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

// hold leads until the lock is lost or lead returns, which it does soon after ctx ends.
func hold(ctx context.Context, lock Lock, opts Options, sent time.Time, lead func(context.Context, *Term) error) error {
	leading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	term := new(Term)
	term.extend(sent, opts.TTL)
	result := make(chan error, 1)
	go func() { result <- lead(leading, term) }()
	// The lock is kept until lead has returned.
	ctx = context.WithoutCancel(ctx)

	renew := time.NewTicker(opts.TTL / 3)
	defer renew.Stop()
	over := time.NewTimer(term.left())
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
		within, done := context.WithTimeout(ctx, min(opts.TTL/3, term.left()))
		err := lock.Renew(within)
		done()
		switch {
		case err == nil:
			term.extend(sent, opts.TTL)
			over.Reset(term.left())
		case errors.Is(err, ErrLost):
			return lost(fmt.Errorf("renewing the lock: %w", err))
		default:
			opts.Report(fmt.Errorf("renewing the lock: %w", err)) // there is time for another try
		}
	}
}

// release gives the lock back.
func release(ctx context.Context, lock Lock) error {
	ctx, cancel := context.WithTimeout(ctx, releaseWithin)
	defer cancel()
	if err := lock.Release(ctx); err != nil {
		return fmt.Errorf("releasing the lock: %w", err)
	}
	return nil
}
