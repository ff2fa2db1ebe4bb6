// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package metricsserver serves a process's own Prometheus metrics where only its machine
// can read them. It never hurts the process: an address that cannot be opened is logged
// once and tried again, and clients are bounded in number and time.
package metricsserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/ebbtide/ebbtide/version"
)

// Namespace begins the names of all our metrics.
const Namespace = "ebbtide"

// NewRegistry returns a registry with what every process exports: its version, and the
// figures of the Go runtime and of the process.
func NewRegistry(subsystem string) *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: Namespace, Subsystem: subsystem, Name: "build_info", Help: "1, with the version.",
		ConstLabels: prometheus.Labels{"version": version.Version, "commit": version.Commit},
	})
	build.Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

const (
	// maxConnections bounds the clients that are served at a time. Others wait.
	maxConnections = 16
	// readTimeout and writeTimeout bound one request.
	readTimeout, writeTimeout = 5 * time.Second, 10 * time.Second
	// idleTimeout is longer than Prometheus' usual interval, so that it keeps its connection.
	idleTimeout = 2 * time.Minute
	// firstRetry and lastRetry are the first and the longest wait before an address is
	// tried again. A process that is replaced leaves it within the first ones.
	firstRetry, lastRetry = 100 * time.Millisecond, 10 * time.Second
	// quietRetries is how long nothing is logged about it.
	quietRetries = time.Second
)

// Serve serves metrics until ctx ends. It returns then.
func Serve(ctx context.Context, a Address, metrics *prometheus.Registry, log hclog.Logger) {
	if a == (Address{}) {
		return
	}
	log = log.With("metrics_address", a.String())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, Registry: metrics, // which counts the errors
	}))
	warned := false
	for wait := firstRetry; ctx.Err() == nil; wait = min(2*wait, lastRetry) {
		err := serve(ctx, a, mux, log)
		if ctx.Err() == nil && !warned && wait >= quietRetries {
			warned = true
			log.Warn("metrics cannot be served; everything else goes on, and the address is tried again", "error", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// serve serves until ctx ends, or returns why it cannot.
func serve(ctx context.Context, a Address, handler http.Handler, log hclog.Logger) error {
	l, err := a.listen(ctx)
	if err != nil {
		return err
	}
	log.Info("metrics are served")
	server := &http.Server{
		Handler: handler, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), // of clients
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err = server.Serve(netutil.LimitListener(l, maxConnections))
	return errors.Join(err, server.Close())
}
