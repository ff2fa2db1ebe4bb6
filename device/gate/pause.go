// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// Reasons for a pause.
const (
	// pauseTurn: others come first on its card.
	pauseTurn = "turn"
	// pausePark: its memory is parked, or about to be.
	pausePark = "park"
)

// pause is a container's pause. It lasts while there is a reason.
type pause struct {
	since   time.Time
	reasons map[string]bool
	await   map[ledger.ProcessID]bool // processes that have not answered
	all     chan struct{}             // closed when all have answered; replaced when another joins
}

// awaitPause waits until all processes have answered. If ctx ends first, it withdraws the reason.
func (g *Gate) awaitPause(ctx context.Context, c *container, p *pause, all <-chan struct{}, reason string) error {
	select {
	case <-all:
		return nil
	case <-ctx.Done():
	}
	now := g.lock()
	defer g.unlock()
	select {
	case <-all:
		return nil
	default:
	}
	missing := len(p.await)
	if c.pause == p {
		g.resume(now, c, reason)
	}
	return fmt.Errorf("pausing container %s: %d of its processes have not stopped: %w", c.id, missing, ctx.Err())
}

// pause tells all processes of a container to submit no more work. They answer when their submitted
// work is done. Processes that start or reconnect later are paused, too.
func (g *Gate) pause(now time.Time, c *container, reason string) *pause {
	if c.pause == nil {
		c.pause = &pause{since: now, reasons: make(map[string]bool), await: make(map[ledger.ProcessID]bool)}
		c.pauses++
		for _, process := range c.processes {
			g.pauseProcess(process)
		}
	}
	c.pause.reasons[reason] = true
	return c.pause
}

// resume ends a pause, unless another reason remains.
func (g *Gate) resume(now time.Time, c *container, reason string) {
	if c.pause == nil {
		return
	}
	delete(c.pause.reasons, reason)
	if len(c.pause.reasons) > 0 {
		return
	}
	c.pausedFor += now.Sub(c.pause.since)
	c.pause = nil
	c.lastActive = now
	for _, p := range c.processes {
		if p.session != nil {
			p.session.send(wire.Message{Type: wire.Resume})
		}
	}
}

// resumeHolders resumes containers that hold memory of a card and wait for their turn: nothing else
// runs there.
func (g *Gate) resumeHolders(now time.Time, card ledger.CardID) bool {
	some := false
	for _, c := range g.containers {
		if c.yields() && !c.pause.reasons[pausePark] && g.ledger.Container(c.id, card).CardUsage() > 0 {
			c.noYieldUntil = now.Add(retryYield)
			g.release(now, c)
			some = true
		}
	}
	return some
}

// retryYield is how long a container does not yield after another one waited for its memory.
const retryYield = 10 * time.Second

// SetTurns says which containers yield, because others come first on their card; all others run. It
// must be repeated: who cannot yield now does not do so later by itself.
func (g *Gate) SetTurns(yields func(identify.Container) bool) {
	now := g.lock()
	defer g.unlock()
	for _, c := range g.containers {
		switch yields := yields(c.Container) && g.whyNotYield(c) == "" && !now.Before(c.noYieldUntil); {
		case yields && !c.yields():
			g.pause(now, c, pauseTurn)
			c.yieldsSince = now
			if c.memory.State == parking.Parked && g.dequeueRestore(c) {
				c.memory.Lazy = true
				g.queueRestore(now, c)
			}
		case !yields && c.yields():
			g.release(now, c)
		}
	}
	g.answer(now)
}

// release ends a container's wait for its turn, which does not count against its requests' deadlines.
func (g *Gate) release(now time.Time, c *container) {
	if !c.yields() {
		return
	}
	g.queue.Postpone(c.id, c.yieldsSince, now)
	g.resume(now, c, pauseTurn)
	g.endLazy(now, c)
}

func (c *container) yields() bool { return c.pause != nil && c.pause.reasons[pauseTurn] }

// stopped reports whether a container's requests wait, whatever is free.
func (c *container) stopped() bool { return c.memory.InRound() || c.yields() }

// whyNotYield returns why a container never waits for its turn, or "": others may wait for it elsewhere.
func (g *Gate) whyNotYield(c *container) string {
	switch {
	case len(c.processes) > 1:
		return "several of its processes use the card, and may wait for each other"
	case len(g.cardsOf(c)) > 1:
		return "it uses several cards"
	}
	for _, p := range c.processes {
		if p.session == nil {
			return "it has lost its connection to the gate"
		}
		if p.pinned != 0 {
			return wire.WhyPinned(p.pinned)
		}
	}
	return ""
}

func (g *Gate) pauseProcess(p *process) {
	pause := p.container.pause
	if len(pause.await) == 0 {
		pause.all = make(chan struct{})
	}
	pause.await[p.id] = true
	if p.session != nil {
		p.session.send(wire.Message{Type: wire.Pause})
	}
}

func (g *Gate) paused(p *process) { g.stopAwaiting(p) }

func (g *Gate) stopAwaiting(p *process) {
	pause := p.container.pause
	if pause == nil {
		return
	}
	awaited := pause.await[p.id]
	delete(pause.await, p.id)
	if awaited && len(pause.await) == 0 {
		close(pause.all)
	}
}
