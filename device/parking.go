// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint"
	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/checkpoint/headroom"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"

	"github.com/ebbtide/ebbtide/device/nvml"
)

// helperWithin is how long the helper may take to load CUDA.
const helperWithin = 2 * time.Minute

var errParkingOff = errors.New("it is switched off (parking)")

// parking returns what parks containers, and why they cannot be parked here, if they cannot:
// then it is for those only that a plugin before this one has left parked. The cards are those
// of this machine.
func (p *Plugin) parking(cards []nvml.Card) (evictor gate.Evictor, not error) {
	log := p.log.Named("checkpoint")
	client := driver.New(driver.Options{
		Version: cards[0].Driver, Library: p.settings.CUDA,
		Log: func(line string) { log.Warn("the helper that calls CUDA", "says", line) },
	})
	if p.settings.Parking {
		ctx, cancel := context.WithTimeout(p.ctx, helperWithin)
		defer cancel()
		not = client.Check(ctx)
	} else {
		not = errParkingOff // and the helper is started only if somebody is to come back
	}
	context.AfterFunc(p.ctx, client.Close)
	held, free := checkpoint.Meter(p.usage)
	opts := checkpoint.Options{Driver: client, Held: held, Free: free, Room: headroom.Checker{}.Check}
	for _, c := range cards {
		opts.Cards = append(opts.Cards, ledger.CardID(c.UUID))
	}
	return checkpoint.New(opts), not
}

// usage is how a card is used now.
func (p *Plugin) usage(uuid string) (nvml.Usage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cards.Usage(uuid)
}
