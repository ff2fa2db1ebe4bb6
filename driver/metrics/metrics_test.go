// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/status"
)

func expect(t *testing.T, m *Metrics, text string, names ...string) {
	t.Helper()
	must.NoError(t, testutil.GatherAndCompare(m.Registry, strings.NewReader(text), names...))
}

func TestNode(t *testing.T) {
	m := New()
	lint, err := testutil.GatherAndLint(m.Registry)
	must.NoError(t, err)
	must.SliceEmpty(t, lint)
	unknown := Growth{math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	m.Update(&Node{PoolCores: 4, Interval: 20 * time.Second, Decided: time.UnixMilli(1500), Tasks: []Task{
		{AllocID: "a1", Name: "train", Job: "j", Kind: policy.Training, Category: policy.NL, Limit: 0.5, CPUSeconds: 7, ThrottledSeconds: 2, Ahead: -1, Value: 0.5, Progress: 0.01, Growth: Growth{CPU: 0.02, Memory: math.NaN(), Block: 3, Network: math.NaN()}, Response: math.NaN(), Objective: math.NaN()},
		{AllocID: "a2", Name: "train", Job: "j", Kind: policy.Training, State: policy.Acceptable, Category: policy.NL, Silent: true, Limit: 1, Ahead: math.NaN(), Response: math.NaN(), Objective: math.NaN(), Growth: unknown},
		{AllocID: "a3", Name: "ser\xffve", Job: "k", Kind: policy.Service, Class: policy.Bad, Limit: 1, Ahead: math.NaN(), Response: 0.3, Objective: 0.2, Growth: unknown},
		// An earlier run of the first task, and a later one.
		{AllocID: "a4", Name: "twice", Kind: policy.Training, Limit: 1, CPUSeconds: 100, Ahead: 1, Silent: true, Sized: true, Response: math.NaN(), Growth: unknown},
		{AllocID: "a4", Name: "twice", Kind: policy.Training, Limit: 1, CPUSeconds: 3, Ahead: 2, Silent: true, Sized: true, Response: math.NaN(), Growth: unknown},
	}})
	expect(t, m, `
# HELP ebbtide_driver_task_ahead_cpu_seconds CPU time that a training task has used beyond its fair share; negative: behind it.
# TYPE ebbtide_driver_task_ahead_cpu_seconds gauge
ebbtide_driver_task_ahead_cpu_seconds{alloc_id="a1",task="train"} -1
ebbtide_driver_task_ahead_cpu_seconds{alloc_id="a4",task="twice"} 2
# HELP ebbtide_driver_task_cpu_seconds_total CPU time used by a task.
# TYPE ebbtide_driver_task_cpu_seconds_total counter
ebbtide_driver_task_cpu_seconds_total{alloc_id="a1",task="train"} 7
ebbtide_driver_task_cpu_seconds_total{alloc_id="a2",task="train"} 0
ebbtide_driver_task_cpu_seconds_total{alloc_id="a3",task="ser�ve"} 0
ebbtide_driver_task_cpu_seconds_total{alloc_id="a4",task="twice"} 3
# HELP ebbtide_driver_task_growth Growth efficiency of a training task by resource, as in its status.
# TYPE ebbtide_driver_task_growth gauge
ebbtide_driver_task_growth{alloc_id="a1",resource="block",task="train"} 3
ebbtide_driver_task_growth{alloc_id="a1",resource="cpu",task="train"} 0.02
# HELP ebbtide_driver_service_response_seconds Mean response time of a service in the last interval.
# TYPE ebbtide_driver_service_response_seconds gauge
ebbtide_driver_service_response_seconds{alloc_id="a3",task="ser�ve"} 0.3
# HELP ebbtide_driver_tasks_without_progress Training tasks without a report, by whether their size is known from another source.
# TYPE ebbtide_driver_tasks_without_progress gauge
ebbtide_driver_tasks_without_progress{size="known"} 2
ebbtide_driver_tasks_without_progress{size="unknown"} 1
# HELP ebbtide_driver_last_decision_timestamp_seconds Time of the last decision; 0 before the first.
# TYPE ebbtide_driver_last_decision_timestamp_seconds gauge
ebbtide_driver_last_decision_timestamp_seconds 1.5
`, "ebbtide_driver_task_ahead_cpu_seconds", "ebbtide_driver_task_cpu_seconds_total", "ebbtide_driver_task_growth", "ebbtide_driver_service_response_seconds", "ebbtide_driver_tasks_without_progress", "ebbtide_driver_last_decision_timestamp_seconds")
	families, err := m.Registry.Gather()
	must.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "ebbtide_driver_tasks" {
			must.Len(t, 16, f.Metric) // regardless of the tasks
		}
	}
	lint, err = testutil.GatherAndLint(m.Registry)
	must.NoError(t, err)
	must.SliceEmpty(t, lint)
}

func TestEnded(t *testing.T) {
	m := New()
	m.Ended(status.Ended{Took: 10 * time.Minute, Fair: 11 * time.Minute}, 30, true)
	m.Ended(status.Ended{Took: 10 * time.Minute, Fair: 8 * time.Minute}, -5, true)
	m.Ended(status.Ended{Took: time.Hour, Fair: time.Hour + time.Second}, 1, true)
	m.Ended(status.Ended{Took: time.Hour, Fair: 2 * time.Hour}, 99, false)
	m.LimitWrites.Count(nil)
	m.LimitWrites.Count(errors.New("no"))
	Add(m.CPU, math.NaN())
	Add(m.CPU, math.Inf(1))
	Add(m.CPU, -1)
	Add(m.CPU, 2)
	expect(t, m, `
# HELP ebbtide_driver_cpu_seconds_total CPU time used by tasks, including ended ones.
# TYPE ebbtide_driver_cpu_seconds_total counter
ebbtide_driver_cpu_seconds_total 2
# HELP ebbtide_driver_ended_ahead_cpu_seconds_total CPU time that tasks had used beyond their fair share when they succeeded.
# TYPE ebbtide_driver_ended_ahead_cpu_seconds_total counter
ebbtide_driver_ended_ahead_cpu_seconds_total 31
# HELP ebbtide_driver_finish_difference_seconds_total Sum of the times by which tasks ended earlier or later than with their fair share.
# TYPE ebbtide_driver_finish_difference_seconds_total counter
ebbtide_driver_finish_difference_seconds_total{finish="earlier"} 60
ebbtide_driver_finish_difference_seconds_total{finish="later"} 120
# HELP ebbtide_driver_limit_writes_total Attempts to set a task's limits: ok once the kernel has them.
# TYPE ebbtide_driver_limit_writes_total counter
ebbtide_driver_limit_writes_total{result="failed"} 1
ebbtide_driver_limit_writes_total{result="ok"} 1
# HELP ebbtide_driver_tasks_ended_total Ended tasks: earlier or later than with their fair share, level with it, or without a comparison (none), for example after a failure.
# TYPE ebbtide_driver_tasks_ended_total counter
ebbtide_driver_tasks_ended_total{finish="earlier"} 1
ebbtide_driver_tasks_ended_total{finish="later"} 1
ebbtide_driver_tasks_ended_total{finish="level"} 1
ebbtide_driver_tasks_ended_total{finish="none"} 1
`, "ebbtide_driver_cpu_seconds_total", "ebbtide_driver_ended_ahead_cpu_seconds_total", "ebbtide_driver_finish_difference_seconds_total",
		"ebbtide_driver_limit_writes_total", "ebbtide_driver_tasks_ended_total")
}

// A thousand tasks come and go during scrapes, and leave no series behind.
func TestNode_thousand(t *testing.T) {
	m := New()
	count := func() int {
		n, err := testutil.GatherAndCount(m.Registry, "ebbtide_driver_tasks", "ebbtide_driver_task_info", "ebbtide_driver_task_limit_ratio",
			"ebbtide_driver_task_cpu_seconds_total", "ebbtide_driver_task_throttled_seconds_total", "ebbtide_driver_task_ahead_cpu_seconds")
		must.NoError(t, err)
		return n
	}
	before := count()
	var scrapes sync.WaitGroup
	scrapes.Go(func() {
		for range 20 {
			if _, err := m.Registry.Gather(); err != nil {
				t.Error(err)
			}
		}
	})
	var tasks []Task
	for i := range 1000 {
		tasks = append(tasks, Task{AllocID: fmt.Sprint(i), Name: "train", Kind: policy.Training})
		m.Update(&Node{Tasks: tasks[:len(tasks):len(tasks)]})
	}
	must.Eq(t, before+5*1000, count())
	for i := range tasks {
		m.Update(&Node{Tasks: tasks[i+1:]})
	}
	scrapes.Wait()
	must.Eq(t, before, count())
}
