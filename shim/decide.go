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
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/rebalance"
)

// metaMigrate is the key of a job's meta by which it lets itself be moved.
const metaMigrate = "ebbtide_migrate"

// decide looks for what is to be moved.
func (t *term) decide(ctx context.Context, c config.Config) {
	t.forget(ctx)
	// The nodes are asked when somebody wants to know, and then once.
	summaries := sync.OnceValue(func() map[string]Summary { return t.summaries(ctx) })
	t.release(ctx, c, summaries)
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
		t.gate.Forget(key)
	}
	for key := range t.told {
		if j := t.state.Jobs[key]; j == nil || j.Stopped {
			delete(t.told, key)
		}
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

// migrate runs SpeCon's Algorithm 2 for the tasks that have asked to be moved, those that
// wait longest first.
func (t *term) migrate(ctx context.Context, c config.Config, summaries func() map[string]Summary) {
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
func (t *term) migrateOne(ctx context.Context, c config.Config, a *cluster.Alloc, nodes map[string]Summary) {
	group, _ := t.group(a)
	if _, ok := nodes[a.Node]; !ok {
		t.say(a, "nothing is known of its node")
		return
	}
	if closed := t.gate.Closed(time.Now(), a.Job, a.Node, ""); closed != "" {
		t.say(a, closed)
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
	j := t.state.Jobs[a.Job]
	for id, n := range nodes {
		if id != a.Node && !t.feasible(t.state.Nodes[id], j, group, a.Uses) {
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
	for range tries {
		if !out.Move || t.accepts(ctx, a, out.To) {
			break
		}
		in.Nodes = slices.DeleteFunc(in.Nodes, func(n migration.Node) bool { return n.ID == out.To })
		out = migration.Decide(in)
	}
	if !out.Move {
		if unknown := t.unknown(nodes); unknown != "" {
			t.say(a, "it would stay, but nothing is known of node "+t.name(unknown))
			return // it is asked again
		}
		t.mark(ctx, a.Job, false)
		t.log.Info("a converged task stays", "job", a.Job.ID, "namespace", a.Job.Namespace, "alloc_id", a.ID, "why", t.readable(out.Why))
		return
	}
	t.begin(ctx, c, a, out.To, memory.Entry{Policy: policies.SpeConMigrate, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)})
}

// unknown is a node that takes allocations and of whose tasks nothing is known; "" if
// there is none.
func (t *term) unknown(nodes map[string]Summary) string {
	for _, id := range slices.Sorted(maps.Keys(t.state.Nodes)) {
		n := t.state.Nodes[id]
		if _, ok := nodes[id]; !ok && n.Takes && n.PoolCores > 0 {
			return id
		}
	}
	return ""
}

// rebalance runs SpeCon's Algorithm 3 over the jobs that let themselves be moved.
func (t *term) rebalance(ctx context.Context, c config.Config) {
	in, byTask := t.spread(time.Now())
	if err := in.Validate(); err != nil {
		t.log.Error("nothing was decided: the input is not valid", "error", err)
		return
	}
	for left := tries - 1; left >= 0; left-- {
		out := rebalance.Decide(in)
		refused := make(map[string]bool)
		for i, m := range out.Moves {
			a := byTask[m.Task]
			// More do not begin at a time: Nomad is asked about these.
			if !t.takes(a, m.To) || i < c.Limits.InFlight && !t.accepts(ctx, a, m.To) {
				refused[m.Task] = true
				t.say(a, fmt.Sprintf("node %s would be short of tasks, but cannot take it", t.name(m.To)))
			}
		}
		if len(refused) == 0 || left == 0 {
			for _, m := range out.Moves {
				if !refused[m.Task] {
					t.begin(ctx, c, byTask[m.Task], m.To, memory.Entry{Policy: policies.SpeConRebalance, Rule: out.Rule, Why: out.Why})
				}
			}
			return
		}
		// Another task may fit.
		for i := range in.Nodes {
			for j := range in.Nodes[i].Tasks {
				k := &in.Nodes[i].Tasks[j]
				k.Rebalanced = k.Rebalanced || refused[k.ID]
			}
		}
	}
}

// takes says whether a node could take an allocation, as far as that is known here.
func (t *term) takes(a *cluster.Alloc, node string) bool {
	group, _ := t.group(a)
	return t.feasible(t.state.Nodes[node], t.state.Jobs[a.Job], group, a.Uses)
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

// feasible says whether Nomad would place a group on a node, as far as that is known here.
func (t *term) feasible(n *cluster.Node, j *cluster.Job, g cluster.Group, asks cluster.Resources) bool {
	if n == nil || !n.Takes || n.PoolCores == 0 || n.Pool != j.Pool {
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
	opts.Binds = t.binds(a.Job)
	t.moves.Go(func() {
		res, err := move.Move(t.leading, t.nomad, move.Request{Alloc: a.ID, Node: to}, opts)
		t.ended <- func(ctx context.Context) {
			t.finish(ctx, ended{job: a.Job, to: to, entry: e, result: res, err: err, end: end})
		}
	})
}

// binds remembers what is bound. A move has a goroutine of its own: that is remembered
// beside the loop, on top of what is known of the job now.
func (t *term) binds(key cluster.JobKey) func(context.Context, *move.Binding) error {
	job := t.jobs[key]
	return func(ctx context.Context, b *move.Binding) error {
		if err := t.held.Held(); err != nil {
			return err
		}
		j := job
		if b != nil {
			j.Group, j.Node = b.Group, b.Node
		}
		return t.store.Keep(ctx, key, j)
	}
}

// arrived notes that nothing is on its way to a node any more.
func (t *term) arrived(node string) {
	if t.inbound[node]--; t.inbound[node] <= 0 {
		delete(t.inbound, node)
	}
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
	t.arrived(e.to)
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
	err := t.held.Held()
	if err == nil {
		err = t.store.Keep(ctx, key, j)
	}
	if err != nil {
		t.log.Warn("what was decided of a job will not be remembered", "job", key.ID, "namespace", key.Namespace, "error", err)
	}
}

func (t *term) note(ctx context.Context, e memory.Entry) {
	err := t.held.Held()
	if err == nil {
		err = t.store.Note(ctx, e)
	}
	if err != nil {
		t.log.Warn("what was done is not written down", "job", e.Job, "namespace", e.Namespace, "error", err)
	}
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
