// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package metrics holds the driver's Prometheus metrics. Gauges and the series of single tasks are
// generated from a Node when scraped. The control loop replaces the Node atomically, so a scrape
// neither waits for the loop nor delays it, and an ended task leaves no series behind.
package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/internal/metricsserver"
)

const subsystem metricsserver.Subsystem = "driver"

// Metrics are the driver's metrics.
type Metrics struct {
	Registry *prometheus.Registry

	Decisions      *prometheus.CounterVec // per task, by policy and rule
	DecisionErrors prometheus.Counter     // snapshots rejected by the policy
	Decide         prometheus.Observer    // seconds per decision
	Tick           prometheus.Observer    // seconds per control pass
	LimitWrites    metricsserver.Results
	CPU            prometheus.Counter // CPU-seconds used by tasks
	Throttled      prometheus.Counter // seconds
	Reports        prometheus.Counter // progress reports
	ReadErrors     prometheus.Counter // failed polls for progress
	EventsSent     prometheus.Counter
	EventsDropped  prometheus.Counter    // replaced before they were due
	EventsFailed   prometheus.Counter    // rejected by Nomad
	Saves          metricsserver.Results // saved checkpoints
	Restores       metricsserver.Results

	ended      *prometheus.CounterVec // tasks, by comparison with their twins
	difference *prometheus.CounterVec // seconds
	ahead      prometheus.Counter     // CPU-seconds
	node       atomic.Pointer[Node]
}

// Results of comparing a task's end with its twin's.
const (
	earlier = "earlier"
	later   = "later"
	level   = "level"
	noTwin  = "none"
)

// New returns metrics at 0.
func New() *Metrics {
	r := subsystem.NewRegistry()
	loop := r.HistogramVec("loop_duration_seconds", "Duration of a step of the control loop: tick, which reads all tasks, or decide.",
		prometheus.ExponentialBuckets(0.0001, 4, 9), "step")
	m := &Metrics{Registry: r.Registry, Decide: loop.WithLabelValues("decide"), Tick: loop.WithLabelValues("tick")}

	m.Decisions = r.CounterVec("decisions_total", "Decisions on a task, by policy and rule.", "policy", "rule")
	m.DecisionErrors = r.Counter("decision_errors_total", "Decisions skipped because of an invalid snapshot.")
	m.LimitWrites = r.Results("limit_writes_total", "Attempts to set a task's limits: ok once the kernel has them.")
	m.CPU = r.Counter("cpu_seconds_total", "CPU time used by tasks, including ended ones.")
	m.Throttled = r.Counter("throttled_seconds_total", "Time for which the kernel throttled tasks, including ended ones.")
	m.Reports = r.Counter("progress_reports_total", "Progress reports read.")
	m.ReadErrors = r.Counter("progress_read_errors_total", "Failed attempts to read a task's progress.")
	events := r.CounterVec("events_total", "Task events: sent, superseded before they were due, or failed.", "result")
	m.EventsSent, m.EventsDropped, m.EventsFailed = events.WithLabelValues("sent"), events.WithLabelValues("superseded"), events.WithLabelValues("failed")
	m.Saves = r.Results("checkpoint_saves_total", "Checkpoints requested for a move.")
	m.Restores = r.Results("checkpoint_restores_total", "Task starts with a checkpoint; failed: another allocation's could not be used.")
	m.ended = r.CounterVec("tasks_ended_total", "Ended tasks: earlier or later than with their fair share, level with it, or without a comparison (none), for example after a failure.", "finish")
	m.difference = r.CounterVec("finish_difference_seconds_total", "Sum of the times by which tasks ended earlier or later than with their fair share.", "finish")
	for _, finish := range []string{earlier, later, level, noTwin} {
		m.ended.WithLabelValues(finish)
	}
	for _, finish := range []string{earlier, later} {
		m.difference.WithLabelValues(finish)
	}
	m.ahead = r.Counter("ended_ahead_cpu_seconds_total", "CPU time that tasks had used beyond their fair share when they succeeded.")
	m.node.Store(&Node{})
	r.MustRegister(collector{&m.node})
	return m
}

// Ended counts an ended task, and the CPU-seconds it used in excess of its twin's. Without a twin
// both are ignored.
func (m *Metrics) Ended(e status.Ended, more float64, twin bool) {
	finish, ahead := level, e.Fair-e.Took
	switch {
	case !twin:
		finish = noTwin
	case e.Level():
	case ahead > 0:
		finish = earlier
	default:
		finish = later
	}
	m.ended.WithLabelValues(finish).Inc()
	if finish == earlier || finish == later {
		m.difference.WithLabelValues(finish).Add(ahead.Abs().Seconds())
	}
	if twin {
		Add(m.ahead, more)
	}
}

// Add adds v to a counter unless it is negative, NaN or infinite.
func Add(c prometheus.Counter, v float64) {
	if v > 0 && !math.IsInf(v, 1) {
		c.Add(v)
	}
}

// Update replaces the node's state. The caller must not change n afterwards.
func (m *Metrics) Update(n *Node) { m.node.Store(n) }

// Node is the state of the node.
type Node struct {
	PoolCores float64
	Interval  time.Duration // between two decisions
	Decided   time.Time     // time of the last decision; zero if none
	Tasks     []Task
}

// Task is a running task.
type Task struct {
	AllocID, Name, Job string
	Kind               policy.Kind
	State              policy.TargetState // of a training task
	Category           policy.Category    // of a training task
	Class              policy.Class       // of a service
	Silent             bool               // a training task without reports
	Sized              bool               // a training task of known size
	Limit              float64            // fraction of the pool; 1 = none
	CPUSeconds         float64
	ThrottledSeconds   float64
	// NaN if unknown.
	Ahead               float64 // of its twin, in CPU-seconds
	Value, Progress     float64 // E and P of a training task
	Growth              Growth
	Response, Objective float64 // of a service, in seconds
}

// Growth is G of a training task by resource (FlowCon, equation 2); NaN if unknown.
type Growth struct{ CPU, Memory, Block, Network float64 }

// collector generates metrics from the node's state.
type collector struct{ node *atomic.Pointer[Node] }

var (
	descPool     = subsystem.Desc("pool_cores", "CPU divided among the tasks.")
	descInterval = subsystem.Desc("interval_seconds", "Time between two decisions.")
	descDecided  = subsystem.Desc("last_decision_timestamp_seconds", "Time of the last decision; 0 before the first.")
	descTasks    = subsystem.Desc("tasks", "Running tasks by kind, target state, and category or class.", "kind", "state", "category")
	descSilent   = subsystem.Desc("tasks_without_progress", "Training tasks without a report, by whether their size is known from another source.", "size")

	descInfo      = subsystem.Desc("task_info", "1 for each running task.", "alloc_id", "task", "nomad_job", "kind")
	descLimit     = subsystem.Desc("task_limit_ratio", "CPU limit of a task, as a fraction of the pool; 1: none.", "alloc_id", "task")
	descCPU       = subsystem.Desc("task_cpu_seconds_total", "CPU time used by a task.", "alloc_id", "task")
	descThrottled = subsystem.Desc("task_throttled_seconds_total", "Time for which the kernel throttled a task.", "alloc_id", "task")
	descValue     = subsystem.Desc("task_value", "Last value of a training task's metric.", "alloc_id", "task")
	descProgress  = subsystem.Desc("task_progress", "Progress of a training task per second, as in its status.", "alloc_id", "task")
	descGrowth    = subsystem.Desc("task_growth", "Growth efficiency of a training task by resource, as in its status.", "alloc_id", "task", "resource")
	descResponse  = subsystem.Desc("service_response_seconds", "Mean response time of a service in the last interval.", "alloc_id", "task")
	descObjective = subsystem.Desc("service_objective_seconds", "Objective of a service's response time.", "alloc_id", "task")
	descAhead     = subsystem.Desc("task_ahead_cpu_seconds", "CPU time that a training task has used beyond its fair share; negative: behind it.", "alloc_id", "task")
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPool, descInterval, descDecided, descTasks, descSilent, descInfo, descLimit, descCPU, descThrottled, descAhead, descValue, descProgress, descGrowth, descResponse, descObjective} {
		ch <- d
	}
}

// group holds the labels by which running tasks are counted.
type group struct{ kind, state, category string }

// groups returns all groups with count 0.
func groups() map[group]int {
	all := make(map[group]int)
	for _, state := range []policy.TargetState{policy.InTraining, policy.Acceptable, policy.Objective} {
		for _, category := range []policy.Category{policy.New, policy.NL, policy.WL, policy.CL} {
			all[Task{Kind: policy.Training, State: state, Category: category}.group()] = 0
		}
	}
	for _, class := range []policy.Class{policy.Unmeasured, policy.Good, policy.Satisfied, policy.Bad} {
		all[Task{Kind: policy.Service, Class: class}.group()] = 0
	}
	return all
}

func (t Task) group() group {
	if t.Kind == policy.Service {
		if t.Class == policy.Unmeasured {
			return group{string(t.Kind), "none", "unmeasured"}
		}
		return group{string(t.Kind), "none", string(t.Class)}
	}
	g := group{string(t.Kind), string(t.State), string(t.Category)}
	if t.State == "" {
		g.state = string(policy.InTraining)
	}
	if t.Category == policy.New {
		g.category = "new"
	}
	return g
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	n := c.node.Load()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descPool, n.PoolCores)
	gauge(descInterval, n.Interval.Seconds())
	decided := 0.0
	if !n.Decided.IsZero() {
		decided = float64(n.Decided.UnixMilli()) / 1e3
	}
	gauge(descDecided, decided)

	counts, silent := groups(), map[bool]int{}
	type key struct{ alloc, name string }
	last := make(map[key]Task) // if two runs of a task overlap, only the later is shown; the earlier is being removed
	for _, t := range n.Tasks {
		counts[t.group()]++
		if t.Silent {
			silent[t.Sized]++
		}
		last[key{metricsserver.Label(t.AllocID), metricsserver.Label(t.Name)}] = t
	}
	for g, v := range counts {
		gauge(descTasks, float64(v), g.kind, g.state, g.category)
	}
	gauge(descSilent, float64(silent[true]), "known")
	gauge(descSilent, float64(silent[false]), "unknown")
	for k, t := range last {
		gauge(descInfo, 1, k.alloc, k.name, metricsserver.Label(t.Job), string(t.Kind))
		gauge(descLimit, t.Limit, k.alloc, k.name)
		ch <- prometheus.MustNewConstMetric(descCPU, prometheus.CounterValue, t.CPUSeconds, k.alloc, k.name)
		ch <- prometheus.MustNewConstMetric(descThrottled, prometheus.CounterValue, t.ThrottledSeconds, k.alloc, k.name)
		known := func(d *prometheus.Desc, v float64, labels ...string) {
			if !math.IsNaN(v) {
				gauge(d, v, append([]string{k.alloc, k.name}, labels...)...)
			}
		}
		known(descAhead, t.Ahead)
		known(descValue, t.Value)
		known(descProgress, t.Progress)
		known(descGrowth, t.Growth.CPU, "cpu")
		known(descGrowth, t.Growth.Memory, "memory")
		known(descGrowth, t.Growth.Block, "block")
		known(descGrowth, t.Growth.Network, "network")
		known(descResponse, t.Response)
		known(descObjective, t.Objective)
	}
}
