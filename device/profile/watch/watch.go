// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package watch measures the containers on a gate's cards, and stores their profiles.
package watch

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

// Gate is the watched gate (gate.Gate).
type Gate interface {
	Stats() []gate.Status
}

// Store keeps profiles (profile.Store).
type Store interface {
	Add(profile.Key, profile.Run) error
}

// Watcher measures containers whose start it observes.
type Watcher struct {
	gate  Gate
	store Store
	log   hclog.Logger

	containers map[ledger.ContainerID]*container
	last       time.Time // of the last reading; zero: before the first
	failing    bool      // the last profile could not be stored
}

type container struct {
	key      profile.Key
	arrived  time.Time         // by the gate; another value means another run
	recorder *profile.Recorder // nil: its start was not observed
	ran      time.Duration     // without pauses
}

// New returns a watcher. It is idle until Run.
func New(g Gate, s Store, log hclog.Logger) *Watcher {
	return &Watcher{gate: g, store: s, log: log, containers: make(map[ledger.ContainerID]*container)}
}

// Run measures until ctx ends. Runs that have not ended by then are not stored.
func (w *Watcher) Run(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		w.read(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w *Watcher) read(now time.Time) {
	first, passed := w.last.IsZero(), now.Sub(w.last)
	w.last = now
	there := make(map[ledger.ContainerID]bool)
	for _, st := range w.gate.Stats() {
		id := ledger.ContainerID(st.Container.ID)
		there[id] = true
		c := w.containers[id]
		if c != nil && !c.arrived.Equal(st.Arrived) { // a new run: the exec driver reuses names
			w.end(id, c)
			c = nil
		}
		// For a disconnected process the gate knows only an upper bound, and a paused container does
		// not run.
		runs := !st.Paused && st.Disconnected == 0
		switch {
		case c == nil:
			c = &container{key: profile.KeyOf(st.Container), arrived: st.Arrived}
			if !first || held(st) == 0 { // else it has been running for some time
				c.recorder = new(profile.Recorder)
			}
			w.containers[id] = c
		case runs:
			c.ran += passed
		}
		if c.recorder != nil && runs {
			c.recorder.Observe(c.ran, held(st))
		}
	}
	for id, c := range w.containers {
		if !there[id] {
			w.end(id, c)
		}
	}
}

func (w *Watcher) end(id ledger.ContainerID, c *container) {
	delete(w.containers, id)
	if c.recorder == nil {
		return
	}
	run := c.recorder.End(c.ran)
	if run.Peak() == 0 {
		return
	}
	err := w.store.Add(c.key, run)
	if err != nil && !w.failing {
		w.log.Error("profiles cannot be stored", "error", err)
	}
	w.failing = err != nil
}

// held returns what a container holds of the card of which it holds most, in bytes: which of
// several cards is which differs between runs.
func held(st gate.Status) (bytes uint64) {
	for _, u := range st.Usage {
		bytes = max(bytes, u.Held.CardUsage())
	}
	return bytes
}
