// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package web serves the shim's metrics and health.
package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ebbtide/ebbtide/internal/metricsserver"
	"github.com/ebbtide/ebbtide/internal/optin"
)

// Metrics are the shim's metrics.
type Metrics struct {
	Registry  *prometheus.Registry
	Leader    prometheus.Gauge       // 1 while this process leads
	Connected prometheus.Gauge       // 1 while the event stream is connected
	Nodes     prometheus.Gauge       // known nodes
	Allocs    prometheus.Gauge       // known allocations that have not ended
	Events    prometheus.Counter     // applied events
	Moves     *prometheus.CounterVec // by policy and result: moved, failed, refused, dry
	Refusals  *prometheus.CounterVec // by reason
	InFlight  prometheus.Gauge
	Down      prometheus.Observer // seconds without a running copy, per move
	Decision  prometheus.Observer // seconds per pass over the cluster
	// LongestStep is the longest step of the loop, in seconds.
	LongestStep prometheus.Gauge
	Held        prometheus.Gauge // jobs held for placement
	Queued      prometheus.Gauge // jobs waiting in the queue, suspended ones included
	QueuedLate  prometheus.Gauge // of these, late ones that no operator holds
	Suspended   prometheus.Gauge // of these, suspended ones
	Orphans     prometheus.Gauge // jobs that are bound without a record of a move
	Unreadable  prometheus.Gauge // records of moves that cannot be read
	Ignored     prometheus.Gauge // nodes with impossible figures
}

// Reasons to refuse a move.
const (
	ReasonClosed  = "closed"  // paused, or outside the windows
	ReasonLimits  = "limits"  // limits on concurrent moves and moves per minute, cooldown, back-off
	ReasonTarget  = "target"  // Nomad would not place the job there
	ReasonGain    = "gain"    // the gain is too small
	ReasonClaimed = "claimed" // another process moves the job
	ReasonJob     = "job"     // the job cannot be moved
)

// NewMetrics returns metrics at 0.
func NewMetrics() *Metrics {
	r := metricsserver.Subsystem("shim").NewRegistry()
	m := &Metrics{
		Registry:  r.Registry,
		Leader:    r.Gauge("leader", "1 while this shim is the leader."),
		Connected: r.Gauge("connected", "1 while the shim receives the cluster's events."),
		Nodes:     r.Gauge("nodes", "Nodes of the cluster."),
		Allocs:    r.Gauge("allocations", "Allocations that have not ended."),
		Events:    r.Counter("events_total", "Nomad events applied."),
		Moves:     r.CounterVec("moves_total", "Moves, by policy and result.", "policy", "result"),
		Refusals:  r.CounterVec("refusals_total", "Moves that a policy proposed and that were not made, by reason.", "reason"),
		InFlight:  r.Gauge("moves_in_flight", "Moves in progress."),
		Down:      r.Histogram("move_down_seconds", "Downtime of a moved task.", []float64{0.5, 1, 2, 5, 10, 30, 60, 300}),
		Decision:  r.Histogram("decision_seconds", "Duration of a reconcile pass.", prometheus.ExponentialBuckets(0.001, 4, 8)),

		LongestStep: r.Gauge("loop_longest_step_seconds", "Longest step of the control loop so far."),
		Held:        r.Gauge("jobs_held", "Jobs held until they are placed."),
		Queued:      r.Gauge("jobs_queued", "Jobs waiting in the queue."),
		QueuedLate:  r.Gauge("jobs_queued_late", "Late jobs waiting in the queue, without those on hold."),
		Suspended:   r.Gauge("jobs_suspended", "Suspended jobs waiting in the queue."),
		Orphans:     r.Gauge("jobs_bound_without_move", "Jobs bound to a node without a move in progress."),
		Unreadable:  r.Gauge("records_unreadable", "Records of moves that this shim cannot read."),
		Ignored:     r.Gauge("nodes_ignored", "Nodes ignored because of impossible figures."),
	}
	// Create all series at 0, so that the first event is an increase.
	for _, policy := range optin.All() {
		for _, result := range []string{"moved", "failed", "refused"} {
			m.Moves.WithLabelValues(policy, result)
		}
	}
	for _, reason := range []string{ReasonClosed, ReasonLimits, ReasonTarget, ReasonGain, ReasonClaimed, ReasonJob} {
		m.Refusals.WithLabelValues(reason)
	}
	return m
}

// shutdownTimeout bounds the server's shutdown.
const shutdownTimeout = 5 * time.Second

// Serve serves /metrics and /health until ctx ends. /health reports the error of healthy.
func Serve(ctx context.Context, address string, m *Metrics, healthy func() error) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serving metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if err := healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: shutdownTimeout}
	defer context.AfterFunc(ctx, func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = server.Shutdown(stop)
	})()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}
