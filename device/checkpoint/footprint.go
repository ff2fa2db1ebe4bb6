// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"fmt"
	"maps"
	"sync"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/nvml"
)

// footprint is what a process held on each card, in bytes, with its contexts.
type footprint map[ledger.CardID]uint64

// sum is the memory of all cards.
func (f footprint) sum() (bytes uint64) {
	for _, n := range f {
		bytes += n
	}
	return bytes
}

// add adds another's.
func (f footprint) add(other footprint) {
	for card, n := range other {
		f[card] += n
	}
}

// records are the footprints of processes that are parked.
type records struct {
	mu   sync.Mutex
	held map[ledger.ProcessID]footprint
}

// note notes what a process held.
func (r *records) note(id ledger.ProcessID, f footprint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[id] = f
}

// of returns what a process held; not ok: it was not parked, or not by this Evictor.
func (r *records) of(id ledger.ProcessID) (f footprint, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok = r.held[id]
	return maps.Clone(f), ok
}

// forget forgets a process that is not parked any more.
func (r *records) forget(id ledger.ProcessID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, id)
}

// sweep forgets the processes that have ended.
func (r *records) sweep(alive func(ledger.ProcessID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.held, func(id ledger.ProcessID, _ footprint) bool { return !alive(id) })
}

// footprints reads what processes hold now.
func (e *Evictor) footprints(ids []ledger.ProcessID) (map[ledger.ProcessID]footprint, error) {
	all := make(map[ledger.ProcessID]footprint)
	for _, id := range ids {
		all[id] = make(footprint)
	}
	for _, card := range e.opts.Cards {
		held, err := e.opts.Held(card)
		if err != nil {
			return nil, fmt.Errorf("reading what processes hold on card %s: %w", card, err)
		}
		for _, id := range ids {
			if n := held[id.PID]; n > 0 {
				all[id][card] = n
			}
		}
	}
	return all, nil
}

// Meter makes the Held and Free of Options from what NVML tells of a card
// (nvml.Library.Usage).
func Meter(usage func(uuid string) (nvml.Usage, error)) (held func(ledger.CardID) (map[int]uint64, error), free func(ledger.CardID) (uint64, error)) {
	held = func(card ledger.CardID) (map[int]uint64, error) {
		u, err := usage(string(card))
		if err != nil {
			return nil, err
		}
		by := make(map[int]uint64)
		for _, p := range u.Processes {
			by[p.PID] += p.Used
		}
		return by, nil
	}
	free = func(card ledger.CardID) (uint64, error) {
		u, err := usage(string(card))
		return u.Free, err
	}
	return held, free
}
