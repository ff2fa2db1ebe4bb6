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

// Park implements gate.Evictor. Its error may also wrap ErrNotEvictable, ErrBusy,
// headroom.ErrHostMemory and driver.ErrUnsupported. A process that has exited, does not use CUDA,
// or is parked already is left alone.
func (e *Evictor) Park(ctx context.Context, processes []ledger.ProcessID) (map[ledger.CardID]uint64, error) {
	e.parked.sweep(e.opts.Alive)
	held, err := e.footprints(processes)
	if err != nil {
		return nil, fmt.Errorf("parking: %w", err)
	}
	on, running, err := e.onCards(ctx, processes, held)
	if err != nil {
		return nil, fmt.Errorf("parking: %w", err)
	}
	freed, err := e.park(ctx, on, running, held)
	if err == nil {
		return freed, nil
	}
	// Roll back even if ctx has ended: nothing else would.
	back := e.restoreAndUnlock(context.WithoutCancel(ctx), on, true)
	return nil, errors.Join(fmt.Errorf("parking: %w", err), back)
}

func (e *Evictor) onCards(ctx context.Context, processes []ledger.ProcessID, held map[ledger.ProcessID]footprint) (on, running []ledger.ProcessID, err error) {
	for _, id := range processes {
		switch s, err := e.state(ctx, id); {
		case err != nil:
			return nil, nil, err
		case s == noState && held[id].sum() > 0 && e.opts.Alive(id):
			return nil, nil, fmt.Errorf("%w: process %d holds %d bytes of the cards, and CUDA does not know it", ErrNotEvictable, id.PID, held[id].sum())
		case s == noState || s == driver.Checkpointed:
		case s == driver.Failed:
			return nil, nil, fmt.Errorf("process %d has failed before: %w", id.PID, parking.ErrLost)
		case s == driver.Running && e.opts.RDMA(id.PID):
			return nil, nil, fmt.Errorf("%w: process %d has an RDMA device open, which may access its memory", ErrNotEvictable, id.PID)
		case s == driver.Running:
			on, running = append(on, id), append(running, id)
		case s == driver.Locked: // by an Evictor that has ended
			on = append(on, id)
		default:
			return nil, nil, fmt.Errorf("process %d is being moved by another program: it is in %v", id.PID, s)
		}
	}
	return on, running, nil
}

// park parks processes, of which some are running and the others locked. After an error some of
// them may be locked or parked.
func (e *Evictor) park(ctx context.Context, on, running []ledger.ProcessID, held map[ledger.ProcessID]footprint) (map[ledger.CardID]uint64, error) {
	for _, id := range running {
		if err := e.lock(ctx, id); err != nil {
			return nil, err
		}
	}
	need := make(map[int]uint64)
	for _, id := range on {
		need[id.PID] = held[id].sum()
	}
	if err := e.opts.Room(need); err != nil {
		return nil, err
	}
	freed := make(footprint)
	for _, id := range on {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !e.opts.Alive(id) {
			continue
		}
		e.parked.note(id, held[id])
		// A checkpoint cannot be cancelled, and its outcome must be known.
		err := e.opts.Driver.Checkpoint(context.WithoutCancel(ctx), id.PID)
		switch {
		case err == nil:
			freed.add(held[id])
		case !e.opts.Alive(id):
		case errors.Is(err, driver.NotSupported):
			return nil, fmt.Errorf("%w: it uses managed memory, or shares memory with other processes: %w", ErrNotEvictable, err)
		default:
			return nil, err
		}
	}
	return freed, nil
}

func (e *Evictor) lock(ctx context.Context, id ledger.ProcessID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !e.opts.Alive(id) {
		return nil
	}
	timeout := e.opts.Lock
	if t, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(t))
	}
	err := e.opts.Driver.Lock(context.WithoutCancel(ctx), id.PID, timeout)
	switch {
	case err == nil || !e.opts.Alive(id):
		return nil
	case errors.Is(err, driver.NotReady):
		return fmt.Errorf("%w within %v: %w", ErrBusy, timeout.Round(time.Millisecond), err)
	case errors.Is(err, driver.NotSupported):
		return fmt.Errorf("%w: %w", ErrNotEvictable, err)
	case errors.Is(err, driver.ErrStuck):
		return fmt.Errorf("%w: CUDA may not answer while another process that it works with, for instance by NCCL, is locked: %w", ErrNotEvictable, err)
	default:
		return err
	}
}

// noState is the state of a process that has exited, or does not use CUDA.
const noState driver.State = -1

func (e *Evictor) state(ctx context.Context, id ledger.ProcessID) (driver.State, error) {
	if !e.opts.Alive(id) {
		return noState, nil
	}
	s, err := e.opts.Driver.State(ctx, id.PID)
	if err != nil {
		if r, answered := errors.AsType[driver.Result](err); answered && unknownToCUDA(r) || !e.opts.Alive(id) {
			return noState, nil
		}
		return noState, err
	}
	return s, nil
}

func unknownToCUDA(r driver.Result) bool {
	return r == driver.InvalidValue || r == driver.NotInitialized
}
