// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
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
	if !t.synced || !t.pauseKnown {
		return
	}
	t.recover()
	held := t.heldJobs()
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
	if t.explaining.due(explainEvery) {
		t.explaining.done()
		for keys := range slices.Chunk(slices.Collect(maps.Keys(t.state.Jobs)), jobChunk) {
			t.enqueue(func() { t.explainJobs(c, keys) })
		}
	}
	moves := t.suspended(c) == ""
	relocate := moves && c.Relocation.Enabled && t.relocation.due(max(c.Relocation.Interval, time.Duration(len(t.state.Nodes))*surveyPerNode)) && t.anyMovable()
	rebalance := moves && c.Rebalance.Enabled && t.rebalancing.due(c.Rebalance.Interval)
	var young, asking []*cluster.Alloc
	if moves {
		t.enqueue(func() { young = t.newlyStarted(c) })
		t.enqueue(func() { asking = t.requesting(c) })
	}
	t.enqueue(func() {
		if len(held)+len(young)+len(asking) == 0 && !relocate && !rebalance {
			return
		}
		t.survey(func(nodes map[string]Summary) {
			if len(held)+len(young) > 0 {
				t.place(c, held, young, nodes)
			}
			if relocate {
				t.relocate(c, nodes)
			}
			if len(asking) > 0 {
				t.migrate(c, asking, nodes)
			}
			if rebalance {
				t.rebalance(c, nodes)
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
				then(t.nodes)
			}
		})
	})
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
	over := func(key cluster.JobKey) bool { return gone(key) || t.state.Completed[key] }
	for _, key := range t.journal.forget(over) {
		t.gate.Forget(key)
	}
	t.forgetReasons(over)
	clear(t.state.Completed)
	t.expireRejections()
	maps.DeleteFunc(t.unbound, func(key cluster.JobKey, _ uint64) bool { return gone(key) })
	maps.DeleteFunc(t.placed, func(id string, _ bool) bool { return t.state.Allocs[id] == nil })
}

// group returns an allocation's group if the policy may move it.
func (t *term) group(a *cluster.Alloc, policy string) (cluster.Group, bool) {
	j := t.state.Jobs[a.Job]
	if j == nil || j.Stopped || j.Template || j.Child || !a.Running || a.Stopping {
		return cluster.Group{}, false
	}
	g, ok := j.Groups[a.Group]
	return g, ok && g.Movable && g.Count == 1 && slices.Contains(j.Migrates, policy)
}

// blocked returns why a move of the allocation may not start now, "" if it may.
func (t *term) blocked(a *cluster.Alloc, to string) string {
	own := time.Duration(0)
	if j := t.state.Jobs[a.Job]; j != nil {
		own = j.Cooldown
	}
	return t.gate.Blocked(time.Now(), a.Job, own, a.Node, to)
}

// feasible reports whether Nomad would place the group on the node, as far as the shim knows.
func (t *term) feasible(n *cluster.Node, j *cluster.Job, g cluster.Group, asks cluster.Resources) bool {
	if n == nil || !n.Schedulable || n.PoolCores == 0 || j.Pool != api.NodePoolAll && n.Pool != j.Pool {
		return false
	}
	for _, d := range g.Drivers {
		if !n.Drivers[d] {
			return false
		}
	}
	if g.Engine != "" && n.Engine != "" && g.Engine != n.Engine {
		return false // a task cannot run under the other engine
	}
	in := slices.ContainsFunc(j.Datacenters, func(pattern string) bool {
		ok, err := path.Match(pattern, n.Datacenter)
		return ok && err == nil
	})
	return in && asks.Fits(t.state.Free(n))
}

// readable replaces node IDs by node names.
func (t *term) readable(text string) string {
	return nodeID.ReplaceAllStringFunc(text, t.name)
}

var nodeID = regexp.MustCompile(`[0-9a-f]{4,}(-[0-9a-f]{4,})+`)

func (t *term) name(node string) string {
	if n := t.state.Nodes[node]; n != nil && n.Name != "" {
		return n.Name
	}
	return node
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
