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
	// measureEvery is how often containers are measured: a pause must begin before the rise.
	measureEvery = time.Second
	// adaptEvery is the window of the coefficients, and countEvery how often it is sampled.
	adaptEvery = 10 * time.Minute
	countEvery = 5 * time.Second
)

// learn uses measurements of jobs for shares and planned pauses, until the plugin ends. Without a
// state directory it does nothing.
func (p *Plugin) learn(parts *shares.Shares, g *gate.Gate, soft bool) {
	log := p.log.Named("profiles")
	store, err := profile.Open(p.settings.StateDir, func(err error) { log.Warn("profiles", "error", err) })
	if err != nil {
		log.Warn("jobs are not profiled: their profiles cannot be stored", "error", err)
		return
	}
	if err := parts.Learn(store); err != nil {
		log.Warn("the coefficients of groups are lost", "error", err)
	}
	opts := watch.Default()
	opts.Plan, opts.Hard = p.settings.Planning, !soft
	if p.settings.Adapting {
		p.learning.Go(func() { parts.Run(p.ctx, countEvery, adaptEvery) })
	}
	p.learning.Go(func() { watch.New(g, store, log, opts).Run(p.ctx, measureEvery) })
}
