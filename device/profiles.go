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

const profileEvery = time.Second

// profile measures jobs for their shares, until the plugin ends. Without a state directory only
// the number of jobs counts.
func (p *Plugin) profile(parts *shares.Shares, g *gate.Gate) {
	log := p.log.Named("profiles")
	store, err := profile.Open(p.settings.StateDir, func(err error) { log.Warn("profiles", "error", err) })
	if err != nil {
		log.Warn("jobs are not profiled: their profiles cannot be stored", "error", err)
		return
	}
	parts.UseProfiles(store)
	p.profiling.Go(func() { watch.New(g, store, log).Run(p.ctx, profileEvery) })
}
