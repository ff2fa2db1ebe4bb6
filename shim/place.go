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

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
)

// placer chooses nodes for jobs that start (FlowCon, Algorithm 4).
type placer struct {
	*term
	decided  map[string]bool  // allocations whose placement has been decided
	releases chan struct{}    // limits concurrent releases
	buf      []placement.Load // reused by candidates
}

// place chooses nodes for held jobs and for newly started tasks.
func (p *placer) place(c config.Config, held []*cluster.Job, young []*cluster.Alloc, nodes map[string]Summary) {
	var all []nodeLoad
	p.eachNodeChunk(func(ids []string) { all = append(all, p.nodeLoads(ids, nodes)...) }, func() {
		p.release(c, held, all)
		young = slices.DeleteFunc(young, func(a *cluster.Alloc) bool {
			old := nodes[a.Node].At.Sub(a.Started) > c.Placement.Window
			if old {
				p.decided[a.ID] = true
			}
			return old
		})
		if len(young) == 0 {
			return
		}
		ask := p.inOrder(young)
		p.fetch(func() func() {
			p.read(ask)
			return func() {
				for _, id := range reporting(ask) {
					p.enqueue(func() { p.placeOne(c, id, nodes, all, ask) })
				}
			}
		})
	})
}

// inOrder returns the tasks of the allocations, earliest start first.
func (p *placer) inOrder(allocs []*cluster.Alloc) (all []reading) {
	slices.SortFunc(allocs, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID))
	})
	for _, a := range allocs {
		group, _ := p.group(a, policies.FlowConPlace)
		all = append(all, tasksOf(a, group)...)
	}
	return all
}

// reporting returns the allocations whose tasks have all reported. Before that, a signal might kill
// a trainer that has not yet installed its handler.
func reporting(all []reading) (ids []string) {
	early := make(map[string]bool)
	for _, r := range all {
		early[r.alloc.ID] = early[r.alloc.ID] || r.err != nil || r.status.Alloc != r.alloc.ID || r.status.Reports == 0
	}
	for _, r := range all {
		if !early[r.alloc.ID] {
			ids = append(ids, r.alloc.ID)
		}
	}
	return slices.Compact(ids)
}

// maxSkew is a generous bound of the difference between a node's clock and this machine's.
const maxSkew = 10 * time.Minute

// newlyStarted returns the movable allocations that may be within the placement window, which place
// checks by their nodes' clocks.
func (p *placer) newlyStarted(c config.Config) (newlyStarted []*cluster.Alloc) {
	if !c.Placement.Enabled {
		return nil
	}
	now := time.Now()
	for id, a := range p.state.Allocs {
		// Checked first: nearly all of up to 100,000 allocations are older.
		if a.Started.IsZero() || now.Sub(a.Started) > c.Placement.Window+maxSkew || p.decided[id] {
			continue
		}
		if _, ok := p.group(a, policies.FlowConPlace); ok {
			newlyStarted = append(newlyStarted, a)
		}
	}
	return newlyStarted
}

// placeOne runs FlowCon's Algorithm 4 once for a newly started allocation, which moves if another
// node is better by the margin.
func (p *placer) placeOne(c config.Config, id string, nodes map[string]Summary, all []nodeLoad, known []reading) {
	a := p.state.Allocs[id]
	if a == nil {
		return
	}
	if _, ok := p.group(a, policies.FlowConPlace); !ok {
		return
	}
	summary, ok := nodes[a.Node]
	if !ok || summary.Tasks == 0 || a.Started.After(summary.At) {
		return // the node's summary predates the task
	}
	if closed := p.blocked(a, ""); closed != "" {
		p.explainSkip(a, closed)
		return
	}
	p.decided[id] = true
	loads := p.candidatesOf(a, all)
	i := slices.IndexFunc(loads, func(l placement.Load) bool { return l.ID == a.Node })
	if i < 0 {
		return // the node has been removed
	}
	out := placement.Choose(loads, placement.Params{CapacityAware: c.Placement.CapacityAware})
	if !better(c, out, loads[i], func(id string) placement.Load { return load(p.state.Nodes[id], nodes[id]) }) {
		p.explainStay(a, "it has started, and stays: "+p.readable(out.Why))
		return
	}
	p.startMove(c, a, out.Node, memory.Entry{Policy: policies.FlowConPlace, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)}, known...)
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

type nodeLoad struct {
	node *cluster.Node
	load placement.Load
}

// nodeLoads computes the loads of nodes, once for all placements of a pass.
func (p *placer) nodeLoads(ids []string, nodes map[string]Summary) []nodeLoad {
	loads := make([]nodeLoad, 0, len(ids))
	for _, id := range ids {
		node := p.state.Nodes[id]
		n, ok := nodes[id]
		if node == nil || !ok {
			continue
		}
		l := load(node, n)
		l.Pending = p.startedSince(node, n.At)
		loads = append(loads, nodeLoad{node, l})
	}
	return loads
}

// candidatesOf returns the nodes on which the allocation may run: its own, counted without it, and
// those that could take it.
func (p *placer) candidatesOf(a *cluster.Alloc, all []nodeLoad) []placement.Load {
	group, _ := p.group(a, policies.FlowConPlace)
	return p.candidates(p.state.Jobs[a.Job], group, a.Allocated, a.Node, all)
}

// candidates returns the nodes on which Nomad would place the group, as far as the shim knows, and
// own, the node on which it already runs ("" if none). The next call reuses the slice.
func (p *placer) candidates(j *cluster.Job, g cluster.Group, asks cluster.Resources, own string, all []nodeLoad) []placement.Load {
	loads := p.buf[:0]
	for _, n := range all {
		l := n.load
		switch {
		case l.ID == own:
			l.NL.Tasks = max(0, l.NL.Tasks-1)
		case p.isRejected(j.Key, l.ID) || !p.feasible(n.node, j, g, asks):
			continue
		}
		l.Pending = max(l.Pending, p.inbound[l.ID])
		loads = append(loads, l)
	}
	p.buf = loads
	return loads
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
func (p *placer) release(c config.Config, held []*cluster.Job, all []nodeLoad) {
	if len(held) == 0 {
		return
	}
	slices.SortFunc(held, func(a, b *cluster.Job) int {
		return cmp.Or(a.Submitted.Compare(b.Submitted), strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.ID, b.Key.ID))
	})
	runs := p.allocated(held)
	for _, j := range held {
		p.enqueue(func() {
			if now := p.state.Jobs[j.Key]; p.busy[j.Key] || now != j {
				p.urgent = p.urgent || now != nil && now.Held // changed since the pass began
				return
			}
			overdue := time.Since(j.Submitted) > c.Placement.HoldTimeout
			if runs[j.Key] {
				p.releaseOne(c, policies.FlowConPlace, move.Place{}, j, placement.Output{Rule: placement.RuleNone, Why: alreadyRuns}, overdue)
				return
			}
			b, out, err := p.chooseNode(c, j, all)
			switch {
			case err != nil && overdue:
				p.releaseOne(c, policies.FlowConPlace, move.Place{}, j, holdExpired(c, err), overdue)
			case err != nil:
				p.explain(j.Key, "held: "+err.Error())
			default:
				p.releaseOne(c, policies.FlowConPlace, b, j, out, overdue)
			}
		})
	}
}

// holdExpired returns the decision for a job whose hold has timed out.
func holdExpired(c config.Config, err error) placement.Output {
	return placement.Output{Rule: placement.RuleNone, Why: fmt.Sprintf("no node found within %v: %v", c.Placement.HoldTimeout, err)}
}

// heldJobs returns the held jobs that can be released.
func (p *placer) heldJobs() (heldJobs []*cluster.Job) {
	for key, j := range p.state.Jobs {
		switch {
		case j.Stopped || p.busy[key] || p.unreadable[key] || !j.Held:
		case j.Template || j.Child:
			p.explain(key, "it is held indefinitely: the shim cannot release periodic or parameterized jobs and their children; remove the constraint "+cluster.Hold)
		default:
			heldJobs = append(heldJobs, j)
		}
	}
	return heldJobs
}

// chooseNode returns the node for a held job. If the result has no node, Nomad places it.
func (p *placer) chooseNode(c config.Config, j *cluster.Job, all []nodeLoad) (move.Place, placement.Output, error) {
	anywhere := func(why string) (move.Place, placement.Output, error) {
		return move.Place{}, placement.Output{Rule: placement.RuleNone, Why: why}, nil
	}
	name, group, why := single(j)
	if why != "" {
		return anywhere(why)
	}
	if _, node := j.Suspended(); node != "" && p.state.Nodes[node] != nil { // the queue has been switched off
		if p.isRejected(j.Key, node) {
			return move.Place{}, placement.Output{}, fmt.Errorf("node %s, which has its checkpoint, has no room", p.name(node))
		}
		return move.Place{Group: name, Node: node}, placement.Output{Node: node, Rule: placement.RuleNone, Why: "its checkpoint is there"}, nil
	}
	if !c.Placement.Enabled {
		return anywhere("placement is disabled")
	}
	b := move.Place{Namespace: j.Key.Namespace, Job: j.Key.ID, Group: name}
	if len(all) == 0 {
		return b, placement.Output{}, errors.New("there is no summary of any node")
	}
	if n := len(p.rejected[j.Key]); n >= maxAttempts {
		return anywhere(fmt.Sprintf("Nomad would place it on none of the %d best nodes", n))
	}
	out := placement.Choose(p.candidates(j, group, group.Requested, "", all), placement.Params{CapacityAware: c.Placement.CapacityAware})
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

// releaseOne releases a held job to a node, or to Nomad's scheduler. A dry run only plans it.
func (p *placer) releaseOne(c config.Config, policy string, b move.Place, j *cluster.Job, out placement.Output, overdue bool) {
	b.Namespace, b.Job = j.Key.Namespace, j.Key.ID
	left, _ := j.Suspended()
	e := memory.Entry{
		Time: time.Now(), Namespace: b.Namespace, Job: b.Job, Policy: policy, DryRun: c.DryRun,
		Rule: out.Rule, Why: p.readable(out.Why), Scores: p.readable(text(out.Scores)),
	}
	if b.Node != "" {
		e.To = p.name(b.Node)
		p.inbound[b.Node]++
	}
	p.busy[j.Key] = true
	opts := p.options()
	p.run(func() func() {
		p.releases <- struct{}{}
		defer func() { <-p.releases }()
		node, alloc, rejection := b.Node, "", ""
		var planErr, err error
		var took time.Duration
		if node != "" {
			rejection, planErr = move.CheckPlacement(p.leading, p.nomad, b)
		}
		if planErr != nil && overdue {
			out := holdExpired(c, planErr)
			e.Rule, e.Why, e.Scores, e.To, b.Node, planErr = out.Rule, out.Why, "", "", "", nil
		}
		if planErr == nil && rejection == "" && !c.DryRun {
			p.log.Info("releasing a held job", "job", e.Job, "namespace", e.Namespace, "to", e.To, "why", e.Why)
			begun := time.Now()
			alloc, err = move.Release(p.leading, p.nomad, b, opts)
			took = time.Since(begun)
		}
		return func() {
			delete(p.busy, j.Key)
			p.doneInbound(node)
			switch {
			case planErr != nil && !errors.Is(planErr, move.ErrNotHeld):
				p.explain(j.Key, "held: "+planErr.Error())
			case rejection != "":
				p.log.Debug("trying another node", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", rejection)
				p.reject(j.Key, node)
				p.urgent = true
			case planErr == nil:
				p.released(j.Key, b.Node, e, alloc, err)
				if left != "" && alloc != "" {
					p.resumed(j.Key, took, err)
				}
			}
		}
	})
}

// released applies a release's result.
func (p *placer) released(key cluster.JobKey, node string, e memory.Entry, alloc string, err error) {
	if errors.Is(err, move.ErrNotHeld) || errors.Is(err, move.ErrClaimed) {
		return // this state was stale, or another process releases the job
	}
	result := "placed"
	switch {
	case err != nil:
		result, e.Error = "failed", err.Error()
		p.log.Warn("cannot place a held job", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", err)
	case e.DryRun:
		if result = "dry"; !p.explain(key, "held; would be placed: "+e.Why) {
			return
		}
	case node == "":
		result = "released"
	default:
		p.decided[alloc] = true
	}
	e.NewAlloc = alloc
	p.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	if err == nil && !e.DryRun {
		delete(p.latest, key)
	}
	// A failure is retried, but recorded once.
	if err == nil || p.explain(key, e.Error) {
		p.journal.record(e)
	}
}
