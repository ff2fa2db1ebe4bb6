// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/nvml"
)

func TestReport(t *testing.T) {
	const id = ledger.CardID("GPU-1")
	cards := map[ledger.CardID]nvml.Card{id: {Name: "H200", Memory: 1000 * nvml.MiB}}
	on := map[ledger.CardID][]nvml.Process{id: {{PID: 7, Used: 90 * nvml.MiB}, {PID: 8, Used: 500 * nvml.MiB}}}
	since := time.Unix(1e9, 0)
	usage := func(held ledger.Entry, waiting int) []gate.Usage {
		return []gate.Usage{{Card: id, Share: 400 * nvml.MiB, Held: held, Waiting: waiting, Counts: gate.Counts{Denied: 1, TooLong: 2, Waited: time.Second}}}
	}
	for name, tc := range map[string]struct {
		is    gate.Status
		state handoff.State
		why   string
	}{
		"running": {gate.Status{PIDs: []int{7}, Usage: usage(ledger.Entry{Committed: 100 * nvml.MiB}, 0)}, handoff.Running, ""},
		"waiting": {gate.Status{PIDs: []int{7}, Usage: usage(ledger.Entry{}, 1)}, handoff.Waiting, "waiting for GPU memory"},
		"yields":  {gate.Status{PIDs: []int{7}, Paused: true, Yields: true, Usage: usage(ledger.Entry{}, 1)}, handoff.Yielding, "others come first on its card"},
		"parked": {
			gate.Status{
				PIDs: []int{7}, Paused: true, Parked: true, Usage: usage(ledger.Entry{Parked: 100 * nvml.MiB}, 1),
				Parking: gate.Parking{State: "parked", Since: since, By: identify.Container{Alloc: "0123456789", Task: "train", Job: "other"}},
			},
			handoff.Parked, `its GPU memory is in the host's memory, to make room for task "train" of allocation 01234567 (job "other")`,
		},
		"lost": {
			gate.Status{PIDs: []int{7}, Paused: true, Lost: parking.ErrLost, Usage: usage(ledger.Entry{Committed: 100 * nvml.MiB}, 0)},
			handoff.Lost, "its GPU memory could not be restored, and the task cannot continue without it: it is being killed (its memory is lost)",
		},
		"parked before a restart": {
			gate.Status{PIDs: []int{7}, Parked: true, Parking: gate.Parking{Since: since}, Usage: usage(ledger.Entry{}, 0)},
			handoff.Parked, "its GPU memory is in the host's memory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReport(tc.is, cards, on, handoff.Report{State: tc.state, Since: since})
			must.Eq(t, tc.state, r.State)
			must.Eq(t, tc.why, r.Why)
			must.Eq(t, since, r.Since, must.Sprint("it is so since then"))
			must.Eq(t, 3, r.Denied)
			must.Eq(t, 1, r.WaitedS)
			c := r.Cards[0]
			must.Eq(t, handoff.Card{UUID: "GPU-1", Model: "H200", MemoryMiB: 1000, ShareMiB: 400, HeldMiB: c.HeldMiB, UsedMiB: 90, ParkedMiB: c.ParkedMiB}, c)
			must.False(t, exceedsGrant(r))
		})
	}
	// A process of the container that does not ask the gate.
	r := newReport(gate.Status{PIDs: []int{7, 8}, Usage: usage(ledger.Entry{Committed: 100 * nvml.MiB}, 0)}, cards, on, handoff.Report{})
	must.Eq(t, 590, r.Cards[0].UsedMiB)
	must.True(t, exceedsGrant(r))
}
