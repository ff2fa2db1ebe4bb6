// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

// relocates reports whether a task on node a, whose clock is off by skew, moves to the empty node b.
func relocates(t *testing.T, skew, in time.Duration, cpus float64) bool {
	s, a := small()
	now := time.Now().Add(skew)
	a.Started = now.Add(-time.Minute)
	said := status.Status{Updated: now, Fair: status.Fair{RemainingCPUS: status.Number(cpus), Finish: now.Add(in)}}
	s.nomad = says{statuses: map[string]status.Status{a.ID: said}}
	c := config.Default()
	c.DryRun = true
	s.Reload(c)
	snap := s.snap()
	snap.summaries = map[string]Summary{
		"a": {Node: status.Node{Tasks: 1, Counts: map[string]int{"NL": 1}, RemainingCPUS: 1000, Sized: 1}, At: now}, "b": {},
	}
	s.carryOut(c, snap.relocations())
	s.drain()
	return s.latest[a.Job].text == "not moved now: check: no leader" // the move's own answer
}

// Whether a move pays does not depend on the clock of the task's node.
func TestRelocate_clocks(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, -time.Minute, 0, time.Minute, time.Hour} {
		// 240 CPU-seconds take 65 s on the target, including the move.
		must.False(t, relocates(t, skew, 40*time.Second, 240), must.Sprint(skew))
		must.True(t, relocates(t, skew, 100*time.Second, 240), must.Sprint(skew))
	}
}

// An allocation ends with its last training task; what is unknown of one is unknown of all.
func TestEstimate(t *testing.T) {
	_, a := small()
	now := time.Now()
	training := func(name string, left, most float64, in time.Duration) reading {
		return reading{alloc: a, task: name, status: status.Status{
			Kind: "training", Updated: now, Fair: status.Fair{RemainingCPUS: status.Number(left), CapCores: status.Number(most), Finish: now.Add(in)},
		}}
	}
	soon, late := training("soon", 100, 2, 50*time.Second), training("late", 600, 3, 300*time.Second)
	service := reading{alloc: a, task: "service", status: status.Status{Kind: "service", Fair: status.Fair{RemainingCPUS: status.Unknown()}}}

	for _, all := range [][]reading{{soon, late}, {late, soon, service}} {
		task, why := estimate(all, time.Time{})
		must.Eq(t, "", why)
		must.Eq(t, relocate.Task{ID: a.ID, Node: "a", LeftCPUS: 700, InS: new(300.0), CapCores: 3.5}, task, must.Sprint("200 s with as many cores as each can use"))
	}
	task, why := estimate([]reading{soon}, now.Add(20*time.Second))
	must.Eq(t, "", why)
	must.Eq(t, 30, *task.InS, must.Sprint("its node wrote another status 20 s later"))

	unforeseen := late
	unforeseen.status.Fair.Finish = time.Time{}
	task, why = estimate([]reading{soon, unforeseen}, now)
	must.Eq(t, "", why)
	must.Nil(t, task.InS)

	unknown, old, odd := soon, soon, soon
	unknown.status.Fair.RemainingCPUS = status.Unknown()
	old.status.Updated = now.Add(-time.Hour)
	odd.status.Fair.RemainingCPUS = 1.7e308
	for want, all := range map[string][]reading{
		"its remaining work is unknown (task soon)":                                             {late, unknown},
		"its remaining work is unknown":                                                         {service},
		"the status of task soon is older than 10m0s":                                           {old, late},
		"task soon reports impossible figures: 1.7e+308 CPU-seconds of remaining work, 2 cores": {odd},
	} {
		_, why := estimate(all, now)
		must.Eq(t, want, why)
	}
}

// Whatever one node's figures are, it is ignored with a reason, or its figures are possible; the
// other nodes' inputs are valid in any case.
func TestCollect_anyFigures(t *testing.T) {
	figure := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1000), rapid.SampledFrom([]float64{
		math.NaN(), math.Inf(1), math.MaxFloat64, -math.MaxFloat64, 5e-324, -5, 0, relocate.MaxCPUS, maxGrowth,
	}))
	count := rapid.OneOf(rapid.Int(), rapid.IntRange(0, 9))
	rapid.Check(t, func(t *rapid.T) {
		s, _ := small()
		odd := *s.state.Nodes["b"]
		odd.ID, odd.PoolCores = "odd", figure.Draw(t, "pool")
		s.state.Nodes["odd"] = &odd
		good := growing(2, 0.1).Node
		good.RemainingCPUS, good.Sized = 500, 2
		n := status.Node{
			Tasks: count.Draw(t, "tasks"), Use: status.Number(figure.Draw(t, "use")),
			Counts:    map[string]int{"NL": count.Draw(t, "NL"), "": count.Draw(t, "new")},
			GrowthSum: map[string]status.Number{"NL": status.Number(figure.Draw(t, "growth")), "CL": status.Number(figure.Draw(t, "growth"))},
			SpeCon:    map[string]int{"PC": count.Draw(t, "PC")}, RemainingCPUS: status.Number(figure.Draw(t, "left")), Sized: count.Draw(t, "sized"),
		}
		nodes := s.planner.surveyor.collect([]query{{node: "a", pool: 4, sum: Summary{Node: good}}, {node: "odd", pool: odd.PoolCores, sum: Summary{Node: n}}})
		must.MapContainsKey(t, nodes, "a")
		_, counts := nodes["odd"]
		must.Eq(t, counts, s.planner.surveyor.ignored["odd"] == "")

		snap := s.snap()
		snap.summaries = nodes
		in := relocate.Input{Params: relocate.DefaultParams()}
		for n := range snap.Nodes() {
			if backlog, ok := snap.backlog(n); ok {
				in.Nodes = append(in.Nodes, backlog)
			}
		}
		must.NoError(t, in.Validate())
		for _, l := range snap.nodeLoads().loads {
			for _, g := range []float64{l.NL.Growth, l.WL.Growth, l.CL.Growth} {
				must.Between(t, 0, g, 3*maxGrowth)
			}
			must.Between(t, 0, l.NL.Tasks, 3*relocate.MaxTasks)
		}
		spread, _ := snap.rebalanceInput(time.Unix(1, 0))
		must.NoError(t, spread.Validate())
	})
}

// One node's figures stop no decision about the others, and are logged, counted and explained.
func TestCollect_ignored(t *testing.T) {
	s, _ := small()
	good := growing(2, 0.1)
	all := func(odd status.Node) []query {
		return []query{{node: "a", pool: 4, sum: good}, {node: "b", pool: 4, sum: Summary{Node: odd}}}
	}
	for want, odd := range map[string]status.Node{
		"sized: must be ≥ 0 and ≤ 0, got -5":                     {Sized: -5},
		"remaining_cpu_s: must be ≥ 0 and ≤ 1e+12, got 1.7e+308": {RemainingCPUS: 1.7e308},
		"counts.NL: must be ≥ 0 and ≤ 100000, got -1":            {Counts: map[string]int{"NL": -1}, Sized: -1},
		"specon.PC: must be ≥ 0 and ≤ 100000, got -1":            {SpeCon: map[string]int{"PC": -1}},
		"tasks: must be ≥ 0 and ≤ 100000, got 1e+09":             {Tasks: 1e9},
		"growth_sum.NL: must be ≥ 0 and ≤ 1e+100, got 1e+200":    {GrowthSum: map[string]status.Number{"NL": 1e200}},
	} {
		nodes := s.planner.surveyor.collect(all(odd))
		must.MapContainsKey(t, nodes, "a")
		must.MapNotContainsKey(t, nodes, "b")
		snap := s.snap()
		snap.summaries, snap.ignored = nodes, s.planner.surveyor.ignored
		must.StrContains(t, snap.noSummary("b"), want)
		must.Eq(t, "", snap.unknown(), must.Sprint("SpeCon does not wait for its figures"))
	}
	must.MapContainsKeys(t, s.planner.surveyor.collect(all(good.Node)), []string{"a", "b"})
	must.MapEmpty(t, s.planner.surveyor.ignored)
	must.Zero(t, testutil.ToFloat64(s.metrics.Ignored))
}
