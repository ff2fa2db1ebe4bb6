// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package watch measures the containers on a gate's cards, keeps what it has measured, and
// pauses containers as the plan says.
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

// Gate is what is watched, and who pauses (gate.Gate).
type Gate interface {
	Stats() []gate.Status
	Cards() []gate.CardStatus
	// Pause returns when the container has stopped. Its error says that it has not, and is
	// not paused for the reason any more, unless it is gate.ErrPaused.
	Pause(ctx context.Context, id ledger.ContainerID, reason string) error
	Resume(id ledger.ContainerID, reason string) error
}

// Store is where profiles are kept (profile.Store).
type Store interface {
	Profile(profile.Kind) (profile.Profile, bool)
	Add(profile.Kind, profile.Run) error
	Load(name string, into any) error
	Save(name string, v any) error
}

// running is the name under which the runs are kept that have not ended.
const running = "running"

// Options say how a Watcher works.
type Options struct {
	// Horizon is how far it is looked ahead. It must be longer than a pause takes.
	Horizon time.Duration
	// Patience is how long a container may take to stop.
	Patience time.Duration
	// Save is how often the runs are written down that have not ended.
	Save time.Duration
	// Backoff is how long a container is left alone that could not be paused; twice as
	// long after each time, up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Plan is whether anybody is paused. Otherwise it is only measured.
	Plan bool
	// Hard says that no container can hold more than its share: none is expected to.
	Hard bool
	// Params are the plan's.
	Params plan.Params
}

// Default returns options that fit most jobs.
func Default() Options {
	return Options{
		Plan:    true,
		Horizon: time.Minute, Patience: 30 * time.Second, Save: 30 * time.Second,
		Backoff: 30 * time.Second, MaxBackoff: 10 * time.Minute, Params: plan.DefaultParams(),
	}
}

// Watcher measures and plans.
type Watcher struct {
	gate  Gate
	store Store
	log   hclog.Logger
	opts  Options

	containers   map[ledger.ContainerID]*container
	saved        map[ledger.ContainerID]saved // by a watcher before this one
	firstPass    bool                         // nobody has been looked at yet
	last         time.Time                    // when the runs were written down
	storeFailing bool                         // the store fails
	pausing      int                          // pauses that have not returned
	results      chan result
}

// container is one that is watched.
type container struct {
	id       ledger.ContainerID
	alloc    string
	kind     profile.Kind
	recorder *profile.Recorder // nil: its beginning was not seen
	ran      stopwatch
	arrived  time.Time // as the gate says: another one is another run

	// Of the plan. A pause that has begun and not returned has a cancel.
	paused       bool
	cancel       context.CancelFunc
	cancelled    bool
	since        time.Time // of the pause
	resumed      time.Time
	resumeFailed bool // it could not be resumed
	failures     int
	retry        time.Time // until then it is left alone
}

// result is how a pause has gone.
type result struct {
	c   *container
	err error
}

// saved is a run that has not ended.
type saved struct {
	ID     ledger.ContainerID `json:"id"`
	Kind   profile.Kind       `json:"kind"`
	Run    profile.Run        `json:"run"`
	Paused bool               `json:"paused"`
	At     time.Time          `json:"at"`
}

// New returns a watcher. It does nothing before Run.
func New(g Gate, s Store, log hclog.Logger, opts Options) *Watcher {
	return &Watcher{
		gate: g, store: s, log: log, opts: opts,
		containers: make(map[ledger.ContainerID]*container), saved: make(map[ledger.ContainerID]saved), firstPass: true,
		results: make(chan result),
	}
}

// Run watches, and looks every so often, until ctx ends. Then whoever the plan has paused
// is resumed, and what was measured so far is kept.
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
		case <-ticker.C:
		}
	}
}

// load takes over from the watcher before this one.
func (w *Watcher) load() {
	var runs []saved
	if err := w.store.Load(running, &runs); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Warn("runs that began before are not measured", "error", err)
		return
	}
	for _, s := range runs {
		w.saved[s.ID] = s
	}
}

// look measures and plans.
func (w *Watcher) tick(ctx context.Context, now time.Time) {
	stats := w.gate.Stats()
	w.measure(now, stats)
	if now.Sub(w.last) >= w.opts.Save {
		w.saveRunning(now)
	}
	if w.opts.Plan && !w.storeFailing {
		w.plan(ctx, now, stats)
	}
}

// measure notes what the containers hold, and who has come and gone.
func (w *Watcher) measure(now time.Time, stats []gate.Status) {
	there := make(map[ledger.ContainerID]bool, len(stats))
	for _, st := range stats {
		id := ledger.ContainerID(st.Container.ID)
		there[id] = true
		c := w.containers[id]
		if c != nil && !c.arrived.Equal(st.Arrived) {
			w.endWatch(c) // the exec driver's containers have the same name again
			c = nil
		}
		if c == nil {
			c = w.startWatch(now, id, st)
			w.containers[id] = c
		}
		ran := c.ran.read(now, st)
		// Of who has lost its connection the gate knows only how much it may hold at most,
		// and who is paused does not run.
		if c.recorder != nil && !st.Paused && st.Disconnected == 0 {
			c.recorder.Observe(ran, most(st))
		}
	}
	for id, c := range w.containers {
		if !there[id] {
			w.endWatch(c)
		}
	}
	// Who is not there at first has ended while nobody looked: how long it took is not
	// known.
	for id, s := range w.saved {
		if there[id] {
			continue
		}
		if r, err := profile.Continue(s.Run); err == nil {
			w.storeRun(s.Kind, r.Run())
		}
	}
	clear(w.saved)
	w.firstPass = false
}

// come begins to watch a container.
func (w *Watcher) startWatch(now time.Time, id ledger.ContainerID, st gate.Status) *container {
	c := &container{id: id, alloc: st.Container.Alloc, kind: profile.KindOf(st.Container), arrived: st.Arrived}
	c.ran.since, c.ran.pausedFor = now, st.PausedFor
	s, known := w.saved[id]
	switch {
	case known && s.Kind == c.kind:
		var err error
		if c.recorder, err = profile.Continue(s.Run); err != nil {
			w.log.Warn("a run that began before is not measured", "container", id, "error", err)
			return c
		}
		c.ran.before = time.Duration(s.Run.Seconds * float64(time.Second))
		if gap := now.Sub(s.At); gap > 0 && !s.Paused { // it has run on
			c.ran.before += gap
		}
	case w.firstPass && most(st) > 0: // it runs for some time
	default:
		c.recorder = new(profile.Recorder)
	}
	return c
}

// gone ends the watch of a container.
func (w *Watcher) endWatch(c *container) {
	delete(w.containers, c.id)
	if c.cancel != nil {
		c.cancelled = true
		c.cancel()
	}
	if c.recorder != nil {
		w.storeRun(c.kind, c.recorder.End(c.ran.last))
	}
}

// keep stores a run. One that never held anything says nothing.
func (w *Watcher) storeRun(k profile.Kind, r profile.Run) {
	if r.Peak() == 0 {
		return
	}
	w.noteStore(w.store.Add(k, r))
}

// save writes down the runs that have not ended.
func (w *Watcher) saveRunning(now time.Time) {
	w.last = now
	runs := []saved{}
	for _, id := range slices.Sorted(maps.Keys(w.containers)) {
		c := w.containers[id]
		if c.recorder == nil {
			continue
		}
		if r := c.recorder.Run(); r.Peak() > 0 {
			runs = append(runs, saved{ID: id, Kind: c.kind, Run: r, Paused: !c.ran.paused.IsZero(), At: now})
		}
	}
	if w.noteStore(w.store.Save(running, runs)) && w.storeFailing {
		w.storeFailing = false
		w.log.Info("profiles can be stored again")
	}
}

// stored notes whether the store works. While it does not, nothing is planned: the plan
// would rest on less and less, and nobody would know why.
func (w *Watcher) noteStore(err error) bool {
	if err != nil && !w.storeFailing {
		w.storeFailing = true
		w.log.Error("profiles cannot be stored: nobody is paused by the plan until they can", "error", err)
		w.resumeAll(time.Now())
	}
	return err == nil
}

// most is what a container holds of the card of which it holds most, in bytes. That is
// what is profiled: which of several cards is which differs from run to run.
func most(st gate.Status) (bytes uint64) {
	for _, u := range st.Usage {
		bytes = max(bytes, held(u))
	}
	return bytes
}

// held is what a container holds of a card, in bytes.
func held(u gate.Usage) uint64 { return u.Held.CardUsage() }

// stopwatch measures the running time of a container, without pauses.
type stopwatch struct {
	since     time.Time     // when it began to count
	before    time.Duration // what it had run until then
	pausedFor time.Duration // the gate's figure then
	paused    time.Time     // since when a pause has been seen that is not over
	last      time.Duration // what was read last
}

// read returns the running time. It does not go back, though the gate says how long a
// pause was only when it is over, and its beginning is seen a bit late.
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
