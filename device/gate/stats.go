// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/peer"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// Counts counts the requests of a container on a card since its first process.
type Counts struct {
	Granted      uint64
	GrantedBytes uint64
	Waited       time.Duration // by those that were granted, together
	Denied       uint64        // over the limit, or nobody could make room
	TooLong      uint64        // after their time; those that would not wait count for nothing
}

// Usage is what a container has to do with a card.
type Usage struct {
	Card         ledger.CardID
	Limit        uint64 // bytes: its share
	Held         ledger.Entry
	Waiting      int    // requests
	WaitingBytes uint64 // of them
	Counts
}

// Status is how a container is.
type Status struct {
	Container peer.Container
	Priority  int
	Processes int
	PIDs      []int // of the processes
	Absent    int   // of them, those without a connection
	Pinned    bool  // one of them cannot be parked
	Paused    bool  // or about to be
	Pauses    int
	PausedFor time.Duration // in pauses that are over
	Planned   bool          // paused by the plan
	Parked    bool          // its memory is in the host's, or on the way there or back
	Parking   Parking       // if it is
	Lost      error         // why its memory did not come back, for which it is about to be ended; nil if it did
	Unparked  error         // why it cannot be parked, or could not when that was tried last; nil if it could
	Parks     int
	ParkedFor time.Duration // in parkings that are over
	Arrived   time.Time
	Faults    int     // connections that were cut off
	Usage     []Usage // of the cards that it has to do with
}

// Parking is how it stands with a container whose memory is parked, or on the way.
type Parking struct {
	State string // "leaving", "parked", "returning"
	Since time.Time
	// By is the container that needed the room. It is empty if that is not known any more.
	By peer.Container
}

// CardStatus is how a card is.
type CardStatus struct {
	Card     ledger.CardID
	Physical uint64 // bytes
	Free     uint64 // bytes that can be given now
	Held     ledger.Entry
}

// Cards returns how the cards are, in the order of Options.
func (g *Gate) Cards() []CardStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]CardStatus, 0, len(g.cards))
	for _, id := range g.cards {
		out = append(out, CardStatus{id, g.ledger.Physical(id), g.ledger.Free(id), g.ledger.Total(id)})
	}
	return out
}

// Stats returns how the containers are, by ID.
func (g *Gate) Stats() []Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	type on struct {
		c    ledger.ContainerID
		card ledger.CardID
	}
	waiting := make(map[on]Usage)
	for r := range g.queue.All {
		if r.Return {
			continue
		}
		u := waiting[on{r.Container, r.Card}]
		u.Waiting++
		u.WaitingBytes += r.Bytes
		waiting[on{r.Container, r.Card}] = u
	}
	out := make([]Status, 0, len(g.containers))
	for _, c := range g.containers {
		s := Status{
			Container: c.Container, Priority: c.priority, Processes: len(c.processes),
			Paused: c.pause != nil, Pauses: c.pauses, PausedFor: c.pausedFor, Faults: c.faults,
			Planned: c.pause != nil && c.pause.reasons[PausePlan],
			Parked:  c.parking != nil, Parks: c.parks, ParkedFor: c.parkedFor, Arrived: c.arrived,
		}
		s.Unparked, s.Lost = c.failure, c.lost
		if a := c.parking; a != nil {
			s.Parking = Parking{State: string(a.state), Since: a.since, By: a.by}
		}
		var pinned uint64 // the first of the reasons, so that it is the same each time
		for _, p := range c.processes {
			s.PIDs = append(s.PIDs, p.id.PID)
			if p.pinned != 0 && (pinned == 0 || p.pinned < pinned) {
				pinned = p.pinned
			}
			if p.session == nil {
				s.Absent++
			}
		}
		if s.Pinned = pinned != 0; s.Pinned && g.parks() {
			s.Unparked = errors.New(wire.WhyPinned(pinned))
		}
		for _, card := range g.cards {
			u := waiting[on{c.id, card}]
			u.Card, u.Limit, u.Held = card, g.share(c, card), g.ledger.Container(c.id, card)
			n, asked := c.counts[card]
			if asked {
				u.Counts = *n
			}
			if _, shared := c.shares[card]; asked || shared || u.Waiting > 0 || u.Held != (ledger.Entry{}) {
				s.Usage = append(s.Usage, u)
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Container.ID, b.Container.ID) })
	return out
}
