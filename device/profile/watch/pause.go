// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package watch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile/plan"
)

const mib = 1 << 20

// plan plans each card and acts on the plans. A container on several cards is paused while any of
// their plans pauses it.
func (w *Watcher) plan(ctx context.Context, now time.Time, stats []gate.Status) {
	for _, st := range stats {
		// The gate itself ends a pause if nothing else would run.
		if c := w.containers[ledger.ContainerID(st.Container.ID)]; c.paused && !st.Planned {
			c.paused, c.resumed = false, now
			w.log.Info("a container is resumed: the gate has ended its pause", "container", c.id, "alloc_id", c.alloc, "task", c.key.Task)
		}
	}
	decided := make(map[ledger.ContainerID]plan.Decision)
	for _, card := range w.gate.Cards() {
		in := w.snapshot(now, card, stats)
		if err := in.Validate(); err != nil {
			w.log.Error("cannot plan a card", "card", card.Card, "error", err)
			continue
		}
		for _, d := range plan.Decide(in).Jobs {
			id := ledger.ContainerID(d.ID)
			if before, ok := decided[id]; !ok || d.Pause && !before.Pause {
				decided[id] = d
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.containers)) {
		c := w.containers[id]
		d := decided[id] // zero for containers that have left the card
		switch {
		case d.Pause && !c.paused && c.cancel == nil:
			w.log.Info("a container is paused", "container", id, "alloc_id", c.alloc, "task", c.key.Task, "rule", d.Rule, "why", d.Why)
			w.pause(ctx, now, c)
		case !d.Pause && c.paused:
			w.resume(now, c)
			if !c.paused {
				w.log.Info("a container is resumed", "container", id, "alloc_id", c.alloc, "task", c.key.Task, "rule", d.Rule, "why", d.Why)
			}
		case !d.Pause && c.cancel != nil:
			c.cancelled = true
			c.cancel()
		}
	}
}

// snapshot returns a card for the plan, without parked containers: the gate restores them.
func (w *Watcher) snapshot(now time.Time, card gate.CardStatus, stats []gate.Status) plan.Input {
	in := plan.Input{MemoryMiB: int((card.Free + card.Held.CardUsage()) / mib), Params: w.opts.Params}
	up := func(bytes uint64) int { return int((bytes + mib - 1) / mib) }
	for _, st := range stats {
		at := slices.IndexFunc(st.Usage, func(u gate.Usage) bool { return u.Card == card.Card })
		if at < 0 || st.Parked {
			continue
		}
		c, u := w.containers[ledger.ContainerID(st.Container.ID)], st.Usage[at]
		j := plan.Job{
			ID: st.Container.ID, Priority: st.Priority, ArrivedS: float64(st.Arrived.UnixMilli()) / 1000, HeldMiB: up(heldOn(u)),
			// A disconnected container cannot be stopped, and one that waits for memory has
			// stopped.
			Fixed:  st.Disconnected > 0 || u.Waiting > 0 || now.Before(c.retry),
			Halted: st.Paused && !st.Planned,
		}
		if bytes, known := w.ahead(c, st, u); known {
			ahead := up(bytes)
			j.AheadMiB = &ahead
		}
		seconds := func(since time.Time) *float64 {
			s := max(0, now.Sub(since).Seconds())
			return &s
		}
		switch {
		case c.paused || c.cancel != nil:
			j.PausedS = seconds(c.since)
		case !c.resumed.IsZero():
			j.ResumedS = seconds(c.resumed)
		}
		in.Jobs = append(in.Jobs, j)
	}
	return in
}

// ahead returns the most that a container will hold of a card, in bytes, by its profile or its
// limit, if known.
func (w *Watcher) ahead(c *container, st gate.Status, u gate.Usage) (bytes uint64, known bool) {
	if p, ok := w.store.Profile(c.key); ok {
		f := p.Ahead(c.ran.last, peakHeld(st), w.opts.Horizon)
		if known = f.Known; known {
			bytes = f.Bytes
		}
	}
	if u.Waiting > 0 {
		bytes, known = max(bytes, heldOn(u)+u.WaitingBytes), true
	}
	if w.opts.Hard {
		bytes = min(bytes, max(heldOn(u), u.Limit))
	}
	return bytes, known
}

func (w *Watcher) pause(ctx context.Context, now time.Time, c *container) {
	ctx, c.cancel = context.WithTimeout(ctx, w.opts.Patience)
	c.cancelled, c.since = false, now
	cancel := c.cancel
	w.pausing++
	go func() {
		err := w.gate.Pause(ctx, c.id, gate.PausePlan)
		cancel()
		w.results <- result{c, err}
	}()
}

func (w *Watcher) pauseDone(r result, now time.Time) {
	w.pausing--
	c := r.c
	stopped := r.err == nil || errors.Is(r.err, gate.ErrPaused)
	c.cancel = nil
	switch {
	case stopped && c.cancelled: // it was resumed meanwhile
		w.resume(now, c)
	case stopped:
		c.paused = true
	case c.cancelled:
		c.resumed = now
	case errors.Is(r.err, gate.ErrUnknown): // it has ended
	default:
		wait := min(w.opts.Backoff<<min(c.failures, 16), w.opts.MaxBackoff)
		c.retry = now.Add(wait)
		if c.failures++; c.failures == 1 {
			w.log.Warn("cannot pause a container; backing off", "container", c.id, "alloc_id", c.alloc, "task", c.key.Task, "for", wait, "error", r.err)
		}
	}
}

func (w *Watcher) resume(now time.Time, c *container) {
	err := w.gate.Resume(c.id, gate.PausePlan)
	if err != nil && !errors.Is(err, gate.ErrUnknown) {
		if !c.resumeFailed {
			w.log.Error("a container could not be resumed, retrying", "container", c.id, "alloc_id", c.alloc, "task", c.key.Task, "error", err)
		}
		c.paused, c.resumeFailed = true, true
		return
	}
	c.paused, c.resumeFailed, c.resumed = false, false, now
}

// resumeAll resumes all containers that the plan has paused, or is about to.
func (w *Watcher) resumeAll(now time.Time) {
	for _, c := range w.containers {
		if c.cancel != nil {
			c.cancelled = true
			c.cancel()
		}
		if c.paused {
			w.resume(now, c)
		}
	}
}

func (w *Watcher) shutdown() {
	now := time.Now()
	w.resumeAll(now)
	for w.pausing > 0 {
		w.pauseDone(<-w.results, now)
	}
	w.resumeAll(now)
	w.awaitWrites() // an earlier state must not replace the last
	w.saveRunning(now)
	w.awaitWrites()
}

func (w *Watcher) awaitWrites() {
	for w.writing > 0 {
		w.writeDone(<-w.written)
	}
}
