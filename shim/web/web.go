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

// Metrics are the shim's figures.
type Metrics struct {
	Registry  *prometheus.Registry
	Leader    prometheus.Gauge       // 1 while this process acts
	Connected prometheus.Gauge       // 1 while the cluster is followed
	Nodes     prometheus.Gauge       // that are known
	Allocs    prometheus.Gauge       // that are known, and not over
	Events    prometheus.Counter     // that were applied
	Moves     *prometheus.CounterVec // by policy and result: moved, failed, refused, dry
	Refusals  *prometheus.CounterVec // by reason
	InFlight  prometheus.Gauge
	Down      prometheus.Observer // seconds in which nothing ran, of moves
	Decision  prometheus.Observer // seconds that a look at the cluster takes
	// LongestStep is how long the loop was busy with one thing at most, in seconds.
	LongestStep prometheus.Gauge
	Waiting     prometheus.Gauge // jobs that wait for a node
	Orphans     prometheus.Gauge // jobs that are bound without a record of a move
}

// The reasons for which a move is refused.
const (
	ReasonClosed  = "closed"  // paused, or outside of the windows
	ReasonLimits  = "limits"  // of moves at a time or a minute, cooldown, back-off
	ReasonTarget  = "target"  // Nomad would not place it there
	ReasonGain    = "gain"    // it does not pay
	ReasonClaimed = "claimed" // somebody else moves it
	ReasonJob     = "job"     // it cannot be moved
)

// NewMetrics returns metrics that are 0.
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
		Waiting:     r.Gauge("jobs_waiting", "Jobs held until they are placed."),
		Orphans:     r.Gauge("jobs_bound_without_move", "Jobs bound to a node without a move in progress."),
	}
	// What has not happened yet is 0, so that its first time is a rise.
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

// shutdownTimeout bounds the end of the server.
const shutdownTimeout = 5 * time.Second

// Serve serves /metrics and /health until ctx ends. Healthy says what is wrong, if
// anything is.
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
