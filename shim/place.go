// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/store"
)

// place chooses nodes for held jobs and for newly started tasks (FlowCon, Algorithm 4).
func (s *snapshot) place(held []*cluster.Job, young []*cluster.Alloc) (p plan) {
	l := s.nodeLoads()
	p.add(s.release(held, l))
	young = slices.DeleteFunc(young, func(a *cluster.Alloc) bool {
		old := s.summaries[a.Node].At.Sub(a.Started) > s.config.Placement.Window
		if old {
			p.placed = append(p.placed, a.ID)
		}
		return old
	})
	if len(young) == 0 {
		return p
	}
	ask := s.inOrder(young)
	s.read(ask)
	for _, a := range reporting(ask) {
		s.placeOne(&p, a, l, ask)
	}
	return p
}

// inOrder returns the tasks of the allocations, earliest start first.
func (s *snapshot) inOrder(allocs []*cluster.Alloc) (all []reading) {
	slices.SortFunc(allocs, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID))
	})
	for _, a := range allocs {
		group, _ := s.group(a, policies.FlowConPlace)
		all = append(all, tasksOf(a, group)...)
	}
	return all
}

// reporting returns the allocations whose tasks have all reported. Before that, a signal might kill
// a trainer that has not yet installed its handler.
func reporting(all []reading) (allocs []*cluster.Alloc) {
	for tasks := range tasksByAlloc(all) {
		if !slices.ContainsFunc(tasks, func(r reading) bool { return r.err != nil || r.status.Alloc != r.alloc.ID || r.status.Reports == 0 }) {
			allocs = append(allocs, tasks[0].alloc)
		}
	}
	return allocs
}

// maxSkew is a generous bound of the difference between a node's clock and this machine's.
const maxSkew = 10 * time.Minute

// newlyStarted returns the movable allocations that may be within the placement window, which place
// checks by their nodes' clocks.
func (s *snapshot) newlyStarted() (newlyStarted []*cluster.Alloc) {
	if !s.config.Placement.Enabled {
		return nil
	}
	now := time.Now()
	for a := range s.Allocs() {
		// Checked first: nearly all of up to 100,000 allocations are older.
		if a.Started.IsZero() || now.Sub(a.Started) > s.config.Placement.Window+maxSkew || s.placed[a.ID] {
			continue
		}
		if _, ok := s.group(a, policies.FlowConPlace); ok {
			newlyStarted = append(newlyStarted, a)
		}
	}
	return newlyStarted
}

// placeOne runs FlowCon's Algorithm 4 once for a newly started allocation, which moves if another
// node is better by the margin.
func (s *snapshot) placeOne(p *plan, a *cluster.Alloc, l *nodeLoads, known []reading) {
	summary, ok := s.summaries[a.Node]
	if !ok || summary.Tasks == 0 || a.Started.After(summary.At) {
		return // the node's summary predates the task
	}
	if closed := s.blocked(a, ""); closed != "" {
		p.explainSkip(a, closed)
		return
	}
	p.placed = append(p.placed, a.ID)
	group, _ := s.group(a, policies.FlowConPlace)
	own := slices.DeleteFunc(slices.Clone(known), func(r reading) bool { return r.alloc != a })
	loads := s.candidates(s.Job(a.Job), group, a.Allocated, a.Node, own, l)
	i := slices.IndexFunc(loads, func(l placement.Load) bool { return l.ID == a.Node })
	if i < 0 {
		return // the node has been removed
	}
	out := placement.Choose(loads, placement.Params{CapacityAware: s.config.Placement.CapacityAware})
	if !better(s.config, out, loads[i], func(id string) placement.Load { return load(s.Node(id), s.summaries[id]) }) {
		p.explainStay(s, a, "it has started, and stays: "+s.readable(out.Why))
		return
	}
	p.move(s, a, out.Node, store.Entry{Policy: policies.FlowConPlace, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)}, known...)
}

// better reports whether the chosen node beats the task's own, counted without the task, by the
// margin.
func better(c config.Config, out placement.Output, own placement.Load, of func(id string) placement.Load) bool {
	if out.Node == own.ID {
		return false
	}
	is, was := out.Scores[out.Node], out.Scores[own.ID]
	if out.Rule == placement.RuleAllCL {
		p := placement.Params{CapacityAware: c.Placement.CapacityAware}
		crowd, all := own.Crowd(p)
		if !all {
			return true
		}
		was = crowd
		is, _ = of(out.Node).Crowd(p)
	}
	return is < was*(1-c.Placement.Margin)
}

// nodeLoads are the loads of all nodes with a summary, computed once for all placements of a pass.
type nodeLoads struct {
	nodes []*cluster.Node
	loads []placement.Load
	buf   []placement.Load // reused by candidates
}

func (s *snapshot) nodeLoads() *nodeLoads {
	out := &nodeLoads{}
	for node := range s.Nodes() {
		if n, ok := s.summaries[node.ID]; ok {
			l := load(node, n)
			l.Pending = s.startedSince(node, n.At)
			out.nodes, out.loads = append(out.nodes, node), append(out.loads, l)
		}
	}
	return out
}

// candidates returns the nodes on which Nomad would place the group, as far as the shim knows, and
// node, on which its tasks own already run, counted without them ("" if none). The next call reuses the
// slice.
func (s *snapshot) candidates(j *cluster.Job, g cluster.Group, asks cluster.Resources, node string, own []reading, all *nodeLoads) []placement.Load {
	loads := all.buf[:0]
	for i, l := range all.loads {
		switch {
		case l.ID == node:
			l = without(l, own)
		case s.isRejected(j.Key, l.ID) || !s.feasible(all.nodes[i], j, g, asks):
			continue
		}
		l.Pending = max(l.Pending, s.inbound[l.ID])
		loads = append(loads, l)
	}
	all.buf = loads
	return loads
}

// without returns a node's load without some of its tasks.
func without(l placement.Load, tasks []reading) placement.Load {
	for _, r := range tasks {
		g := &l.NL
		switch policy.Category(r.status.Category) {
		case policy.WL:
			g = &l.WL
		case policy.CL:
			g = &l.CL
		}
		g.Tasks, g.Growth = max(0, g.Tasks-1), max(0, g.Growth-max(0, known(r.status.Growth)))
		if g.Measured = min(g.Measured, g.Tasks); g.Tasks == 0 {
			g.Growth = 0 // no rounding error remains
		}
	}
	return l
}

// load converts a summary. A growth sum of 0 may mean that no growth has been measured.
func load(node *cluster.Node, n Summary) placement.Load {
	group := func(names ...string) placement.Group {
		var g placement.Group
		for _, name := range names {
			g.Tasks += n.Counts[name]
			g.Growth += max(0, known(n.GrowthSum[name]))
		}
		if g.Growth > 0 {
			g.Measured = g.Tasks
		}
		return g
	}
	return placement.Load{ID: node.ID, PoolCores: node.PoolCores, NL: group("NL", ""), WL: group("WL"), CL: group("CL")}
}

// release chooses nodes for held jobs (cluster.Hold), oldest first. After the hold timeout
// Nomad places the job.
func (s *snapshot) release(held []*cluster.Job, all *nodeLoads) (p plan) {
	slices.SortFunc(held, func(a, b *cluster.Job) int {
		return cmp.Or(a.Submitted.Compare(b.Submitted), a.Key.Compare(b.Key))
	})
	for _, j := range held {
		overdue := time.Since(j.Submitted) > s.config.Placement.HoldTimeout
		if s.runs(j.Key) {
			p.release(s, policies.FlowConPlace, move.Place{}, j, placement.Output{Rule: placement.RuleNone, Why: alreadyRuns}, overdue)
			continue
		}
		b, out, err := s.chooseNode(j, all)
		switch {
		case err != nil && overdue:
			p.release(s, policies.FlowConPlace, move.Place{}, j, holdExpired(s.config, err), overdue)
		case err != nil:
			p.explain(j, "held: "+err.Error())
		default:
			p.release(s, policies.FlowConPlace, b, j, out, overdue)
		}
	}
	return p
}

// holdExpired returns the decision for a job whose hold has timed out.
func holdExpired(c config.Config, err error) placement.Output {
	return placement.Output{Rule: placement.RuleNone, Why: fmt.Sprintf("no node found within %v: %v", c.Placement.HoldTimeout, err)}
}

// heldJobs returns the held jobs that can be released.
func (s *snapshot) heldJobs(p *plan) (heldJobs []*cluster.Job) {
	for j := range s.Jobs() {
		switch {
		case j.Stopped || s.busy[j.Key] || s.unreadable[j.Key] || !j.Held:
		case j.Template || j.Child:
			p.explain(j, "it is held indefinitely: the shim cannot release periodic or parameterized jobs and their children; remove the constraint "+cluster.Hold)
		default:
			heldJobs = append(heldJobs, j)
		}
	}
	return heldJobs
}

// chooseNode returns the node for a held job. If the result has no node, Nomad places it.
func (s *snapshot) chooseNode(j *cluster.Job, all *nodeLoads) (move.Place, placement.Output, error) {
	anywhere := func(why string) (move.Place, placement.Output, error) {
		return move.Place{}, placement.Output{Rule: placement.RuleNone, Why: why}, nil
	}
	name, group, why := single(j)
	if why != "" {
		return anywhere(why)
	}
	if _, node := j.Suspended(); node != "" && s.Node(node) != nil { // the queue has been switched off
		if s.isRejected(j.Key, node) {
			return move.Place{}, placement.Output{}, fmt.Errorf("node %s, which has its checkpoint, has no room", s.name(node))
		}
		return move.Place{Group: name, Node: node}, placement.Output{Node: node, Rule: placement.RuleNone, Why: "its checkpoint is there"}, nil
	}
	if !s.config.Placement.Enabled {
		return anywhere("placement is disabled")
	}
	b := move.Place{Group: name}
	if len(all.nodes) == 0 {
		return b, placement.Output{}, errors.New("there is no summary of any node")
	}
	if n := len(s.rejected[j.Key]); n >= maxAttempts {
		return anywhere(fmt.Sprintf("Nomad would place it on none of the %d best nodes", n))
	}
	out := placement.Choose(s.candidates(j, group, group.Requested, "", nil, all), placement.Params{CapacityAware: s.config.Placement.CapacityAware})
	b.Node = out.Node
	return b, out, nil
}

// single returns the job's only group, or why the shim chooses no node for it.
func single(j *cluster.Job) (name string, group cluster.Group, why string) {
	if len(j.Groups) != 1 {
		return "", group, fmt.Sprintf("it has %d groups; the shim chooses a node only for a single group", len(j.Groups))
	}
	for name, group = range j.Groups {
		if group.Count != 1 {
			why = fmt.Sprintf("group %s has count %d; the shim chooses a node only for a count of 1", name, group.Count)
		}
	}
	return name, group, why
}
