// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package checkpoint parks processes: it moves the memory that they hold on cards to the
// host's memory and back, by CUDA's checkpoint functions. It is the gate's Evictor.
//
//	Park:    lock all, look for host memory, checkpoint all
//	Return:  wait until the cards have the room, restore one after the other, unlock all
//
// All processes of a container are locked before the first is checkpointed: what takes a
// lock's time, or has none, shows while all can still go on. A process that comes back to a
// full card is broken for ever (NVIDIA/cuda-checkpoint#44). So what a process held is
// noted, and it is not brought back before the cards have that much free, whatever the
// books say.
//
// What has to be undone goes by the state that CUDA tells, not by what was tried: the
// helper that calls CUDA may end at any moment (package driver).
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
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/peer"
)

var (
	// ErrNotEvictable says that CUDA cannot move the memory of a process, now or later: it
	// uses managed memory, or shares memory with other processes.
	ErrNotEvictable = fmt.Errorf("the process cannot be parked: %w", gate.ErrPinned)
	// ErrBusy says that a process had work under way for longer than the lock's time-out.
	ErrBusy = errors.New("the process's work on the card does not end")
)

// Driver calls CUDA's checkpoint functions (driver.Client). An error that CUDA answered
// wraps a driver.Result. With any other, what has become of the call is not known.
type Driver interface {
	State(ctx context.Context, pid int) (driver.State, error)
	Lock(ctx context.Context, pid int, timeout time.Duration) error
	Checkpoint(ctx context.Context, pid int) error
	Restore(ctx context.Context, pid int) error
	Unlock(ctx context.Context, pid int) error
}

// Options say how an Evictor works. All but Alive and the times must be set.
type Options struct {
	Driver Driver
	// Alive tells whether a process has not ended. Without, the kernel is asked.
	Alive func(ledger.ProcessID) bool
	// Cards are the cards on which processes may hold memory (Add).
	Cards []ledger.CardID
	// Held tells what processes hold on a card, in bytes by pid. One that is not there, or
	// has 0, holds nothing, or it is not known.
	Held func(ledger.CardID) (map[int]uint64, error)
	// Free tells how much of a card is physically free, in bytes.
	Free func(ledger.CardID) (uint64, error)
	// Room says whether the host has the memory for what processes hold on cards, in bytes by
	// pid (headroom.Checker.Check).
	Room func(map[int]uint64) error

	// Lock is how long a process's submitted work may take to end: 10 s if 0.
	Lock time.Duration
	// Poll is how often a card is looked at that has no room yet: 200 ms if 0.
	Poll time.Duration
	// Undo is how long it is waited when what was parked must come back since something else
	// has failed: for room on the cards, after which it is tried without, and for CUDA to
	// tell how it is with a process: 30 s if 0.
	Undo time.Duration
}

// Evictor parks processes. It is safe for concurrent use, but not for the same process at
// the same time.
type Evictor struct {
	opts Options
	// restoring is held by who brings processes back: one at a time, of all containers.
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

// alive asks the kernel. A process that has ended and that its parent has not asked for yet
// is none any more. One of which nothing can be read is taken to be there: CUDA will tell.
func alive(id ledger.ProcessID) bool {
	handle, err := peer.Finder{}.Open(id.PID, id.Start)
	if err != nil {
		return !errors.Is(err, peer.ErrGone)
	}
	handle.Close()
	return true
}
