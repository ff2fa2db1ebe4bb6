// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
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

// place runs FlowCon's Algorithm 4 for tasks that have just begun: one for which another
// node is better by the margin goes there. It is asked once about each allocation.
func (t *term) place(ctx context.Context, c config.Config, summaries func() map[string]Summary) {
	now := time.Now()
	var young []*cluster.Alloc
	for id, a := range t.state.Allocs {
		// Most are old: that is asked first, of a hundred thousand.
		if a.Started.IsZero() || now.Sub(a.Started) > c.Placement.Window || t.placed[id] {
			continue
		}
		if _, ok := t.group(a); ok {
			young = append(young, a)
		}
	}
	for id := range t.placed {
		if t.state.Allocs[id] == nil {
			delete(t.placed, id)
		}
	}
	if len(young) == 0 {
		return
	}
	slices.SortFunc(young, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID))
	})
	nodes := summaries()
	all := t.loads(nodes)
	for _, a := range young {
		said, ok := nodes[a.Node]
		if !ok || said.Tasks == 0 || a.Started.After(said.At) {
			continue // the node has not seen it yet
		}
		if closed := t.gate.Closed(now, a.Job, a.Node, ""); closed != "" {
			t.say(a, closed)
			continue
		}
		t.placed[a.ID] = true
		loads := t.candidatesOf(a, all)
		i := slices.IndexFunc(loads, func(l placement.Load) bool { return l.ID == a.Node })
		if i < 0 {
			continue // the node is gone
		}
		own := loads[i]
		better := func(out placement.Output) bool {
			return better(c, out, own, func(id string) placement.Load { return load(t.state.Nodes[id], nodes[id]) })
		}
		out, _ := choose(c, loads, func(out placement.Output) (bool, error) {
			return !better(out) || t.accepts(ctx, a, out.Node), nil
		})
		if out.Node == "" || !better(out) {
			t.log.Debug("a new task is well placed", "job", a.Job.ID, "namespace", a.Job.Namespace, "alloc_id", a.ID, "why", t.readable(out.Why))
			continue
		}
		t.begin(ctx, c, a, out.Node, memory.Entry{Policy: policies.FlowConPlace, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)})
	}
}

// better says whether the node that was chosen is better by the margin than a task's own,
// which counts without it.
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

// choose runs Algorithm 4 until it comes to a node that is accepted. With none the rule is
// RuleNone.
func choose(c config.Config, loads []placement.Load, accept func(placement.Output) (bool, error)) (placement.Output, error) {
	for range tries {
		out := placement.Choose(loads, placement.Params{CapacityAware: c.Placement.CapacityAware})
		if out.Node == "" {
			return out, nil
		}
		if ok, err := accept(out); ok || err != nil {
			return out, err
		}
		loads = slices.DeleteFunc(loads, func(l placement.Load) bool { return l.ID == out.Node })
	}
	return placement.Output{Rule: placement.RuleNone, Why: fmt.Sprintf("Nomad takes it on none of the %d best nodes: its placement stands", tries)}, nil
}

// loaded is a node with what counts of its tasks.
type loaded struct {
	node *cluster.Node
	load placement.Load
}

// loads sums up the nodes, once for all tasks that are placed at a time.
func (t *term) loads(nodes map[string]Summary) []loaded {
	loads := make([]loaded, 0, len(nodes))
	for id, n := range nodes {
		node := t.state.Nodes[id]
		if node == nil {
			continue
		}
		l := load(node, n)
		l.Pending = t.begun(node, n.At)
		loads = append(loads, loaded{node, l})
	}
	return loads
}

// candidatesOf are the nodes on which an allocation may run: its own, without it, and those
// that could take it.
func (t *term) candidatesOf(a *cluster.Alloc, all []loaded) []placement.Load {
	group, _ := t.group(a)
	return t.candidates(t.state.Jobs[a.Job], group, a.Uses, a.Node, all)
}

// candidates are the nodes on which Nomad would place a group, as far as that is known
// here. own is the one on which it runs already, or "". They hold until the next call.
func (t *term) candidates(j *cluster.Job, g cluster.Group, asks cluster.Resources, own string, all []loaded) []placement.Load {
	loads := t.feasibles[:0]
	for _, n := range all {
		l := n.load
		switch {
		case l.ID == own:
			l.NL.Tasks = max(0, l.NL.Tasks-1)
		case !t.feasible(n.node, j, g, asks):
			continue
		}
		l.Pending = max(l.Pending, t.inbound[l.ID])
		loads = append(loads, l)
	}
	t.feasibles = loads
	return loads
}

// load is what counts of a node for its next task. A sum of growth that is 0 may be that
// of tasks of which nothing is known yet.
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

// begun is how many tasks have been placed on a node since it has last said how its tasks
// do.
func (t *term) begun(node *cluster.Node, at time.Time) int {
	driver := "ebbtide"
	if !node.Drivers[driver] {
		driver = "docker" // it is installed in the stock driver's place
	}
	begun := 0
	for _, a := range t.state.On(node.ID) {
		if a.Running && !a.Started.After(at) {
			continue
		}
		if j := t.state.Jobs[a.Job]; j != nil && slices.Contains(j.Groups[a.Group].Drivers, driver) {
			begun++
		}
	}
	return begun
}

// releases is how many jobs are released at a time.
const releases = 16

// release finds nodes for the jobs that wait for it (cluster.Hold), those that wait
// longest first. Who cannot be placed in time goes where Nomad places it.
func (t *term) release(ctx context.Context, c config.Config, summaries func() map[string]Summary) {
	var held []*cluster.Job
	for key, j := range t.state.Jobs {
		if !j.Stopped && !t.releasing[key] && waits(j) {
			held = append(held, j)
		}
	}
	if len(held) == 0 {
		return
	}
	slices.SortFunc(held, func(a, b *cluster.Job) int {
		return cmp.Or(a.Submitted.Compare(b.Submitted), strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.ID, b.Key.ID))
	})
	runs := make(map[cluster.JobKey]bool)
	for _, a := range t.state.Allocs {
		runs[a.Job] = true
	}
	for _, j := range held {
		if j.Template || j.Made {
			t.sayOf(j.Key, "it waits for ever: a periodic or parameterized job, and what is made of it, cannot be let run by the shim; take the constraint "+cluster.Hold+" out of it")
			continue
		}
		if runs[j.Key] {
			t.free(ctx, c, move.Place{}, j, placement.Output{Rule: placement.RuleNone, Why: "it runs already: it was registered again"})
			continue
		}
		b, out, err := t.find(ctx, c, j, summaries)
		overdue := time.Since(j.Submitted) > c.Placement.HoldTimeout
		switch {
		case errors.Is(err, move.ErrNotHeld):
			// What is known here is old.
		case err != nil && overdue:
			out = placement.Output{Rule: placement.RuleNone, Why: fmt.Sprintf("no node was found for it within %v: %v", c.Placement.HoldTimeout, err)}
			t.free(ctx, c, move.Place{}, j, out)
		case err != nil:
			t.sayOf(j.Key, "it waits: "+err.Error())
		default:
			t.free(ctx, c, b, j, out)
		}
	}
}

// waits says whether a group of a job waits for the shim.
func waits(j *cluster.Job) bool {
	for _, g := range j.Groups {
		if g.Held {
			return true
		}
	}
	return false
}

// find looks for the node of a job that waits. With no node Nomad is to place it.
func (t *term) find(ctx context.Context, c config.Config, j *cluster.Job, summaries func() map[string]Summary) (move.Place, placement.Output, error) {
	anywhere := func(why string) (move.Place, placement.Output, error) {
		return move.Place{}, placement.Output{Rule: placement.RuleNone, Why: why}, nil
	}
	if !c.Placement.Enabled {
		return anywhere("placement is off")
	}
	if len(j.Groups) != 1 {
		return anywhere(fmt.Sprintf("it has %d groups: a node is looked for if there is one", len(j.Groups)))
	}
	b := move.Place{Namespace: j.Key.Namespace, Job: j.Key.ID}
	var group cluster.Group
	for b.Group, group = range j.Groups {
		if group.Count != 1 {
			return anywhere(fmt.Sprintf("group %s has a count of %d: a node is looked for if it is 1", b.Group, group.Count))
		}
	}
	nodes := summaries()
	if len(nodes) == 0 {
		return b, placement.Output{}, errors.New("nothing is known of any node")
	}
	out, err := choose(c, t.candidates(j, group, group.Asks, "", t.loads(nodes)), func(out placement.Output) (bool, error) {
		b.Node = out.Node
		why, err := move.Try(ctx, t.nomad, b)
		return why == "", err
	})
	b.Node = out.Node
	return b, out, err
}

// free lets a job run that waits, on a node or wherever Nomad places it.
func (t *term) free(ctx context.Context, c config.Config, b move.Place, j *cluster.Job, out placement.Output) {
	b.Namespace, b.Job = j.Key.Namespace, j.Key.ID
	e := memory.Entry{
		Time: time.Now(), Namespace: b.Namespace, Job: b.Job, Policy: policies.FlowConPlace, DryRun: c.DryRun,
		Rule: out.Rule, Why: t.readable(out.Why), Scores: t.readable(text(out.Scores)),
	}
	if b.Node != "" {
		e.To = t.name(b.Node)
	}
	if c.DryRun {
		if t.sayOf(j.Key, "it waits, and would be placed: "+e.Why) {
			t.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
			t.note(ctx, e)
		}
		return
	}
	t.log.Info("a job that waits is let run", "job", e.Job, "namespace", e.Namespace, "to", e.To, "why", e.Why)
	t.releasing[j.Key] = true
	if b.Node != "" {
		t.inbound[b.Node]++
	}
	opts := t.options()
	t.moves.Go(func() {
		t.slots <- struct{}{}
		alloc, err := move.Release(t.leading, t.nomad, b, opts)
		<-t.slots
		t.ended <- func(ctx context.Context) { t.freed(ctx, b, j.Key, e, alloc, err) }
	})
}

// freed takes over what became of a job that was to run.
func (t *term) freed(ctx context.Context, b move.Place, key cluster.JobKey, e memory.Entry, alloc string, err error) {
	delete(t.releasing, key)
	t.arrived(b.Node)
	if errors.Is(err, move.ErrNotHeld) || errors.Is(err, move.ErrClaimed) {
		return
	}
	result := "placed"
	switch {
	case err != nil:
		result, e.Error = "failed", err.Error()
		t.log.Warn("a job that waits was not placed", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", err)
	case b.Node == "":
		result = "released"
	default:
		t.placed[alloc] = true
	}
	e.NewAlloc = alloc
	t.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	// What fails is tried again, and written down once.
	if err == nil || t.sayOf(key, e.Error) {
		t.note(ctx, e)
	}
}
