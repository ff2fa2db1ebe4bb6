// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/metrics"
)

// updateMetrics replaces the gate's state in the metrics; states are those of the containers
// in stats.
func (p *Plugin) updateMetrics(s *sharing, stats []gate.Status, states []handoff.State) {
	g := &metrics.Gate{At: time.Now(), Parking: s.parkErr == nil, Connections: s.Connections()}
	for _, c := range s.Cards() {
		g.Memory = append(g.Memory, metrics.Memory{
			Card: string(c.Card), Physical: c.Physical, Free: c.Free, Outside: c.Outside,
			Committed: c.Held.Committed, Overhead: c.Held.Overhead, Expected: c.Held.Expected, Parked: c.Held.Parked,
		})
	}
	for i, st := range stats {
		c := metrics.Container{AllocID: st.Container.Alloc, Task: st.Container.Task, State: states[i]}
		if c.AllocID == "" {
			c.Task = st.Container.ID // Nomad has not started it
		}
		for _, u := range st.Usage {
			c.Uses = append(c.Uses, metrics.Use{
				Card: string(u.Card), Share: u.Share, Held: u.Held.CardUsage(), Parked: u.Held.Parked, Waiting: u.Waiting, WaitingBytes: u.WaitingBytes,
			})
		}
		g.Containers = append(g.Containers, c)
	}
	p.metrics.UpdateGate(g)
}
