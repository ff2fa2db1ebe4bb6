// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
)

// minTries is the minimum number of attempts of a rollback after the helper has died.
const minTries = 3

// Restore implements gate.Evictor. It fails if the cards lack the room.
func (e *Evictor) Restore(ctx context.Context, processes []ledger.ProcessID) error {
	if err := e.restoreAndUnlock(ctx, processes, false); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	return nil
}

// restoreAndUnlock restores and unlocks processes; with must, even if there seems to be no room.
func (e *Evictor) restoreAndUnlock(ctx context.Context, processes []ledger.ProcessID, must bool) error {
	if !must {
		found := e.classify(ctx, processes)
		if found.why != nil {
			return errors.Join(found.lost, found.why)
		}
		return errors.Join(found.lost, e.restoreFound(ctx, found, false))
	}
	var lost error
	for t := e.newAttempt(); ; {
		found := e.classify(ctx, processes)
		lost = errors.Join(lost, found.lost, e.restoreFound(ctx, found, true))
		if processes = found.unknown; len(processes) == 0 {
			return lost
		}
		// The helper may have died with CUDA still at work. Or CUDA did not answer for a process
		// while another was locked, which it no longer is (NVIDIA/cuda-checkpoint#30).
		if !t.retry() {
			return errors.Join(lost, markUnsure(fmt.Errorf("%d processes: %w", len(processes), found.why)))
		}
	}
}

// attempt counts the attempts of an operation that must succeed: for some time, and several
// times.
type attempt struct {
	*Evictor
	tries int
	until time.Time
}

func (e *Evictor) newAttempt() *attempt {
	return &attempt{Evictor: e, tries: minTries, until: time.Now().Add(e.opts.Undo)}
}

func (a *attempt) retry() bool {
	a.tries--
	if a.tries <= 0 && time.Now().After(a.until) {
		return false
	}
	time.Sleep(a.opts.Poll)
	return true
}

type found struct {
	parked, locked []ledger.ProcessID
	unknown        []ledger.ProcessID // state unknown
	why            error              // why the state is unknown
	lost           error              // parking.ErrLost, of failed processes
}

func (e *Evictor) classify(ctx context.Context, processes []ledger.ProcessID) (f found) {
	for _, id := range processes {
		s, err := e.state(ctx, id)
		if err == nil && (s < noState || s > driver.Failed) {
			err = fmt.Errorf("process %d is being moved by another program: it is in %v", id.PID, s)
		}
		_, parked := e.parked.get(id)
		switch {
		case err != nil:
			f.unknown = append(f.unknown, id)
			f.why = errors.Join(f.why, err)
			continue
		case s == driver.Checkpointed:
			f.parked = append(f.parked, id)
			continue
		case s == driver.Locked:
			f.locked = append(f.locked, id)
		case s == driver.Failed:
			f.lost = errors.Join(f.lost, fmt.Errorf("process %d has failed: %w", id.PID, parking.ErrLost))
		case s == noState && parked && e.opts.Alive(id):
			f.lost = errors.Join(f.lost, fmt.Errorf("process %d was parked, and CUDA no longer knows it: %w", id.PID, parking.ErrLost))
		}
		e.parked.forget(id)
	}
	return f
}

// restoreFound restores and unlocks processes. The error is parking.ErrLost for those that cannot
// continue and parking.ErrUnsure for those in an unknown state; after any other, all parked ones
// still are.
func (e *Evictor) restoreFound(ctx context.Context, f found, must bool) error {
	if len(f.parked) > 0 {
		done, err := e.acquireRoom(ctx, f.parked, must)
		if err != nil {
			return err
		}
		defer done()
	}
	// From here on nothing is cancelled.
	ctx = context.WithoutCancel(ctx)
	var lost error // the others are handled first
	var back []ledger.ProcessID
	for _, id := range f.parked {
		switch err := e.restore(ctx, id); {
		case err == nil:
			back = append(back, id)
		case errors.Is(err, parking.ErrLost), errors.Is(err, parking.ErrUnsure):
			lost = errors.Join(lost, err)
		case must:
			lost = errors.Join(lost, markUnsure(err))
		default:
			return errors.Join(lost, err, e.repark(ctx, back))
		}
	}
	for _, id := range append(f.locked, back...) {
		lost = errors.Join(lost, e.unlock(ctx, id))
	}
	return lost
}

// acquireRoom waits until the cards have what the processes held, and returns with restoring
// held; done releases it. With must it proceeds after a time: otherwise they are lost for
// certain.
func (e *Evictor) acquireRoom(ctx context.Context, parked []ledger.ProcessID, must bool) (done func(), err error) {
	until := time.Now().Add(e.opts.Undo)
	for {
		select {
		case e.restoring <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for other restores: %w", ctx.Err())
		}
		missing := e.checkRoom(parked)
		if missing == nil || must && time.Now().After(until) {
			return func() { <-e.restoring }, nil
		}
		<-e.restoring
		if !must {
			return nil, missing
		}
		time.Sleep(e.opts.Poll)
	}
}

// checkRoom returns why live processes cannot be restored, or nil. Room is assumed for processes
// parked by another Evictor, whose footprint is unknown.
func (e *Evictor) checkRoom(parked []ledger.ProcessID) error {
	need := make(footprint)
	for _, id := range parked {
		if f, ok := e.parked.get(id); ok && e.opts.Alive(id) {
			need.add(f)
		}
	}
	for card, bytes := range need {
		switch free, err := e.opts.Free(card); {
		case err != nil:
			return fmt.Errorf("reading the free memory of card %s: %w", card, err)
		case free < bytes:
			return fmt.Errorf("card %s has %d bytes free, and needs %d for the restore", card, free, bytes)
		}
	}
	return nil
}

// restore restores a process, which stays locked. After an error other than parking.ErrLost it is
// still parked.
func (e *Evictor) restore(ctx context.Context, id ledger.ProcessID) error {
	var err error
	for range minTries {
		if e.opts.Alive(id) {
			err = e.opts.Driver.Restore(ctx, id.PID)
		}
		r, answered := errors.AsType[driver.Result](err)
		switch {
		case err == nil,
			!e.opts.Alive(id) && (!answered || unknownToCUDA(r)): // it had exited before
			e.parked.forget(id)
			return nil
		case errors.Is(err, driver.OutOfMemory):
			// Whatever the state, a second attempt fails too (NVIDIA/cuda-checkpoint#44).
			e.parked.forget(id)
			return markLost(err)
		}
		// If the helper has died, CUDA may have finished, or still be at work.
		s, failed := e.state(ctx, id)
		for t := e.newAttempt(); failed == nil && s > driver.Failed && t.retry(); {
			s, failed = e.state(ctx, id)
		}
		switch {
		case failed != nil:
			err = errors.Join(err, failed)
		case s == driver.Locked:
			e.parked.forget(id)
			return nil
		case s > driver.Failed: // CUDA is still at work
			return markUnsure(fmt.Errorf("%w; it is in %v", err, s))
		case s != driver.Checkpointed:
			e.parked.forget(id)
			return markLost(fmt.Errorf("%w; it is in %v", err, s))
		case answered:
			return err // the caller retries later
		}
	}
	return err
}

// repark parks processes that were restored, because another one of the container was not.
func (e *Evictor) repark(ctx context.Context, back []ledger.ProcessID) (failed error) {
	held, err := e.footprints(back)
	if err != nil {
		return markUnsure(err)
	}
	for _, id := range back {
		if !e.opts.Alive(id) {
			continue
		}
		e.parked.note(id, held[id])
		if err := e.opts.Driver.Checkpoint(ctx, id.PID); err != nil && e.opts.Alive(id) {
			failed = errors.Join(failed, markUnsure(err))
		}
	}
	return failed
}

// unlock unlocks a process. After an error other than parking.ErrLost it may still be locked.
func (e *Evictor) unlock(ctx context.Context, id ledger.ProcessID) error {
	var err error
	for range minTries {
		if !e.opts.Alive(id) {
			return nil
		}
		if err = e.opts.Driver.Unlock(ctx, id.PID); err == nil || !e.opts.Alive(id) {
			return nil
		}
		// The helper may have died after CUDA had finished.
		switch s, failed := e.state(ctx, id); {
		case failed != nil:
		case s == driver.Running:
			return nil
		case s == driver.Failed, s == noState && e.opts.Alive(id):
			return markLost(fmt.Errorf("it cannot be unlocked: %w", err))
		}
	}
	return markUnsure(fmt.Errorf("it stays locked: %w", err))
}

func markUnsure(err error) error { return fmt.Errorf("%w: %w", parking.ErrUnsure, err) }

func markLost(err error) error {
	if errors.Is(err, parking.ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", parking.ErrLost, err)
}
