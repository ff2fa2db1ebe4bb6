// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/queue"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// maxUnsent bounds the messages queued for a client. Only one that does not read reaches it.
const maxUnsent = 4 * wire.MaxOpen

var errSessionOver = errors.New("the session is over")

// session is a connection of a process. The gate's lock guards all but out, done and cutOnce.
type session struct {
	proc     identify.Process
	life     Life     // nil once the process owns it
	process  *process // nil before Hello
	attached map[uint64]*attachment
	open     map[uint64]bool // unanswered seq

	out     chan wire.Message
	done    chan struct{} // closed by cut
	cutOnce sync.Once
}

// attachment is a card that a session uses.
type attachment struct {
	card     ledger.CardID
	reported bool // its earlier holdings are known
}

func newSession(proc identify.Process, life Life) *session {
	return &session{
		proc: proc, life: life,
		attached: make(map[uint64]*attachment),
		open:     make(map[uint64]bool),
		out:      make(chan wire.Message, maxUnsent),
		done:     make(chan struct{}),
	}
}

// send queues a message. It never blocks: a client that does not read is cut off.
func (s *session) send(m wire.Message) {
	select {
	case s.out <- m:
	default:
		s.cut()
	}
}

func (s *session) cut() { s.cutOnce.Do(func() { close(s.done) }) }

func badMessage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", wire.ErrBad, fmt.Sprintf(format, args...))
}

// receive handles a message. An error ends the session.
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
		return errSessionOver
	}
	if m.Type == wire.Hello {
		return g.hello(now, s, m)
	}
	switch {
	case s.process == nil:
		return badMessage("type %d before hello", m.Type)
	case s.process.session != s:
		return errSessionOver
	}
	switch m.Type {
	case wire.Attach:
		return g.attach(s, m, allowed)
	case wire.Active:
		g.markActive(now, s.process.container)
		return nil
	case wire.Pinned:
		s.process.pinned = m.Arg
		return nil
	case wire.Paused:
		g.paused(s.process)
		return nil
	}
	// The other messages are about a card.
	a := s.attached[m.Device]
	if a == nil {
		return badMessage("device %d is not attached", m.Device)
	}
	switch m.Type {
	case wire.Request:
		return g.request(now, s, a, m)
	case wire.Holds:
		return g.holds(now, s, a, m)
	case wire.Return:
		if err := g.ledger.Release(s.process.id, a.card, m.Bytes); err != nil {
			return badMessage("%v", err)
		}
		g.answer(now)
	case wire.Full:
		g.markSuspect(a.card)
	case wire.Info:
		c := s.process.container
		share, used, free := g.share(c, a.card), g.ledger.Container(c.id, a.card).LimitUsage(), g.ledger.Free(a.card)
		if g.opts.Soft && g.canPark() {
			// Others are parked for what is within the share. Some programs (vLLM) stop if free memory
			// grows by itself.
			free = max(free, share-min(share, used))
		}
		s.send(wire.Message{Type: wire.Figures, Seq: m.Seq, Device: m.Device, Bytes: share, ID: used, Arg: free})
	}
	return nil
}

// hello registers the process of a session, and ends its earlier session: it has executed another
// program or reconnected.
func (g *Gate) hello(now time.Time, s *session, m wire.Message) error {
	if s.process != nil {
		return badMessage("a second hello")
	}
	if m.Arg != wire.Version {
		s.send(wire.Message{Type: wire.Denied, Seq: m.Seq, Arg: uint64(wire.BadVersion)})
		return fmt.Errorf("process %d speaks version %d, the gate %d", s.proc.PID, m.Arg, wire.Version)
	}
	p, back := g.processes[ledger.ProcessID{PID: s.proc.PID, Start: s.proc.Start}], true
	if p == nil {
		var err error
		if p, err = g.addProcess(now, s.proc, s.life); err != nil {
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
		g.pauseProcess(p)
	case back:
		// It may have missed a Resume.
		s.send(wire.Message{Type: wire.Resume})
	}
	return nil
}

func (g *Gate) addProcess(now time.Time, proc identify.Process, life Life) (*process, error) {
	id := ledger.ContainerID(proc.Container.ID)
	c := g.containers[id]
	if c == nil {
		c = &container{
			Container: proc.Container, id: id,
			processes: make(map[ledger.ProcessID]*process),
			shares:    make(map[ledger.CardID]uint64),
			counts:    make(map[ledger.CardID]*Counts),
			arrived:   now, placed: now, lastActive: now,
		}
	} else if c.Alloc != proc.Container.Alloc || c.Task != proc.Container.Task {
		return nil, fmt.Errorf("%w: process %d of container %s claims task %q of allocation %s, but its other processes belong to task %q of %s",
			identify.ErrContradiction, proc.PID, id, proc.Container.Task, proc.Container.Alloc, c.Task, c.Alloc)
	}
	p := &process{
		id:        ledger.ProcessID{PID: proc.PID, Start: proc.Start},
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
				g.processEnded(p)
			}
		}()
	}
	return p, nil
}

func (g *Gate) processEnded(p *process) {
	now := g.lock()
	defer g.unlock()
	if g.closed || g.processes[p.id] != p {
		return
	}
	if s := p.session; s != nil {
		g.detach(s)
		s.cut()
	}
	g.removeProcess(p)
	g.answer(now)
}

func (g *Gate) removeProcess(p *process) {
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
	g.stopAwaiting(p)
	if len(c.processes) == 0 {
		delete(g.containers, c.id)
		g.queue.Remove(func(r queue.Request) bool { return r.Restore && r.Container == c.id })
		g.ledger.Forget(c.id)
		g.departed = append(g.departed, c)
	}
}

// disconnected handles the end of a connection; fault is why it was cut, or nil.
func (g *Gate) disconnected(s *session, fault error) {
	now := g.lock()
	defer g.unlock()
	if fault != nil {
		g.opts.Metrics.Faults.Inc()
		if c := g.containers[ledger.ContainerID(s.proc.Container.ID)]; c != nil {
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
	if g.canRemove(s.process) {
		g.removeProcess(s.process)
	}
	g.answer(now)
}

func (g *Gate) canRemove(p *process) bool {
	if p.container.pause != nil {
		return false // it is awaited until it answers or exits
	}
	for _, card := range g.cards {
		if g.ledger.Process(p.id, card) != (ledger.Entry{}) {
			return false
		}
	}
	return true
}

// detach ends the session of a process, which keeps its holdings.
func (g *Gate) detach(s *session) {
	p := s.process
	p.session = nil
	g.queue.Remove(func(r queue.Request) bool {
		gone := !r.Restore && g.pending[r.ID].session == s
		if gone {
			g.takePending(r)
		}
		return gone
	})
	g.ledger.Detach(p.id)
}

// join gets a container's share of a card, if unknown, without the lock: Shares may call the
// gate.
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
	g.sharesLock <- struct{}{}
	defer func() { <-g.sharesLock }()
	g.mu.Lock()
	there := g.containers[p.container.id] == p.container
	g.mu.Unlock()
	if !there {
		return fmt.Errorf("container %s: %w", p.container.id, ErrUnknown)
	}
	share, err := g.opts.Shares.Join(p.container.Container, card)
	if err != nil {
		return fmt.Errorf("share of container %s on %s: %w", p.container.id, card, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := p.container
	if g.containers[c.id] != c {
		return fmt.Errorf("container %s: %w", c.id, ErrUnknown) // Shares.Leave is called after this
	}
	c.priority = share.Priority
	if g.opts.Soft && share.Most > 0 {
		if err := g.ledger.SetLimit(c.id, card, share.Most); err != nil {
			return fmt.Errorf("limit of container %s: %w", c.id, err)
		}
	}
	if _, sooner := c.shares[card]; !sooner { // else SetShare was first
		return g.setShare(c, card, share.Bytes)
	}
	return nil
}

func (g *Gate) handle(card ledger.CardID) uint64 {
	for i, id := range g.cards {
		if id == card {
			return uint64(i + 1)
		}
	}
	return 0
}

func (g *Gate) attach(s *session, m wire.Message, allowed bool) error {
	card := ledger.CardID(m.UUID().String())
	handle := g.handle(card)
	if handle == 0 || !allowed {
		s.send(wire.Message{Type: wire.Denied, Seq: m.Seq, Arg: uint64(wire.UnknownDevice)})
		return nil
	}
	if s.attached[handle] == nil {
		s.attached[handle] = &attachment{card: card}
	}
	g.measureSoon()
	s.send(wire.Message{Type: wire.Attached, Seq: m.Seq, Device: handle, Bytes: g.ledger.Physical(card)})
	return nil
}

func (g *Gate) recordHeld(s *session, a *attachment, bytes uint64) error {
	a.reported = true
	if err := g.ledger.Hold(s.process.id, a.card, bytes); err != nil {
		return badMessage("%v", err)
	}
	g.ensureSaved(s.process, a.card)
	return nil
}

func (g *Gate) holds(now time.Time, s *session, a *attachment, m wire.Message) error {
	if a.reported {
		return badMessage("holds after the holdings are known")
	}
	if err := g.recordHeld(s, a, m.Bytes); err != nil {
		return err
	}
	g.answer(now) // it may be less than expected
	return nil
}

func (g *Gate) request(now time.Time, s *session, a *attachment, m wire.Message) error {
	c := s.process.container
	switch {
	case s.open[m.Seq]:
		return badMessage("request %d is open", m.Seq)
	case len(s.open) >= wire.MaxOpen:
		return badMessage("more than %d requests are open", wire.MaxOpen)
	}
	if !a.reported { // it requests without reporting, so it holds nothing
		if err := g.recordHeld(s, a, 0); err != nil {
			return err
		}
	}
	if c.waiting >= g.opts.Bounds.Waiting {
		c.count(a.card).Denied++
		g.requests[a.card].Denied.Inc()
		s.send(wire.Message{Type: wire.Denied, Seq: m.Seq, Device: m.Device, Arg: uint64(wire.NoMemory)})
		return nil
	}
	wait := min(m.Arg, uint64(g.opts.MaxWait.Milliseconds()))
	g.lastID++
	g.pending[g.lastID] = &pending{session: s, seq: m.Seq, device: m.Device, credit: m.Flags&wire.FlagCredit != 0, wait: wait}
	s.open[m.Seq] = true
	c.waiting++
	g.queue.Add(queue.Request{
		ID: g.lastID, Process: s.process.id, Container: c.id, Card: a.card, Bytes: m.Bytes,
		Priority: c.priority, Since: now, Deadline: now.Add(time.Duration(wait) * time.Millisecond),
	})
	g.answer(now)
	return nil
}
