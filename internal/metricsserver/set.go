// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metricsserver

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/ebbtide/ebbtide/internal/version"
)

// namespace is the prefix of all metric names.
const namespace = "ebbtide"

// Subsystem is a program's name in its metrics.
type Subsystem string

// Registry creates and registers the metrics of a subsystem.
type Registry struct {
	*prometheus.Registry
	subsystem string
}

// NewRegistry returns a registry with the metrics common to all processes: version, Go runtime and
// process.
func (s Subsystem) NewRegistry() Registry {
	r := Registry{prometheus.NewRegistry(), string(s)}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: r.subsystem, Name: "build_info", Help: "1, with the version.",
		ConstLabels: prometheus.Labels{"version": version.Version, "commit": version.Commit},
	})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Desc describes a metric of a collector.
func (s Subsystem) Desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, string(s), name), help, labels, nil)
}

func (r Registry) Gauge(name, help string) prometheus.Gauge {
	return register(r, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: r.subsystem, Name: name, Help: help}))
}

func (r Registry) Counter(name, help string) prometheus.Counter {
	return r.CounterVec(name, help).WithLabelValues()
}

func (r Registry) CounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: r.subsystem, Name: name, Help: help}, labels))
}

func (r Registry) Histogram(name, help string, buckets []float64) prometheus.Observer {
	return r.HistogramVec(name, help, buckets).WithLabelValues()
}

func (r Registry) HistogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: r.subsystem, Name: name, Help: help, Buckets: buckets}, labels))
}

func register[C prometheus.Collector](r Registry, c C) C {
	r.MustRegister(c)
	return c
}

// Results counts successes and failures.
type Results struct{ ok, failed prometheus.Counter }

// Results returns counters with the label result.
func (r Registry) Results(name, help string) Results {
	c := r.CounterVec(name, help, "result")
	return Results{c.WithLabelValues("ok"), c.WithLabelValues("failed")}
}

// Count increments the counter of successes if err is nil, else that of failures.
func (r Results) Count(err error) {
	if err != nil {
		r.failed.Inc()
		return
	}
	r.ok.Inc()
}

// Label makes s a valid label value.
func Label(s string) string { return strings.ToValidUTF8(s, "�") }
