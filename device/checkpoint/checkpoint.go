// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package checkpoint parks processes: it moves their GPU memory to host memory and back with
// CUDA's checkpoint functions. It is the gate's Evictor.
//
//	Park:    lock all, check host memory, checkpoint all
//	Restore: wait until the cards have the room, restore one after the other, unlock all
//
// All processes of a container are locked before the first is checkpointed, so that an impossible
// lock shows while all can still continue. A process restored to a full card is broken forever
// (NVIDIA/cuda-checkpoint#44): so each process's footprint is recorded, and the cards must have
// that much free, whatever the ledger says.
//
// Rollback depends on the state that CUDA reports, because the helper that calls CUDA may die at
// any time (package driver).
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
)

var (
	// ErrNotEvictable: CUDA can never move the process's memory, which is managed or shared with
	// other processes.
	ErrNotEvictable = fmt.Errorf("the process cannot be parked: %w", parking.ErrPinned)
	// ErrBusy: submitted work took longer than the lock's timeout.
	ErrBusy = errors.New("the process's work on the card does not finish")
)

// Driver calls CUDA's checkpoint functions (driver.Client). CUDA's errors wrap a driver.Result.
// After any other error the outcome is unknown.
type Driver interface {
	State(ctx context.Context, pid int) (driver.State, error)
	Lock(ctx context.Context, pid int, timeout time.Duration) error
	Checkpoint(ctx context.Context, pid int) error
	Restore(ctx context.Context, pid int) error
	Unlock(ctx context.Context, pid int) error
}

// Options configure an Evictor. Only Alive, RDMA and the durations are optional.
type Options struct {
	Driver Driver
	// Alive reports whether a process has not exited. Default: asks the kernel.
	Alive func(ledger.ProcessID) bool
	// RDMA reports whether a process has an RDMA device open, which may access its GPU memory:
	// that cannot move. Default: asks the kernel.
	RDMA func(pid int) bool
	// Cards are the cards on which processes may hold memory; Add adds more.
	Cards []ledger.CardID
	// Held returns what processes hold on a card, in bytes by pid, as far as known.
	Held func(ledger.CardID) (map[int]uint64, error)
	// Free returns how much of a card is physically free, in bytes.
	Free func(ledger.CardID) (uint64, error)
	// Room checks that the host has memory for what processes hold on cards, in bytes by pid
	// (headroom.Checker.Check).
	Room func(map[int]uint64) error

	// Lock bounds the wait for submitted work: 10 s if 0.
	Lock time.Duration
	// Poll is how often a card without room is checked: 200 ms if 0.
	Poll time.Duration
	// Undo bounds a rollback's waits: for room, after which it restores anyway, and for a
	// process's state: 30 s if 0.
	Undo time.Duration
}

// Evictor parks processes. It is safe for concurrent use, but not for the same process.
type Evictor struct {
	opts Options
	// restoring serializes restores.
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
	if opts.RDMA == nil {
		opts.RDMA = func(pid int) bool { return opens(fmt.Sprintf("/proc/%d/fd", pid), "/dev/infiniband/") }
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

// alive asks the kernel. A zombie counts as dead; an unreadable process as alive: CUDA will tell.
func alive(id ledger.ProcessID) bool {
	handle, err := identify.Finder{}.Open(id.PID, id.Start)
	if err != nil {
		return !errors.Is(err, identify.ErrGone)
	}
	handle.Close()
	return true
}

// opens reports whether one of a process's files, as /proc has them, is below a directory.
func opens(fds, below string) bool {
	files, _ := os.ReadDir(fds) // of a process that has exited
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		to, err := os.Readlink(filepath.Join(fds, f.Name()))
		return err == nil && strings.HasPrefix(to, below)
	})
}
