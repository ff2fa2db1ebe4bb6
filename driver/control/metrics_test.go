// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/metrics"
)

// metric sums a metric's series that have these labels, written a=b.
func (n *node) metric(name string, labels ...string) (sum float64) {
	n.t.Helper()
	families, err := n.c.opts.Metrics.Registry.Gather()
	must.NoError(n.t, err)
	for _, f := range families {
		if f.GetName() != "ebbtide_driver_"+name {
			continue
		}
		for _, m := range f.Metric {
			has := make(map[string]bool)
			for _, l := range m.Label {
				has[l.GetName()+"="+l.GetValue()] = true
			}
			all := true
			for _, l := range labels {
				all = all && has[l]
			}
			switch {
			case !all:
			case f.GetType() == dto.MetricType_HISTOGRAM:
				sum += float64(m.Histogram.GetSampleCount())
			default:
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func TestMetrics(t *testing.T) {
	t.Run("values", bubble(func(t *testing.T) {
		n := newNode(t, nil)
		a, silent := n.task("a"), n.task("silent")
		n.start(a)
		n.start(silent)
		do := behaviour{a: learner(0.05, 1, 0.01), silent: func() (float64, string) { return 0.5, "" }}
		n.seconds(35, do)
		n.pass(2 * time.Second)
		must.Eq(t, 2, n.metric("pool_cores"))
		must.Eq(t, 2, n.metric("tasks", "kind=training", "state=training", "category=NL"))
		must.Eq(t, 2, n.metric("tasks"))
		must.Eq(t, 1, n.metric("tasks_without_progress", "size=unknown"))
		must.Eq(t, 0, n.metric("tasks_without_progress", "size=known"))
		must.Eq(t, 35, n.metric("progress_reports_total"))
		must.Eq(t, 35*1.5, n.metric("cpu_seconds_total"))
		must.Eq(t, 35, n.metric("task_cpu_seconds_total", "alloc_id=alloc-a", "task=a"))
		must.Eq(t, 1, n.metric("task_info", "alloc_id=alloc-a", "nomad_job=job-a", "kind=training"))
		must.Eq(t, n.metric("decisions_total"), n.metric("decisions_total", "policy=flowcon"))
		must.Greater(t, 4, n.metric("decisions_total"))
		must.Greater(t, 0, n.metric("loop_duration_seconds", "step=decide"))
		must.Greater(t, 30, n.metric("loop_duration_seconds", "step=tick"))
		must.Between(t, 0, float64(time.Now().Unix())-n.metric("last_decision_timestamp_seconds"), 2*n.metric("interval_seconds"))
		changed := func(refuse error) { // by another process
			a.mu.Lock()
			defer a.mu.Unlock()
			a.refuse, a.limits.Shares = refuse, 7
		}
		changed(nil)
		n.seconds(15, do)
		must.Eq(t, 1, n.metric("limit_writes_total", "result=ok"))
		must.Eq(t, 0, n.metric("limit_writes_total", "result=failed"))
		changed(errors.New("no"))
		n.seconds(15, do)
		must.Greater(t, 0, n.metric("limit_writes_total", "result=failed"))

		n.remove(a)
		n.remove(silent)
		n.pass(2 * time.Second)
		must.Eq(t, 0, n.metric("tasks"))
		must.Eq(t, 2, n.metric("tasks_ended_total"))
		must.Eq(t, 65*1.5, n.metric("cpu_seconds_total"), must.Sprint("what has ended still counts"))
	}))
	// Figures counted by an earlier process of the plugin are not counted again.
	t.Run("recovered", bubble(func(t *testing.T) {
		n := newNode(t, nil)
		a := n.task("a")
		n.start(a)
		do := behaviour{a: learner(0.05, 1, 0.01)}
		n.seconds(20, do)
		n.restart(func(o *Options) { o.Metrics = metrics.New() }, a)
		n.seconds(5, do)
		n.pass(2 * time.Second)
		must.Between(t, 5, n.metric("cpu_seconds_total"), 7)
		must.Between(t, 5, n.metric("progress_reports_total"), 7)
		must.Eq(t, 25, n.metric("task_cpu_seconds_total"))
	}))
	t.Run("a thousand tasks", bubble(func(t *testing.T) {
		n := newNode(t, nil)
		n.pass(time.Second)
		series := func() int {
			count, err := testutil.GatherAndCount(n.c.opts.Metrics.Registry)
			must.NoError(t, err)
			return count
		}
		wave := func(i int) {
			var tasks []*fake
			for k := range 50 {
				f := n.task(fmt.Sprintf("t%d-%d", i, k))
				n.c.Add(f.Task)
				tasks = append(tasks, f)
			}
			n.pass(2 * time.Second)
			must.Eq(t, 50, n.metric("tasks"))
			for _, f := range tasks {
				n.c.Remove(f.ID, true)
				must.NoError(t, f.log.Close())
			}
			n.pass(2 * time.Second)
		}
		wave(0)
		before := series()
		for i := range 19 {
			wave(i + 1)
		}
		must.Eq(t, before, series())
		must.Eq(t, 1000, n.metric("tasks_ended_total"))
	}))
}
