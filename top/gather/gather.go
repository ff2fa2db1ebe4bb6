// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package gather reads what `ebbtide top` shows from Nomad's API: nodes, allocations, the
// driver's status of each task, and the shim's variables.
//
// Nothing waits for a node that does not answer: each request has a deadline of its own,
// what is left for such a node is put off, and what was read before is shown as stale. How
// many files a refresh asks for is given by its caller; what is visible comes first, then
// what was not read for longest.
package gather

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/ryanuber/go-glob"
	"golang.org/x/sync/errgroup"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/top"
)

// Options say what is read.
type Options struct {
	Client    *api.Client
	Namespace string // of the jobs; "" or "*": all that the token may read
	Node      string // name, ID or beginning of an ID; "": all
	Job       string // pattern of the jobs' IDs; "": all
	Shim      memory.Store
}

// Times and bounds of what is asked.
const (
	// listEvery is how often nodes, allocations and moves are listed, at most for a tenth of
	// the time. listWithin bounds each page, and the reading of all moves.
	listEvery  = 5 * time.Second
	listWithin = 10 * time.Second
	pageSize   = 2000
	// askWithin bounds a request for a file, and atATime how many are made side by side. A
	// node is asked in lanes: one that hangs holds up no more than its own.
	askWithin = 3 * time.Second
	atATime   = 16
	laneOf    = 25
	// probeEvery is how often one task of a node is asked that does not answer.
	probeEvery = 15 * time.Second
	// curveEvery is how often a history is read again. It is the end of the file that is
	// read for a row.
	curveEvery = 10 * time.Second
	tail       = 16 << 10
	// curveWithin bounds the reading of a whole history.
	curveWithin = 10 * time.Second
	// hungFor is for how long a history is not read again that did not come.
	hungFor = 5 * time.Minute
	// A task without a status is none of Ebbtide's, or has just begun: it is asked again
	// after silentFor, and at once while it is younger than young.
	silentFor = time.Minute
	young     = time.Minute
	// old is the age from which on a status is shown as stale. The driver writes one at each
	// of its decisions.
	old = 10 * time.Minute
	// mostEvents is how many of a task's events are kept; Nomad keeps ten.
	mostEvents = 10
)

// Gatherer reads a cluster, again and again. Only Curve may be called beside another method.
type Gatherer struct {
	options Options
	files   files
	now     func() time.Time

	listed  time.Time
	took    time.Duration // to list everything
	nodes   map[string]*node
	tasks   map[top.Key]*task
	moves   []top.Move
	notes   []string // of the last listing
	failing string   // why there is no newer listing
}

// node is a node that runs Ebbtide's driver.
type node struct {
	top.Node
	down    bool      // Nomad says that it is not there: it is not asked
	probed  time.Time // when it was found not to answer; zero: it answers
	problem string
}

// task is a running task of such a node; whether it is Ebbtide's its status tells.
type task struct {
	top.Task
	asked  time.Time // zero: never
	silent bool      // it had no status
	curved time.Time // when its history was asked for last
}

// New returns a Gatherer that has read nothing.
func New(o Options) *Gatherer {
	if o.Namespace == "" {
		o.Namespace = api.AllNamespacesNamespace
	}
	return &Gatherer{options: o, files: files{o.Client}, now: time.Now, nodes: make(map[string]*node), tasks: make(map[top.Key]*task)}
}

// Refresh reads at most budget files, those of the tasks in visible first, and returns what is
// known then. It fails only if nothing was ever read.
func (g *Gatherer) Refresh(ctx context.Context, visible []top.Key, budget int) (*top.View, error) {
	if g.now().Sub(g.listed) >= max(listEvery, 10*g.took) {
		if err := g.list(ctx); err != nil {
			if g.listed.IsZero() || ctx.Err() != nil {
				return nil, err
			}
			g.failing = fmt.Sprintf("the lists are of %s: %v", g.listed.UTC().Format(time.TimeOnly), err)
		} else {
			g.failing = ""
		}
	}
	g.ask(ctx, g.choose(visible, budget))
	return g.view(), ctx.Err()
}

// mostCurves is how many tasks there may be so that All reads their histories as well.
const mostCurves = 100

// All reads every task once, at most perSecond files in a second, and the curves of a few.
func (g *Gatherer) All(ctx context.Context, perSecond int) (*top.View, error) {
	for {
		v, err := g.Refresh(ctx, nil, perSecond)
		if err != nil {
			return nil, err
		}
		if v.Unread == 0 {
			var keys []top.Key
			for _, t := range v.Tasks {
				keys = append(keys, t.Key())
			}
			if len(keys) > mostCurves {
				return v, nil
			}
			return g.Curves(ctx, keys), ctx.Err()
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Curves reads the ends of the histories of tasks.
func (g *Gatherer) Curves(ctx context.Context, keys []top.Key) *top.View {
	var all []*question
	for _, k := range keys {
		if t := g.tasks[k]; t != nil && !t.silent && t.Status != nil && t.Error == "" {
			all = append(all, &question{task: t, history: true})
		}
	}
	g.ask(ctx, all)
	return g.view()
}

// Curve reads the whole history of a task.
func (g *Gatherer) Curve(ctx context.Context, t top.Task) ([]status.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, curveWithin)
	defer cancel()
	return g.files.history(ctx, t)
}

// list lists nodes, tasks and moves, side by side.
func (g *Gatherer) list(ctx context.Context) error {
	begun := g.now()
	var nodes map[string]*node
	var allocs []*api.AllocationListStub
	var moves []top.Move
	var names map[string]string
	var unknown error
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		nodes, names, err = g.listNodes(inner)
		return err
	})
	group.Go(func() (err error) {
		allocs, err = g.listAllocs(inner)
		return err
	})
	var records []top.Move
	group.Go(func() error {
		records, unknown = g.listMoves(inner)
		return nil // who may not read variables sees everything else
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, m := range records {
		m.From, m.To = cmp.Or(names[m.From], m.From), cmp.Or(names[m.To], m.To)
		moves = append(moves, m)
	}
	g.notes = nil
	if unknown != nil {
		g.notes = append(g.notes, "moves are not known: "+unknown.Error())
	}
	g.take(nodes, allocs)
	g.moves, g.listed = moves, g.now()
	g.took = g.listed.Sub(begun)
	return nil
}

// within asks for a page of a list.
func within[T any](ctx context.Context, q *api.QueryOptions, list func(*api.QueryOptions) (T, *api.QueryMeta, error)) (T, *api.QueryMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	return list(q.WithContext(ctx))
}

// listNodes returns the nodes that run Ebbtide's driver, and the names of all.
func (g *Gatherer) listNodes(ctx context.Context) (ours map[string]*node, names map[string]string, err error) {
	ours, names = make(map[string]*node), make(map[string]string)
	q := &api.QueryOptions{PerPage: pageSize}
	meant := false
	for {
		page, meta, err := within(ctx, q, g.options.Client.Nodes().List)
		if err != nil {
			return nil, nil, fmt.Errorf("listing the nodes: %w", denied(err, "node:read"))
		}
		for _, n := range page {
			names[n.ID] = n.Name
			if g.options.Node != "" && n.Name != g.options.Node && !strings.HasPrefix(n.ID, g.options.Node) {
				continue
			}
			meant = true
			if found, ok := driverOf(n); ok {
				ours[n.ID] = &node{Node: found, down: n.Status != api.NodeStatusReady && n.Status != api.NodeStatusInit}
			}
		}
		if q.NextToken = meta.NextToken; q.NextToken != "" {
			continue
		}
		if g.options.Node != "" && !meant {
			return nil, nil, fmt.Errorf("no node has the name %q or an ID that begins so", g.options.Node)
		}
		return ours, names, nil
	}
}

// driverOf is what a node says of Ebbtide's driver; false where there is none.
func driverOf(n *api.NodeListStub) (top.Node, bool) {
	out := top.Node{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, NodePool: n.NodePool, State: n.Status,
		PoolCores: status.Unknown(), Use: status.Unknown(), RemainingCPUS: status.Unknown(), SavedS: status.Unknown(),
	}
	switch {
	case n.Status != api.NodeStatusReady:
	case n.Drain:
		out.State = "draining"
	case n.SchedulingEligibility == api.NodeSchedulingIneligible:
		out.State = "ineligible"
	}
	for _, d := range n.Drivers {
		for _, prefix := range []string{cluster.Attributes, cluster.AttributesDocker} {
			cores, err := strconv.ParseFloat(d.Attributes[prefix+"pool_cores"], 64)
			if err != nil {
				continue
			}
			out.PoolCores, out.Version = status.Number(cores), d.Attributes[prefix+"version"]
			out.Engine, out.Policy = d.Attributes[prefix+"engine"], d.Attributes[prefix+"policy"]
			return out, true
		}
	}
	return out, false
}

// listAllocs returns the running allocations of the namespaces, with the states and events
// of their tasks.
func (g *Gatherer) listAllocs(ctx context.Context) (all []*api.AllocationListStub, err error) {
	q := &api.QueryOptions{
		Namespace: g.options.Namespace, PerPage: pageSize, Filter: `ClientStatus == "` + api.AllocClientStatusRunning + `"`,
		Params: map[string]string{"task_states": "true", "resources": "false"},
	}
	for {
		page, meta, err := within(ctx, q, g.options.Client.Allocations().List)
		if err != nil {
			return nil, fmt.Errorf("listing the allocations: %w", denied(err, "read-job"))
		}
		for _, a := range page {
			if a.ClientStatus == api.AllocClientStatusRunning && (g.options.Job == "" || glob.Glob(g.options.Job, a.JobID)) {
				all = append(all, a)
			}
		}
		if q.NextToken = meta.NextToken; q.NextToken == "" {
			return all, nil
		}
	}
}

// listMoves returns the moves that are under way. Their nodes are told by their IDs.
func (g *Gatherer) listMoves(ctx context.Context) ([]top.Move, error) {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	records, err := memory.Claims{Store: g.options.Shim}.List(ctx)
	if err != nil {
		return nil, denied(err, "the variables "+g.options.Shim.Path+" in namespace "+g.options.Shim.Namespace)
	}
	var all []top.Move
	for _, r := range records {
		if g.options.Namespace != api.AllNamespacesNamespace && g.options.Namespace != r.Namespace || g.options.Job != "" && !glob.Glob(g.options.Job, r.Job) {
			continue
		}
		all = append(all, top.Move{
			ID: r.ID, Namespace: r.Namespace, Job: r.Job, Alloc: r.Alloc, From: r.Source, To: r.Target,
			Phase: string(r.Phase), Owner: r.Owner, Until: r.Until,
		})
	}
	return all, nil
}

// errDenied says that the token is not let in.
var errDenied = errors.New("the token is not let in")

// denied says what a token needs, where Nomad has not let it in.
func denied(err error, needs string) error {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.StatusCode() == http.StatusForbidden {
		return fmt.Errorf("%w: it needs %s", errDenied, needs)
	}
	return err
}

// take takes a listing over. What was read of tasks that are still there is kept.
func (g *Gatherer) take(nodes map[string]*node, allocs []*api.AllocationListStub) {
	for id, n := range nodes {
		if before := g.nodes[id]; before != nil {
			n.probed, n.problem = before.probed, before.problem
		}
	}
	g.nodes = nodes
	tasks := make(map[top.Key]*task)
	for _, a := range allocs {
		n := nodes[a.NodeID]
		if n == nil {
			continue
		}
		for name, state := range a.TaskStates {
			if state == nil || state.State != "running" {
				continue
			}
			k := top.Key{Alloc: a.ID, Task: name}
			t := g.tasks[k]
			if t == nil {
				t = &task{}
			}
			t.Namespace, t.Job, t.Group, t.Task.Task, t.Alloc = a.Namespace, a.JobID, a.TaskGroup, name, a.ID
			t.NodeID, t.Node, t.Started, t.Events = a.NodeID, n.Name, state.StartedAt, events(state)
			tasks[k] = t
		}
	}
	g.tasks = tasks
}

// events are the last ones of a task.
func events(s *api.TaskState) []top.Event {
	all := []top.Event{}
	for _, e := range s.Events[max(0, len(s.Events)-mostEvents):] {
		all = append(all, top.Event{Time: time.Unix(0, e.Time).UTC(), Type: e.Type, Message: cmp.Or(e.DisplayMessage, e.Message, e.DriverMessage)})
	}
	return all
}

// question is a file that is asked for, and the answer.
type question struct {
	*task
	history bool

	done   bool // it was asked
	at     time.Time
	said   *status.Status
	values []status.Number
	err    error
}

// choose chooses what is asked for, at most budget files. Of a node that does not answer it
// is one task, now and then; of one that is down nothing.
func (g *Gatherer) choose(visible []top.Key, budget int) (all []*question) {
	now := g.now()
	probing := make(map[string]bool)
	may := func(t *task) bool {
		n := g.nodes[t.NodeID]
		switch {
		case n == nil || n.down:
			return false
		case n.probed.IsZero():
			return true
		case probing[n.ID] || now.Sub(n.probed) < probeEvery:
			return false
		}
		probing[n.ID] = true
		return true
	}
	// The budget of a single refresh is not spent on the same task twice.
	chosen := make(map[top.Key]bool)
	for _, k := range visible {
		t := g.tasks[k]
		if t == nil || chosen[k] || len(all) >= budget || !may(t) {
			continue
		}
		chosen[k] = true
		all = append(all, &question{task: t})
		if now.Sub(t.curved) >= curveEvery && len(all) < budget && t.Status != nil && !probing[t.NodeID] {
			all = append(all, &question{task: t, history: true})
		}
	}
	var rest []*task
	for k, t := range g.tasks {
		if !chosen[k] && (!t.silent || now.Sub(t.asked) >= silentFor || now.Sub(t.Started) < young) {
			rest = append(rest, t)
		}
	}
	slices.SortFunc(rest, func(a, b *task) int {
		return cmp.Or(a.asked.Compare(b.asked), cmp.Compare(a.Alloc, b.Alloc), cmp.Compare(a.Task.Task, b.Task.Task))
	})
	for _, t := range rest {
		if len(all) >= budget {
			break
		}
		if may(t) {
			all = append(all, &question{task: t})
		}
	}
	return all
}

// ask asks for files side by side, and takes the answers over.
func (g *Gatherer) ask(ctx context.Context, all []*question) {
	var lanes [][]*question
	last := make(map[string]int) // lane of a node that has room
	nodes := make(map[string]*asked)
	for _, q := range all {
		i, ok := last[q.NodeID]
		if !ok || len(lanes[i]) >= laneOf {
			i = len(lanes)
			lanes = append(lanes, nil)
			last[q.NodeID] = i
		}
		lanes[i] = append(lanes[i], q)
		if nodes[q.NodeID] == nil {
			nodes[q.NodeID] = new(asked)
		}
	}
	var group errgroup.Group
	group.SetLimit(atATime)
	for _, lane := range lanes {
		group.Go(func() error {
			n := nodes[lane[0].NodeID]
			for _, q := range lane {
				if n.gone.Load() || ctx.Err() != nil {
					return nil
				}
				if q.history && n.slow.Load() {
					continue
				}
				q.answer(ctx, g.files, g.now)
				n.take(q)
			}
			return nil
		})
	}
	_ = group.Wait() // each question has its own error
	if ctx.Err() != nil {
		return // what failed, failed because it was called off
	}
	for _, q := range all {
		q.keep()
	}
	for id, said := range nodes {
		n := g.nodes[id]
		if n == nil {
			continue
		}
		if problem := said.problem.Load(); problem != nil && (said.gone.Load() || !said.answers.Load()) {
			n.probed, n.problem = g.now(), *problem
		} else {
			n.probed, n.problem = time.Time{}, ""
		}
	}
}

// asked is what the requests for the files of a node have shown of it.
type asked struct {
	answers atomic.Bool // for one task at least
	refused atomic.Int32
	gone    atomic.Bool // it is not asked any more
	slow    atomic.Bool // it is not asked for histories any more
	problem atomic.Pointer[string]
}

// mostRefused is how many tasks of a node Nomad may fail to read before it is taken for the
// node's fault: of a single one it may be the task's.
const mostRefused = 3

// take takes an answer over.
func (a *asked) take(q *question) {
	hangs, refused := q.unreachable()
	if q.history {
		// A task can put a pipe in the place of its history: that must cost the others no more
		// than one deadline.
		a.slow.CompareAndSwap(false, hangs)
		return
	}
	if !hangs && !refused {
		a.answers.Store(true)
		return
	}
	problem := q.err.Error()
	a.problem.Store(&problem)
	if hangs || a.refused.Add(1) >= mostRefused && !a.answers.Load() {
		a.gone.Store(true)
	}
}

// answer asks for the file.
func (q *question) answer(ctx context.Context, f files, now func() time.Time) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	q.done, q.at = true, now()
	if q.history {
		rows, err := f.end(ctx, q.Task, tail)
		q.values, q.err = top.Values(rows), err
		return
	}
	q.said, q.err = f.status(ctx, q.Task)
}

// keep takes the answer over.
func (q *question) keep() {
	switch {
	case !q.done:
	case q.history:
		// Without a history there is no curve, which is seen.
		if q.curved = q.at; q.err == nil {
			q.Values = q.values
		} else if hangs, _ := q.unreachable(); hangs {
			q.curved = q.at.Add(hungFor)
		}
	case errors.Is(q.err, fs.ErrNotExist):
		q.asked, q.silent, q.Error = q.at, true, ""
	case q.err != nil:
		q.asked, q.silent, q.Error = q.at, false, q.err.Error()
	default:
		q.asked, q.silent, q.Error, q.Read, q.Status = q.at, false, "", q.at, q.said
	}
}

// unreachable says whether there was no answer, or one by which Nomad has not reached the
// node, maybe.
func (q *question) unreachable() (hangs, refused bool) {
	var response api.UnexpectedResponseError
	switch {
	case q.err == nil, errors.Is(q.err, fs.ErrNotExist), errors.Is(q.err, errNonsense), errors.Is(q.err, errDenied):
		return false, false
	case errors.Is(q.err, errSaid):
		return false, true
	case errors.As(q.err, &response):
		return false, response.StatusCode() >= http.StatusInternalServerError
	}
	return true, false
}

// view is what is known now.
func (g *Gatherer) view() *top.View {
	now := g.now()
	v := &top.View{
		Time: now.UTC(), Address: g.options.Client.Address(), Nodes: []top.Node{}, Tasks: []top.Task{}, GPUs: []top.GPU{},
		Moves: append([]top.Move{}, g.moves...), Notes: append([]string{}, g.notes...), Error: g.failing,
	}
	newest := make(map[string]*status.Status)
	for _, t := range g.tasks {
		n := g.nodes[t.NodeID]
		if n == nil || t.silent && t.Status == nil {
			continue
		}
		if t.Status == nil && t.Error == "" && !n.down && n.probed.IsZero() {
			v.Unread++
			continue
		}
		shown := t.Task
		switch {
		case n.down:
			shown.Stale, shown.Error = true, "node "+n.Name+" is "+n.State
		case !n.probed.IsZero():
			shown.Stale, shown.Error = true, cmp.Or(t.Error, n.problem)
		case t.silent:
			shown.Stale, shown.Error = true, "its status is gone"
		case t.Error != "":
			shown.Stale = true
		case now.Sub(t.Status.Updated) > old:
			shown.Stale, shown.Error = true, "its status is old: the plugin may not run"
		}
		if shown.Values == nil {
			shown.Values = []status.Number{}
		}
		v.Tasks = append(v.Tasks, shown)
		if s := t.Status; s != nil && (newest[t.NodeID] == nil || s.Updated.After(newest[t.NodeID].Updated)) {
			newest[t.NodeID] = s
		}
	}
	for id, n := range g.nodes {
		shown := n.Node
		shown.Stale, shown.Error = n.down || !n.probed.IsZero(), n.problem
		if s := newest[id]; s != nil {
			shown.PoolCores, shown.Use, shown.Tasks, shown.Updated = s.Node.PoolCores, s.Node.Use, s.Node.Tasks, s.Updated
			shown.Categories, shown.Classes = maps.Clone(s.Node.Counts), maps.Clone(s.Node.Classes)
			shown.RemainingCPUS, shown.SavedS = s.Node.RemainingCPUS, s.Node.SavedS
			shown.Policy, shown.Engine = cmp.Or(s.Policy, shown.Policy), cmp.Or(s.Engine, shown.Engine)
			if g.now().Sub(s.Updated) > old {
				shown.Stale = true
			}
		}
		v.Nodes = append(v.Nodes, shown)
	}
	v.Finish()
	return v
}
