// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/peer"
	"github.com/ebbtide/ebbtide/device/gate/queue"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// unread is how many messages may wait to be sent to a client. It gets no more answers
// than it has asked for, so only one that does not read has so many.
const unread = 4 * wire.MaxOpen

// errOver says that a session has ended while its message was on the way.
var errOver = errors.New("the session is over")

// session is one connection of a process. All but out, done and over is guarded by the
// gate's lock.
type session struct {
	who      peer.Process
	life     Life     // until it is the process's
	process  *process // nil before Hello
	attached map[uint64]*attachment
	open     map[uint64]bool // seq of requests without an answer

	out  chan wire.Message
	done chan struct{} // closed by cut
	over sync.Once
}

// attachment is a card that a session uses.
type attachment struct {
	card  ledger.CardID
	begun bool // what it holds since before is known
}

func newSession(who peer.Process, life Life) *session {
	return &session{
		who: who, life: life,
		attached: make(map[uint64]*attachment),
		open:     make(map[uint64]bool),
		out:      make(chan wire.Message, unread),
		done:     make(chan struct{}),
	}
}

// send leaves a message for the connection. It never waits: who does not read is cut off.
func (s *session) send(m wire.Message) {
	select {
	case s.out <- m:
	default:
		s.cut()
	}
}

// cut ends the connection.
func (s *session) cut() { s.over.Do(func() { close(s.done) }) }

// bad is a message that cannot be.
func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", wire.ErrBad, fmt.Sprintf(format, args...))
}

// receive does what a message says. An error ends the session.
func (g *Gate) receive(s *session, m wire.Message) error {
	if err := m.CheckClient(); err != nil {
		return err
	}
	allowed := true
	if m.Type == wire.Attach {
		if err := g.join(s, m); err != nil {
			g.opts.Report(err)
			allowed = false
		}
	}
	now := g.lock()
	defer g.unlock()
	if g.closed {
		return errOver
	}
	if m.Type == wire.Hello {
		return g.hello(now, s, m)
	}
	switch {
	case s.process == nil:
		return bad("type %d before hello", m.Type)
	case s.process.session != s:
		return errOver
	}
	switch m.Type {
	case wire.Attach:
		return g.attach(s, m, allowed)
	case wire.Active:
		g.heardActive(now, s.process.container)
		return nil
	case wire.Pinned:
		s.process.pinned = m.Arg
		return nil
	case wire.Paused:
		g.paused(s.process)
		return nil
	}
	// The others are about a card.
	a := s.attached[m.Device]
	if a == nil {
		return bad("device %d is not attached", m.Device)
	}
	switch m.Type {
	case wire.Request:
		return g.request(now, s, a, m)
	case wire.Holds:
		return g.holds(now, s, a, m)
	case wire.Return:
		if err := g.ledger.Return(s.process.id, a.card, m.Bytes); err != nil {
			return bad("%v", err)
		}
		g.answer(now)
	case wire.Full:
		g.doubt(a.card)
	case wire.Info:
		id := s.process.container.id
		s.send(wire.Message{
			Type: wire.Figures, Seq: m.Seq, Device: m.Device,
			Bytes: g.share(s.process.container, a.card),
			ID:    g.ledger.Container(id, a.card).LimitUsage(),
			Arg:   g.ledger.Free(a.card),
		})
	}
	return nil
}

// hello makes the process of a session known. An earlier session of it is over: the
// process has forked and executed, or its library has reconnected.
func (g *Gate) hello(now time.Time, s *session, m wire.Message) error {
	if s.process != nil {
		return bad("a second hello")
	}
	if m.Arg != wire.Version {
		s.send(wire.Message{Type: wire.Refused, Seq: m.Seq, Arg: uint64(wire.BadVersion)})
		return fmt.Errorf("process %d speaks version %d, the gate %d", s.who.PID, m.Arg, wire.Version)
	}
	p, back := g.processes[ledger.ProcessID{PID: s.who.PID, Start: s.who.Start}], true
	if p == nil {
		var err error
		if p, err = g.add(now, s.who, s.life); err != nil {
			return err
		}
		s.life, back = nil, false
	}
	if old := p.session; old != nil {
		g.detach(old)
		old.cut()
	}
	s.process, p.session = p, s
	s.send(wire.Message{Type: wire.Welcome, Seq: m.Seq, Arg: wire.Version})
	switch {
	case p.container.pause != nil:
		g.pauseOne(p)
	case back:
		// It may have missed the end of a pause.
		s.send(wire.Message{Type: wire.Resume})
	}
	return nil
}

// add makes a process known.
func (g *Gate) add(now time.Time, who peer.Process, life Life) (*process, error) {
	id := ledger.ContainerID(who.Container.ID)
	c := g.containers[id]
	if c == nil {
		c = &container{
			Container: who.Container, id: id,
			processes: make(map[ledger.ProcessID]*process),
			shares:    make(map[ledger.CardID]uint64),
			counts:    make(map[ledger.CardID]*Counts),
			arrived:   now, placed: now, active: now,
		}
	} else if c.Alloc != who.Container.Alloc || c.Task != who.Container.Task {
		return nil, fmt.Errorf("%w: process %d of container %s says it is of task %q of allocation %s, others of %q of %s",
			peer.ErrContradiction, who.PID, id, who.Container.Task, who.Container.Alloc, c.Task, c.Alloc)
	}
	p := &process{
		id:        ledger.ProcessID{PID: who.PID, Start: who.Start},
		container: c, life: life,
		ceilings: make(map[ledger.CardID]uint64),
	}
	if err := g.ledger.AddProcess(p.id, id); err != nil {
		return nil, err
	}
	g.containers[id] = c
	c.processes[p.id] = p
	g.processes[p.id] = p
	if life != nil {
		go func() {
			if life.Wait() == nil {
				g.ended(p)
			}
		}()
	}
	return p, nil
}

// ended is told that a process is gone.
func (g *Gate) ended(p *process) {
	now := g.lock()
	defer g.unlock()
	if g.closed || g.processes[p.id] != p {
		return
	}
	if s := p.session; s != nil {
		g.detach(s)
		s.cut()
	}
	g.drop(p)
	g.answer(now)
}

// drop forgets a process, and its container with the last one.
func (g *Gate) drop(p *process) {
	if g.processes[p.id] != p {
		return
	}
	g.ledger.End(p.id)
	delete(g.processes, p.id)
	if p.life != nil {
		p.life.Close()
	}
	c := p.container
	delete(c.processes, p.id)
	g.unawait(p)
	if len(c.processes) == 0 {
		delete(g.containers, c.id)
		g.queue.Remove(func(r queue.Request) bool { return r.Return && r.Container == c.id })
		g.ledger.Forget(c.id)
		g.left = append(g.left, c)
	}
}

// leave is told that a connection has ended, and why if it was cut off.
func (g *Gate) leave(s *session, fault error) {
	now := g.lock()
	defer g.unlock()
	if fault != nil {
		if c := g.containers[ledger.ContainerID(s.who.Container.ID)]; c != nil {
			c.faults++
		}
	}
	if s.life != nil {
		s.life.Close()
	}
	if g.closed || s.process == nil || s.process.session != s {
		return
	}
	g.detach(s)
	if g.idle(s.process) {
		g.drop(s.process)
	}
	g.answer(now)
}

// idle says whether a process without a session can be forgotten.
func (g *Gate) idle(p *process) bool {
	if p.container.pause != nil {
		return false // it is to be heard of before its container counts as paused
	}
	for _, card := range g.cards {
		if g.ledger.Process(p.id, card) != (ledger.Entry{}) {
			return false
		}
	}
	return true
}

// detach ends the session of a process. What it holds it keeps.
func (g *Gate) detach(s *session) {
	p := s.process
	p.session = nil
	g.queue.Remove(func(r queue.Request) bool {
		gone := !r.Return && g.pending[r.ID].session == s
		if gone {
			g.settle(r)
		}
		return gone
	})
	g.ledger.Detach(p.id)
}

// join asks Shares for what a container may have of a card, if that is not known. It is
// not done under the lock: Shares may call the gate.
func (g *Gate) join(s *session, m wire.Message) error {
	card := ledger.CardID(m.UUID().String())
	g.mu.Lock()
	p := s.process
	if p != nil && p.container.Cards != nil && !slices.Contains(p.container.Cards, string(card)) {
		defer g.mu.Unlock()
		return fmt.Errorf("process %d of container %s asks for card %s, on which it has no seat", p.id.PID, p.container.id, card)
	}
	known := p == nil || g.opts.Shares == nil || g.handle(card) == 0
	if !known {
		_, known = p.container.shares[card]
	}
	g.mu.Unlock()
	if known {
		return nil
	}
	g.sharing <- struct{}{}
	defer func() { <-g.sharing }()
	g.mu.Lock()
	there := g.containers[p.container.id] == p.container
	g.mu.Unlock()
	if !there {
		return fmt.Errorf("container %s: %w", p.container.id, ErrUnknown) // it has left
	}
	share, err := g.opts.Shares.Join(p.container.Container, card)
	if err != nil {
		return fmt.Errorf("the share of container %s on %s: %w", p.container.id, card, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := p.container
	if g.containers[c.id] != c {
		return fmt.Errorf("container %s: %w", c.id, ErrUnknown) // Shares is told after this
	}
	c.priority = share.Priority
	if g.opts.Soft && share.Most > 0 {
		if err := g.ledger.SetLimit(c.id, card, share.Most); err != nil {
			return fmt.Errorf("the limit of container %s: %w", c.id, err)
		}
	}
	if _, sooner := c.shares[card]; !sooner { // else SetLimit was
		return g.setShare(c, card, share.Limit)
	}
	return nil
}

// handle returns the handle of a card, or 0.
func (g *Gate) handle(card ledger.CardID) uint64 {
	for i, id := range g.cards {
		if id == card {
			return uint64(i + 1)
		}
	}
	return 0
}

// attach lets a session use a card, if it is there and allowed.
func (g *Gate) attach(s *session, m wire.Message, allowed bool) error {
	card := ledger.CardID(m.UUID().String())
	handle := g.handle(card)
	if handle == 0 || !allowed {
		s.send(wire.Message{Type: wire.Refused, Seq: m.Seq, Arg: uint64(wire.UnknownDevice)})
		return nil
	}
	if s.attached[handle] == nil {
		s.attached[handle] = &attachment{card: card}
	}
	g.measureSoon()
	s.send(wire.Message{Type: wire.Attached, Seq: m.Seq, Device: handle, Bytes: g.ledger.Physical(card)})
	return nil
}

// begin settles what a process holds since before its session: bytes.
func (g *Gate) begin(s *session, a *attachment, bytes uint64) error {
	a.begun = true
	if err := g.ledger.Hold(s.process.id, a.card, bytes); err != nil {
		return bad("%v", err)
	}
	g.cover(s.process, a.card)
	return nil
}

// holds takes over what a process says that it holds.
func (g *Gate) holds(now time.Time, s *session, a *attachment, m wire.Message) error {
	if a.begun {
		return bad("what it holds is known")
	}
	if err := g.begin(s, a, m.Bytes); err != nil {
		return err
	}
	g.answer(now) // it may be less than was expected
	return nil
}

// request lets a request wait, for nothing if it fits.
func (g *Gate) request(now time.Time, s *session, a *attachment, m wire.Message) error {
	c := s.process.container
	switch {
	case s.open[m.Seq]:
		return bad("request %d is open", m.Seq)
	case len(s.open) >= wire.MaxOpen:
		return bad("more than %d requests are open", wire.MaxOpen)
	}
	if !a.begun { // it has asked first, so it holds nothing
		if err := g.begin(s, a, 0); err != nil {
			return err
		}
	}
	if c.waiting >= g.opts.Bounds.Waiting {
		c.count(a.card).Denied++
		s.send(wire.Message{Type: wire.Refused, Seq: m.Seq, Device: m.Device, Arg: uint64(wire.NoMemory)})
		return nil
	}
	wait := min(m.Arg, uint64(g.opts.MaxWait.Milliseconds()))
	g.asked++
	g.pending[g.asked] = &pending{session: s, seq: m.Seq, device: m.Device, lease: m.Flags&wire.FlagLease != 0, wait: wait}
	s.open[m.Seq] = true
	c.waiting++
	g.queue.Add(queue.Request{
		ID: g.asked, Process: s.process.id, Container: c.id, Card: a.card, Bytes: m.Bytes,
		Priority: c.priority, Since: now, Deadline: now.Add(time.Duration(wait) * time.Millisecond),
	})
	g.answer(now)
	return nil
}
