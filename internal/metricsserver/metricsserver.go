// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package metricsserver serves a process's Prometheus metrics on the loopback or a Unix socket. It
// cannot harm the process: an address that cannot be opened is logged once and retried, and the
// number and duration of connections are bounded.
package metricsserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

const (
	// maxConnections bounds concurrent connections; further ones wait in the backlog.
	maxConnections = 16
	// readTimeout and writeTimeout bound one request.
	readTimeout, writeTimeout = 5 * time.Second, 10 * time.Second
	// idleTimeout exceeds Prometheus' default interval, so its connection can be reused.
	idleTimeout = 2 * time.Minute
	// firstRetry and lastRetry are the first and the longest delay before an address is retried. A
	// predecessor that is exiting releases the address during the first retries.
	firstRetry, lastRetry = 100 * time.Millisecond, 10 * time.Second
	// quietRetries is the delay from which a failure is logged.
	quietRetries = time.Second
)

// Serve serves /metrics until ctx ends.
func Serve(ctx context.Context, a Address, metrics *prometheus.Registry, log hclog.Logger) {
	if a == (Address{}) {
		return
	}
	log = log.With("metrics_address", a.String())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, Registry: metrics, // it counts the errors
	}))
	warned := false
	for wait := firstRetry; ctx.Err() == nil; wait = min(2*wait, lastRetry) {
		err := serve(ctx, a, mux, log)
		if ctx.Err() == nil && !warned && wait >= quietRetries {
			warned = true
			log.Warn("metrics cannot be served; the plugin keeps running and retries", "error", err)
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
		ErrorLog: log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), // errors of clients
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err = server.Serve(netutil.LimitListener(l, maxConnections))
	return errors.Join(err, server.Close())
}
