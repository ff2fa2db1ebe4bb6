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
	// how long one of which it was not known what it holds.
	spare, spareShort = 30 * time.Second, 250 * time.Millisecond
	// tries is how often in a row a parking may fail, until the container counts as one that
	// makes no room.
	tries = 3
	// killDelay is how long a container whose memory is lost is still there.
	killDelay = 3 * time.Second
	// retry is when a return that has failed is tried again.
	retry = 5 * time.Second
	// lazyTurns is after how many turns even a container of which nothing wants to run
	// comes back like any other: it may wait for work that was under way when it was parked,
	// which nobody hears of.
	lazyTurns = 10
)

// parkingState is a word, for people.
type parkingState string

const (
	leaving     parkingState = "leaving"
	parkedState parkingState = "parked"
	returning   parkingState = "returning"
)

// parking is a container whose memory is in the host's, or on the way there or back:
//
//	leaving -> parked -> returning -> (back)
//	   |         ^           |
//	 (back)      +-----------+  it could not come back
type parking struct {
	state parkingState
	since time.Time
	lazy  bool
	by    peer.Container // who needed the room; empty after a restart
	// moved are the processes of which it is known that their memory was parked. Others may
	// have come since, or it is not known how it is with them.
	moved []ledger.ProcessID
	// extra is what came free of each card beyond what the books said, in bytes: it must be
	// free as well when they come back.
	extra map[ledger.CardID]uint64
}

// parks says whether containers may be parked.
func (g *Gate) parks() bool { return g.opts.Evictor != nil && !g.opts.ReturnOnly }

// errInFlight says that a container cannot be parked in this moment.
var errInFlight = errors.New("it has not said yet what it holds")

// makeRoom begins to park somebody, so that there is room for a request. It returns false
// if there is nobody.
func (g *Gate) makeRoom(now time.Time, r queue.Request) bool {
	asks := g.containers[r.Container]
	d := queue.Demand{Request: r}
	if free := g.ledger.Free(r.Card); r.Bytes > free {
		d.Lacking = r.Bytes - free
	}
	d.Over = g.ledger.Container(asks.id, r.Card).LimitUsage()+r.Bytes > g.share(asks, r.Card)
	victim, ok := g.opts.Rules.Victim(now, d, g.candidates(now, r.Card))
	if ok {
		g.park(now, g.containers[victim.Container], asks.Container)
	}
	return ok
}

// unstick begins to park those without whom the others get what they want, where everybody
// waits for everybody. It returns false if there is nobody.
func (g *Gate) unstick(now time.Time, r queue.Request) bool {
	if !g.parks() {
		return false
	}
	capacity, outside := g.ledger.Capacity(r.Card), g.ledger.Outside(r.Card)
	leave := queue.Unstick(capacity-min(capacity, outside), g.candidates(now, r.Card))
	for _, c := range leave {
		g.park(now, g.containers[c.Container], g.containers[r.Container].Container)
	}
	return len(leave) > 0
}

// candidates are those on a card.
func (g *Gate) candidates(now time.Time, card ledger.CardID) []queue.Candidate {
	wants := make(map[ledger.ContainerID]uint64)
	for r := range g.queue.All {
		// Who is away gets nothing before it is back.
		if r.Card == card && g.containers[r.Container].parking == nil {
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
	return queue.Candidate{
		Container: c.id, Priority: c.priority, Arrived: c.arrived, Placed: c.placed, Active: c.active,
		Over: held.LimitUsage() > g.share(c, card), Bytes: held.Committed, Taken: held.CardUsage(),
		Pinned: g.pinned(c) || g.inFlight(c) || held.Unverified > 0 || c.parking != nil || now.Before(c.spared),
	}
}

// inFlight says whether a process of a container has lost its connection and not said since
// what it holds: of whichever card, for all are parked together.
func (g *Gate) inFlight(c *container) bool {
	return slices.ContainsFunc(g.cards, func(card ledger.CardID) bool {
		return g.ledger.Container(c.id, card).Expected > 0
	})
}

// pinned says whether a container cannot be parked, by all that is known: never, or not
// before all its processes are connected.
func (g *Gate) pinned(c *container) bool {
	for _, p := range c.processes {
		if p.session == nil {
			return true
		}
	}
	return g.never(c)
}

// never says whether a container counts as one that cannot be parked at all.
func (g *Gate) never(c *container) bool {
	for _, p := range c.processes {
		if p.pinned != 0 {
			return true
		}
	}
	return c.failed >= tries
}

// later says whether somebody holds memory of a card who cannot be parked only for now, or
// who is to come back; or a process that does not ask, which may end.
func (g *Gate) later(card ledger.CardID) bool {
	if g.ledger.Outside(card) > 0 {
		return true
	}
	if !g.parks() {
		return false
	}
	for _, c := range g.containers {
		held := g.ledger.Container(c.id, card)
		if !g.never(c) && held.Committed > 0 || c.parking != nil && held.CardUsage() > 0 {
			return true
		}
	}
	return false
}

// cardsOf are the cards of which a container holds something.
func (g *Gate) cardsOf(c *container) []ledger.CardID {
	var out []ledger.CardID
	for _, card := range g.cards {
		if g.ledger.Container(c.id, card).CardUsage() > 0 {
			out = append(out, card)
		}
	}
	return out
}

// there says whether a container is still there, and still on this way.
func (g *Gate) there(c *container, a *parking) bool { return g.containers[c.id] == c && c.parking == a }

// park begins to park a container, to make room for another one.
func (g *Gate) park(now time.Time, c *container, by peer.Container) {
	a := &parking{state: leaving, since: now, by: by, extra: make(map[ledger.CardID]uint64)}
	a.lazy = g.opts.Lazy && now.Sub(c.active) >= g.opts.Rules.Idle && c.waiting == 0
	c.parking = a
	cards := g.cardsOf(c)
	for _, card := range cards {
		g.moving[card]++
	}
	p := g.pause(now, c, pausePark)
	stopped := p.all
	go func() {
		freed, err := g.moveOut(c, a, p, stopped)
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
			g.notParked(now, c, err)
		} else {
			g.parked(now, c, freed)
		}
		g.save()
		g.answer(now)
	}()
}

// parked is told that the memory of a container is away, and how much came free of each card.
func (g *Gate) parked(now time.Time, c *container, freed map[ledger.CardID]uint64) {
	a := c.parking
	c.failed, c.failure = 0, nil
	for _, id := range a.moved {
		g.ledger.Park(id)
	}
	for _, card := range g.cards {
		if parked := g.ledger.Container(c.id, card).Parked; freed[card] > parked {
			a.extra[card] = freed[card] - parked
		}
		g.setOverhead(c, card, 0)
	}
	a.state = parkedState
	c.parks++
	g.wantBack(now, c)
}

// notParked is told that a container could not be parked. It goes on, unless it is lost.
func (g *Gate) notParked(now time.Time, c *container, err error) {
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
	if errors.Is(err, ErrUnsure) && !errors.Is(err, ErrLost) {
		g.doubt(g.cards...)
		g.stayAway(c) // as if it were parked: it is looked at again
		return
	}
	// What it has waited for meanwhile does not count.
	g.queue.Postpone(c.id, c.parking.since, now)
	c.parking = nil
	if errors.Is(err, ErrLost) {
		g.killLost(c, err)
	} else {
		g.resume(now, c, pausePark)
	}
}

// moveOut waits until a container has stopped, and moves its memory.
func (g *Gate) moveOut(c *container, a *parking, p *pause, stopped <-chan struct{}) (map[ledger.CardID]uint64, error) {
	pausing, cancel := context.WithTimeout(g.evictions, pauseWithin)
	defer cancel()
	if err := g.stopped(pausing, c, p, stopped, pausePark); err != nil {
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
func (g *Gate) leavers(c *container, a *parking) ([]ledger.ProcessID, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || !g.there(c, a) {
		return nil, ErrUnknown
	}
	if g.inFlight(c) {
		return nil, errInFlight
	}
	for id := range c.processes {
		a.moved = append(a.moved, id)
	}
	g.save() // that it is on its way
	return slices.Clone(a.moved), nil
}

// wantBack lets a parked container wait for its return, card after card: always in the same
// order, so that no two of them wait for each other.
func (g *Gate) wantBack(now time.Time, c *container) {
	a := c.parking
	for _, card := range g.cards {
		if g.ledger.Container(c.id, card).Parked == 0 {
			continue
		}
		g.asked++
		g.queue.Add(queue.Request{
			ID: g.asked, Container: c.id, Card: card, Bytes: g.need(c, card), Process: g.anyProcess(c),
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

// need is how much must be free of a card for a container to come back, in bytes: what came
// free when it left, and what its processes wait for and may have. More than what the rest of
// the card has is never free.
func (g *Gate) need(c *container, card ledger.CardID) uint64 {
	held, limit, capacity := g.ledger.Container(c.id, card), g.ledger.Limit(c.id, card), g.ledger.Capacity(card)
	need := held.Parked + c.parking.extra[card]
	more := limit - min(limit, held.LimitUsage()+held.Parked)
	for r := range g.queue.All {
		if r.Container == c.id && r.Card == card && r.Bytes <= more {
			need += r.Bytes
			more -= r.Bytes
		}
	}
	return min(need, capacity-min(capacity, held.CardUsage()))
}

// hopeless says that a container cannot come back to a card, whoever is parked: somebody who
// cannot be parked holds too much.
func (g *Gate) hopeless(r queue.Request) bool {
	room := g.ledger.Free(r.Card)
	for _, c := range g.containers {
		if c.id != r.Container && !g.pinned(c) {
			room += g.ledger.Container(c.id, r.Card).Committed
		}
	}
	return room < r.Bytes
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
	g.hurry(now, c, c.parking)
}

// hurry makes a lazy return one like any other.
func (g *Gate) hurry(now time.Time, c *container, a *parking) {
	if g.closed || a == nil || !a.lazy || !g.there(c, a) {
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

// setOverhead says of a container's processes together what they have beyond what was
// granted to them.
func (g *Gate) setOverhead(c *container, card ledger.CardID, bytes uint64) {
	for id := range c.processes {
		if err := g.ledger.SetOverhead(id, card, bytes); err != nil {
			g.opts.Report(fmt.Errorf("overhead of container %s: %w", c.id, err))
		}
		bytes = 0
	}
}

// comeBack is told that the books have room for a container on a card.
func (g *Gate) comeBack(now time.Time, r queue.Request) {
	c := g.containers[r.Container]
	for _, p := range c.processes {
		if err := g.ledger.Unpark(p.id, r.Card, g.begun(p, r.Card)); err != nil {
			// Somebody of its own has taken the room, by what is said after a reconnect.
			g.opts.Report(fmt.Errorf("bringing back container %s: %w", c.id, err))
			g.stayAway(c)
			return
		}
		g.cover(p, r.Card)
	}
	g.setOverhead(c, r.Card, c.parking.extra[r.Card])
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

// startReturn moves the memory of a container back, for which the books have room.
func (g *Gate) startReturn(c *container) {
	a := c.parking
	a.state = returning
	var processes []ledger.ProcessID
	for id := range c.processes {
		processes = append(processes, id)
	}
	cards := g.cardsOf(c)
	g.save()
	go func() {
		err := g.bringIn(c, cards, processes)
		now := g.lock()
		defer g.unlock()
		if !g.closed && g.there(c, a) {
			g.returned(now, c, err)
		}
		g.answer(now)
	}()
}

// bringIn brings processes back when the cards themselves have the room. Others are granted
// nothing of them only while that is done.
func (g *Gate) bringIn(c *container, cards []ledger.CardID, processes []ledger.ProcessID) error {
	ctx, cancel := context.WithTimeout(g.evictions, parkWithin)
	defer cancel()
	select {
	case g.restoring <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.restoring }()
	stop := func(n int) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, card := range cards {
			g.returning[card] += n
		}
	}
	stop(1)
	defer stop(-1)
	for _, card := range cards {
		if err := g.look(c, card); err != nil {
			return err
		}
	}
	return g.opts.Evictor.Return(ctx, processes)
}

// returned is told how a return has ended.
func (g *Gate) returned(now time.Time, c *container, err error) {
	if err != nil {
		g.opts.Report(fmt.Errorf("bringing back container %s: %w", c.id, err))
	}
	if errors.Is(err, ErrLost) {
		g.killLost(c, err)
		return
	}
	if err != nil {
		if errors.Is(err, ErrUnsure) {
			g.doubt(g.cards...)
		}
		g.stayAway(c)
		return
	}
	c.parkedFor += now.Sub(c.parking.since)
	// What it has waited for while it was away does not count.
	g.queue.Postpone(c.id, c.parking.since, now)
	c.parking = nil
	c.placed = now
	g.measureSoon()
	g.resume(now, c, pausePark)
	g.save()
}

// killLost ends a container whose memory is lost. It could not go on: its calls of CUDA fail for
// ever, or do not return. When it has ended Nomad may start it again. It stays paused until
// then, and there is time to tell people.
func (g *Gate) killLost(c *container, err error) {
	c.parking = nil
	c.lost = err
	c.failed = tries // it makes no room any more
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
				g.opts.Report(fmt.Errorf("ending container %s, whose memory is lost: %w", c.id, err))
			}
		}
	})
}

// giveBack takes the room of a card from a container that is parked and waits for another
// card, if a request fits then: nothing is there yet. It returns false if there is none.
func (g *Gate) giveBack(r queue.Request) bool {
	for _, c := range g.containers {
		if c.parking == nil || c.parking.state != parkedState || c.id == r.Container {
			continue
		}
		var booked uint64
		for _, id := range c.parking.moved {
			e := g.ledger.Process(id, r.Card)
			booked += e.Committed + e.Expected
		}
		if booked > 0 && r.Bytes <= g.ledger.Free(r.Card)+booked {
			g.unqueue(c)
			g.stayAway(c)
			return true
		}
	}
	return false
}

// stayAway is told that a container could not come back. It tries again.
func (g *Gate) stayAway(c *container) {
	a := c.parking
	for _, id := range a.moved {
		g.ledger.Park(id)
	}
	for _, card := range g.cards {
		g.setOverhead(c, card, 0)
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

// expectAway is told that the container of a process was parked, or on the way, when the gate
// before this one ended. Of who was on the way it is not known whether it was moved: the room
// for all that it may hold is kept.
func (g *Gate) expectAway(now time.Time, p *process, moved bool, extra map[ledger.CardID]uint64) {
	c := p.container
	g.pause(now, c, pausePark)
	if c.parking == nil {
		c.parking = &parking{state: parkedState, since: now, extra: make(map[ledger.CardID]uint64)}
	}
	maps.Copy(c.parking.extra, extra)
	if moved {
		c.parking.moved = append(c.parking.moved, p.id)
	}
}

// bringBack lets those come back who were away when the gate before this one ended: at once,
// if all the room is kept that they need.
func (g *Gate) bringBack(now time.Time) {
	for _, c := range g.containers {
		if c.parking == nil {
			continue
		}
		if g.opts.Evictor == nil {
			g.opts.Report(fmt.Errorf("container %s is parked, and nothing is here to bring it back", c.id))
			continue
		}
		g.wantBack(now, c)
	}
	g.answer(now)
}
