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

// ErrPaused says that a container is paused already, for the same reason.
var ErrPaused = errors.New("the container is paused already")

// Reasons for a pause. A container is paused as long as there is one.
const (
	// PausePlan: its memory is going to rise when there will be no room for it.
	PausePlan = "plan"
	// pausePark: its memory is parked, or about to be.
	pausePark = "park"
)

// pause is a pause of a container.
type pause struct {
	since   time.Time
	reasons map[string]bool
	await   map[ledger.ProcessID]bool // who has not answered
	all     chan struct{}             // closed when everybody has; another one if somebody comes then
}

// Pause tells all processes of a container to submit nothing any more, and returns when
// they have said that all they have submitted is done. If that takes until ctx ends, the
// container is resumed, unless there is another reason, and the error says for how many
// processes it was waited. A process that begins or comes back later is paused with its
// hello.
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
	return g.stopped(ctx, c, p, all, reason)
}

// stopped waits until all processes of a container have answered a pause. If that takes until
// ctx ends, the reason for it does not count any more.
func (g *Gate) stopped(ctx context.Context, c *container, p *pause, all <-chan struct{}, reason string) error {
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

// pause begins a pause, or adds a reason to it.
func (g *Gate) pause(now time.Time, c *container, reason string) *pause {
	if c.pause == nil {
		c.pause = &pause{since: now, reasons: make(map[string]bool), await: make(map[ledger.ProcessID]bool)}
		c.pauses++
		for _, process := range c.processes {
			g.pauseOne(process)
		}
	}
	c.pause.reasons[reason] = true
	return c.pause
}

// Resume ends a pause, unless there is another reason for it. A container that is not
// paused stays as it is.
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
	c.active = now
	for _, p := range c.processes {
		if p.session != nil {
			p.session.send(wire.Message{Type: wire.Resume})
		}
	}
}

// resumePlanned resumes who is paused by the plan and holds memory of a card: the plan was
// wrong, for nobody else runs there. It returns false if there is none.
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

// pauseOne pauses a process of a container that is paused. One without a connection is
// waited for.
func (g *Gate) pauseOne(p *process) {
	pause := p.container.pause
	if len(pause.await) == 0 {
		pause.all = make(chan struct{})
	}
	pause.await[p.id] = true
	if p.session != nil {
		p.session.send(wire.Message{Type: wire.Pause})
	}
}

// paused is told that a process has stopped. After a resume that is of no interest.
func (g *Gate) paused(p *process) { g.unawait(p) }

// unawait waits for a process no longer.
func (g *Gate) unawait(p *process) {
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
