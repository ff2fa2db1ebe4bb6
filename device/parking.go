// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint"
	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/checkpoint/headroom"
	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/nvml"
	"github.com/ebbtide/ebbtide/device/tested"
)

const helperWithin = 2 * time.Minute

var errParkingOff = errors.New("it is switched off (parking)")

// parking returns the evictor, and why containers cannot be parked here, or nil. In that case it
// only restores containers that an earlier plugin has parked.
func (p *Plugin) parking(cards []nvml.Card) (evictor *checkpoint.Evictor, not error) {
	log := p.log.Named("checkpoint")
	client := driver.New(driver.Options{
		Version: cards[0].Driver, Library: p.settings.CUDA,
		Log: func(line string) { log.Warn("the helper that calls CUDA", "says", line) },
	})
	switch p.settings.Parking {
	case config.ParkingOff:
		not = errParkingOff
	case config.ParkingAuto:
		for _, c := range cards {
			not = cmp.Or(not, tested.Check(p.settings.StateDir, c.Name, c.Driver))
		}
	}
	if not == nil { // else the helper starts only if there is something to restore
		ctx, cancel := context.WithTimeout(p.ctx, helperWithin)
		defer cancel()
		not = client.Check(ctx)
	}
	context.AfterFunc(p.ctx, client.Close)
	held, free := checkpoint.Meter(checkpoint.Measure(p.usage))
	return checkpoint.New(checkpoint.Options{Driver: client, Held: held, Free: free, Room: headroom.Checker{}.Check}), not
}

func (p *Plugin) usage(uuid string) (nvml.Usage, error) {
	p.mu.Lock()
	library := p.cards
	p.mu.Unlock()
	return library.Usage(uuid)
}
