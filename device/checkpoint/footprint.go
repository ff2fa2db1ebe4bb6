// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/nvml"
)

// footprint is what a process held on each card, in bytes, with contexts.
type footprint map[ledger.CardID]uint64

func (f footprint) sum() (bytes uint64) {
	for _, n := range f {
		bytes += n
	}
	return bytes
}

func (f footprint) add(other footprint) {
	for card, n := range other {
		f[card] += n
	}
}

type records struct {
	mu   sync.Mutex
	held map[ledger.ProcessID]footprint
}

func (r *records) note(id ledger.ProcessID, f footprint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[id] = f
}

// get returns what a process held, if this Evictor has parked it.
func (r *records) get(id ledger.ProcessID) (f footprint, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok = r.held[id]
	return maps.Clone(f), ok
}

func (r *records) forget(id ledger.ProcessID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, id)
}

func (r *records) sweep(alive func(ledger.ProcessID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.held, func(id ledger.ProcessID, _ footprint) bool { return !alive(id) })
}

func (e *Evictor) footprints(ids []ledger.ProcessID) (map[ledger.ProcessID]footprint, error) {
	all := make(map[ledger.ProcessID]footprint)
	for _, id := range ids {
		all[id] = make(footprint)
	}
	e.mu.Lock()
	cards := slices.Clone(e.cards)
	e.mu.Unlock()
	for _, card := range cards {
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

// Measure returns gate.Options.Measure from NVML (nvml.Library.Usage), without processes whose
// usage NVML does not know.
func Measure(usage func(uuid string) (nvml.Usage, error)) func(ledger.CardID) (gate.Measured, error) {
	return func(card ledger.CardID) (gate.Measured, error) {
		u, err := usage(string(card))
		if err != nil {
			return gate.Measured{}, err
		}
		m := gate.Measured{Free: u.Free, By: make(map[int]uint64)}
		for _, p := range u.Processes {
			if p.Used > 0 {
				m.By[p.PID] += p.Used
			}
		}
		return m, nil
	}
}

// Meter returns Held and Free of Options by gate.Options.Measure.
func Meter(measure func(ledger.CardID) (gate.Measured, error)) (held func(ledger.CardID) (map[int]uint64, error), free func(ledger.CardID) (uint64, error)) {
	held = func(card ledger.CardID) (map[int]uint64, error) {
		m, err := measure(card)
		return m.By, err
	}
	free = func(card ledger.CardID) (uint64, error) {
		m, err := measure(card)
		return m.Free, err
	}
	return held, free
}
