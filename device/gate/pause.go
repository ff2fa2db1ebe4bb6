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

// ErrPaused says that a container is paused already.
var ErrPaused = errors.New("the container is paused already")

// pause is a pause of a container.
type pause struct {
	since time.Time
	await map[ledger.ProcessID]bool // who has not answered
	all   chan struct{}             // closed when everybody has
}

// Pause tells all processes of a container to submit nothing any more, and returns when
// they have said that all they have submitted is done. If that takes until ctx ends, the
// container is resumed, and the error says for how many processes it was waited. A process
// that begins or comes back later is paused with its hello.
func (g *Gate) Pause(ctx context.Context, id ledger.ContainerID) error {
	now := g.lock()
	c := g.containers[id]
	if c == nil || c.pause != nil {
		g.unlock()
		if c == nil {
			return fmt.Errorf("pausing container %s: %w", id, ErrUnknown)
		}
		return fmt.Errorf("pausing container %s: %w", id, ErrPaused)
	}
	p := &pause{since: now, await: make(map[ledger.ProcessID]bool), all: make(chan struct{})}
	c.pause = p
	c.pauses++
	for _, process := range c.processes {
		g.pauseOne(process)
	}
	g.unlock()

	select {
	case <-p.all:
		return nil
	case <-ctx.Done():
	}
	now = g.lock()
	defer g.unlock()
	select {
	case <-p.all:
		return nil
	default:
	}
	missing := len(p.await)
	if c.pause == p {
		g.resume(now, c)
	}
	return fmt.Errorf("pausing container %s: %d of its processes have not stopped: %w", id, missing, ctx.Err())
}

// Resume ends a pause. A container that is not paused stays as it is.
func (g *Gate) Resume(id ledger.ContainerID) error {
	now := g.lock()
	defer g.unlock()
	c := g.containers[id]
	if c == nil {
		return fmt.Errorf("resuming container %s: %w", id, ErrUnknown)
	}
	if c.pause != nil {
		g.resume(now, c)
		g.answer(now)
	}
	return nil
}

func (g *Gate) resume(now time.Time, c *container) {
	c.pausedFor += now.Sub(c.pause.since)
	c.pause = nil
	for _, p := range c.processes {
		if p.session != nil {
			p.session.send(wire.Message{Type: wire.Resume})
		}
	}
}

// pauseOne pauses a process of a container that is paused. One without a connection is
// waited for.
func (g *Gate) pauseOne(p *process) {
	p.container.pause.await[p.id] = true
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
	delete(pause.await, p.id)
	if len(pause.await) > 0 {
		return
	}
	select {
	case <-pause.all:
	default:
		close(pause.all)
	}
}
