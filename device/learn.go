// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/profile"
	"github.com/ebbtide/ebbtide/device/profile/watch"
	"github.com/ebbtide/ebbtide/device/shares"
)

const (
	// measureEvery is how often it is measured what containers hold. A pause must begin
	// before the rise that it is for.
	measureEvery = time.Second
	// adaptEvery is the window of the coefficients, and countEvery how often it is looked
	// at within it.
	adaptEvery = 10 * time.Minute
	countEvery = 5 * time.Second
)

// learn lets what is measured of jobs count: for the shares of those that come, and for who
// is paused. Without a place to keep it nothing is learned, and cards are shared all the
// same. It goes on until the plugin ends.
func (p *Plugin) learn(parts *shares.Shares, g *gate.Gate, soft bool) {
	log := p.log.Named("profiles")
	store, err := profile.Open(p.settings.StateDir, func(err error) { log.Warn("profiles", "error", err) })
	if err != nil {
		log.Warn("nothing is learned of jobs: their profiles cannot be kept", "error", err)
		return
	}
	if err := parts.Learn(store); err != nil {
		log.Warn("what was learned of groups is lost", "error", err)
	}
	opts := watch.Default()
	opts.Plan, opts.Hard = p.settings.Planning, !soft
	if p.settings.Adapting {
		p.learning.Go(func() { parts.Run(p.ctx, countEvery, adaptEvery) })
	}
	p.learning.Go(func() { watch.New(g, store, log, opts).Run(p.ctx, measureEvery) })
}
