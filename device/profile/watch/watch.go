// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package watch measures the containers on a gate's cards, stores their profiles, and pauses
// containers as the plan decides.
package watch

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
	"github.com/ebbtide/ebbtide/device/profile/plan"
)

// Gate is the watched gate (gate.Gate).
type Gate interface {
	Stats() []gate.Status
	Cards() []gate.CardStatus
	// Pause returns when the container has stopped. After an error other than gate.ErrPaused it
	// is not paused for this reason.
	Pause(ctx context.Context, id ledger.ContainerID, reason string) error
	Resume(id ledger.ContainerID, reason string) error
}

// Store keeps profiles (profile.Store).
type Store interface {
	Profile(profile.Key) (profile.Profile, bool)
	Add(profile.Key, profile.Run) error
	Load(name string, into any) error
	Save(name string, v any) error
}

const running = "running"

// Options configure a Watcher.
type Options struct {
	// Horizon is how far the plan looks ahead: longer than a pause takes.
	Horizon time.Duration
	// Patience is how long a container may take to stop.
	Patience time.Duration
	Save     time.Duration
	// Backoff is how long a container is spared after a failed pause, doubled each time, up to
	// MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Plan enables pauses.
	Plan bool
	// Hard: no container can hold more than its share.
	Hard   bool
	Params plan.Params
}

// Default returns options that suit most jobs.
func Default() Options {
	return Options{
		Plan:    true,
		Horizon: time.Minute, Patience: 30 * time.Second, Save: 30 * time.Second,
		Backoff: 30 * time.Second, MaxBackoff: 10 * time.Minute, Params: plan.DefaultParams(),
	}
}

// Watcher measures containers and pauses them.
type Watcher struct {
	gate  Gate
	store Store
	log   hclog.Logger
	opts  Options

	containers   map[ledger.ContainerID]*container
	saved        map[ledger.ContainerID]saved // by an earlier watcher
	firstPass    bool                         // before the first pass
	last         time.Time                    // when runs were last stored
	storeFailing bool
	saving       bool // running is being stored
	writing      int  // writes in progress
	written      chan written
	pausing      int // pauses in progress
	results      chan result
}

type container struct {
	id       ledger.ContainerID
	alloc    string
	key      profile.Key
	recorder *profile.Recorder // nil: its start was not observed
	ran      stopwatch
	arrived  time.Time // by the gate; another value means another run

	// Of the plan. A pause in progress has a cancel.
	paused       bool
	cancel       context.CancelFunc
	cancelled    bool
	since        time.Time // of the pause
	resumed      time.Time
	resumeFailed bool // the last resume failed
	failures     int
	retry        time.Time // not paused before
}

type result struct {
	c   *container
	err error
}

type written struct {
	running bool // running was stored, not a profile
	err     error
}

type saved struct {
	ID     ledger.ContainerID `json:"id"`
	Key    profile.Key        `json:"key"`
	Run    profile.Run        `json:"run"`
	Paused bool               `json:"paused"`
	At     time.Time          `json:"at"`
}

// New returns a watcher. It is idle until Run.
func New(g Gate, s Store, log hclog.Logger, opts Options) *Watcher {
	return &Watcher{
		gate: g, store: s, log: log, opts: opts,
		containers: make(map[ledger.ContainerID]*container), saved: make(map[ledger.ContainerID]saved), firstPass: true,
		results: make(chan result), written: make(chan written),
	}
}

// Run watches until ctx ends. Then it resumes the containers that the plan has paused, and stores
// the measurements.
func (w *Watcher) Run(ctx context.Context, every time.Duration) {
	w.load()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		w.tick(ctx, time.Now())
		select {
		case <-ctx.Done():
			w.shutdown()
			return
		case r := <-w.results:
			w.pauseDone(r, time.Now())
		case r := <-w.written:
			w.writeDone(r)
		case <-ticker.C:
		}
	}
}

func (w *Watcher) load() {
	var runs []saved
	if err := w.store.Load(running, &runs); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Warn("cannot load earlier runs; not measuring them", "error", err)
		return
	}
	for _, s := range runs {
		w.saved[s.ID] = s
	}
}

func (w *Watcher) tick(ctx context.Context, now time.Time) {
	stats := w.gate.Stats()
	w.measure(now, stats)
	if now.Sub(w.last) >= w.opts.Save && !w.saving {
		w.saveRunning(now)
	}
	if w.opts.Plan && !w.storeFailing {
		w.plan(ctx, now, stats)
	}
}

func (w *Watcher) measure(now time.Time, stats []gate.Status) {
	there := make(map[ledger.ContainerID]bool, len(stats))
	for _, st := range stats {
		id := ledger.ContainerID(st.Container.ID)
		there[id] = true
		c := w.containers[id]
		if c != nil && !c.arrived.Equal(st.Arrived) {
			w.endWatch(c) // a new run: the exec driver reuses names
			c = nil
		}
		if c == nil {
			c = w.startWatch(now, id, st)
			w.containers[id] = c
		}
		ran := c.ran.read(now, st)
		// For a disconnected process the gate knows only an upper bound, and a paused container
		// does not run.
		if c.recorder != nil && !st.Paused && st.Disconnected == 0 {
			c.recorder.Observe(ran, peakHeld(st))
		}
	}
	for id, c := range w.containers {
		if !there[id] {
			w.endWatch(c)
		}
	}
	// Containers missing on the first pass ended unobserved.
	for id, s := range w.saved {
		if there[id] {
			continue
		}
		if r, err := profile.Continue(s.Run); err == nil {
			w.storeRun(s.Key, r.Run())
		}
	}
	clear(w.saved)
	w.firstPass = false
}

func (w *Watcher) startWatch(now time.Time, id ledger.ContainerID, st gate.Status) *container {
	c := &container{id: id, alloc: st.Container.Alloc, key: profile.KeyOf(st.Container), arrived: st.Arrived}
	c.ran.since, c.ran.pausedFor = now, st.PausedFor
	s, known := w.saved[id]
	switch {
	case known && s.Key == c.key:
		var err error
		if c.recorder, err = profile.Continue(s.Run); err != nil {
			w.log.Warn("an earlier run is not measured", "container", id, "error", err)
			return c
		}
		c.ran.before = time.Duration(s.Run.Seconds * float64(time.Second))
		if gap := now.Sub(s.At); gap > 0 && !s.Paused { // it has run on
			c.ran.before += gap
		}
	case w.firstPass && peakHeld(st) > 0: // it has been running for some time
	default:
		c.recorder = new(profile.Recorder)
	}
	return c
}

func (w *Watcher) endWatch(c *container) {
	delete(w.containers, c.id)
	if c.cancel != nil {
		c.cancelled = true
		c.cancel()
	}
	if c.recorder != nil {
		w.storeRun(c.key, c.recorder.End(c.ran.last))
	}
}

func (w *Watcher) storeRun(k profile.Key, r profile.Run) {
	if r.Peak() == 0 {
		return
	}
	w.write(false, func() error { return w.store.Add(k, r) })
}

func (w *Watcher) saveRunning(now time.Time) {
	w.last = now
	runs := []saved{}
	for _, id := range slices.Sorted(maps.Keys(w.containers)) {
		c := w.containers[id]
		if c.recorder == nil {
			continue
		}
		if r := c.recorder.Run(); r.Peak() > 0 {
			runs = append(runs, saved{ID: id, Key: c.key, Run: r, Paused: !c.ran.paused.IsZero(), At: now})
		}
	}
	w.saving = true
	w.write(true, func() error { return w.store.Save(running, runs) })
}

// write does not wait for the disk: a pause could come too late.
func (w *Watcher) write(running bool, f func() error) {
	w.writing++
	go func() { w.written <- written{running, f()} }()
}

// writeDone records whether the store works. While it fails nothing is planned: profiles would
// grow stale unnoticed.
func (w *Watcher) writeDone(r written) {
	w.writing--
	if r.running {
		w.saving = false
	}
	switch {
	case r.err != nil && !w.storeFailing:
		w.storeFailing = true
		w.log.Error("profiles cannot be stored: the plan pauses no container until they can", "error", r.err)
		w.resumeAll(time.Now())
	case r.err == nil && r.running && w.storeFailing:
		w.storeFailing = false
		w.log.Info("profiles can be stored again")
	}
}

// peakHeld returns what a container holds of the card of which it holds most, in bytes: which of
// several cards is which differs between runs.
func peakHeld(st gate.Status) (bytes uint64) {
	for _, u := range st.Usage {
		bytes = max(bytes, heldOn(u))
	}
	return bytes
}

func heldOn(u gate.Usage) uint64 { return u.Held.CardUsage() }

// stopwatch measures a container's running time, without pauses.
type stopwatch struct {
	since     time.Time     // start of counting
	before    time.Duration // running time before that
	pausedFor time.Duration // the gate's figure at that time
	paused    time.Time     // start of the observed pause that has not ended
	last      time.Duration // last reading
}

// read returns the running time. It never decreases, although the gate reports the length of a
// pause only at its end.
func (s *stopwatch) read(now time.Time, st gate.Status) time.Duration {
	ran := s.before + now.Sub(s.since) - (st.PausedFor - s.pausedFor)
	switch {
	case !st.Paused:
		s.paused = time.Time{}
	case s.paused.IsZero():
		s.paused = now
	}
	if st.Paused {
		ran -= now.Sub(s.paused)
	}
	s.last = max(s.last, ran)
	return s.last
}
