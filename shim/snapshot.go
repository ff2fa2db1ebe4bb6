// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"fmt"
	"iter"
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/relocate"
	"github.com/ebbtide/ebbtide/shim/store"
)

// snapshot is what a pass decides on, and answers the policies' questions about it. Only the pass
// itself changes it: it counts what it has proposed as busy and inbound.
type snapshot struct {
	cluster.Snapshot
	transfers
	config    config.Config
	closed    string // why no move may start, "" if moves may
	jobs      map[cluster.JobKey]store.Job
	orders    store.Orders
	twins     map[cluster.JobKey]store.Twin // of earlier leaders
	placed    map[string]bool               // allocations whose placement has been decided
	relocate  bool                          // relocation is due
	rebalance bool                          // rebalancing is due
	// explained are the latest reasons if the jobs without one are to be explained, otherwise nil.
	explained map[cluster.JobKey]reason

	summaries map[string]Summary // by node; set by the pass's survey
	ignored   map[string]string  // nodes with impossible figures, and why
	read      func([]reading)    // reads the tasks' statuses
}

// group returns an allocation's group if the policy may move it.
func (s *snapshot) group(a *cluster.Alloc, policy string) (cluster.Group, bool) {
	if !a.Running || a.Stopping || s.unreadable[a.Job] {
		return cluster.Group{}, false
	}
	j := s.Job(a.Job)
	if j == nil || j.Stopped || j.Template || j.Child {
		return cluster.Group{}, false
	}
	g, ok := j.Groups[a.Group]
	return g, ok && g.Movable && g.Count == 1 && slices.Contains(j.Migrates, policy)
}

// movable returns the allocations which the policy may move.
func (s *snapshot) movable(policy string) iter.Seq[*cluster.Alloc] {
	return func(yield func(*cluster.Alloc) bool) {
		for a := range s.Allocs() {
			if _, ok := s.group(a, policy); ok && !yield(a) {
				return
			}
		}
	}
}

// alreadyRuns is why a held job is released at once.
const alreadyRuns = "it is already running: it was registered again, or its hold was opened"

// runs reports whether the job has an allocation that is not to end.
func (s *snapshot) runs(job cluster.JobKey) bool {
	for a := range s.Of(job) {
		if !a.Stopping {
			return true
		}
	}
	return false
}

// blocked returns why a move of the allocation may not start now, "" if it may.
func (s *snapshot) blocked(a *cluster.Alloc, to string) string {
	own := time.Duration(0)
	if j := s.Job(a.Job); j != nil {
		own = j.Cooldown
	}
	return s.budget.Blocked(time.Now(), a.Job, own, a.Node, to)
}

// feasible reports whether Nomad would place the group on the node, as far as the shim knows.
func (s *snapshot) feasible(n *cluster.Node, j *cluster.Job, g cluster.Group, asks cluster.Resources) bool {
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
	return in && asks.Fits(n.Free())
}

// canTake reports whether a node could take the allocation, as far as the shim knows.
func (s *snapshot) canTake(a *cluster.Alloc, node, policy string) bool {
	group, ok := s.group(a, policy)
	return ok && !s.isRejected(a.Job, node) && s.feasible(s.Node(node), s.Job(a.Job), group, a.Allocated)
}

// startedSince counts the tasks placed on the node since its summary was written.
func (s *snapshot) startedSince(node *cluster.Node, at time.Time) int {
	driver := "ebbtide"
	if !node.Drivers[driver] {
		driver = "docker" // Ebbtide is installed as "docker"
	}
	begun := 0
	for a := range s.On(node.ID) {
		if a.Running && !a.Started.After(at) {
			continue
		}
		if j := s.Job(a.Job); j != nil && slices.Contains(j.Groups[a.Group].Drivers, driver) {
			begun++
		}
	}
	return begun
}

// backlog returns the remaining work of a node with a summary. Tasks placed since, or being moved
// there, count as of unknown size.
func (s *snapshot) backlog(node *cluster.Node) (backlog relocate.Node, ok bool) {
	if node == nil || node.PoolCores == 0 {
		return relocate.Node{}, false
	}
	sum, ok := s.summaries[node.ID]
	training := 0
	for _, n := range sum.Counts {
		training += n
	}
	return relocate.Node{
		ID: node.ID, PoolCores: node.PoolCores, LeftCPUS: max(0, known(sum.RemainingCPUS)), Known: sum.Sized,
		Unknown: max(0, training-sum.Sized) + max(s.startedSince(node, sum.At), s.inbound[node.ID]),
	}, ok
}

// noSummary says why a node has no summary.
func (s *snapshot) noSummary(node string) string {
	if why := s.ignored[node]; why != "" {
		return "its node is ignored: its driver reports impossible figures: " + why
	}
	return "its node has no summary"
}

// diskMBs is the assumed speed at which Nomad copies a disk, in MB per second: that of 1 Gbit/s.
const diskMBs = 100

// costOf returns the expected duration of a move of the group in seconds: that of the job's last move.
// Before the first, how much the job has saved is unknown; it is taken to fill its ephemeral disk.
func (s *snapshot) costOf(job cluster.JobKey, group cluster.Group) float64 {
	if cost := s.jobs[job].CostS; cost > 0 && cost <= relocate.MaxS {
		return cost
	}
	cost := relocate.DefaultParams().CostS
	if group.MovesDisk {
		cost += float64(max(0, group.Requested.DiskMB)) / diskMBs
	}
	return min(cost, relocate.MaxS)
}

// readable replaces node IDs by node names.
func (s *snapshot) readable(text string) string {
	return nodeID.ReplaceAllStringFunc(text, s.name)
}

var nodeID = regexp.MustCompile(`[0-9a-f]{4,}(-[0-9a-f]{4,})+`)

func (s *snapshot) name(node string) string {
	if n := s.Node(node); n != nil && n.Name != "" {
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
