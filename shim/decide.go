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

// look does what is due.
func (t *term) look() {
	c := t.now()
	t.attend()
	if !t.follows || !t.attended {
		return
	}
	t.recover()
	held := t.held()
	t.metrics.Waiting.Set(float64(len(held)))
	t.report(c, held)
	if t.deciding == 0 && len(t.agenda) == 0 { // else somebody who waits goes on waiting
		t.waiting = false
		t.decide(c, held)
	}
}

// decide asks the nodes how their tasks do, if anybody wants to know, and decides then. Each
// look at all allocations, and at a part of the nodes, is a step of its own.
func (t *term) decide(c config.Config, held []*cluster.Job) {
	begun := time.Now()
	t.gate.Limits(c.Limits)
	t.metrics.Nodes.Set(float64(len(t.state.Nodes)))
	t.metrics.Allocs.Set(float64(len(t.state.Allocs)))
	if !c.DryRun {
		clear(t.book.tried)
	}
	t.forget()
	moves := t.closed(c) == ""
	relocate := moves && c.Relocation.Enabled && t.relocation.due(max(c.Relocation.Interval, time.Duration(len(t.state.Nodes))*askEach)) && t.anyMovable()
	rebalance := moves && c.Rebalance.Enabled && t.rebalances.due(c.Rebalance.Interval)
	var young, asking []*cluster.Alloc
	if moves {
		t.later(func() { young = t.young(c) })
		t.later(func() { asking = t.asking(c) })
	}
	t.later(func() {
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
			t.later(func() { t.metrics.Decision.Observe(time.Since(begun).Seconds()) })
		})
	})
}

// survey asks all nodes how their tasks do.
func (t *term) survey(then func(map[string]Summary)) {
	var all []question
	t.overNodes(func(ids []string) { all = append(all, t.surveyor.questions(t.state, ids)...) }, func() {
		t.gather(func() func() {
			t.surveyor.ask(t.leading, all)
			return func() {
				t.nodes = t.surveyor.take(all)
				then(t.nodes)
			}
		})
	})
}

// nodesAtOnce is how many nodes are looked at in a step of the loop.
const nodesAtOnce = 500

// overNodes does something with all nodes, in order.
func (t *term) overNodes(do func(ids []string), then func()) {
	for ids := range slices.Chunk(t.state.NodeIDs(), nodesAtOnce) {
		t.later(func() { do(ids) })
	}
	t.later(then)
}

// forget drops what is known of jobs that are no more or have completed: one that is run
// again may be moved again.
func (t *term) forget() {
	gone := func(key cluster.JobKey) bool {
		j := t.state.Jobs[key]
		return j == nil || j.Stopped
	}
	for _, key := range t.book.forget(func(key cluster.JobKey) bool { return gone(key) || t.state.Completed[key] }) {
		t.gate.Forget(key)
	}
	clear(t.state.Completed)
	t.unbar()
	maps.DeleteFunc(t.left, func(key cluster.JobKey, _ uint64) bool { return gone(key) })
	maps.DeleteFunc(t.told, func(key cluster.JobKey, _ string) bool { return gone(key) })
	maps.DeleteFunc(t.placed, func(id string, _ bool) bool { return t.state.Allocs[id] == nil })
}

// group is that of an allocation, if a policy may move it.
func (t *term) group(a *cluster.Alloc, policy string) (cluster.Group, bool) {
	j := t.state.Jobs[a.Job]
	if j == nil || j.Stopped || j.Template || j.Made || !a.Running || a.Stops {
		return cluster.Group{}, false
	}
	g, ok := j.Groups[a.Group]
	return g, ok && g.Movable && g.Count == 1 && slices.Contains(j.Migrates, policy)
}

// shut says why a move of an allocation may not begin now; "" if it may.
func (t *term) shut(a *cluster.Alloc, to string) string {
	own := time.Duration(0)
	if j := t.state.Jobs[a.Job]; j != nil {
		own = j.Cooldown
	}
	return t.gate.Closed(time.Now(), a.Job, own, a.Node, to)
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

// say tells why an allocation is not moved now, once. It returns whether that was new.
func (t *term) say(a *cluster.Alloc, why string) bool { return t.sayOf(a.Job, "not moved now: "+why) }

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
