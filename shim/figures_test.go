// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/rebalance"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

// relocates reports whether a task on node a, whose clock is off by skew, moves to the empty node b.
func relocates(t *testing.T, skew, in time.Duration, cpus float64) bool {
	s, a := small()
	now := time.Now().Add(skew)
	a.Started = now.Add(-time.Minute)
	s.state = cluster.FromListing(cluster.Listing{
		Nodes: slices.Collect(maps.Values(s.state.Nodes)), Jobs: slices.Collect(maps.Values(s.state.Jobs)), Allocs: []*cluster.Alloc{a},
	})
	said := status.Status{Updated: now, Fair: status.Fair{RemainingCPUS: status.Number(cpus), Finish: now.Add(in)}}
	s.synced, s.nomad = true, says{statuses: map[string]status.Status{a.ID: said}}
	c := config.Default()
	c.DryRun = true
	s.relocator.relocate(c, map[string]Summary{
		"a": {Node: status.Node{Tasks: 1, Counts: map[string]int{"NL": 1}, RemainingCPUS: 1000, Sized: 1}, At: now}, "b": {},
	})
	s.decided()
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
		s, a := small()
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
		nodes := s.surveyor.collect([]query{{node: "a", pool: 4, sum: Summary{Node: good}}, {node: "odd", pool: odd.PoolCores, sum: Summary{Node: n}}})
		must.MapContainsKey(t, nodes, "a")
		_, counts := nodes["odd"]
		must.Eq(t, counts, s.surveyor.ignored["odd"] == "")

		in := relocate.Input{Nodes: s.backlogs(s.state.NodeIDs(), nodes), Params: relocate.DefaultParams()}
		must.NoError(t, in.Validate())
		for _, l := range s.placer.nodeLoads(s.state.NodeIDs(), nodes) {
			for _, g := range []float64{l.load.NL.Growth, l.load.WL.Growth, l.load.CL.Growth} {
				must.Between(t, 0, g, 3*maxGrowth)
			}
			must.Between(t, 0, l.load.NL.Tasks, 3*relocate.MaxTasks)
		}
		rebalanced := rebalance.Input{NowS: 1}
		s.rebalancer.rebalanceInput(config.Default(), s.state.NodeIDs(), nodes, &rebalanced, map[string]*cluster.Alloc{a.ID: a})
		must.NoError(t, rebalanced.Validate())
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
		nodes := s.surveyor.collect(all(odd))
		must.MapContainsKey(t, nodes, "a")
		must.MapNotContainsKey(t, nodes, "b")
		must.StrContains(t, s.noSummary("b"), want)
		must.Eq(t, "", s.migrator.unknown(nodes), must.Sprint("SpeCon does not wait for its figures"))
	}
	must.MapContainsKeys(t, s.surveyor.collect(all(good.Node)), []string{"a", "b"})
	must.MapEmpty(t, s.surveyor.ignored)
	must.Zero(t, testutil.ToFloat64(s.metrics.Ignored))
}
