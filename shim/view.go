// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

// view answers the policies' questions about the cluster.
type view struct {
	state *cluster.State
	*transfers
}

// group returns an allocation's group if the policy may move it.
func (v *view) group(a *cluster.Alloc, policy string) (cluster.Group, bool) {
	j := v.state.Jobs[a.Job]
	if j == nil || j.Stopped || j.Template || j.Child || !a.Running || a.Stopping || v.unreadable[a.Job] {
		return cluster.Group{}, false
	}
	g, ok := j.Groups[a.Group]
	return g, ok && g.Movable && g.Count == 1 && slices.Contains(j.Migrates, policy)
}

// alreadyRuns is why a held job is released at once.
const alreadyRuns = "it is already running: it was registered again, or its hold was opened"

// allocated returns which of the jobs have an allocation that is not to end.
func (v *view) allocated(jobs []*cluster.Job) map[cluster.JobKey]bool {
	runs := make(map[cluster.JobKey]bool, len(jobs))
	for _, j := range jobs {
		runs[j.Key] = false
	}
	for _, a := range v.state.Allocs {
		if _, asked := runs[a.Job]; asked && !a.Stopping {
			runs[a.Job] = true
		}
	}
	return runs
}

// blocked returns why a move of the allocation may not start now, "" if it may.
func (v *view) blocked(a *cluster.Alloc, to string) string {
	own := time.Duration(0)
	if j := v.state.Jobs[a.Job]; j != nil {
		own = j.Cooldown
	}
	return v.gate.Blocked(time.Now(), a.Job, own, a.Node, to)
}

// feasible reports whether Nomad would place the group on the node, as far as the shim knows.
func (v *view) feasible(n *cluster.Node, j *cluster.Job, g cluster.Group, asks cluster.Resources) bool {
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
	return in && asks.Fits(v.state.Free(n))
}

// canTake reports whether a node could take the allocation, as far as the shim knows.
func (v *view) canTake(a *cluster.Alloc, node, policy string) bool {
	group, ok := v.group(a, policy)
	return ok && !v.isRejected(a.Job, node) && v.feasible(v.state.Nodes[node], v.state.Jobs[a.Job], group, a.Allocated)
}

// startedSince counts the tasks placed on the node since its summary was written.
func (v *view) startedSince(node *cluster.Node, at time.Time) int {
	driver := "ebbtide"
	if !node.Drivers[driver] {
		driver = "docker" // Ebbtide is installed as "docker"
	}
	begun := 0
	for _, a := range v.state.On(node.ID) {
		if a.Running && !a.Started.After(at) {
			continue
		}
		if j := v.state.Jobs[a.Job]; j != nil && slices.Contains(j.Groups[a.Group].Drivers, driver) {
			begun++
		}
	}
	return begun
}

// backlogs returns the remaining work of nodes with a summary. Tasks placed since, or being moved
// there, count as of unknown size.
func (v *view) backlogs(ids []string, nodes map[string]Summary) []relocate.Node {
	out := make([]relocate.Node, 0, len(ids))
	for _, id := range ids {
		node := v.state.Nodes[id]
		sum, ok := nodes[id]
		if node == nil || node.PoolCores == 0 || !ok {
			continue
		}
		training := 0
		for _, n := range sum.Counts {
			training += n
		}
		out = append(out, relocate.Node{
			ID: id, PoolCores: node.PoolCores, LeftCPUS: max(0, known(sum.RemainingCPUS)), Known: sum.Sized,
			Unknown: max(0, training-sum.Sized) + max(v.startedSince(node, sum.At), v.inbound[id]),
		})
	}
	return out
}

// readable replaces node IDs by node names.
func (v *view) readable(text string) string {
	return nodeID.ReplaceAllStringFunc(text, v.name)
}

var nodeID = regexp.MustCompile(`[0-9a-f]{4,}(-[0-9a-f]{4,})+`)

func (v *view) name(node string) string {
	if n := v.state.Nodes[node]; n != nil && n.Name != "" {
		return n.Name
	}
	return node
}
