// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ebbtide/ebbtide/e2e/trainer/style"
)

// site is an HTTP server.
type site struct {
	server  *http.Server
	address string // with the actual port
	ended   chan error
}

func startSite(address string, h http.Handler) (*site, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &site{
		server:  &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)},
		address: l.Addr().String(), ended: make(chan error, 1),
	}
	go func() { s.ended <- s.server.Serve(l) }()
	return s, nil
}

func (s *site) close() {
	if s != nil {
		_ = s.server.Close()
		<-s.ended
	}
}

func metricsHandler(r *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}

// gauges are a run's figures. One without a value is omitted, as a scrape would read 0.
type gauges struct {
	registry *prometheus.Registry
	made     map[string]prometheus.Gauge
}

func newGauges() *gauges {
	return &gauges{registry: prometheus.NewRegistry(), made: map[string]prometheus.Gauge{}}
}

func (g *gauges) set(name, help string, value float64) {
	made := g.made[name]
	if made == nil {
		made = prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		made.Set(value)
		g.registry.MustRegister(made) // names are unique
		g.made[name] = made
	}
	made.Set(value)
}

func (g *gauges) report(run style.Run, r style.Report) {
	if run.Metric != style.Accuracy {
		g.set("train_loss", "Loss of the held-out part.", r.Loss)
	}
	if run.Metric != style.Loss {
		g.set("train_accuracy", "Share of right classes in the held-out part.", r.Accuracy)
	}
	g.set("train_step", "Steps done.", float64(r.Step))
	g.set("train_epoch", "Epochs done.", float64(r.Step)/float64(run.PerEpoch))
	g.set("train_learning_rate", "Learning rate of the next step.", r.Rate)
}

// outlets are destinations of reports in addition to the output.
type outlets struct {
	run    style.Run
	file   func(style.Report) error
	gauges *gauges
	failed bool // a write failed
}

func (o *outlets) report(r style.Report) error {
	if o.gauges != nil {
		o.gauges.report(o.run, r)
	}
	if o.file == nil {
		return nil
	}
	err := o.file(r)
	if err == nil || o.failed {
		return nil
	}
	o.failed = true
	return fmt.Errorf("failed to write -progress-file, as others may that follow: %w", err)
}
