// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"fmt"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Measured is a card's own view of its memory.
type Measured struct {
	Free uint64         // bytes
	By   map[int]uint64 // bytes by pid; a missing pid is unknown
}

const (
	measureEvery  = time.Second
	minMeasureGap = 50 * time.Millisecond
	// maxAssumed bounds how long room is kept on a card that cannot be measured.
	maxAssumed = 10 * time.Second
	// restoreCheckWithin bounds a measurement while grants are stopped.
	restoreCheckWithin = 2 * time.Second
	// maxMargin is what stays free in addition to a restore; on small cards 1/marginPart of the memory,
	// and never more than the reserve.
	maxMargin  = 256 << 20
	marginPart = 50
)

// Watch compares the ledger with the cards until ctx ends: each second, and after a process has
// attached or a card has refused a grant.
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
				break
			}
			said := ""
			if _, err := g.measure(card); err != nil {
				said = err.Error()
			}
			if said != "" && failed[card] != said {
				g.opts.Report(fmt.Errorf("cannot measure card %s; trusting its ledger: %s", card, said))
			}
			failed[card] = said
		}
		select {
		case <-time.After(minMeasureGap):
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(measureEvery - minMeasureGap):
		case <-g.remeasure:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gate) measureSoon() {
	select {
	case g.remeasure <- struct{}{}:
	default:
	}
}

func (g *Gate) granted(card ledger.CardID) map[ledger.ProcessID]uint64 {
	out := make(map[ledger.ProcessID]uint64, len(g.processes))
	for id := range g.processes {
		e := g.ledger.Process(id, card)
		out[id] = e.Committed + e.Expected
	}
	return out
}

// measure records what a card shows beyond the ledger.
func (g *Gate) measure(card ledger.CardID) (m cardRoom, err error) {
	g.mu.Lock()
	before := g.granted(card)
	g.mu.Unlock()
	measured, err := g.opts.Measure(card)
	if err != nil {
		now := g.lock()
		defer g.unlock()
		delete(g.suspect, card) // trust the ledger
		if a := g.assumed[card]; a.bytes > 0 && now.After(a.until) {
			g.assume(card, 0)
		}
		g.answer(now)
		return m, err
	}
	m.by = measured.By
	now := g.lock()
	defer g.unlock()
	defer func() {
		delete(g.suspect, card)
		g.answer(now)
	}()
	physical := g.ledger.Physical(card)
	m.free = min(measured.Free, physical)
	var known uint64
	for id, granted := range g.granted(card) {
		p := g.processes[id]
		if !p.container.memory.Unsure { // else all that is there is outside
			granted = max(granted, before[id]) // it may have changed meanwhile
		}
		holds, told := measured.By[id.PID]
		switch {
		case p.container.memory.InRound():
			holds = min(holds, granted)
		case !told:
			holds = granted
		default:
			if err := g.ledger.SetOverhead(id, card, min(holds-min(holds, granted), physical)); err != nil {
				return m, err
			}
			m.untaken += granted - min(holds, granted)
		}
		known += holds
	}
	used := physical - m.free
	outside := used - min(used, known)
	// A process that has just started is not known yet: one measurement counts only on a suspect
	// card.
	seen := min(outside, g.outside[card])
	if g.suspect[card] {
		seen = outside
	}
	g.outside[card] = outside
	delete(g.assumed, card)
	if err := g.ledger.SetOutside(card, seen); err != nil {
		return m, err
	}
	return m, nil
}

func (g *Gate) markSuspect(cards ...ledger.CardID) {
	if g.opts.Measure == nil {
		return
	}
	for _, card := range cards {
		g.suspect[card] = true
	}
	g.measureSoon()
}

// keepRoom keeps room, until the cards are measured, for containers that count as parked but may
// be there.
func (g *Gate) keepRoom() {
	if g.opts.Measure == nil {
		return
	}
	for _, card := range g.cards {
		var bytes uint64
		for _, other := range g.containers {
			if other.memory.Unsure {
				bytes += g.ledger.Container(other.id, card).Parked
			}
		}
		g.assume(card, bytes)
	}
	g.markSuspect(g.cards...)
}

// assumption is memory that counts as outside without having been measured.
type assumption struct {
	bytes uint64
	until time.Time
}

func (g *Gate) assume(card ledger.CardID, bytes uint64) {
	outside := g.ledger.Outside(card)
	outside -= min(outside, g.assumed[card].bytes)
	g.assumed[card] = assumption{bytes, time.Now().Add(maxAssumed)}
	if err := g.ledger.SetOutside(card, outside+bytes); err != nil {
		g.opts.Report(fmt.Errorf("card %s: %w", card, err))
	}
}

type cardRoom struct {
	free    uint64
	untaken uint64         // granted, not yet allocated
	by      map[int]uint64 // by pid
}

// checkRoom checks that the cards themselves have room for a container's restore and a margin.
func (g *Gate) checkRoom(ctx context.Context, c *container, cards []ledger.CardID) error {
	if g.opts.Measure == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		for _, card := range cards {
			if err := g.checkCard(c, card); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("measuring cards: %w", ctx.Err())
	}
}

func (g *Gate) checkCard(c *container, card ledger.CardID) error {
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
	margin := min(maxMargin, physical/marginPart, physical-g.ledger.Capacity(card))
	if m.free < back+margin+m.untaken {
		return fmt.Errorf("the card has less free memory than the ledger: card %s has %d bytes free, and needs %d for the restore, %d for outstanding grants and %d as a margin",
			card, m.free, back, m.untaken, margin)
	}
	return nil
}
