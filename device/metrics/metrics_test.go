// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
)

func TestMetrics(t *testing.T) {
	m := New()
	lint, err := testutil.GatherAndLint(m.Registry)
	must.NoError(t, err)
	must.SliceEmpty(t, lint)
	must.NoError(t, testutil.GatherAndCompare(m.Registry, strings.NewReader(`
# HELP ebbtide_gpu_gate_open 1 while the gate is open.
# TYPE ebbtide_gpu_gate_open gauge
ebbtide_gpu_gate_open 0
`), "ebbtide_gpu_gate_open", "ebbtide_gpu_memory_bytes"))

	m.Requests("GPU-1").Granted.Inc()
	m.UpdateCards([]Card{{"GPU-1", "H100\xff", "570", Healthy}, {"GPU-2", "H100", "570", MIG}})
	use := func(share, held, parked uint64, waiting int) []Use {
		return []Use{{Card: "GPU-1", Share: share, Held: held, Parked: parked, Waiting: waiting, WaitingBytes: uint64(10 * waiting)}}
	}
	m.UpdateGate(&Gate{
		At: time.UnixMilli(2500), Parking: true, Connections: 3, Memory: []Memory{{Card: "GPU-1", Physical: 100, Free: 40}},
		Containers: []Container{
			{AllocID: "a", Task: "t", State: handoff.Running, Uses: use(30, 20, 0, 1)},
			// Two runs of a task; the first is about to end.
			{AllocID: "b", Task: "t", State: handoff.Parked, Uses: use(30, 0, 25, 0)},
			{AllocID: "b", Task: "t", State: handoff.Running, Uses: use(30, 7, 0, 2)},
		},
	})
	must.NoError(t, testutil.GatherAndCompare(m.Registry, strings.NewReader(`
# HELP ebbtide_gpu_cards Cards by health: healthy, or why they cannot be shared.
# TYPE ebbtide_gpu_cards gauge
ebbtide_gpu_cards{state="compute_mode"} 0
ebbtide_gpu_cards{state="faulty"} 0
ebbtide_gpu_cards{state="healthy"} 1
ebbtide_gpu_cards{state="mig"} 1
ebbtide_gpu_cards{state="missing"} 0
ebbtide_gpu_cards{state="not_shared"} 0
# HELP ebbtide_gpu_card_containers Containers on a card.
# TYPE ebbtide_gpu_card_containers gauge
ebbtide_gpu_card_containers{card="GPU-1"} 3
# HELP ebbtide_gpu_container_held_bytes Memory of a card held by a container.
# TYPE ebbtide_gpu_container_held_bytes gauge
ebbtide_gpu_container_held_bytes{alloc_id="a",card="GPU-1",task="t"} 20
ebbtide_gpu_container_held_bytes{alloc_id="b",card="GPU-1",task="t"} 7
# HELP ebbtide_gpu_containers Containers on cards, by state.
# TYPE ebbtide_gpu_containers gauge
ebbtide_gpu_containers{state="lost"} 0
ebbtide_gpu_containers{state="parked"} 1
ebbtide_gpu_containers{state="running"} 2
ebbtide_gpu_containers{state="waiting"} 0
ebbtide_gpu_containers{state="yielding"} 0
# HELP ebbtide_gpu_denials_total Denied requests for memory of a card: no room possible or too many waiting (memory), or max_wait exceeded (timeout).
# TYPE ebbtide_gpu_denials_total counter
ebbtide_gpu_denials_total{card="GPU-1",reason="memory"} 0
ebbtide_gpu_denials_total{card="GPU-1",reason="timeout"} 0
# HELP ebbtide_gpu_waiting_bytes Memory of a card in waiting requests.
# TYPE ebbtide_gpu_waiting_bytes gauge
ebbtide_gpu_waiting_bytes{card="GPU-1"} 30
`), "ebbtide_gpu_cards", "ebbtide_gpu_card_containers", "ebbtide_gpu_container_held_bytes", "ebbtide_gpu_containers", "ebbtide_gpu_denials_total", "ebbtide_gpu_waiting_bytes"))
	lint, err = testutil.GatherAndLint(m.Registry)
	must.NoError(t, err)
	must.SliceEmpty(t, lint)
}

// A thousand containers come and go, and leave no series behind.
func TestMetrics_thousand(t *testing.T) {
	m := New()
	count := func() int {
		n, err := testutil.GatherAndCount(m.Registry)
		must.NoError(t, err)
		return n
	}
	m.UpdateGate(&Gate{})
	before := count()
	var all []Container
	for i := range 1000 {
		all = append(all, Container{AllocID: fmt.Sprint(i), Task: "t", State: handoff.Running, Uses: []Use{{Card: "GPU-1"}}})
		m.UpdateGate(&Gate{Containers: all[:len(all):len(all)]})
	}
	must.Eq(t, before+3*1000, count())
	m.UpdateGate(&Gate{})
	must.Eq(t, before, count())
}
