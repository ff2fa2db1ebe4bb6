// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/gate/queue"
)

const (
	// pauseWithin bounds a victim's pause: a kernel may be running.
	pauseWithin = 10 * time.Second
	parkWithin  = 10 * time.Minute
	// killDelay is the time to report a loss before the container is killed.
	killDelay    = 3 * time.Second
	retryRestore = 5 * time.Second
	// maxLazyTurns bounds a lazy restore: the container may wait for work that was in flight when
	// it was parked, which it never reports.
	maxLazyTurns = 10
)

func (g *Gate) canPark() bool { return g.opts.Evictor != nil && !g.opts.RestoreOnly }

func (g *Gate) makeRoom(now time.Time, r queue.Request) bool {
	asks := g.containers[r.Container]
	d := queue.Demand{Request: r}
	if free := g.ledger.Free(r.Card); r.Bytes > free {
		d.Shortfall = r.Bytes - free
	}
	d.OverShare = g.ledger.Container(asks.id, r.Card).LimitUsage()+r.Bytes > g.share(asks, r.Card)
	victim, ok := g.opts.Rules.Victim(now, d, g.candidates(now, r.Card))
	if ok {
		g.park(now, g.containers[victim.Container], asks.Container)
	}
	return ok
}

// breakDeadlock parks containers so that the others can proceed, when all wait for each other.
func (g *Gate) breakDeadlock(now time.Time, r queue.Request) bool {
	if !g.canPark() {
		return false
	}
	capacity, outside := g.ledger.Capacity(r.Card), g.ledger.Outside(r.Card)
	leave := queue.BreakDeadlock(capacity-min(capacity, outside), g.candidates(now, r.Card))
	for _, c := range leave {
		g.park(now, g.containers[c.Container], g.containers[r.Container].Container)
	}
	return len(leave) > 0
}

func (g *Gate) candidates(now time.Time, card ledger.CardID) []queue.Candidate {
	wants := make(map[ledger.ContainerID]uint64)
	for r := range g.queue.All {
		if r.Card == card && !g.containers[r.Container].stopped() {
			wants[r.Container] += r.Bytes
		}
	}
	var out []queue.Candidate
	for _, c := range g.containers {
		k := g.candidate(now, c, card)
		k.Waiting = wants[c.id]
		out = append(out, k)
	}
	return out
}

func (g *Gate) candidate(now time.Time, c *container, card ledger.CardID) queue.Candidate {
	held := g.ledger.Container(c.id, card)
	return queue.Candidate{
		Container: c.id, Priority: c.priority, Arrived: c.arrived, Placed: c.placed, Active: c.lastActive, Cost: c.memory.Cost(held.Committed), Yields: c.yields(),
		OverShare: held.LimitUsage() > g.share(c, card), Freeable: held.Committed, CardUsage: held.CardUsage(),
		Fixed: g.fixedNow(c) || g.hasUnreported(c) || held.Unverified > 0 || !c.memory.Ready(now),
	}
}

// hasUnreported reports whether a process of a container has not reported its holdings after a
// reconnect, on any card: all are parked together.
func (g *Gate) hasUnreported(c *container) bool {
	return slices.ContainsFunc(g.cards, func(card ledger.CardID) bool {
		return g.ledger.Container(c.id, card).Expected > 0
	})
}

// pinned returns why a process of a container can never be parked (wire.Pinned), or 0: the lowest
// reason, for a stable choice.
func (c *container) pinned() (reason uint64) {
	for _, p := range c.processes {
		if p.pinned != 0 && (reason == 0 || p.pinned < reason) {
			reason = p.pinned
		}
	}
	return reason
}

// fixed reports whether a container counts as one that can never be parked.
func (c *container) fixed() bool {
	return c.pinned() != 0 || c.memory.Fixed() || c.memory.State == parking.Lost
}

// fixedNow reports whether a container cannot be parked now.
func (g *Gate) fixedNow(c *container) bool {
	for _, p := range c.processes {
		if p.session == nil {
			return true
		}
	}
	return c.fixed()
}

// mayFreeLater reports whether memory of a card may yet come free.
func (g *Gate) mayFreeLater(card ledger.CardID) bool {
	if g.ledger.Outside(card) > 0 {
		return true
	}
	if !g.canPark() {
		return false
	}
	for _, c := range g.containers {
		held := g.ledger.Container(c.id, card)
		if !c.fixed() && held.Committed > 0 || c.memory.InRound() && held.CardUsage() > 0 {
			return true
		}
	}
	return false
}

func (g *Gate) cardsOf(c *container) []ledger.CardID {
	var out []ledger.CardID
	for _, card := range g.cards {
		if g.ledger.Container(c.id, card).CardUsage() > 0 {
			out = append(out, card)
		}
	}
	return out
}

// inRound reports whether a container's round of parking has not ended.
func (g *Gate) inRound(c *container, round int) bool {
	return !g.closed && g.containers[c.id] == c && c.memory.Is(round)
}

func (g *Gate) park(now time.Time, c *container, by identify.Container) {
	m := &c.memory
	m.Begin(now, by, c.yields() || g.opts.Lazy && now.Sub(c.lastActive) >= g.opts.Rules.Idle && c.waiting == 0)
	round, cards := m.Round, g.cardsOf(c)
	for _, card := range cards {
		g.parkingOn[card]++
	}
	p := g.pause(now, c, pausePark)
	stopped := p.all
	go func() {
		freed, took, err := g.parkMemory(c, round, p, stopped)
		now := g.lock()
		defer g.unlock()
		for _, card := range cards {
			g.parkingOn[card]--
		}
		if !g.inRound(c, round) {
			g.answer(now)
			return
		}
		if err != nil {
			g.parkFailed(now, c, err)
		} else {
			g.parkDone(now, c, freed, took)
		}
		g.save()
		g.answer(now)
	}()
}

func (g *Gate) parkDone(now time.Time, c *container, freed map[ledger.CardID]uint64, took time.Duration) {
	g.opts.Metrics.Parkings.Count(nil)
	for _, id := range c.memory.Moved {
		g.ledger.Park(id)
	}
	for _, card := range g.cards {
		if parked := g.ledger.Container(c.id, card).Parked; freed[card] > parked {
			c.memory.Extra[card] = freed[card] - parked
		}
		g.setOverhead(c, card, 0)
	}
	c.memory.Park(took)
	g.queueRestore(now, c)
}

func (g *Gate) parkFailed(now time.Time, c *container, err error) {
	if !errors.Is(err, parking.ErrUnreported) {
		g.opts.Metrics.Parkings.Count(err)
		g.opts.Report(fmt.Errorf("parking container %s: %w", c.id, err))
	}
	next := c.memory.ParkFailed(now, err)
	if next == parking.Retry {
		g.requeueRestore(c)
		return
	}
	// The attempt does not count against its requests' deadlines.
	g.queue.Postpone(c.id, c.memory.Since, now)
	if next == parking.Kill {
		g.killLost(c)
	} else {
		g.resume(now, c, pausePark)
	}
}

func (g *Gate) parkMemory(c *container, round int, p *pause, stopped <-chan struct{}) (freed map[ledger.CardID]uint64, took time.Duration, err error) {
	pausing, cancel := context.WithTimeout(g.parkCtx, pauseWithin)
	defer cancel()
	if err := g.awaitPause(pausing, c, p, stopped, pausePark); err != nil {
		return nil, 0, err
	}
	processes, err := g.processesToPark(c, round)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(g.parkCtx, parkWithin)
	defer cancel()
	begun := time.Now()
	freed, err = g.opts.Evictor.Park(ctx, processes)
	took = time.Since(begun)
	if err == nil {
		g.opts.Metrics.Park.Observe(took.Seconds())
	}
	return freed, took, err
}

func (g *Gate) processesToPark(c *container, round int) ([]ledger.ProcessID, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.inRound(c, round) {
		return nil, ErrUnknown
	}
	if g.hasUnreported(c) {
		return nil, parking.ErrUnreported
	}
	c.memory.Moved = slices.Collect(maps.Keys(c.processes))
	g.save() // the park is in progress
	return slices.Clone(c.memory.Moved), nil
}

// queueRestore queues the restore of a parked container, one card after the other in a fixed
// order, so that no two restores deadlock.
func (g *Gate) queueRestore(now time.Time, c *container) {
	for _, card := range g.cards {
		if g.ledger.Container(c.id, card).Parked == 0 {
			continue
		}
		g.lastID++
		g.queue.Add(queue.Request{
			ID: g.lastID, Container: c.id, Card: card, Bytes: g.need(c, card), Process: g.anyProcess(c),
			Priority: c.priority, Since: now, Restore: true, Lazy: c.memory.Lazy,
		})
		if round := c.memory.Round; c.memory.Lazy {
			time.AfterFunc(maxLazyTurns*g.opts.Rules.Turn, func() {
				now := g.lock()
				defer g.unlock()
				if g.inRound(c, round) {
					g.endLazy(now, c)
				}
			})
		}
		return
	}
	g.startRestore(c)
}

// need returns how many bytes of a card a restore requires: what parking freed, and what the
// container's requests want within its limit, capped at what the rest of the card can provide.
func (g *Gate) need(c *container, card ledger.CardID) uint64 {
	held, limit, capacity := g.ledger.Container(c.id, card), g.ledger.Limit(c.id, card), g.ledger.Capacity(card)
	need := held.Parked + c.memory.Extra[card]
	more := limit - min(limit, held.LimitUsage()+held.Parked)
	for r := range g.queue.All {
		if r.Container == c.id && r.Card == card && r.Bytes <= more {
			need += r.Bytes
			more -= r.Bytes
		}
	}
	return min(need, capacity-min(capacity, held.CardUsage()))
}

// cannotFit reports whether fixed containers hold too much of a card for a restore.
func (g *Gate) cannotFit(r queue.Request) bool {
	room := g.ledger.Free(r.Card)
	for _, c := range g.containers {
		if c.id != r.Container && !g.fixedNow(c) {
			room += g.ledger.Container(c.id, r.Card).Committed
		}
	}
	return room < r.Bytes
}

func (g *Gate) anyProcess(c *container) ledger.ProcessID {
	for id := range c.processes {
		return id
	}
	return ledger.ProcessID{}
}

func (g *Gate) markActive(now time.Time, c *container) {
	c.lastActive = now
	g.endLazy(now, c)
}

func (g *Gate) endLazy(now time.Time, c *container) {
	if g.closed || !c.memory.InRound() || !c.memory.Lazy || c.yields() {
		return
	}
	c.memory.Lazy = false
	if c.memory.State == parking.Parked && g.dequeueRestore(c) {
		g.queueRestore(now, c)
		g.answer(now)
	}
}

func (g *Gate) dequeueRestore(c *container) bool {
	some := false
	g.queue.Remove(func(r queue.Request) bool {
		is := r.Restore && r.Container == c.id
		some = some || is
		return is
	})
	return some
}

func (g *Gate) setOverhead(c *container, card ledger.CardID, bytes uint64) {
	for id := range c.processes {
		if err := g.ledger.SetOverhead(id, card, bytes); err != nil {
			g.opts.Report(fmt.Errorf("overhead of container %s: %w", c.id, err))
		}
		bytes = 0
	}
}

func (g *Gate) admitRestore(now time.Time, r queue.Request) {
	c := g.containers[r.Container]
	for _, p := range c.processes {
		if err := g.ledger.Unpark(p.id, r.Card, g.hasReported(p, r.Card)); err != nil {
			// One of its own processes took the room, by what it reported after reconnecting.
			g.opts.Report(fmt.Errorf("restoring container %s: %w", c.id, err))
			g.requeueRestore(c)
			return
		}
		g.ensureSaved(p, r.Card)
	}
	g.setOverhead(c, r.Card, c.memory.Extra[r.Card])
	g.queueRestore(now, c)
}

func (g *Gate) hasReported(p *process, card ledger.CardID) bool {
	if p.session == nil {
		return false
	}
	a := p.session.attached[g.handle(card)]
	return a != nil && a.reported
}

// startRestore restores a container once the ledger has reserved room on all cards.
func (g *Gate) startRestore(c *container) {
	c.memory.Restore()
	round, cards := c.memory.Round, g.cardsOf(c)
	processes := slices.Collect(maps.Keys(c.processes))
	g.save()
	go func() {
		tried, took, err := g.restoreMemory(c, cards, processes)
		now := g.lock()
		defer g.unlock()
		if g.inRound(c, round) {
			g.restoreDone(now, c, tried, took, err)
		}
		g.answer(now)
	}()
}

// restoreMemory restores processes once the cards themselves have room, and stops grants there
// meanwhile. It reports whether it tried, and how long that took.
func (g *Gate) restoreMemory(c *container, cards []ledger.CardID, processes []ledger.ProcessID) (tried bool, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(g.parkCtx, parkWithin)
	defer cancel()
	select {
	case g.restoreLock <- struct{}{}:
	case <-ctx.Done():
		return false, 0, ctx.Err()
	}
	defer func() { <-g.restoreLock }()
	if err := g.checkRoom(ctx, c, cards); err != nil { // before grants are stopped: NVML may hang
		return false, 0, err
	}
	stop := func(n int) {
		now := g.lock()
		defer g.unlock()
		for _, card := range cards {
			g.restoringOn[card] += n
		}
		g.answer(now) // before the next restore stops grants
	}
	stop(1)
	defer stop(-1)
	check, done := context.WithTimeout(ctx, restoreCheckWithin)
	defer done()
	if err := g.checkRoom(check, c, cards); err != nil {
		return false, 0, err
	}
	begun := time.Now()
	err = g.opts.Evictor.Restore(ctx, processes)
	took = time.Since(begun)
	if err == nil {
		g.opts.Metrics.Restore.Observe(took.Seconds())
	}
	return true, took, err
}

func (g *Gate) restoreDone(now time.Time, c *container, tried bool, took time.Duration, err error) {
	g.opts.Metrics.Restores.Count(err)
	if err != nil {
		g.opts.Report(fmt.Errorf("restoring container %s: %w", c.id, err))
		if c.memory.RestoreFailed(err, tried) == parking.Kill {
			g.killLost(c)
		} else {
			g.requeueRestore(c)
		}
		return
	}
	c.memory.Restored(now, took)
	// The time parked does not count against deadlines either.
	g.queue.Postpone(c.id, c.memory.Since, now)
	c.placed = now
	g.measureSoon()
	g.resume(now, c, pausePark)
	g.save()
}

// killLost kills a container whose memory is lost: its CUDA calls fail or block forever. Until
// then it stays paused.
func (g *Gate) killLost(c *container) {
	g.opts.Metrics.Kills.Inc()
	g.save()
	time.AfterFunc(killDelay, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.closed || g.containers[c.id] != c {
			return
		}
		for _, p := range c.processes {
			if p.life == nil {
				continue
			}
			if err := p.life.Kill(); err != nil {
				g.opts.Report(fmt.Errorf("killing container %s, whose memory is lost: %w", c.id, err))
			}
		}
	})
}

// revokeRoom takes back the room of a parked container that still waits for another card, if a
// request then fits.
func (g *Gate) revokeRoom(r queue.Request) bool {
	for _, c := range g.containers {
		if c.memory.State != parking.Parked || c.id == r.Container {
			continue
		}
		var booked uint64
		for _, id := range c.memory.Moved {
			e := g.ledger.Process(id, r.Card)
			booked += e.Committed + e.Expected
		}
		if booked > 0 && r.Bytes <= g.ledger.Free(r.Card)+booked {
			g.dequeueRestore(c)
			g.requeueRestore(c)
			return true
		}
	}
	return false
}

// requeueRestore retries a parked container's restore later.
func (g *Gate) requeueRestore(c *container) {
	m := &c.memory
	for _, id := range m.Moved {
		g.ledger.Park(id)
	}
	for _, card := range g.cards {
		g.setOverhead(c, card, 0)
	}
	if m.Unsure {
		g.keepRoom()
	}
	g.save()
	round := m.Round
	time.AfterFunc(retryRestore, func() {
		now := g.lock()
		defer g.unlock()
		if g.inRound(c, round) && m.State == parking.Parked {
			g.queueRestore(now, c)
			g.answer(now)
		}
	})
}

// queueRestores restores the containers that were parked when the last gate ended.
func (g *Gate) queueRestores(now time.Time) {
	unsure := false
	for _, c := range g.containers {
		if !c.memory.InRound() {
			continue
		}
		if g.opts.Evictor == nil {
			g.opts.Report(fmt.Errorf("container %s is parked, and nothing here can restore it", c.id))
			continue
		}
		c.memory.Unsure, unsure = true, true // the last gate may have ended during a restore
		g.queueRestore(now, c)
	}
	if unsure {
		g.keepRoom()
	}
	g.answer(now)
}
