// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"slices"
	"strings"

	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/nvml"
)

// A job may also have whole cards, one or several: they are Nomad devices as NVIDIA's own plugin
// has them, by model, with the UUID as ID. A card is offered whole while no seat on it is taken, and
// its seats while it is not taken whole. The driver tells which are (handoff.Identity), so there are
// none with other drivers.

// wholeKind is the type of NVIDIA's own plugin: its jobs run unchanged.
const wholeKind = "gpu"

const (
	shared = "a container has a seat on it"
	whole  = "a container has the whole card"
)

// wholes returns the cards that may be taken whole, as a group per model. broken is why a card
// cannot be used, by UUID.
func (p *Plugin) wholes(cards []nvml.Card, broken map[string]string, taken map[string]bool) []*nomad.DeviceGroup {
	if p.settings.Mounts != config.MountsDriver {
		return nil
	}
	var groups []*nomad.DeviceGroup
	offered := make(map[string]int)
	for _, c := range cards {
		name := modelName(c)
		i := slices.IndexFunc(groups, func(g *nomad.DeviceGroup) bool { return g.Name == name })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &nomad.DeviceGroup{Vendor: vendor, Type: wholeKind, Name: name, Attributes: describe(c)})
		}
		why := broken[c.UUID]
		if why == "" && p.seatTaken(c.UUID, taken) {
			why = shared
		}
		if why == "" {
			offered[name]++
		}
		groups[i].Devices = append(groups[i].Devices, &nomad.Device{
			ID: c.UUID, Healthy: why == "", HealthDesc: why, HwLocality: &nomad.DeviceLocality{PciBusID: c.PCIBusID},
		})
	}
	for _, g := range groups {
		// On its change Nomad tries jobs again.
		g.Attributes["offered"] = structs.NewIntAttribute(int64(offered[g.Name]), "")
	}
	return groups
}

func (p *Plugin) seatTaken(uuid string, taken map[string]bool) bool {
	for i := range p.settings.Seats {
		if taken[seatID(uuid, i)] {
			return true
		}
	}
	return false
}

// conflict returns why a seat, or a whole card, cannot be given though it is healthy: Nomad may
// have placed the container before it knew of another.
func (p *Plugin) conflict(id string, taken map[string]bool) error {
	switch uuid, _, seat := strings.Cut(id, "/"); {
	case seat && taken[uuid]:
		return fmt.Errorf("card %s cannot be shared: %s", uuid, whole)
	case !seat && p.seatTaken(uuid, taken):
		return fmt.Errorf("card %s cannot be had whole: %s", uuid, shared)
	}
	return nil
}
