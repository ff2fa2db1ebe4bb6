// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
)

// decide looks for what is to be moved.
func (t *term) decide(ctx context.Context, c config.Config) {
	if !c.DryRun {
		clear(t.tried)
	}
	t.forget(ctx)
	t.recover()
	// The nodes are asked when somebody wants to know, and then once.
	summaries := sync.OnceValue(func() map[string]Summary { return t.summaries(ctx) })
	t.release(ctx, c, summaries)
	if c.Relocation.Enabled {
		t.relocate(ctx, c, summaries)
	}
	if c.Placement.Enabled {
		t.place(ctx, c, summaries)
	}
	if c.Migration.Enabled {
		t.migrate(ctx, c, summaries)
	}
	if c.Rebalance.Enabled && time.Since(t.rebalanced) >= c.Rebalance.Interval {
		t.rebalanced = time.Now()
		t.rebalance(ctx, c, summaries)
	}
}

// forget drops jobs that are no more or have completed: one that is run again may be moved
// again.
func (t *term) forget(ctx context.Context) {
	gone := func(key cluster.JobKey) bool {
		j := t.state.Jobs[key]
		return j == nil || j.Stopped
	}
	over := func(key cluster.JobKey) bool { return gone(key) || t.state.Completed[key] }
	maps.DeleteFunc(t.tried, func(key cluster.JobKey, _ memory.Job) bool { return over(key) })
	for key := range t.jobs {
		if !over(key) {
			continue
		}
		if err := t.store.Forget(ctx, key); err != nil {
			t.log.Warn("a job that is gone is still remembered", "job", key.ID, "namespace", key.Namespace, "error", err)
			continue
		}
		delete(t.jobs, key)
		t.gate.Forget(key)
	}
	// What could not be forgotten is tried again.
	maps.DeleteFunc(t.state.Completed, func(key cluster.JobKey, _ bool) bool {
		_, kept := t.jobs[key]
		return !kept
	})
	maps.DeleteFunc(t.left, func(key cluster.JobKey, _ uint64) bool { return gone(key) })
	maps.DeleteFunc(t.told, func(key cluster.JobKey, _ string) bool { return gone(key) })
}

// group is that of an allocation, if its job lets it be moved.
func (t *term) group(a *cluster.Alloc) (cluster.Group, bool) {
	j := t.state.Jobs[a.Job]
	if j == nil || j.Stopped || !a.Running || a.Stops {
		return cluster.Group{}, false
	}
	g, ok := j.Groups[a.Group]
	return g, ok && g.Movable && g.Count == 1 && j.Migrates
}

// feasible says whether Nomad would place a group on a node, as far as that is known here.
func (t *term) feasible(n *cluster.Node, j *cluster.Job, g cluster.Group, asks cluster.Resources) bool {
	if n == nil || !n.Takes || n.PoolCores == 0 || j.Pool != api.NodePoolAll && n.Pool != j.Pool {
		return false
	}
	for _, d := range g.Drivers {
		if !n.Drivers[d] {
			return false
		}
	}
	if g.Engine != "" && n.Engine != "" && g.Engine != n.Engine {
		return false // what one engine runs the other cannot
	}
	in := slices.ContainsFunc(j.Datacenters, func(pattern string) bool {
		ok, err := path.Match(pattern, n.Datacenter)
		return ok && err == nil
	})
	return in && asks.Fits(t.state.Left(n))
}

// tries bounds how many nodes Nomad is asked about for one decision. It knows more than
// is known here: constraints, devices, ports, volumes, quotas.
const tries = 5

// accepts says whether Nomad would take an allocation on another node. What speaks
// against a move wherever it goes is for the move itself to tell.
func (t *term) accepts(ctx context.Context, a *cluster.Alloc, node string) bool {
	_, err := move.Move(ctx, t.nomad, move.Request{Alloc: a.ID, Node: node, DryRun: true}, move.DefaultOptions())
	var refused *move.Refused
	return !errors.As(err, &refused) || !refused.Target
}

// say tells why an allocation is not moved now, once.
func (t *term) say(a *cluster.Alloc, why string) { t.sayOf(a.Job, "not moved now: "+why) }

// sayOf tells something of a job, and whether it had not been told last.
func (t *term) sayOf(key cluster.JobKey, what string) bool {
	if t.told[key] == what {
		return false
	}
	t.told[key] = what
	t.log.Info(what, "job", key.ID, "namespace", key.Namespace)
	return true
}

// readable writes nodes by their names: each word that is the ID of one.
func (t *term) readable(text string) string {
	return nodeID.ReplaceAllStringFunc(text, t.name)
}

// nodeID finds what may be the ID of a node.
var nodeID = regexp.MustCompile(`[0-9a-f]{4,}(-[0-9a-f]{4,})+`)

// name is a node's for people.
func (t *term) name(node string) string {
	if n := t.state.Nodes[node]; n != nil && n.Name != "" {
		return n.Name
	}
	return node
}

// stub is what Nomad's API wants of an allocation to reach its files.
func stub(a *cluster.Alloc) *api.Allocation {
	return &api.Allocation{ID: a.ID, NodeID: a.Node, Namespace: a.Job.Namespace}
}

// known is a number, 0 if it is not known.
func known(n status.Number) float64 {
	if !n.Known() {
		return 0
	}
	return float64(n)
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// text writes scores for people and tools.
func text(scores map[string]float64) string {
	const most = 4096 // bytes
	const least = len(`"a":1,`)
	var data []byte
	if len(scores) <= most/least { // a large cluster's would not fit, and take milliseconds
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
