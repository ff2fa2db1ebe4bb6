// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Measured is what a card itself tells of its memory.
type Measured struct {
	Free uint64         // bytes
	By   map[int]uint64 // bytes by pid; of a process that is not there it is not known
}

const (
	// measureEvery is how often the books are compared with the cards.
	measureEvery = time.Second
	// measureRest is the least time between two measurements.
	measureRest = 50 * time.Millisecond
	// leastMargin is what stays free beside what returns to a card, in bytes: of small cards a
	// fiftieth, and no more than the card's reserve.
	leastMargin = 256 << 20
	marginPart  = 50
)

// errCardFull says that a card has less room than the books.
var errCardFull = errors.New("the card has less room than the books")

// Watch compares the books with the cards until ctx ends: each second, and at once after a
// process has come to a card or was refused there what it had been granted.
func (g *Gate) Watch(ctx context.Context) {
	if g.opts.Measure == nil {
		return
	}
	failed := make(map[ledger.CardID]string)
	for {
		g.mu.Lock()
		cards, used := g.cards, len(g.processes) > 0
		g.mu.Unlock()
		for _, card := range cards {
			if !used {
				break // no process needs the books
			}
			said := ""
			if _, err := g.measure(card); err != nil {
				said = err.Error()
			}
			if said != "" && failed[card] != said {
				g.opts.Report(fmt.Errorf("measuring card %s, of which the books are believed: %s", card, said))
			}
			failed[card] = said
		}
		select {
		case <-time.After(measureRest):
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(measureEvery - measureRest):
		case <-g.remeasure:
		case <-ctx.Done():
			return
		}
	}
}

// measureSoon has the cards measured at once.
func (g *Gate) measureSoon() {
	select {
	case g.remeasure <- struct{}{}:
	default:
	}
}

// granted is what was granted to each process on a card, in bytes.
func (g *Gate) granted(card ledger.CardID) map[ledger.ProcessID]uint64 {
	out := make(map[ledger.ProcessID]uint64, len(g.processes))
	for id := range g.processes {
		e := g.ledger.Process(id, card)
		out[id] = e.Committed + e.Expected
	}
	return out
}

// measure enters into the books what a card shows and they do not have: what processes hold
// beyond what they were granted, and what processes hold that do not ask.
func (g *Gate) measure(card ledger.CardID) (m room, err error) {
	g.mu.Lock()
	before := g.granted(card)
	g.mu.Unlock()
	measured, err := g.opts.Measure(card)
	if err != nil {
		now := g.lock()
		defer g.unlock()
		delete(g.doubted, card) // the books are believed
		g.answer(now)
		return m, err
	}
	m.by = measured.By
	now := g.lock()
	defer g.unlock()
	defer func() {
		delete(g.doubted, card)
		g.answer(now)
	}()
	physical := g.ledger.Physical(card)
	m.free = min(measured.Free, physical)
	var known uint64
	for id, granted := range g.granted(card) {
		granted = max(granted, before[id]) // it may have taken or freed memory meanwhile
		holds, told := measured.By[id.PID]
		p := g.processes[id]
		switch {
		case p.container.parking != nil:
			holds = min(holds, granted)
		case !told:
			holds = granted
		default:
			if err := g.ledger.SetOverhead(id, card, min(holds-min(holds, granted), physical)); err != nil {
				return m, err
			}
			m.fill += granted - min(holds, granted)
		}
		known += holds
	}
	used := physical - m.free
	outside := used - min(used, known)
	// Of a process that has just begun it is not known yet: what one look alone shows counts
	// only if the books are doubted.
	seen := min(outside, g.outside[card])
	if g.doubted[card] {
		seen = outside
	}
	g.outside[card] = outside
	if err := g.ledger.SetOutside(card, seen); err != nil {
		return m, err
	}
	return m, nil
}

// doubt has nothing granted of a card until it has been measured: the driver has refused what
// was granted, or it is not known what became of a container's memory.
func (g *Gate) doubt(cards ...ledger.CardID) {
	if g.opts.Measure == nil {
		return
	}
	for _, card := range cards {
		g.doubted[card] = true
	}
	g.measureSoon()
}

// room is what a card has, in bytes.
type room struct {
	free uint64
	fill uint64         // of it, what was granted and is not taken yet
	by   map[int]uint64 // what processes have, by pid
}

// look says whether a card has the room for what is to come back of a container, and a
// margin.
func (g *Gate) look(c *container, card ledger.CardID) error {
	if g.opts.Measure == nil {
		return nil
	}
	m, err := g.measure(card)
	if err != nil {
		return fmt.Errorf("measuring card %s: %w", card, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var back uint64
	for id := range c.processes {
		booked := g.ledger.Process(id, card).CardUsage()
		back += booked - min(m.by[id.PID], booked)
	}
	physical := g.ledger.Physical(card)
	margin := min(leastMargin, physical/marginPart, physical-g.ledger.Capacity(card))
	if m.free < back+margin+m.fill {
		return fmt.Errorf("%w: card %s has %d bytes free, and needs %d for what comes back, %d for what is granted and %d to be safe",
			errCardFull, card, m.free, back, m.fill, margin)
	}
	return nil
}
