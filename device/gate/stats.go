// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// Counts counts a container's requests on a card since its first process.
type Counts struct {
	Granted      uint64
	GrantedBytes uint64
	Waited       time.Duration // total over granted requests
	Denied       uint64        // beyond the limit, or no room could be made
	TooLong      uint64        // past their deadline
}

// Usage is a container's use of a card. Sizes are in bytes.
type Usage struct {
	Card         ledger.CardID
	Share        uint64 // bytes
	Held         ledger.Entry
	Waiting      int // requests
	WaitingBytes uint64
	Counts
}

// Status is the state of a container.
type Status struct {
	Container    identify.Container
	Priority     int
	Processes    int
	PIDs         []int
	Disconnected int  // processes without a connection
	Paused       bool // or about to be
	Pauses       int
	PausedFor    time.Duration // in completed pauses
	Stopped      bool          // it is paused, and the work that it had submitted is done
	Yields       bool          // others come first on its card (SetTurns)
	NoYield      string        // why it never waits for its turn; "" if it may
	Parked       bool          // its memory is parked, or being parked or restored
	Parking      Parking       // set if Parked
	Lost         error         // why its memory could not be restored, and it is about to be killed; or nil
	ParkError    error         // why it cannot be parked, or of the last attempt; nil after a success
	Parks        int
	ParkedFor    time.Duration // in completed parkings
	Arrived      time.Time
	Faults       int     // connections cut off
	Usage        []Usage // by card
}

// Parking describes a container whose memory is parked, or being parked or restored.
type Parking struct {
	State string // "parking", "parked", "restoring"
	Since time.Time
	// By is the container that needed the room; empty if unknown.
	By identify.Container
}

// CardStatus is the state of a card.
type CardStatus struct {
	Card     ledger.CardID
	Physical uint64 // bytes
	Free     uint64 // bytes that can be granted now
	Outside  uint64 // bytes held by processes unknown to the gate
	Held     ledger.Entry
}

// Cards returns the state of all cards, in the order of Options.
func (g *Gate) Cards() []CardStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]CardStatus, 0, len(g.cards))
	for _, id := range g.cards {
		out = append(out, CardStatus{id, g.ledger.Physical(id), g.ledger.Free(id), g.ledger.Outside(id), g.ledger.Total(id)})
	}
	return out
}

// Stats returns the state of all containers, by ID.
func (g *Gate) Stats() []Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	type on struct {
		c    ledger.ContainerID
		card ledger.CardID
	}
	waiting := make(map[on]Usage)
	for r := range g.queue.All {
		if r.Restore {
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
			Stopped: c.pause != nil && len(c.pause.await) == 0,
			Yields:  c.yields(), NoYield: g.whyNotYield(c),
			Parked: c.memory.InRound(), Parks: c.memory.Parks, ParkedFor: c.memory.ParkedFor, Arrived: c.arrived,
		}
		s.ParkError, s.Lost = c.memory.Err, c.memory.LostErr
		if m := c.memory; s.Parked {
			s.Parking = Parking{State: string(m.State), Since: m.Since, By: m.By}
		}
		for _, p := range c.processes {
			s.PIDs = append(s.PIDs, p.id.PID)
			if p.session == nil {
				s.Disconnected++
			}
		}
		if pinned := c.pinned(); pinned != 0 && g.canPark() {
			s.ParkError = errors.New(wire.WhyPinned(pinned))
		}
		for _, card := range g.cards {
			u := waiting[on{c.id, card}]
			u.Card, u.Share, u.Held = card, g.share(c, card), g.ledger.Container(c.id, card)
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
