// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/peer"
)

// steps is into how many steps of a card the state file divides what a process holds. A
// process is written down before it holds more than its step: the file says at any time
// how much each may hold at most, and is written only when somebody has grown by a step.
const steps = 32

// state is the content of the state file.
type state struct {
	// Boot is the machine's start. After another one nobody holds anything.
	Boot      string         `json:"boot"`
	Processes []stateProcess `json:"processes"`
}

type stateProcess struct {
	PID       int            `json:"pid"`
	Start     uint64         `json:"start"`
	Container peer.Container `json:"container"`
	Pinned    uint64         `json:"pinned,omitempty"`
	// Parked is what is in the host's memory, in bytes.
	Parked map[ledger.CardID]uint64 `json:"parked,omitempty"`
	// Away is whether its container was parked, or on the way there or back, and Extra what
	// came free of each card beyond what the books said, in bytes.
	Away  bool                     `json:"away,omitempty"`
	Extra map[ledger.CardID]uint64 `json:"extra,omitempty"`
	Most  map[ledger.CardID]uint64 `json:"most"` // bytes
}

// restore takes over from the gate before this one.
func (g *Gate) restore() error {
	if g.opts.State == "" {
		return nil
	}
	var err error
	if g.boot, err = (peer.Finder{}).Boot(); err != nil {
		return err
	}
	var s state
	b, err := os.ReadFile(g.opts.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the first start
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		g.opts.Report(fmt.Errorf("reading who holds GPU memory: nothing is given for %v: %w", g.opts.Grace, err))
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
		if err := g.expect(now, saved); err != nil && !errors.Is(err, peer.ErrGone) {
			return err
		}
	}
	g.bringBack(now)
	return nil
}

// expect makes a process known that the gate before this one has known.
func (g *Gate) expect(now time.Time, saved stateProcess) error {
	life, err := g.opts.Open(saved.PID, saved.Start)
	if err != nil {
		return err
	}
	p, err := g.add(now, peer.Process{PID: saved.PID, Start: saved.Start, Container: saved.Container}, life)
	if err != nil {
		life.Close()
		return err
	}
	p.pinned = saved.Pinned
	for card, bytes := range saved.Most {
		if g.handle(card) == 0 {
			continue // the card is not ours any more
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
		// The card may have less to give than before; of more it would never come back.
		most := g.ledger.Capacity(card)
		most -= min(most, g.ledger.Container(p.container.id, card).Parked)
		if err := g.ledger.ExpectParked(p.id, card, min(bytes, most)); err != nil {
			return err
		}
	}
	if saved.Away {
		g.expectAway(now, p, len(saved.Parked) > 0, saved.Extra)
	}
	return nil
}

// cover sees to it that the state file says of a process at least what it holds.
func (g *Gate) cover(p *process, card ledger.CardID) {
	if g.opts.State != "" && g.ledger.Process(p.id, card).CardUsage() > p.ceilings[card] {
		g.save()
	}
}

// save writes the state file, whole or not at all. It need not be on the disk: when the
// machine fails, nobody holds anything. Without it a restart is less well prepared, but
// nobody's request fails for that.
func (g *Gate) save() {
	if g.opts.State == "" {
		return
	}
	s := state{Boot: g.boot, Processes: []stateProcess{}}
	for _, p := range g.processes {
		clear(p.ceilings)
		for _, card := range g.cards {
			if held := g.ledger.Process(p.id, card).CardUsage(); held > 0 {
				step := max(g.ledger.Physical(card)/steps, 1)
				p.ceilings[card] = (held + step - 1) / step * step
			}
		}
		parked := make(map[ledger.CardID]uint64)
		for _, card := range g.cards {
			if n := g.ledger.Process(p.id, card).Parked; n > 0 {
				parked[card] = n
			}
		}
		// With a container all its processes come back, also those that hold nothing.
		away := p.container.parking != nil
		if len(p.ceilings) > 0 || away {
			saved := stateProcess{
				PID: p.id.PID, Start: p.id.Start, Container: p.container.Container, Pinned: p.pinned, Most: p.ceilings, Parked: parked, Away: away,
			}
			if away {
				saved.Extra = p.container.parking.extra
			}
			s.Processes = append(s.Processes, saved)
		}
	}
	if err := write(g.opts.State, s); err != nil {
		g.opts.Report(fmt.Errorf("writing who holds GPU memory: %w", err))
	}
}

func write(path string, s state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
