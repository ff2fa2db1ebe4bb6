// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/internal/jsonfile"
)

// ceilingSteps is into how many steps of a card the state file divides holdings. A process is
// saved before it exceeds its step, so the file is an upper bound.
const ceilingSteps = 32

type state struct {
	// Boot is the boot ID. After a reboot no process holds anything.
	Boot      string         `json:"boot"`
	Processes []stateProcess `json:"processes"`
}

type stateProcess struct {
	PID       int                `json:"pid"`
	Start     uint64             `json:"start"`
	Container identify.Container `json:"container"`
	Pinned    uint64             `json:"pinned,omitempty"`
	// Parked is in bytes.
	Parked map[ledger.CardID]uint64 `json:"parked,omitempty"`
	// InParking: the container was parked, or being parked or restored. Extra are the bytes that
	// came free on each card beyond the ledger's.
	InParking bool                     `json:"parking,omitempty"`
	Extra     map[ledger.CardID]uint64 `json:"extra,omitempty"`
	Most      map[ledger.CardID]uint64 `json:"most"` // bytes
}

func (g *Gate) loadState() error {
	if g.opts.State == "" {
		return nil
	}
	var err error
	if g.boot, err = (identify.Finder{}).Boot(); err != nil {
		return err
	}
	var s state
	b, err := os.ReadFile(g.opts.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // first start
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		g.opts.Report(fmt.Errorf("reading the GPU memory state: nothing is granted for %v: %w", g.opts.Grace, err))
		g.graceUntil = time.Now().Add(g.opts.Grace)
		return nil
	}
	if s.Boot != g.boot {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for _, saved := range s.Processes {
		if err := g.expectProcess(now, saved); err != nil && !errors.Is(err, identify.ErrGone) {
			return err
		}
	}
	g.queueRestores(now)
	return nil
}

func (g *Gate) expectProcess(now time.Time, saved stateProcess) error {
	life, err := g.opts.Open(saved.PID, saved.Start)
	if err != nil {
		return err
	}
	p, err := g.addProcess(now, identify.Process{PID: saved.PID, Start: saved.Start, Container: saved.Container}, life)
	if err != nil {
		life.Close()
		return err
	}
	p.pinned = saved.Pinned
	for card, bytes := range saved.Most {
		if g.handle(card) == 0 {
			continue // the card is no longer shared
		}
		if err := g.ledger.Expect(p.id, card, min(bytes, g.ledger.Physical(card))); err != nil {
			return err
		}
		p.ceilings[card] = bytes
	}
	for card, bytes := range saved.Parked {
		if g.handle(card) == 0 {
			continue
		}
		// The capacity may have shrunk; what exceeds it could never be restored.
		most := g.ledger.Capacity(card)
		most -= min(most, g.ledger.Container(p.container.id, card).Parked)
		if err := g.ledger.ExpectParked(p.id, card, min(bytes, most)); err != nil {
			return err
		}
	}
	if saved.InParking {
		// All that a process not known to be parked may hold stays reserved.
		g.pause(now, p.container, pausePark)
		p.container.memory.Recover(now, p.id, len(saved.Parked) > 0, saved.Extra)
	}
	return nil
}

func (g *Gate) ensureSaved(p *process, card ledger.CardID) {
	if g.opts.State != "" && g.ledger.Process(p.id, card).CardUsage() > p.ceilings[card] {
		g.save()
	}
}

// save atomically replaces the state file, without fsync: after a machine failure no process
// holds anything.
func (g *Gate) save() {
	if g.opts.State == "" {
		return
	}
	s := state{Boot: g.boot, Processes: []stateProcess{}}
	for _, p := range g.processes {
		clear(p.ceilings)
		for _, card := range g.cards {
			if held := g.ledger.Process(p.id, card).CardUsage(); held > 0 {
				step := max(g.ledger.Physical(card)/ceilingSteps, 1)
				p.ceilings[card] = (held + step - 1) / step * step
			}
		}
		parked := make(map[ledger.CardID]uint64)
		for _, card := range g.cards {
			if n := g.ledger.Process(p.id, card).Parked; n > 0 {
				parked[card] = n
			}
		}
		// Processes that hold nothing are restored with their container.
		inParking := p.container.memory.InRound()
		if len(p.ceilings) > 0 || inParking {
			saved := stateProcess{
				PID: p.id.PID, Start: p.id.Start, Container: p.container.Container, Pinned: p.pinned, Most: p.ceilings, Parked: parked, InParking: inParking,
			}
			if inParking {
				saved.Extra = p.container.memory.Extra
			}
			s.Processes = append(s.Processes, saved)
		}
	}
	if err := jsonfile.Replace(g.opts.State, s, false); err != nil {
		g.opts.Report(fmt.Errorf("writing the GPU memory state: %w", err))
	}
}
