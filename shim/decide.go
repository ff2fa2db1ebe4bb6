// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
)

// reconcile is one pass over the cluster.
func (t *term) reconcile() {
	c := t.now()
	t.readPause()
	if !t.synced {
		return
	}
	t.recovery.recover()
	if !t.pauseKnown {
		return
	}
	held := t.placer.heldJobs()
	t.metrics.Held.Set(float64(len(held)))
	t.report(c, held)
	if t.deciding == 0 && len(t.steps) == 0 { // otherwise t.urgent stays set for a later pass
		t.urgent = false
		t.decide(c, held)
	}
}

// decide surveys the nodes if any decision needs it, then runs the policies. Each scan of all
// allocations or a chunk of nodes is a separate step.
func (t *term) decide(c config.Config, held []*cluster.Job) {
	begun := time.Now()
	t.gate.SetLimits(c.Limits)
	t.metrics.Nodes.Set(float64(len(t.state.Nodes)))
	t.metrics.Allocs.Set(float64(len(t.state.Allocs)))
	if !c.DryRun {
		clear(t.journal.dryRun)
	}
	t.forget()
	if t.scan.due(max(scanInterval, time.Duration(len(t.state.Jobs))*scanPerJob)) {
		t.scan.done()
		for keys := range slices.Chunk(slices.Collect(maps.Keys(t.latest)), jobChunk) {
			t.enqueue(func() { t.forgetReasons(keys) })
		}
		for keys := range slices.Chunk(slices.Collect(maps.Keys(t.state.Jobs)), jobChunk) {
			t.enqueue(func() { t.explainJobs(c, keys) })
		}
	}
	waiting := t.queuer.take(c, &held)
	moves := t.closed(c) == ""
	relocate := moves && c.Relocation.Enabled && t.relocator.due(max(c.Relocation.Interval, time.Duration(len(t.state.Nodes))*surveyPerNode)) && t.relocator.anyMovable()
	rebalance := moves && c.Rebalance.Enabled && t.rebalancer.due(c.Rebalance.Interval)
	var young, asking []*cluster.Alloc
	if moves {
		t.enqueue(func() { young = t.placer.newlyStarted(c) })
		t.enqueue(func() { asking = t.migrator.requesting(c) })
	}
	if len(waiting)+len(t.queuer.jobs)+len(t.orders.Jobs) > 0 {
		t.enqueue(func() { t.queuer.pass(c, waiting) })
	}
	t.enqueue(func() {
		if len(held)+len(young)+len(asking) == 0 && !relocate && !rebalance {
			return
		}
		t.survey(func(nodes map[string]Summary) {
			if len(held)+len(young) > 0 {
				t.placer.place(c, held, young, nodes)
			}
			if relocate {
				t.relocator.relocate(c, nodes)
			}
			if len(asking) > 0 {
				t.migrator.migrate(c, asking, nodes)
			}
			if rebalance {
				t.rebalancer.rebalance(c, nodes)
			}
			t.enqueue(func() { t.metrics.Decision.Observe(time.Since(begun).Seconds()) })
		})
	})
}

// survey reads all nodes' summaries, then calls then.
func (t *term) survey(then func(map[string]Summary)) {
	var all []query
	t.eachNodeChunk(func(ids []string) { all = append(all, t.surveyor.queries(t.state, ids)...) }, func() {
		t.fetch(func() func() {
			t.surveyor.run(t.leading, all)
			return func() {
				t.nodes = t.surveyor.collect(all)
				t.metrics.Ignored.Set(float64(len(t.surveyor.ignored)))
				then(t.nodes)
			}
		})
	})
}

// noSummary says why a node has no summary.
func (t *term) noSummary(node string) string {
	if why := t.surveyor.ignored[node]; why != "" {
		return "its node is ignored: its driver reports impossible figures: " + why
	}
	return "its node has no summary"
}

const (
	nodeChunk = 500
	jobChunk  = 2000
)

// eachNodeChunk calls do with all nodes, sorted, one chunk per step of the loop, then calls then.
func (t *term) eachNodeChunk(do func(ids []string), then func()) {
	for ids := range slices.Chunk(t.state.NodeIDs(), nodeChunk) {
		t.enqueue(func() { do(ids) })
	}
	t.enqueue(then)
}

// forget drops removed and completed jobs: a job that runs again may be moved again.
func (t *term) forget() {
	gone := func(key cluster.JobKey) bool {
		j := t.state.Jobs[key]
		return j == nil || j.Stopped
	}
	// The allocation of a suspended job is complete, the job is not.
	over := func(key cluster.JobKey) bool {
		return gone(key) || t.state.Completed[key] && !t.state.Jobs[key].Held
	}
	for _, key := range t.journal.forget(over) {
		t.gate.Forget(key)
	}
	for key := range t.state.Completed {
		delete(t.latest, key)
	}
	clear(t.state.Completed)
	t.expireRejections()
	maps.DeleteFunc(t.recovery.unbound, func(key cluster.JobKey, _ uint64) bool { return gone(key) })
	maps.DeleteFunc(t.placer.decided, func(id string, _ bool) bool { return t.state.Allocs[id] == nil })
}

// apiAlloc returns the fields that Nomad's API needs to access the allocation's files.
func apiAlloc(a *cluster.Alloc) *api.Allocation {
	return &api.Allocation{ID: a.ID, NodeID: a.Node, Namespace: a.Job.Namespace}
}

// known returns the number, 0 if unknown.
func known(n status.Number) float64 {
	if !n.Known() {
		return 0
	}
	return float64(n)
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// text encodes scores as JSON, or only their number if there are too many to store.
func text(scores map[string]float64) string {
	const most = 4096 // bytes
	const least = len(`"a":1,`)
	var data []byte
	if len(scores) <= most/least { // do not encode what cannot fit
		var err error
		if data, err = json.Marshal(scores); err != nil {
			return ""
		}
	}
	if data == nil || len(data) > most {
		return fmt.Sprintf("%d nodes", len(scores))
	}
	return string(data)
}
