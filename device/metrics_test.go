// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"slices"
	"testing"

	"github.com/shoenig/test/must"
)

// cardStates returns how many cards are in which state, as the metrics have it.
func (p *Plugin) cardStates(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := p.metrics.Registry.Gather()
	must.NoError(t, err)
	states := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			if v := m.Gauge.GetValue(); f.GetName() == "ebbtide_gpu_cards" && v > 0 {
				states[m.Label[0].GetValue()] = v
			}
		}
	}
	return states
}

func TestMetrics_cards(t *testing.T) {
	r := twoCards()
	change, lib, _ := shareable(t)
	p := newPlugin(t, r, change)
	p.settled(t)
	must.Eq(t, map[string]float64{"healthy": 2}, p.cardStates(t))
	cards := slices.Clone(r.cards)
	cards[0].MIG = true
	r.set(cards[:1], nil)
	p.groups()
	must.Eq(t, map[string]float64{"mig": 1, "missing": 1}, p.cardStates(t))
	cards[0].MIG, cards[0].ComputeMode, cards[1].Unhealthy = false, "exclusive", "Xid 79"
	r.set(cards, nil)
	p.groups()
	must.Eq(t, map[string]float64{"compute_mode": 1, "faulty": 1}, p.cardStates(t))

	p = newPlugin(t, twoCards(), change)
	p.settings.Preload = lib + ".missing"
	p.settled(t)
	must.Eq(t, map[string]float64{"not_shared": 2}, p.cardStates(t))
}
