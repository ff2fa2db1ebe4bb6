// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/peer"
	"github.com/ebbtide/ebbtide/device/gate/queue"
)

// Times of parking.
const (
	// pauseWithin is how long a victim may take to stop: a kernel may be under way.
	pauseWithin = 10 * time.Second
	// parkWithin bounds one parking, and one return.
	parkWithin = 10 * time.Minute
	// spare is how long a container that could not be parked is left alone, and spareShort
	// how long one that was about to take memory.
	spare, spareShort = 30 * time.Second, 250 * time.Millisecond
	// tries is how often in a row a parking may fail, until the container counts as one that
	// makes no room.
	tries = 3
	// retry is when a return that has failed is tried again.
	retry = 5 * time.Second
	// lazyTurns is after how many turns even a container of which nothing wants to run
	// comes back like any other: it may wait for work that was under way when it was parked,
	// which nobody hears of.
	lazyTurns = 10
)

// awayState is a word, for people.
type awayState string

const (
	leaving     awayState = "leaving"
	parkedState awayState = "parked"
	returning   awayState = "returning"
)

// away is a container whose memory is in the host's, or on the way there or back:
//
//	leaving -> parked -> returning -> (back)
//	   |         ^           |
//	 (back)      +-----------+  it could not come back
type away struct {
	state awayState
	since time.Time
	lazy  bool
	by    peer.Container // who needed the room; empty after a restart
	// need is how much must be free of each card for it to come back, in bytes: what came
	// free when it left, and what its processes wait for.
	need map[ledger.CardID]uint64
}

// errInFlight says that a container cannot be parked in this moment.
var errInFlight = errors.New("it is about to take memory")

// makeRoom begins to park somebody, so that there is room for a request. It returns false
// if there is nobody.
func (g *Gate) makeRoom(now time.Time, r queue.Request) bool {
	asks := g.containers[r.Container]
	d := queue.Demand{Request: r}
	if free := g.ledger.Free(r.Card); r.Bytes > free {
		d.Lacking = r.Bytes - free
	}
	d.Over = g.ledger.Container(asks.id, r.Card).Held()+r.Bytes > g.share(asks, r.Card)
	victim, ok := g.opts.Rules.Victim(now, d, g.candidates(now, r.Card))
	if ok {
		g.park(now, g.containers[victim.Container], asks.Container)
	}
	return ok
}

// unstick begins to park those without whom the others get what they want, where everybody
// waits for everybody. It returns false if there is nobody.
func (g *Gate) unstick(now time.Time, r queue.Request) bool {
	if g.opts.Evictor == nil {
		return false
	}
	leave := queue.Unstick(g.ledger.Capacity(r.Card), g.candidates(now, r.Card))
	for _, c := range leave {
		g.park(now, g.containers[c.Container], g.containers[r.Container].Container)
	}
	return len(leave) > 0
}

// candidates are those on a card.
func (g *Gate) candidates(now time.Time, card ledger.CardID) []queue.Candidate {
	wants := make(map[ledger.ContainerID]uint64)
	for r := range g.queue.All {
		if r.Card == card && !r.Return {
			wants[r.Container] += r.Bytes
		}
	}
	var out []queue.Candidate
	for _, c := range g.containers {
		k := g.candidate(now, c, card)
		k.Wants = wants[c.id]
		out = append(out, k)
	}
	return out
}

func (g *Gate) candidate(now time.Time, c *container, card ledger.CardID) queue.Candidate {
	held := g.ledger.Container(c.id, card)
	out := queue.Candidate{
		Container: c.id, Priority: c.priority, Arrived: c.arrived, Placed: c.placed, Active: c.active,
		Over: held.Held() > g.share(c, card), Bytes: held.Committed, Taken: held.Taken(),
		Pinned: g.pinned(c) || held.Reserved+held.Expected+held.Unproven > 0 || c.away != nil || now.Before(c.spared),
	}
	return out
}

// pinned says whether a container cannot be parked, by all that is known.
func (g *Gate) pinned(c *container) bool {
	if c.failed >= tries {
		return true
	}
	for _, p := range c.processes {
		if p.pinned != 0 || p.session == nil {
			return true
		}
	}
	return false
}

// later says whether somebody holds memory of a card who cannot be parked only for now.
func (g *Gate) later(card ledger.CardID) bool {
	if g.opts.Evictor == nil {
		return false
	}
	for _, c := range g.containers {
		if held := g.ledger.Container(c.id, card); !g.pinned(c) && held.Committed+held.Reserved > 0 {
			return true
		}
	}
	return false
}

// cardsOf are the cards of which a container holds something.
func (g *Gate) cardsOf(c *container) []ledger.CardID {
	var out []ledger.CardID
	for _, card := range g.cards {
		if g.ledger.Container(c.id, card).Taken() > 0 {
			out = append(out, card)
		}
	}
	return out
}

// there says whether a container is still there, and still on this way.
func (g *Gate) there(c *container, a *away) bool { return g.containers[c.id] == c && c.away == a }

// park begins to park a container, to make room for another one.
func (g *Gate) park(now time.Time, c *container, by peer.Container) {
	a := &away{state: leaving, since: now, by: by, need: make(map[ledger.CardID]uint64)}
	// Who has not submitted anything for some time may stay away until it wants to.
	a.lazy = now.Sub(c.active) >= g.opts.Rules.Idle && c.waiting == 0
	c.away = a
	cards := g.cardsOf(c)
	for _, card := range cards {
		g.moving[card]++
	}
	go func() {
		freed, err := g.moveOut(c, a)
		now := g.lock()
		defer g.unlock()
		for _, card := range cards {
			g.moving[card]--
		}
		if g.closed || !g.there(c, a) {
			g.answer(now)
			return
		}
		if err != nil {
			c.away = nil
			switch {
			case errors.Is(err, errInFlight):
				c.spared = now.Add(spareShort)
			case errors.Is(err, ErrPinned):
				c.failed = tries
			default:
				c.failed++
				c.spared = now.Add(spare)
			}
			if !errors.Is(err, errInFlight) {
				c.failure = err
				g.opts.Report(fmt.Errorf("parking container %s: %w", c.id, err))
			}
			g.resume(now, c, pausePark)
		} else {
			c.failed, c.failure = 0, nil
			for _, p := range c.processes {
				g.ledger.Park(p.id)
			}
			for _, card := range g.cards {
				if n := max(freed[card], g.ledger.Container(c.id, card).Parked); n > 0 {
					a.need[card] = min(n, g.ledger.Capacity(card))
				}
			}
			a.state = parkedState
			c.parks++
			g.wantBack(now, c)
		}
		g.save()
		g.answer(now)
	}()
}

// moveOut pauses a container and moves its memory.
func (g *Gate) moveOut(c *container, a *away) (map[ledger.CardID]uint64, error) {
	pausing, cancel := context.WithTimeout(g.evictions, pauseWithin)
	defer cancel()
	if err := g.Pause(pausing, c.id, pausePark); err != nil {
		return nil, err
	}
	processes, err := g.leavers(c, a)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(g.evictions, parkWithin)
	defer cancel()
	return g.opts.Evictor.Park(ctx, processes)
}

// leavers are the processes to be parked, if they still may be.
func (g *Gate) leavers(c *container, a *away) ([]ledger.ProcessID, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || !g.there(c, a) {
		return nil, ErrUnknown
	}
	var out []ledger.ProcessID
	for _, p := range c.processes {
		for _, card := range g.cards {
			// What was granted before the pause and is not settled may be taken at any time.
			if e := g.ledger.Process(p.id, card); e.Reserved+e.Expected > 0 {
				return nil, errInFlight
			}
		}
		out = append(out, p.id)
	}
	g.save() // that it is moving
	return out, nil
}

// wantBack lets a parked container wait for its return, card after card: always in the same
// order, so that no two of them wait for each other.
func (g *Gate) wantBack(now time.Time, c *container) {
	a := c.away
	for _, card := range g.cards {
		need, parked := a.need[card], g.ledger.Container(c.id, card).Parked
		if need == 0 || parked == 0 {
			continue
		}
		for r := range g.queue.All {
			if r.Container == c.id && r.Card == card {
				need += r.Bytes
			}
		}
		g.asked++
		g.queue.Add(queue.Request{
			ID: g.asked, Container: c.id, Card: card, Bytes: min(need, g.ledger.Capacity(card)), Process: g.anyProcess(c),
			Priority: c.priority, Since: now, Return: true, Lazy: a.lazy,
		})
		if a.lazy {
			time.AfterFunc(lazyTurns*g.opts.Rules.Turn, func() {
				now := g.lock()
				defer g.unlock()
				g.hurry(now, c, a)
			})
		}
		return
	}
	g.startReturn(c)
}

// anyProcess is one of a container's.
func (g *Gate) anyProcess(c *container) ledger.ProcessID {
	for id := range c.processes {
		return id
	}
	return ledger.ProcessID{}
}

// heardActive is told that a container submits work, or wants to.
func (g *Gate) heardActive(now time.Time, c *container) {
	c.active = now
	g.hurry(now, c, c.away)
}

// hurry makes a lazy return one like any other.
func (g *Gate) hurry(now time.Time, c *container, a *away) {
	if a == nil || !a.lazy || !g.there(c, a) {
		return
	}
	a.lazy = false
	if a.state == parkedState && g.unqueue(c) {
		g.wantBack(now, c)
		g.answer(now)
	}
}

// unqueue takes the return of a container out of the queue, if it is in there.
func (g *Gate) unqueue(c *container) bool {
	some := false
	g.queue.Remove(func(r queue.Request) bool {
		is := r.Return && r.Container == c.id
		some = some || is
		return is
	})
	return some
}

// comeBack is told that there is room for a container on a card.
func (g *Gate) comeBack(now time.Time, r queue.Request) {
	c := g.containers[r.Container]
	for _, p := range c.processes {
		if err := g.ledger.Unpark(p.id, r.Card); err != nil {
			// The queue has just seen that it fits.
			g.opts.Report(fmt.Errorf("bringing back container %s: %w", c.id, err))
		}
		if !g.begun(p, r.Card) {
			g.ledger.Detach(p.id) // it has still to say what it holds: that is expected
		}
		g.cover(p, r.Card)
	}
	g.wantBack(now, c)
}

// begun says whether a process has said what it holds of a card.
func (g *Gate) begun(p *process, card ledger.CardID) bool {
	if p.session == nil {
		return false
	}
	a := p.session.attached[g.handle(card)]
	return a != nil && a.begun
}

// startReturn moves the memory of a container back, for which there is room.
func (g *Gate) startReturn(c *container) {
	a := c.away
	a.state = returning
	cards := g.cardsOf(c)
	var processes []ledger.ProcessID
	for id := range c.processes {
		processes = append(processes, id)
	}
	for _, card := range cards {
		g.returning[card] = true
	}
	g.save()
	go func() {
		ctx, cancel := context.WithTimeout(g.evictions, parkWithin)
		defer cancel()
		err := g.opts.Evictor.Return(ctx, processes)
		now := g.lock()
		defer g.unlock()
		for _, card := range cards {
			delete(g.returning, card)
		}
		if !g.closed && g.there(c, a) {
			g.returned(now, c, err)
		}
		g.answer(now)
	}()
}

// returned is told how a return has ended.
func (g *Gate) returned(now time.Time, c *container, err error) {
	if err != nil {
		g.opts.Report(fmt.Errorf("bringing back container %s: %w", c.id, err))
	}
	if err != nil && !errors.Is(err, ErrLost) {
		g.stayAway(c)
		return
	}
	gone := now.Sub(c.away.since)
	c.parkedFor += gone
	c.away = nil
	c.placed = now
	// What it has waited for while it was away does not count.
	g.queue.Postpone(c.id, gone)
	g.resume(now, c, pausePark)
	g.save()
}

// stayAway is told that a container could not come back. It tries again.
func (g *Gate) stayAway(c *container) {
	a := c.away
	for _, p := range c.processes {
		g.ledger.Park(p.id)
	}
	a.state = parkedState
	g.save()
	time.AfterFunc(retry, func() {
		now := g.lock()
		defer g.unlock()
		if !g.closed && g.there(c, a) && a.state == parkedState {
			g.wantBack(now, c)
			g.answer(now)
		}
	})
}

// expectAway is told that a container was parked, or on the way, when the gate before this
// one ended.
func (g *Gate) expectAway(now time.Time, c *container, moving bool) {
	g.pause(now, c, pausePark)
	if c.away == nil {
		c.away = &away{state: parkedState, since: now, need: make(map[ledger.CardID]uint64)}
	}
	if moving {
		c.away.state = returning
	}
}

// bringBack lets those come back who were away when the gate before this one ended. Who was
// on the way is repaired: room for all that it may hold is kept already.
func (g *Gate) bringBack(now time.Time) {
	for _, c := range g.containers {
		if c.away == nil {
			continue
		}
		if g.opts.Evictor == nil {
			g.opts.Report(fmt.Errorf("container %s is parked, and nothing is here to bring it back", c.id))
			continue
		}
		for _, card := range g.cards {
			if n := g.ledger.Container(c.id, card).Parked; n > 0 {
				c.away.need[card] = n
			}
		}
		if c.away.state == returning {
			g.startReturn(c)
		} else {
			g.wantBack(now, c)
		}
	}
	g.answer(now)
}
