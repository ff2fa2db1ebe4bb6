// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package checkpoint parks processes: it moves their GPU memory to host memory and back with
// CUDA's checkpoint functions. It is the gate's Evictor.
//
//	Park:    lock all, check host memory, checkpoint all
//	Restore: wait until the cards have the room, restore one after the other, unlock all
//
// All processes of a container are locked before the first is checkpointed, so that a slow or
// impossible lock shows while all can still continue. A process restored to a full card is
// broken for ever (NVIDIA/cuda-checkpoint#44). So the footprint of each process is recorded,
// and it is not restored before the cards have that much free, whatever the ledger says.
//
// Rollback depends on the state that CUDA reports, not on what was attempted: the helper that
// calls CUDA may die at any time (package driver).
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

var (
	// ErrNotEvictable: CUDA can never move the process's memory, because it uses managed memory
	// or shares memory with other processes.
	ErrNotEvictable = fmt.Errorf("the process cannot be parked: %w", gate.ErrPinned)
	// ErrBusy: the process had work in flight for longer than the lock's timeout.
	ErrBusy = errors.New("the process's work on the card does not finish")
)

// Driver calls CUDA's checkpoint functions (driver.Client). An error returned by CUDA wraps a
// driver.Result. After any other error the outcome of the call is unknown.
type Driver interface {
	State(ctx context.Context, pid int) (driver.State, error)
	Lock(ctx context.Context, pid int, timeout time.Duration) error
	Checkpoint(ctx context.Context, pid int) error
	Restore(ctx context.Context, pid int) error
	Unlock(ctx context.Context, pid int) error
}

// Options configure an Evictor. Only Alive and the durations are optional.
type Options struct {
	Driver Driver
	// Alive reports whether a process has not exited. Default: asks the kernel.
	Alive func(ledger.ProcessID) bool
	// Cards are the cards on which processes may hold memory; Add adds more.
	Cards []ledger.CardID
	// Held returns what processes hold on a card, in bytes by pid; missing or 0: nothing, or
	// unknown.
	Held func(ledger.CardID) (map[int]uint64, error)
	// Free returns how much of a card is physically free, in bytes.
	Free func(ledger.CardID) (uint64, error)
	// Room checks that the host has memory for what processes hold on cards, in bytes by pid
	// (headroom.Checker.Check).
	Room func(map[int]uint64) error

	// Lock bounds the wait for submitted work to finish: 10 s if 0.
	Lock time.Duration
	// Poll is how often a card without room is checked: 200 ms if 0.
	Poll time.Duration
	// Undo bounds a rollback's wait for room on the cards, after which it restores anyway, and
	// for CUDA to report a process's state: 30 s if 0.
	Undo time.Duration
}

// Evictor parks processes. It is safe for concurrent use, but not for the same process.
type Evictor struct {
	opts Options
	// restoring is held during a restore: one at a time, over all containers.
	restoring chan struct{}
	parked    records

	mu    sync.Mutex
	cards []ledger.CardID
}

var _ gate.Evictor = (*Evictor)(nil)

// New returns an Evictor.
func New(opts Options) *Evictor {
	for t, otherwise := range map[*time.Duration]time.Duration{
		&opts.Lock: 10 * time.Second, &opts.Poll: 200 * time.Millisecond, &opts.Undo: 30 * time.Second,
	} {
		if *t == 0 {
			*t = otherwise
		}
	}
	if opts.Alive == nil {
		opts.Alive = alive
	}
	return &Evictor{opts: opts, restoring: make(chan struct{}, 1), parked: records{held: make(map[ledger.ProcessID]footprint)}, cards: slices.Clone(opts.Cards)}
}

// Add adds a card on which processes may hold memory.
func (e *Evictor) Add(card ledger.CardID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.cards, card) {
		e.cards = append(e.cards, card)
	}
}

// alive asks the kernel. A zombie counts as dead; an unreadable process as alive, since CUDA
// will tell.
func alive(id ledger.ProcessID) bool {
	handle, err := identify.Finder{}.Open(id.PID, id.Start)
	if err != nil {
		return !errors.Is(err, identify.ErrGone)
	}
	handle.Close()
	return true
}
