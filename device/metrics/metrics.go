// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package metrics holds the GPU plugin's Prometheus metrics. Gauges and the series of single
// containers are generated from the state of cards and gate when scraped. The plugin replaces that
// state atomically, so a scrape never takes the gate's lock, and a container that has left leaves
// no series behind.
package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/internal/metricsserver"
)

const subsystem metricsserver.Subsystem = "gpu"

// Health is whether a card can be shared, or why it cannot.
type Health string

// The states of a card.
const (
	Healthy     Health = "healthy"
	Faulty      Health = "faulty"       // reported by the card or its driver
	Missing     Health = "missing"      // no longer found
	MIG         Health = "mig"          // divided by MIG
	ComputeMode Health = "compute_mode" // forbidden by its compute mode
	NotShared   Health = "not_shared"   // no gate, or no preload library
)

// Metrics are the plugin's metrics.
type Metrics struct {
	Registry *prometheus.Registry

	Wait        prometheus.Observer // seconds until a request was granted
	Parkings    metricsserver.Results
	Park        prometheus.Observer // seconds
	Restores    metricsserver.Results
	Restore     prometheus.Observer // seconds
	Kills       prometheus.Counter  // of containers that lost their memory
	Faults      prometheus.Counter  // connections closed because of a client's error
	Rejected    prometheus.Counter  // connections in excess of a container's bound
	grants      *prometheus.CounterVec
	grantsBytes *prometheus.CounterVec
	denials     *prometheus.CounterVec

	cards atomic.Pointer[[]Card]
	gate  atomic.Pointer[Gate]
}

// Requests counts the requests for a card's memory.
type Requests struct {
	Granted, GrantedBytes prometheus.Counter
	Denied                prometheus.Counter // for reasons other than max_wait
	TooLong               prometheus.Counter
}

// New returns metrics at 0.
func New() *Metrics {
	r := subsystem.NewRegistry()
	m := &Metrics{Registry: r.Registry}
	m.grants = r.CounterVec("grants_total", "Granted requests for memory of a card.", "card")
	m.grantsBytes = r.CounterVec("granted_bytes_total", "Memory of a card granted.", "card")
	m.denials = r.CounterVec("denials_total", "Denied requests for memory of a card: no room possible or too many waiting (memory), or max_wait exceeded (timeout).", "card", "reason")
	m.Wait = r.Histogram("request_wait_seconds", "Wait of granted requests.", []float64{0.001, 0.01, 0.1, 1, 5, 15, 60, 300, 900, 3600})
	seconds := prometheus.ExponentialBuckets(0.05, 2.5, 9) // to 76 s
	m.Parkings = r.Results("parkings_total", "Attempts to park a container.")
	m.Park = r.Histogram("park_duration_seconds", "Duration of moving a container's memory to the host.", seconds)
	m.Restores = r.Results("restores_total", "Attempts to restore a container.")
	m.Restore = r.Histogram("restore_duration_seconds", "Duration of moving a container's memory back.", seconds)
	m.Kills = r.Counter("kills_total", "Containers killed because their memory could not be restored.")
	m.Faults = r.Counter("gate_faults_total", "Gate connections closed because of a client error.")
	m.Rejected = r.Counter("gate_rejected_connections_total", "Gate connections rejected because the container had too many.")
	m.cards.Store(&[]Card{})
	r.MustRegister(collector{m})
	return m
}

// Requests returns the counters of requests for a card's memory.
func (m *Metrics) Requests(card string) Requests {
	return Requests{
		m.grants.WithLabelValues(card), m.grantsBytes.WithLabelValues(card),
		m.denials.WithLabelValues(card, "memory"), m.denials.WithLabelValues(card, "timeout"),
	}
}

// UpdateCards replaces the state of the cards. The caller must not change it afterwards.
func (m *Metrics) UpdateCards(all []Card) { m.cards.Store(&all) }

// UpdateGate replaces the state of the gate. The caller must not change it afterwards.
func (m *Metrics) UpdateGate(g *Gate) { m.gate.Store(g) }

// Card is a card's state, from NVML.
type Card struct {
	UUID, Model, Driver string
	Health              Health
}

// Gate is the state of the gate.
type Gate struct {
	At          time.Time
	Parking     bool // parking is supported
	Connections int
	Memory      []Memory
	Containers  []Container
}

// Memory is a card's memory, in bytes.
type Memory struct {
	Card                                                           string
	Physical, Free, Committed, Overhead, Expected, Outside, Parked uint64
}

// Container is a container that uses cards.
type Container struct {
	AllocID, Task string // without an allocation, Task still identifies it
	State         handoff.State
	Uses          []Use
}

// Use is a container's use of a card, in bytes.
type Use struct {
	Card                string
	Share, Held, Parked uint64
	Waiting             int // requests
	WaitingBytes        uint64
}

var (
	descCards   = subsystem.Desc("cards", "Cards by health: healthy, or why they cannot be shared.", "state")
	descInfo    = subsystem.Desc("card_info", "1 for each card.", "card", "model", "driver_version")
	descHealthy = subsystem.Desc("card_healthy", "1 while a card can be shared.", "card")
	descOpen    = subsystem.Desc("gate_open", "1 while the gate is open.")
	descUpdated = subsystem.Desc("gate_timestamp_seconds", "Time at which the gate's metrics were last updated; 0 before it is open.")

	descParking     = subsystem.Desc("parking_available", "1 while containers can be parked.")
	descConnections = subsystem.Desc("gate_connections", "Gate connections.")
	descPhysical    = subsystem.Desc("memory_bytes", "Memory of a card.", "card")
	descFree        = subsystem.Desc("memory_free_bytes", "Memory of a card that can be granted now.", "card")
	descCommitted   = subsystem.Desc("memory_committed_bytes", "Memory of a card granted and not released.", "card")
	descOverhead    = subsystem.Desc("memory_overhead_bytes", "Memory of a card that the driver adds to grants.", "card")
	descExpected    = subsystem.Desc("memory_expected_bytes", "Memory of a card reserved for disconnected processes.", "card")
	descOutside     = subsystem.Desc("memory_outside_bytes", "Memory of a card held by processes unknown to the gate.", "card")
	descParked      = subsystem.Desc("memory_parked_bytes", "Memory of a card parked in host memory.", "card")
	descWaiting     = subsystem.Desc("waiting_requests", "Requests waiting for memory of a card.", "card")
	descWaitBytes   = subsystem.Desc("waiting_bytes", "Memory of a card in waiting requests.", "card")
	descOnCard      = subsystem.Desc("card_containers", "Containers on a card.", "card")
	descContainers  = subsystem.Desc("containers", "Containers on cards, by state.", "state")

	descShare      = subsystem.Desc("container_share_bytes", "Share of a container on a card.", "card", "alloc_id", "task")
	descHeld       = subsystem.Desc("container_held_bytes", "Memory of a card held by a container.", "card", "alloc_id", "task")
	descHeldParked = subsystem.Desc("container_parked_bytes", "Memory of a container parked in host memory.", "card", "alloc_id", "task")
)

// collector generates metrics from the state of cards and gate.
type collector struct{ *Metrics }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descCards, descInfo, descHealthy, descOpen, descUpdated, descParking, descConnections,
		descPhysical, descFree, descCommitted, descOverhead, descExpected, descOutside, descParked,
		descWaiting, descWaitBytes, descOnCard, descContainers, descShare, descHeld, descHeldParked,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	states := map[Health]int{Healthy: 0, Faulty: 0, Missing: 0, MIG: 0, ComputeMode: 0, NotShared: 0}
	for _, k := range *c.cards.Load() {
		states[k.Health]++
		gauge(descInfo, 1, k.UUID, metricsserver.Label(k.Model), metricsserver.Label(k.Driver))
		gauge(descHealthy, number(k.Health == Healthy), k.UUID)
	}
	for state, n := range states {
		gauge(descCards, float64(n), string(state))
	}

	g := c.gate.Load()
	gauge(descOpen, number(g != nil))
	if g == nil {
		gauge(descUpdated, 0)
		return
	}
	gauge(descUpdated, float64(g.At.UnixMilli())/1e3)
	gauge(descParking, number(g.Parking))
	gauge(descConnections, float64(g.Connections))
	type use struct {
		Use
		containers int
	}
	onCard := make(map[string]use)
	type owner struct{ card, alloc, task string }
	owners := make(map[owner]Use) // two runs of a task may overlap
	containers := map[handoff.State]int{handoff.Running: 0, handoff.Waiting: 0, handoff.Yielding: 0, handoff.Parked: 0, handoff.Lost: 0}
	for _, k := range g.Containers {
		containers[k.State]++
		for _, u := range k.Uses {
			on := onCard[u.Card]
			on.containers++
			on.Use = on.plus(u)
			onCard[u.Card] = on
			o := owner{u.Card, metricsserver.Label(k.AllocID), metricsserver.Label(k.Task)}
			owners[o] = owners[o].plus(u)
		}
	}
	for _, m := range g.Memory {
		gauge(descPhysical, float64(m.Physical), m.Card)
		gauge(descFree, float64(m.Free), m.Card)
		gauge(descCommitted, float64(m.Committed), m.Card)
		gauge(descOverhead, float64(m.Overhead), m.Card)
		gauge(descExpected, float64(m.Expected), m.Card)
		gauge(descOutside, float64(m.Outside), m.Card)
		gauge(descParked, float64(m.Parked), m.Card)
		on := onCard[m.Card]
		gauge(descWaiting, float64(on.Waiting), m.Card)
		gauge(descWaitBytes, float64(on.WaitingBytes), m.Card)
		gauge(descOnCard, float64(on.containers), m.Card)
	}
	for state, n := range containers {
		gauge(descContainers, float64(n), string(state))
	}
	for o, u := range owners {
		gauge(descShare, float64(u.Share), o.card, o.alloc, o.task)
		gauge(descHeld, float64(u.Held), o.card, o.alloc, o.task)
		gauge(descHeldParked, float64(u.Parked), o.card, o.alloc, o.task)
	}
}

func (u Use) plus(v Use) Use {
	return Use{v.Card, u.Share + v.Share, u.Held + v.Held, u.Parked + v.Parked, u.Waiting + v.Waiting, u.WaitingBytes + v.WaitingBytes}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
