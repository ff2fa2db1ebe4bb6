// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// tries is how often something is tried at least that must not stay undone, where the helper
// that calls CUDA has ended in the middle.
const minTries = 3

// Return implements gate.Evictor. It fails where the cards have not the room.
func (e *Evictor) Restore(ctx context.Context, processes []ledger.ProcessID) error {
	if err := e.restoreAndUnlock(ctx, processes, false); err != nil {
		return fmt.Errorf("bringing back what was parked: %w", err)
	}
	return nil
}

// back brings back processes and lets them go on. If they must, they are brought back also
// when there seems to be no room.
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
		// The helper that calls CUDA may have ended, and CUDA be still at it. Or CUDA does not
		// answer for one process while another is locked, which it is not any more
		// (NVIDIA/cuda-checkpoint#30).
		if !t.retry() {
			return errors.Join(lost, markUnsure(fmt.Errorf("of %d processes: %w", len(processes), found.why)))
		}
	}
}

// attempt is something that must not stay undone: it is tried for some time, and several
// times.
type attempt struct {
	*Evictor
	tries int
	until time.Time
}

func (e *Evictor) newAttempt() *attempt {
	return &attempt{Evictor: e, tries: minTries, until: time.Now().Add(e.opts.Undo)}
}

// again waits a moment, and says whether to try again.
func (a *attempt) retry() bool {
	a.tries--
	if a.tries <= 0 && time.Now().After(a.until) {
		return false
	}
	time.Sleep(a.opts.Poll)
	return true
}

// found says how it is with processes.
type found struct {
	away, locked []ledger.ProcessID
	unknown      []ledger.ProcessID // it cannot be told now
	why          error              // it cannot
	lost         error              // gate.ErrLost, of those that have failed
}

// sort tells which processes are parked and which are only locked.
func (e *Evictor) classify(ctx context.Context, processes []ledger.ProcessID) (f found) {
	for _, id := range processes {
		s, err := e.state(ctx, id)
		if err == nil && (s < noState || s > driver.Failed) {
			err = fmt.Errorf("process %d is being moved by somebody else: it is in %v", id.PID, s)
		}
		_, parked := e.parked.get(id)
		switch {
		case err != nil:
			f.unknown = append(f.unknown, id)
			f.why = errors.Join(f.why, err)
			continue
		case s == driver.Checkpointed:
			f.away = append(f.away, id)
			continue
		case s == driver.Locked:
			f.locked = append(f.locked, id)
		case s == driver.Failed:
			f.lost = errors.Join(f.lost, fmt.Errorf("process %d has failed: %w", id.PID, gate.ErrLost))
		case s == noState && parked && e.opts.Alive(id):
			f.lost = errors.Join(f.lost, fmt.Errorf("process %d was parked, and CUDA knows it no more: %w", id.PID, gate.ErrLost))
		}
		e.parked.forget(id)
	}
	return f
}

// bring restores processes and unlocks them. The error is gate.ErrLost for those that cannot
// go on, gate.ErrUnsure for those of which that is not known, or says that all that were away
// still are.
func (e *Evictor) restoreFound(ctx context.Context, f found, must bool) error {
	if len(f.away) > 0 {
		done, err := e.acquireRoom(ctx, f.away, must)
		if err != nil {
			return err
		}
		defer done()
	}
	// From here on nothing is called off.
	ctx = context.WithoutCancel(ctx)
	var lost error // the others are dealt with first
	var back []ledger.ProcessID
	for _, id := range f.away {
		switch err := e.restore(ctx, id); {
		case err == nil:
			back = append(back, id)
		case errors.Is(err, gate.ErrLost), errors.Is(err, gate.ErrUnsure):
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

// room takes the turn of bringing processes back, when the cards have what they held free.
// done gives it to others. Processes that must come back are waited with for a while, and
// are then tried: else they are lost in any case.
func (e *Evictor) acquireRoom(ctx context.Context, away []ledger.ProcessID, must bool) (done func(), err error) {
	until := time.Now().Add(e.opts.Undo)
	for {
		select {
		case e.restoring <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("others are coming back: %w", ctx.Err())
		}
		missing := e.checkRoom(away)
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

// missing says what keeps processes that are alive from coming back; nil: nothing. What
// another than this Evictor has parked is not known, and room for it is taken for granted.
func (e *Evictor) checkRoom(away []ledger.ProcessID) error {
	need := make(footprint)
	for _, id := range away {
		if f, ok := e.parked.get(id); ok && e.opts.Alive(id) {
			need.add(f)
		}
	}
	for card, bytes := range need {
		switch free, err := e.opts.Free(card); {
		case err != nil:
			return fmt.Errorf("reading what is free of card %s: %w", card, err)
		case free < bytes:
			return fmt.Errorf("card %s has %d bytes free, and %d have to come back", card, free, bytes)
		}
	}
	return nil
}

// restore brings back a process. It stays locked. An error that is not gate.ErrLost says
// that it is parked still.
func (e *Evictor) restore(ctx context.Context, id ledger.ProcessID) error {
	var err error
	for range minTries {
		if e.opts.Alive(id) {
			err = e.opts.Driver.Restore(ctx, id.PID)
		}
		r, answered := errors.AsType[driver.Result](err)
		switch {
		case err == nil,
			!e.opts.Alive(id) && (!answered || unknownToCUDA(r)): // it has ended before
			e.parked.forget(id)
			return nil
		case answered:
			// Whatever state it is said to be in: it does not come back at a second try
			// either (NVIDIA/cuda-checkpoint#44).
			e.parked.forget(id)
			return markLost(err)
		}
		// The helper has ended. CUDA may have done it all the same, or be still at it.
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
		case s > driver.Failed: // CUDA is still at it
			return markUnsure(fmt.Errorf("%w; it is in %v", err, s))
		case s != driver.Checkpointed:
			e.parked.forget(id)
			return markLost(fmt.Errorf("%w; it is in %v", err, s))
		}
	}
	return err
}

// repark parks processes that have just come back, since another of the container did not.
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

// unlock lets a process go on.
func (e *Evictor) unlock(ctx context.Context, id ledger.ProcessID) error {
	var err error
	for range minTries {
		if !e.opts.Alive(id) {
			return nil
		}
		if err = e.opts.Driver.Unlock(ctx, id.PID); err == nil || !e.opts.Alive(id) {
			return nil
		}
		// Of a helper that has ended: CUDA may have done it all the same.
		if s, failed := e.state(ctx, id); failed == nil && s == driver.Running {
			return nil
		}
	}
	err = fmt.Errorf("it stays locked: %w", err)
	if _, answered := errors.AsType[driver.Result](err); answered {
		return markLost(err)
	}
	return markUnsure(err)
}

// unsure marks an error after which it is not known whether a process can go on.
func markUnsure(err error) error { return fmt.Errorf("%w: %w", gate.ErrUnsure, err) }

// loss says of an error that a process cannot go on because of it.
func markLost(err error) error {
	if errors.Is(err, gate.ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", gate.ErrLost, err)
}
