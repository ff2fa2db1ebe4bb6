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

// place finds nodes for the jobs that wait for one, and for tasks that have just begun.
func (t *term) place(c config.Config, held []*cluster.Job, young []*cluster.Alloc, nodes map[string]Summary) {
	var all []loaded
	t.overNodes(func(ids []string) { all = append(all, t.loads(ids, nodes)...) }, func() {
		t.release(c, held, all)
		if len(young) == 0 {
			return
		}
		ask := t.tasksOf(young)
		t.gather(func() func() {
			t.read(ask)
			return func() {
				for _, id := range reporting(ask) {
					t.later(func() { t.placeOne(c, id, nodes, all) })
				}
			}
		})
	})
}

// tasksOf are the tasks of some allocations, which have begun first at first.
func (t *term) tasksOf(allocs []*cluster.Alloc) (all []reading) {
	slices.SortFunc(allocs, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID))
	})
	for _, a := range allocs {
		group, _ := t.group(a, policies.FlowConPlace)
		for _, task := range group.Tasks {
			all = append(all, reading{alloc: a, task: task})
		}
	}
	return all
}

// reporting are the allocations whose tasks have all reported something. One that has not
// may not handle its checkpoint's signal yet: it would not save, or die of the signal.
func reporting(all []reading) (ids []string) {
	early := make(map[string]bool)
	for _, r := range all {
		early[r.alloc.ID] = early[r.alloc.ID] || r.err != nil || r.said.Alloc != r.alloc.ID || r.said.Reports == 0
	}
	for _, r := range all {
		if !early[r.alloc.ID] {
			ids = append(ids, r.alloc.ID)
		}
	}
	return slices.Compact(ids)
}

// young are the allocations that have just begun and may move.
func (t *term) young(c config.Config) (young []*cluster.Alloc) {
	if !c.Placement.Enabled {
		return nil
	}
	now := time.Now()
	for id, a := range t.state.Allocs {
		// Most are old: that is asked first, of a hundred thousand.
		if a.Started.IsZero() || now.Sub(a.Started) > c.Placement.Window || t.placed[id] {
			continue
		}
		if _, ok := t.group(a, policies.FlowConPlace); ok {
			young = append(young, a)
		}
	}
	return young
}

// placeOne runs FlowCon's Algorithm 4 for a task that has just begun: it goes to another node
// that is better by the margin. It is asked once about each allocation.
func (t *term) placeOne(c config.Config, id string, nodes map[string]Summary, all []loaded) {
	a := t.state.Allocs[id]
	if a == nil {
		return
	}
	if _, ok := t.group(a, policies.FlowConPlace); !ok {
		return
	}
	said, ok := nodes[a.Node]
	if !ok || said.Tasks == 0 || a.Started.After(said.At) {
		return // the node has not seen it yet
	}
	if closed := t.shut(a, ""); closed != "" {
		t.say(a, closed)
		return
	}
	t.placed[id] = true
	loads := t.candidatesOf(a, all)
	i := slices.IndexFunc(loads, func(l placement.Load) bool { return l.ID == a.Node })
	if i < 0 {
		return // the node is gone
	}
	out := placement.Choose(loads, placement.Params{CapacityAware: c.Placement.CapacityAware})
	if !better(c, out, loads[i], func(id string) placement.Load { return load(t.state.Nodes[id], nodes[id]) }) {
		t.log.Debug("a new task is well placed", "job", a.Job.ID, "namespace", a.Job.Namespace, "alloc_id", id, "why", t.readable(out.Why))
		return
	}
	t.begin(c, a, out.Node, memory.Entry{Policy: policies.FlowConPlace, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)})
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

// loaded is a node with what counts of its tasks.
type loaded struct {
	node *cluster.Node
	load placement.Load
}

// loads sums up some nodes, once for all tasks that are placed at a time.
func (t *term) loads(ids []string, nodes map[string]Summary) []loaded {
	loads := make([]loaded, 0, len(ids))
	for _, id := range ids {
		node := t.state.Nodes[id]
		n, ok := nodes[id]
		if node == nil || !ok {
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
	group, _ := t.group(a, policies.FlowConPlace)
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
		case t.isBarred(j.Key, l.ID) || !t.feasible(n.node, j, g, asks):
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

// release finds nodes for the jobs that wait for it (cluster.Hold), those that wait
// longest first. What cannot be placed in time goes where Nomad places it.
func (t *term) release(c config.Config, held []*cluster.Job, all []loaded) {
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
		t.later(func() {
			if now := t.state.Jobs[j.Key]; t.busy[j.Key] || now != j {
				t.waiting = t.waiting || now != nil && waits(now) // it has changed meanwhile
				return
			}
			overdue := time.Since(j.Submitted) > c.Placement.HoldTimeout
			if runs[j.Key] {
				t.free(c, move.Place{}, j, placement.Output{Rule: placement.RuleNone, Why: "it runs already: it was registered again"}, overdue)
				return
			}
			b, out, err := t.find(c, j, all)
			switch {
			case err != nil && overdue:
				t.free(c, move.Place{}, j, late(c, err), overdue)
			case err != nil:
				t.sayOf(j.Key, "it waits: "+err.Error())
			default:
				t.free(c, b, j, out, overdue)
			}
		})
	}
}

// late is what is decided of a job for which nothing was decided in time.
func late(c config.Config, err error) placement.Output {
	return placement.Output{Rule: placement.RuleNone, Why: fmt.Sprintf("no node was found for it within %v: %v", c.Placement.HoldTimeout, err)}
}

// held are the jobs that wait and can be let run.
func (t *term) held() (held []*cluster.Job) {
	for key, j := range t.state.Jobs {
		switch {
		case j.Stopped || t.busy[key] || !waits(j):
		case j.Template || j.Made:
			t.sayOf(key, "it waits for ever: a periodic or parameterized job, and what is made of it, cannot be let run by the shim; take the constraint "+cluster.Hold+" out of it")
		default:
			held = append(held, j)
		}
	}
	return held
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
func (t *term) find(c config.Config, j *cluster.Job, all []loaded) (move.Place, placement.Output, error) {
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
	if len(all) == 0 {
		return b, placement.Output{}, errors.New("nothing is known of any node")
	}
	if n := len(t.barred[j.Key]); n >= tries {
		return anywhere(fmt.Sprintf("Nomad takes it on none of the %d best nodes", n))
	}
	out := placement.Choose(t.candidates(j, group, group.Asks, "", all), placement.Params{CapacityAware: c.Placement.CapacityAware})
	b.Node = out.Node
	return b, out, nil
}

// free lets a job run that waits, on a node or wherever Nomad places it. In a dry run it
// only asks Nomad.
func (t *term) free(c config.Config, b move.Place, j *cluster.Job, out placement.Output, overdue bool) {
	b.Namespace, b.Job = j.Key.Namespace, j.Key.ID
	e := memory.Entry{
		Time: time.Now(), Namespace: b.Namespace, Job: b.Job, Policy: policies.FlowConPlace, DryRun: c.DryRun,
		Rule: out.Rule, Why: t.readable(out.Why), Scores: t.readable(text(out.Scores)),
	}
	if b.Node != "" {
		e.To = t.name(b.Node)
		t.inbound[b.Node]++
	}
	t.busy[j.Key] = true
	opts := t.options()
	t.send(func() func() {
		t.releasing <- struct{}{}
		defer func() { <-t.releasing }()
		node, alloc, refused := b.Node, "", ""
		var unasked, err error
		if node != "" {
			refused, unasked = move.Try(t.leading, t.nomad, b)
		}
		if unasked != nil && overdue {
			out := late(c, unasked)
			e.Rule, e.Why, e.Scores, e.To, b.Node, unasked = out.Rule, out.Why, "", "", "", nil
		}
		if unasked == nil && refused == "" && !c.DryRun {
			t.log.Info("a job that waits is let run", "job", e.Job, "namespace", e.Namespace, "to", e.To, "why", e.Why)
			alloc, err = move.Release(t.leading, t.nomad, b, opts)
		}
		return func() {
			delete(t.busy, j.Key)
			t.arrived(node)
			switch {
			case unasked != nil && !errors.Is(unasked, move.ErrNotHeld):
				t.sayOf(j.Key, "it waits: "+unasked.Error())
			case refused != "":
				t.log.Debug("another node is looked for", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", refused)
				t.bar(j.Key, node)
				t.waiting = true
			case unasked == nil:
				t.freed(j.Key, b.Node, e, alloc, err)
			}
		}
	})
}

// freed takes over what became of a job that was to run.
func (t *term) freed(key cluster.JobKey, node string, e memory.Entry, alloc string, err error) {
	if errors.Is(err, move.ErrNotHeld) || errors.Is(err, move.ErrClaimed) {
		return // what was known here was old, or somebody else does it
	}
	result := "placed"
	switch {
	case err != nil:
		result, e.Error = "failed", err.Error()
		t.log.Warn("a job that waits was not placed", "job", e.Job, "namespace", e.Namespace, "to", e.To, "error", err)
	case e.DryRun:
		if result = "dry"; !t.sayOf(key, "it waits, and would be placed: "+e.Why) {
			return
		}
	case node == "":
		result = "released"
	default:
		t.placed[alloc] = true
	}
	e.NewAlloc = alloc
	t.metrics.Moves.WithLabelValues(e.Policy, result).Inc()
	// What fails is tried again, and written down once.
	if err == nil || t.sayOf(key, e.Error) {
		t.book.note(e)
	}
}
