// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// ErrPaused: the container is already paused for the same reason.
var ErrPaused = errors.New("the container is already paused")

// Reasons for a pause.
const (
	// PausePlan: its memory is expected to rise beyond what will be free.
	PausePlan = "plan"
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

// Pause tells all processes of a container to submit no more work, and returns when their
// submitted work is done. If ctx ends first, the reason is withdrawn. Processes that start or
// reconnect later are paused, too.
func (g *Gate) Pause(ctx context.Context, id ledger.ContainerID, reason string) error {
	now := g.lock()
	c := g.containers[id]
	if c == nil || c.pause != nil && c.pause.reasons[reason] {
		g.unlock()
		if c == nil {
			return fmt.Errorf("pausing container %s: %w", id, ErrUnknown)
		}
		return fmt.Errorf("pausing container %s: %w", id, ErrPaused)
	}
	p := g.pause(now, c, reason)
	all := p.all
	g.unlock()
	return g.awaitPause(ctx, c, p, all, reason)
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

// Resume ends a pause, unless another reason remains. A container that is not paused is no error.
func (g *Gate) Resume(id ledger.ContainerID, reason string) error {
	now := g.lock()
	defer g.unlock()
	c := g.containers[id]
	if c == nil {
		return fmt.Errorf("resuming container %s: %w", id, ErrUnknown)
	}
	g.resume(now, c, reason)
	g.answer(now)
	return nil
}

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

// resumePlanned resumes containers that the plan has paused and that hold memory of a card:
// nothing else runs there.
func (g *Gate) resumePlanned(now time.Time, card ledger.CardID) bool {
	some := false
	for _, c := range g.containers {
		if c.pause != nil && len(c.pause.reasons) == 1 && c.pause.reasons[PausePlan] && g.ledger.Container(c.id, card).CardUsage() > 0 {
			g.resume(now, c, PausePlan)
			some = true
		}
	}
	return some
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
