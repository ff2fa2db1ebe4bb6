// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint"
	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/nvml"
	"github.com/ebbtide/ebbtide/device/shares"
)

type sharing struct {
	*gate.Gate
	parts   *shares.Shares
	parked  *checkpoint.Evictor
	parkErr error // why containers cannot be parked; nil if they can
}

var errOpening = errors.New("the gate is being opened")

// sharingErr returns why shares cannot be enforced now, or nil.
func (p *Plugin) sharingErr() error {
	switch {
	case p.gate != nil:
		return handoff.Check(p.settings.Preload, p.settings.Gate)
	case p.gateErr != nil:
		// The socket may be an earlier plugin's.
		return fmt.Errorf("the gate cannot be opened: %w", p.gateErr)
	}
	return errOpening
}

// ensureGate makes sure that the gate has these cards, and opens it in the background: loading
// CUDA may take minutes.
func (p *Plugin) ensureGate(cards []nvml.Card) {
	if p.gate != nil {
		for _, c := range cards {
			if err := p.gate.add(c, p.settings); err != nil {
				p.log.Error("a card cannot be shared", "uuid", c.UUID, "error", err)
			}
		}
		return
	}
	if p.opening != nil {
		return
	}
	over := make(chan struct{})
	p.opening = over
	go func() {
		defer close(over)
		s, err := p.openGate(cards)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil && (p.gateErr == nil || p.gateErr.Error() != err.Error()) {
			p.log.Error("cards cannot be shared: there is no gate", "error", err)
		}
		again := err != nil && p.gateErr != nil
		p.gate, p.gateErr, p.opening = s, err, nil
		if !again { // else the next attempt would follow at once
			p.notifyNomad()
		}
	}()
}

// awaitGate waits until the gate has opened or failed to. It returns false if it did neither.
func (p *Plugin) awaitGate(ctx context.Context, within time.Duration) bool {
	p.mu.Lock()
	over := p.opening
	p.mu.Unlock()
	if over == nil {
		return false
	}
	select {
	case <-over:
		return true
	case <-time.After(within):
	case <-ctx.Done():
	}
	return false
}

func (p *Plugin) openGate(cards []nvml.Card) (s *sharing, err error) {
	if err := os.MkdirAll(p.settings.Gate, 0o755); err != nil {
		return nil, fmt.Errorf("creating the gate's directory: %w", err)
	}
	if err := os.MkdirAll(tasksDir(p.settings.Gate), 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of tasks: %w", err)
	}
	if err := handoff.WriteLoader(p.settings.Gate); err != nil {
		return nil, err
	}
	s = &sharing{parts: shares.New(fairshare.Mode(p.settings.Division), p.settings.Seats, p.log.Named("shares"))}
	s.parked, s.parkErr = p.parking(cards)
	opts := gate.Default()
	opts.State = filepath.Clean(p.settings.Gate) + ".state" // next to what containers see
	opts.Report = func(err error) { p.log.Warn("gate", "error", err) }
	opts.Evictor, opts.Shares = s.parked, s.parts
	opts.Measure, opts.Finder = checkpoint.Measure(p.usage), identify.Finder{Tasks: tasksDir(p.settings.Gate)}
	if s.parkErr != nil {
		opts.RestoreOnly = true
		p.log.Warn("containers are not parked: requests without room wait, then are denied", "reason", s.parkErr)
	}
	opts.Soft = overShare(p.settings, s.parkErr) == config.OverWait
	opts.Lazy, opts.Metrics = p.settings.Lazy, p.metrics
	opts.Rules.Turn, opts.Rules.Idle, opts.MaxWait = p.settings.Turn, p.settings.Idle, p.settings.MaxWait
	for _, c := range cards {
		card, err := s.card(c, p.settings)
		if err != nil {
			return nil, err
		}
		opts.Cards = append(opts.Cards, card)
	}
	if s.Gate, err = gate.New(opts); err != nil {
		return nil, err
	}
	s.parts.Use(s.Gate)
	l, err := gate.Listen(filepath.Join(p.settings.Gate, handoff.Socket))
	if err != nil {
		s.Close()
		return nil, err
	}
	if p.settings.Profiles {
		p.profile(s.parts, s.Gate)
	}
	if err := p.reports(p.ctx, s, reportsDir(p.settings.Gate)); err != nil {
		p.log.Warn("cannot report containers to the driver", "error", err)
	}
	go s.Watch(p.ctx)
	go func() {
		if err := s.Serve(p.ctx, l); err != nil {
			p.log.Error("the gate has stopped accepting connections", "error", err)
		}
		s.Close()
	}()
	return s, nil
}

func (s *sharing) card(c nvml.Card, settings *config.Settings) (gate.Card, error) {
	uuid, err := wire.ParseUUID(c.UUID)
	if err != nil {
		return gate.Card{}, fmt.Errorf("card %s: %w", c.UUID, err)
	}
	physical := c.Memory - c.Reserved
	card := gate.Card{UUID: uuid, Physical: physical, Reserve: min(settings.Reserve, physical)}
	id := ledger.CardID(uuid.String())
	s.parts.Add(id, physical-card.Reserve)
	s.parked.Add(id)
	return card, nil
}

func (s *sharing) add(c nvml.Card, settings *config.Settings) error {
	if s.Has(ledger.CardID(c.UUID)) {
		return nil
	}
	card, err := s.card(c, settings)
	if err != nil {
		return err
	}
	return s.AddCard(card)
}

func overShare(s *config.Settings, unparked error) string {
	switch {
	case s.Over != config.OverAuto:
		return s.Over
	case unparked == nil:
		return config.OverWait
	}
	return config.OverDeny
}

// overShare returns what happens to a request beyond a share: wait or deny.
func (p *Plugin) overShare() string {
	if p.gate == nil {
		return overShare(p.settings, errOpening)
	}
	return overShare(p.settings, p.gate.parkErr)
}
