// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/nvml"
)

// Stats implements nomad.DevicePlugin. Each seat of a card has the card's figures.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration) (<-chan *nomad.StatsResponse, error) {
	_, ctx, end, err := p.startUpdates(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan *nomad.StatsResponse)
	go func() {
		defer close(out)
		defer end()
		for {
			select {
			case <-time.After(interval):
			case <-ctx.Done():
				return
			}
			select {
			case out <- p.stats():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// stats returns the figures of all readable cards. The fingerprint reports the others as
// unhealthy.
func (p *Plugin) stats() *nomad.StatsResponse {
	p.mu.Lock()
	known, settings, gated := maps.Clone(p.known), p.settings, p.gate
	p.mu.Unlock()
	res := &nomad.StatsResponse{}
	wholes := make(map[string]map[string]*nomad.DeviceStats) // of whole cards, by model and UUID
	var all []gate.Status
	if gated != nil {
		all = gated.Stats()
	}
	for _, uuid := range slices.Sorted(maps.Keys(known)) {
		if slices.Contains(settings.Ignored, uuid) {
			continue
		}
		c := known[uuid]
		u, err := p.usage(uuid)
		if err != nil {
			p.log.Debug("a card has no statistics", "uuid", uuid, "error", err)
			continue
		}
		g := &nomad.DeviceGroupStats{Vendor: vendor, Type: kind, Name: groupName(c), InstanceStats: make(map[string]*nomad.DeviceStats)}
		stats := cardStats(c, u)
		stats.Stats.Nested = containers(all, ledger.CardID(uuid), u.Processes)
		for i := range settings.Seats {
			g.InstanceStats[seatID(uuid, i)] = stats
		}
		res.Groups = append(res.Groups, g)
		if settings.Mounts == config.MountsDriver {
			if wholes[modelName(c)] == nil {
				wholes[modelName(c)] = make(map[string]*nomad.DeviceStats)
			}
			wholes[modelName(c)][uuid] = stats
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wholes)) {
		res.Groups = append(res.Groups, &nomad.DeviceGroupStats{Vendor: vendor, Type: wholeKind, Name: name, InstanceStats: wholes[name]})
	}
	return res
}

// containers returns the figures of the containers on a card, by allocation and task; those that
// Nomad did not start, by ID.
func containers(all []gate.Status, card ledger.CardID, onCard []nvml.Process) map[string]*structs.StatObject {
	out := make(map[string]*structs.StatObject)
	for _, st := range all {
		for _, u := range st.Usage {
			if u.Card != card {
				continue
			}
			count := func(n int, what string) *structs.StatValue {
				return &structs.StatValue{Desc: what, IntNumeratorVal: pointer(int64(n))}
			}
			name := st.Container.ID
			if st.Container.Alloc != "" {
				name = st.Container.Alloc + "." + st.Container.Task
			}
			out[name] = &structs.StatObject{Attributes: map[string]*structs.StatValue{
				"Memory":  mib(u.Held.CardUsage(), u.Share, "Memory that the container holds, of its share"),
				"Used":    mib(usedBy(st.PIDs, onCard), u.Held.CardUsage()-u.Held.Overhead, "Memory that its processes have on the card, of what was granted"),
				"Waiting": count(u.Waiting, "Requests for memory that wait"),
				"Denied":  count(int(u.Denied+u.TooLong), "Requests for memory that were denied"),
				"Paused":  {Desc: "Whether it may submit no work now", BoolVal: &st.Paused},
				"Pauses":  count(st.Pauses, "Times that it was paused"),
				"Parked":  mib(u.Held.Parked, u.Held.Parked+u.Held.CardUsage(), "Memory of it that is in the host's memory"),
				"Parks":   count(st.Parks, "Times that its memory was moved to the host's"),
				"Faults":  count(st.Faults, "Connections to the gate that were cut off"),
			}}
		}
	}
	return out
}

func usedBy(pids []int, onCard []nvml.Process) uint64 {
	var n uint64
	for _, p := range onCard {
		if slices.Contains(pids, p.PID) {
			n += p.Used
		}
	}
	return n
}

func mib(used, of uint64, what string) *structs.StatValue {
	return &structs.StatValue{
		Desc: what, Unit: structs.UnitMiB,
		IntNumeratorVal: pointer(int64(used >> 20)), IntDenominatorVal: pointer(int64(of >> 20)),
	}
}

func cardStats(c nvml.Card, u nvml.Usage) *nomad.DeviceStats {
	memory := mib(u.Used, c.Memory, "Memory of the card that is in use, by all")
	// The names are those of NVIDIA's own device plugin. What is unknown is left out.
	stats := map[string]*structs.StatValue{
		"Memory state":   memory,
		"Card processes": {Desc: "Processes on the card", IntNumeratorVal: pointer(int64(len(u.Processes)))},
	}
	for name, v := range map[string]structs.StatValue{
		"GPU utilization":     {Unit: "%", Desc: "Part of the last sample period in which a kernel ran", IntNumeratorVal: u.GPU},
		"Memory utilization":  {Unit: "%", Desc: "Part of the last sample period in which memory was read or written", IntNumeratorVal: u.Memory},
		"Encoder utilization": {Unit: "%", Desc: "Part of the last sample period in which the encoder was used", IntNumeratorVal: u.Encoder},
		"Decoder utilization": {Unit: "%", Desc: "Part of the last sample period in which the decoder was used", IntNumeratorVal: u.Decoder},
		"Temperature":         {Unit: "C", Desc: "Temperature of the card", IntNumeratorVal: u.TemperatureC},
		"Power usage":         {Unit: "W", Desc: "Power that the card takes, of what it may take", IntNumeratorVal: u.PowerW, IntDenominatorVal: c.PowerW},
		"BAR1 buffer state":   {Unit: structs.UnitMiB, Desc: "BAR1 memory in use", IntNumeratorVal: u.BAR1MiB, IntDenominatorVal: c.BAR1MiB},
		"ECC L1 errors":       {Unit: "#", Desc: "Corrected errors of the L1 cache since the driver was loaded", IntNumeratorVal: u.ECCL1},
		"ECC L2 errors":       {Unit: "#", Desc: "Corrected errors of the L2 cache since the driver was loaded", IntNumeratorVal: u.ECCL2},
		"ECC memory errors":   {Unit: "#", Desc: "Corrected errors of the memory since the driver was loaded", IntNumeratorVal: u.ECCMemory},
	} {
		if v.IntNumeratorVal != nil {
			stats[name] = &v
		}
	}
	if !u.ProcessesKnown {
		stats["Card processes"] = &structs.StatValue{Desc: fmt.Sprintf("Processes on the card: not reported by %s", c.Name), StringVal: pointer("unknown")}
	}
	return &nomad.DeviceStats{Summary: memory, Stats: &structs.StatObject{Attributes: stats}, Timestamp: u.Time}
}

func pointer[T any](v T) *T { return &v }
