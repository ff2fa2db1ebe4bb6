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
	"github.com/ebbtide/ebbtide/device/nvml"
)

// helperWithin is how long the helper may take to load CUDA.
const helperWithin = 2 * time.Minute

var errParkingOff = errors.New("it is switched off (parking)")

// parking returns what parks containers, and why they cannot be parked here, if they cannot:
// then it is for those only that a plugin before this one has left parked.
func (p *Plugin) parking(version string) (evictor *checkpoint.Evictor, not error) {
	log := p.log.Named("checkpoint")
	client := driver.New(driver.Options{
		Version: version, Library: p.settings.CUDA,
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
	held, free := checkpoint.Meter(checkpoint.Measure(p.usage))
	return checkpoint.New(checkpoint.Options{Driver: client, Held: held, Free: free, Room: headroom.Checker{}.Check}), not
}

// usage is how a card is used now.
func (p *Plugin) usage(uuid string) (nvml.Usage, error) {
	p.mu.Lock()
	library := p.cards
	p.mu.Unlock()
	return library.Usage(uuid)
}
