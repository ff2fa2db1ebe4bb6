// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/migration"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
)

// metaMigrate is the key of a job's meta by which it lets itself be moved.
const metaMigrate = "ebbtide_migrate"

// decide looks for what is to be moved.
func (t *term) decide(ctx context.Context, c config.Config) {
	t.forget(ctx)
	// The nodes are asked when somebody wants to know, and then once.
	summaries := sync.OnceValue(func() map[string]status.Node { return t.summaries(ctx) })
	if c.Placement.Enabled {
		t.place(ctx, c, summaries)
	}
	if c.Migration.Enabled {
		t.migrate(ctx, c, summaries)
	}
	if c.Rebalance.Enabled && time.Since(t.rebalanced) >= c.Rebalance.Interval {
		t.rebalanced = time.Now()
		t.rebalance(ctx, c)
	}
}

// forget drops jobs that are no more: who registers one anew may have it moved again.
func (t *term) forget(ctx context.Context) {
	for key := range t.jobs {
		if j := t.state.Jobs[key]; j != nil && !j.Stopped {
			continue
		}
		if err := t.store.Forget(ctx, key); err != nil {
			t.log.Warn("a job that is gone is still remembered", "job", key.ID, "namespace", key.Namespace, "error", err)
			continue
		}
		delete(t.jobs, key)
		delete(t.told, key)
		t.gate.Forget(key)
	}
}

// group is that of an allocation, if its job lets it be moved.
func (t *term) group(a *cluster.Alloc) (cluster.Group, bool) {
	j := t.state.Jobs[a.Job]
	if j == nil || j.Stopped || !a.Running || a.Stops {
		return cluster.Group{}, false
	}
	g, ok := j.Groups[a.Group]
	return g, ok && g.Movable && g.Count == 1 && g.Meta[metaMigrate] == "true"
}

// place runs FlowCon's Algorithm 4 for tasks that have just begun: one for which another
// node is better by the margin goes there. It is asked once about each allocation.
func (t *term) place(ctx context.Context, c config.Config, summaries func() map[string]status.Node) {
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
	loads := t.loads(nodes)
	for _, a := range young {
		own, ok := nodes[a.Node]
		if !ok || own.Tasks == 0 {
			continue // the node has not seen it yet
		}
		t.placed[a.ID] = true
		out := t.choose(c, a, loads)
		if out.Node == a.Node || out.Rule != placement.RuleAllCL && out.Scores[out.Node] >= out.Scores[a.Node]*(1-c.Placement.Margin) {
			t.log.Debug("a new task is well placed", "job", a.Job.ID, "namespace", a.Job.Namespace, "alloc_id", a.ID, "why", t.readable(out.Why))
			continue
		}
		t.begin(ctx, c, a, out.Node, memory.Entry{Policy: policies.FlowConPlace, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)})
	}
}

// choose runs Algorithm 4 for one task, over its own node and those that could take it.
func (t *term) choose(c config.Config, a *cluster.Alloc, all []loaded) placement.Output {
	group, _ := t.group(a)
	loads := t.feasibles[:0]
	for _, n := range all {
		l := n.load
		switch {
		case l.ID == a.Node:
			l.NL.Tasks = max(0, l.NL.Tasks-1) // itself
		case !t.feasible(n.node, a, group):
			continue
		}
		l.Pending += t.inbound[l.ID]
		loads = append(loads, l)
	}
	t.feasibles = loads
	return placement.Choose(loads, placement.Params{CapacityAware: c.Placement.CapacityAware})
}

// loads are those of the nodes, the same for all tasks that are placed at a time.
func (t *term) loads(nodes map[string]status.Node) []loaded {
	loads := make([]loaded, 0, len(nodes))
	for id, n := range nodes {
		node := t.state.Nodes[id]
		loads = append(loads, loaded{node, load(node, n)})
	}
	return loads
}

// loaded is a node with what counts of its tasks.
type loaded struct {
	node *cluster.Node
	load placement.Load
}

// load is what counts of a node for its next task. A sum of growth that is 0 may be that
// of tasks of which nothing is known yet.
func load(node *cluster.Node, n status.Node) placement.Load {
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

// migrate runs SpeCon's Algorithm 2 for the tasks that have asked to be moved, those that
// wait longest first.
func (t *term) migrate(ctx context.Context, c config.Config, summaries func() map[string]status.Node) {
	var asking []*cluster.Alloc
	for _, a := range t.state.Allocs {
		if a.Asked.IsZero() {
			continue
		}
		if _, ok := t.group(a); ok && t.jobs[a.Job].Marked.IsZero() {
			asking = append(asking, a)
		}
	}
	if len(asking) == 0 {
		return
	}
	slices.SortFunc(asking, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.Asked.Compare(b.Asked), strings.Compare(a.ID, b.ID))
	})
	nodes := summaries()
	for _, a := range asking {
		t.migrateOne(ctx, c, a, nodes)
	}
}

// migrateOne decides about one task.
func (t *term) migrateOne(ctx context.Context, c config.Config, a *cluster.Alloc, nodes map[string]status.Node) {
	group, _ := t.group(a)
	if _, ok := nodes[a.Node]; !ok {
		t.say(a, "nothing is known of its node")
		return
	}
	st, err := t.nomad.Status(ctx, stub(a), a.Task)
	switch {
	case err != nil:
		t.say(a, "its status cannot be read: "+err.Error())
		return
	case !st.SpeCon.RequestMove:
		t.say(a, "it does not ask any more: "+st.SpeCon.Why)
		return
	}
	in := migration.Input{Task: a.Job.ID, From: a.Node, Params: migration.Params{Weights: c.Migration.Weights}}
	for id, n := range nodes {
		node := t.state.Nodes[id]
		if id != a.Node && !t.feasible(node, a, group) {
			continue
		}
		in.Nodes = append(in.Nodes, migration.Node{
			ID: id, Use: max(0, known(n.Use)),
			Counts: migration.Counts{PC: n.SpeCon["PC"] + n.SpeCon[""], WC: n.SpeCon["WC"], CC: n.SpeCon["CC"]},
		})
	}
	slices.SortFunc(in.Nodes, func(a, b migration.Node) int { return strings.Compare(a.ID, b.ID) })
	if err := in.Validate(); err != nil {
		t.log.Error("nothing was decided: the input is not valid", "error", err)
		return
	}
	out := migration.Decide(in)
	if !out.Move {
		t.mark(ctx, a.Job, false)
		t.log.Info("a converged task stays", "job", a.Job.ID, "namespace", a.Job.Namespace, "alloc_id", a.ID, "why", t.readable(out.Why))
		return
	}
	t.begin(ctx, c, a, out.To, memory.Entry{Policy: policies.SpeConMigrate, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)})
}

// rebalance runs SpeCon's Algorithm 3 over the jobs that let themselves be moved.
func (t *term) rebalance(ctx context.Context, c config.Config) {
	in, byTask := t.spread(time.Now())
	if err := in.Validate(); err != nil {
		t.log.Error("nothing was decided: the input is not valid", "error", err)
		return
	}
	out := rebalance.Decide(in)
	for _, m := range out.Moves {
		a := byTask[m.Task]
		group, _ := t.group(a)
		if !t.feasible(t.state.Nodes[m.To], a, group) {
			t.say(a, fmt.Sprintf("node %s would be short of tasks, but cannot take it", m.To))
			continue
		}
		t.begin(ctx, c, a, m.To, memory.Entry{Policy: policies.SpeConRebalance, Rule: out.Rule, Why: out.Why})
	}
}

// spread is what rebalance decides on: the tasks that let themselves be moved, on all
// nodes that could take some, and the allocations that they are.
func (t *term) spread(now time.Time) (in rebalance.Input, byTask map[string]*cluster.Alloc) {
	in.NowS = seconds(now)
	byTask = make(map[string]*cluster.Alloc)
	for _, id := range slices.Sorted(maps.Keys(t.state.Nodes)) {
		node := t.state.Nodes[id]
		if node.PoolCores == 0 || !node.Takes {
			continue
		}
		n := rebalance.Node{ID: id, Tasks: []rebalance.Task{}}
		allocs := t.state.On(id)
		for _, allocID := range slices.Sorted(maps.Keys(allocs)) {
			a := allocs[allocID]
			if _, ok := t.group(a); !ok {
				continue
			}
			task := rebalance.Task{ID: allocID, Rebalanced: t.jobs[a.Job].Rebalanced}
			if marked := t.jobs[a.Job].Marked; !marked.IsZero() {
				s := min(seconds(marked), in.NowS)
				task.MarkedS = &s
			}
			byTask[allocID] = a
			n.Tasks = append(n.Tasks, task)
		}
		in.Nodes = append(in.Nodes, n)
	}
	return in, byTask
}

// feasible says whether Nomad would take an allocation on a node, as far as that is known
// here. Nomad itself is asked before anything happens.
func (t *term) feasible(n *cluster.Node, a *cluster.Alloc, g cluster.Group) bool {
	j := t.state.Jobs[a.Job]
	if n == nil || !n.Takes || n.PoolCores == 0 || n.ID == a.Node || n.Pool != j.Pool {
		return false
	}
	for _, d := range g.Drivers {
		if !n.Drivers[d] {
			return false
		}
	}
	in := slices.ContainsFunc(j.Datacenters, func(pattern string) bool {
		ok, err := path.Match(pattern, n.Datacenter)
		return ok && err == nil
	})
	return in && a.Uses.Fits(t.state.Left(n))
}

// begin begins a move, if the gate is open.
func (t *term) begin(ctx context.Context, c config.Config, a *cluster.Alloc, to string, e memory.Entry) {
	if closed := t.gate.Closed(time.Now(), a.Job, a.Node, to); closed != "" {
		t.say(a, closed)
		return
	}
	e.Time, e.Namespace, e.Job, e.Alloc = time.Now(), a.Job.Namespace, a.Job.ID, a.ID
	e.From, e.To, e.DryRun = t.name(a.Node), t.name(to), c.DryRun
	e.Why, e.Scores = t.readable(e.Why), t.readable(e.Scores)
	log := t.log.With("job", e.Job, "namespace", e.Namespace, "alloc_id", e.Alloc, "from", e.From, "to", e.To)
	if c.DryRun {
		t.metrics.Moves.WithLabelValues(e.Policy, "dry").Inc()
		if e.Policy != policies.FlowConPlace {
			t.mark(ctx, a.Job, e.Policy == policies.SpeConRebalance)
		}
		log.Info("would be moved", "policy", e.Policy, "why", e.Why)
		t.note(ctx, e)
		return
	}
	log.Info("moving", "policy", e.Policy, "why", e.Why)
	end := t.gate.Begin(time.Now(), a.Job, a.Node, to)
	t.inbound[to]++
	t.metrics.InFlight.Inc()
	opts := move.DefaultOptions()
	opts.Report = func(phase move.Phase, what string) { log.Info(what, "phase", string(phase)) }
	// The move has a goroutine of its own: what it binds is remembered beside the loop, on
	// top of what is known of the job now.
	job := t.jobs[a.Job]
	opts.Binds = func(ctx context.Context, b *move.Binding) error {
		j := job
		if b != nil {
			j.Group, j.Node = b.Group, b.Node
		}
		return t.store.Keep(ctx, a.Job, j)
	}
	t.moves.Go(func() {
		res, err := move.Move(t.leading, t.nomad, move.Request{Alloc: a.ID, Node: to}, opts)
		t.ended <- ended{job: a.Job, to: to, entry: e, result: res, err: err, end: end}
	})
}

// ended is a move that has ended.
type ended struct {
	job    cluster.JobKey
	to     string
	entry  memory.Entry
	result move.Result
	err    error
	end    func(time.Time, bool)
}

// finish takes the end of a move over.
func (t *term) finish(ctx context.Context, e ended) {
	e.end(time.Now(), e.err == nil)
	t.metrics.InFlight.Dec()
	if t.inbound[e.to]--; t.inbound[e.to] <= 0 {
		delete(t.inbound, e.to)
	}
	e.entry.Phase, e.entry.NewAlloc = string(e.result.Phase), e.result.NewAlloc
	if e.result.DownS.Known() {
		e.entry.DownS = fmt.Sprintf("%.2f", float64(e.result.DownS))
		t.metrics.Down.Observe(float64(e.result.DownS))
	}
	var refused *move.Refused
	result := "moved"
	switch {
	case errors.As(e.err, &refused):
		result = "refused"
	case e.err != nil:
		result = "failed"
	}
	t.metrics.Moves.WithLabelValues(e.entry.Policy, result).Inc()
	if e.err != nil {
		e.entry.Error = e.err.Error()
		t.log.Warn("not moved", "job", e.entry.Job, "namespace", e.entry.Namespace, "alloc_id", e.entry.Alloc, "error", e.err)
	}
	failures, last := t.gate.Failures(e.job)
	j := t.jobs[e.job]
	j.Failures, j.Last = failures, last
	// What cannot be moved is not asked again; what failed is, after its back-off. That it
	// was placed anew says nothing of its convergence.
	if result != "failed" && e.entry.Policy != policies.FlowConPlace {
		j.Marked = time.Now()
		j.Rebalanced = j.Rebalanced || e.entry.Policy == policies.SpeConRebalance
	}
	t.keep(ctx, e.job, j)
	t.note(ctx, e.entry)
}

// mark notes that it was decided about a job.
func (t *term) mark(ctx context.Context, key cluster.JobKey, rebalanced bool) {
	j := t.jobs[key]
	j.Marked = time.Now()
	j.Rebalanced = j.Rebalanced || rebalanced
	t.keep(ctx, key, j)
}

func (t *term) keep(ctx context.Context, key cluster.JobKey, j memory.Job) {
	t.jobs[key] = j
	if err := t.store.Keep(ctx, key, j); err != nil {
		t.log.Warn("what was decided of a job will not be remembered", "job", key.ID, "namespace", key.Namespace, "error", err)
	}
}

func (t *term) note(ctx context.Context, e memory.Entry) {
	if err := t.store.Note(ctx, e); err != nil {
		t.log.Warn("what was done is not written down", "job", e.Job, "namespace", e.Namespace, "error", err)
	}
}

// say tells why a job is not moved now, once.
func (t *term) say(a *cluster.Alloc, why string) {
	if t.told[a.Job] == why {
		return
	}
	t.told[a.Job] = why
	t.log.Info("not moved now", "job", a.Job.ID, "namespace", a.Job.Namespace, "alloc_id", a.ID, "why", why)
}

// unbind sets jobs free that an earlier leader has bound, and then died.
func (t *term) unbind(ctx context.Context) {
	for key, j := range t.jobs {
		if j.Node == "" {
			continue
		}
		b := move.Binding{Namespace: key.Namespace, Job: key.ID, Group: j.Group, Node: j.Node}
		if err := move.Unbind(ctx, t.nomad, b); err != nil {
			t.log.Error("a job stays bound to a node", "job", key.ID, "namespace", key.Namespace, "node", t.name(j.Node), "error", err)
			continue
		}
		t.log.Info("a job that an earlier shim has left bound is free again", "job", key.ID, "namespace", key.Namespace, "node", t.name(j.Node))
		j.Group, j.Node = "", ""
		t.keep(ctx, key, j)
	}
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

// summaries asks the nodes how their tasks do: one status file of each. A node of which
// nothing can be learnt is left out, unless nothing runs there.
func (t *term) summaries(ctx context.Context) map[string]status.Node {
	type answer struct {
		node string
		sum  status.Node
		err  error
	}
	answers := make(chan answer)
	asked := 0
	slots := make(chan struct{}, 16)
	for id, n := range t.state.Nodes {
		if n.PoolCores == 0 {
			continue
		}
		var allocs []*cluster.Alloc
		for _, a := range t.state.On(id) {
			if a.Running {
				allocs = append(allocs, a)
			}
		}
		asked++
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			sum, err := t.summary(ctx, allocs)
			answers <- answer{id, sum, err}
		}()
	}
	nodes := make(map[string]status.Node)
	for range asked {
		a := <-answers
		if a.err != nil {
			t.log.Debug("nothing is known of a node's tasks", "node", t.name(a.node), "error", a.err)
			continue
		}
		nodes[a.node] = a.sum
	}
	return nodes
}

// summary finds a status file of one of a node's allocations.
func (t *term) summary(ctx context.Context, allocs []*cluster.Alloc) (status.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if len(allocs) == 0 {
		return status.Node{}, nil
	}
	var errs []error
	for _, a := range allocs {
		alloc := stub(a)
		files, _, err := t.client.AllocFS().List(alloc, "alloc/"+status.Dir, (&api.QueryOptions{Namespace: a.Job.Namespace}).WithContext(ctx))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, f := range files {
			task, ok := strings.CutSuffix(f.Name, ".json")
			if !ok {
				continue
			}
			st, err := t.nomad.Status(ctx, alloc, task)
			if err == nil && st.Alloc == a.ID && time.Since(st.Updated) < 10*time.Minute {
				return st.Node, nil
			}
			errs = append(errs, err)
		}
	}
	return status.Node{}, fmt.Errorf("none of %d allocations has a status of Ebbtide's: %w", len(allocs), errors.Join(errs...))
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
