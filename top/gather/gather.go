// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package gather reads the data of `ebbtide top` from Nomad's API: nodes, allocations, the tasks'
// statuses and the shim's claims.
//
// An unresponsive node does not delay others: requests have deadlines, further requests to that
// node are postponed, and earlier data is shown as stale. The caller limits the files per refresh;
// visible tasks come first, then those read longest ago.
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
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/top"
)

type Options struct {
	Client    *api.Client
	Namespace string // of the jobs; "" or "*" for all
	Node      string // name, ID or ID prefix; "" for all
	Job       string // glob of job IDs; "" for all
	Shim      store.Store
}

const (
	// listInterval applies to nodes, allocations and moves, and grows such that listing takes at
	// most a tenth of the time. listTimeout bounds a page, and reading all moves.
	listInterval = 5 * time.Second
	listTimeout  = 10 * time.Second
	pageSize     = 2000
	// At most maxParallel files are requested concurrently. A node's requests are split into lanes
	// of laneSize, so a hanging node blocks only its lanes.
	fileTimeout = 3 * time.Second
	maxParallel = 16
	laneSize    = 25
	// An unresponsive node is probed with one file per probeInterval.
	probeInterval = 15 * time.Second
	// A sparkline is read from the last tailBytes of a history.
	curveInterval = 10 * time.Second
	tailBytes     = 16 << 10
	curveTimeout  = 10 * time.Second
	// hangBackoff postpones the next read of a history that hung.
	hangBackoff = 5 * time.Minute
	// A task without a status does not run under Ebbtide, or has just started: it is retried
	// every noStatusRetry, and on each refresh within startGrace of its start.
	noStatusRetry = time.Minute
	startGrace    = time.Minute
	// statusMaxAge is the age at which a status is stale. The driver writes one with each
	// decision.
	statusMaxAge = 10 * time.Minute
	// Nomad stores ten.
	maxEvents = 10
)

// Gatherer reads a cluster repeatedly. Only Curve, Ended and Shim may be called concurrently with
// another method.
type Gatherer struct {
	options Options
	files   files
	now     func() time.Time

	listedAt time.Time
	listTook time.Duration
	nodes    map[string]*node
	tasks    map[top.Key]*task
	moves    []top.Move
	report   store.Report // the shim's, of the selected jobs
	notes    []string     // of the last listing
	listErr  string       // why the last listing failed
}

// node is a node with Ebbtide's driver.
type node struct {
	top.Node
	down              bool      // according to Nomad: send no requests
	unresponsiveSince time.Time // zero if it responds
	problem           string
}

// task is a running task on such a node. It runs under Ebbtide if it has a status.
type task struct {
	top.Task
	requestedAt time.Time // zero = never
	noStatus    bool
	curveAt     time.Time // last request for its history
}

func New(o Options) *Gatherer {
	if o.Namespace == "" {
		o.Namespace = api.AllNamespacesNamespace
	}
	return &Gatherer{options: o, files: files{o.Client}, now: time.Now, nodes: make(map[string]*node), tasks: make(map[top.Key]*task)}
}

// Refresh reads at most budget files, visible tasks' first, and returns the current view. It fails
// only if nothing has been read yet.
func (g *Gatherer) Refresh(ctx context.Context, visible []top.Key, budget int) (*top.View, error) {
	if g.now().Sub(g.listedAt) >= max(listInterval, 10*g.listTook) {
		if err := g.list(ctx); err != nil {
			if g.listedAt.IsZero() || ctx.Err() != nil {
				return nil, err
			}
			g.listErr = fmt.Sprintf("showing the listing of %s: %v", g.listedAt.UTC().Format(time.TimeOnly), err)
		} else {
			g.listErr = ""
		}
	}
	g.run(ctx, g.choose(visible, budget))
	return g.view(), ctx.Err()
}

// maxCurves is the number of tasks up to which All reads histories.
const maxCurves = 100

// All reads every task once, at most perSecond files per second, and the curves if there are few
// tasks.
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
			if len(keys) > maxCurves {
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

// Curves reads the tails of the tasks' histories.
func (g *Gatherer) Curves(ctx context.Context, keys []top.Key) *top.View {
	var all []*query
	for _, k := range keys {
		if t := g.tasks[k]; t != nil && !t.noStatus && t.Status != nil && t.Error == "" {
			all = append(all, &query{task: t, history: true})
		}
	}
	g.run(ctx, all)
	return g.view()
}

// Curve reads a task's whole history.
func (g *Gatherer) Curve(ctx context.Context, t top.Task) ([]status.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, curveTimeout)
	defer cancel()
	return g.files.history(ctx, t)
}

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
	var report store.Report
	group.Go(func() error {
		records, report, unknown = g.listMoves(inner)
		return nil // without access to variables, everything else can be shown
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
		g.notes = append(g.notes, "cannot read moves and the queue: "+unknown.Error())
	}
	g.apply(nodes, allocs)
	g.moves, g.report, g.listedAt = moves, report, g.now()
	g.listTook = g.listedAt.Sub(begun)
	return nil
}

func listPage[T any](ctx context.Context, q *api.QueryOptions, list func(*api.QueryOptions) (T, *api.QueryMeta, error)) (T, *api.QueryMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return list(q.WithContext(ctx))
}

// listNodes returns the nodes with Ebbtide's driver, and all nodes' names.
func (g *Gatherer) listNodes(ctx context.Context) (ours map[string]*node, names map[string]string, err error) {
	ours, names = make(map[string]*node), make(map[string]string)
	q := &api.QueryOptions{PerPage: pageSize}
	meant := false
	for {
		page, meta, err := listPage(ctx, q, g.options.Client.Nodes().List)
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
			return nil, nil, fmt.Errorf("no node has the name or ID prefix %q", g.options.Node)
		}
		return ours, names, nil
	}
}

// driverOf returns a node from its driver attributes; false if it does not have Ebbtide.
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
		cores, err := strconv.ParseFloat(cluster.DriverAttribute(d.Attributes, "pool_cores"), 64)
		if err != nil {
			continue
		}
		out.PoolCores, out.Version = status.Number(cores), cluster.DriverAttribute(d.Attributes, "version")
		out.Engine, out.Policy = cluster.DriverAttribute(d.Attributes, "engine"), cluster.DriverAttribute(d.Attributes, "policy")
		return out, true
	}
	return out, false
}

// listAllocs returns the running allocations, with task states and events.
func (g *Gatherer) listAllocs(ctx context.Context) (all []*api.AllocationListStub, err error) {
	q := &api.QueryOptions{
		Namespace: g.options.Namespace, PerPage: pageSize, Filter: `ClientStatus == "` + api.AllocClientStatusRunning + `"`,
		Params: map[string]string{"task_states": "true", "resources": "false"},
	}
	for {
		page, meta, err := listPage(ctx, q, g.options.Client.Allocations().List)
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

// listMoves returns the moves in progress, with node IDs, and the shim's report, which has the queue.
func (g *Gatherer) listMoves(ctx context.Context) (moves []top.Move, report store.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	shim, err := g.options.Shim.Locate(ctx)
	var records []move.Record
	if err == nil {
		records, _, err = store.Claims{Store: shim}.List(ctx)
	}
	if err != nil {
		return nil, report, deniedVariables(err, shim)
	}
	for _, r := range records {
		if !g.selects(r.Namespace, r.Job) {
			continue
		}
		moves = append(moves, top.Move{
			ID: r.ID, Namespace: r.Namespace, Job: r.Job, Alloc: r.Alloc, From: r.Source, To: r.Target,
			Phase: string(r.Phase), Owner: r.Owner, Why: r.Why, Until: r.Until,
		})
	}
	last, err := shim.LoadReport(ctx)
	if err != nil {
		return moves, report, deniedVariables(err, shim)
	}
	if last != nil {
		report = *last
		report.Queue = slices.DeleteFunc(report.Queue, func(j store.Queued) bool { return !g.selects(j.Namespace, j.Job) })
	}
	return moves, report, nil
}

// selects reports whether the options select a job.
func (g *Gatherer) selects(namespace, job string) bool {
	return (g.options.Namespace == api.AllNamespacesNamespace || g.options.Namespace == namespace) && (g.options.Job == "" || glob.Glob(g.options.Job, job))
}

func deniedVariables(err error, shim store.Store) error {
	return denied(err, "the variables "+shim.Path+" in namespace "+cmp.Or(shim.Namespace, api.AllNamespacesNamespace))
}

var errDenied = errors.New("permission denied")

// denied adds the missing capability to a 403.
func denied(err error, needs string) error {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.StatusCode() == http.StatusForbidden {
		return fmt.Errorf("%w: the token needs %s", errDenied, needs)
	}
	return err
}

// apply replaces the listing. It keeps data of remaining tasks.
func (g *Gatherer) apply(nodes map[string]*node, allocs []*api.AllocationListStub) {
	for id, n := range nodes {
		if before := g.nodes[id]; before != nil {
			n.unresponsiveSince, n.problem = before.unresponsiveSince, before.problem
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

func events(s *api.TaskState) []top.Event {
	all := []top.Event{}
	for _, e := range s.Events[max(0, len(s.Events)-maxEvents):] {
		all = append(all, top.Event{Time: time.Unix(0, e.Time).UTC(), Type: e.Type, Message: cmp.Or(e.DisplayMessage, e.Message, e.DriverMessage)})
	}
	return all
}

// query is a request for a file, and its result.
type query struct {
	*task
	history bool

	done   bool // the request was sent
	at     time.Time
	status *status.Status
	values []status.Number
	err    error
}

// choose selects at most budget files: one per probeInterval for an unresponsive node, none for a
// node that is down.
func (g *Gatherer) choose(visible []top.Key, budget int) (all []*query) {
	now := g.now()
	probing := make(map[string]bool)
	may := func(t *task) bool {
		n := g.nodes[t.NodeID]
		switch {
		case n == nil || n.down:
			return false
		case n.unresponsiveSince.IsZero():
			return true
		case probing[n.ID] || now.Sub(n.unresponsiveSince) < probeInterval:
			return false
		}
		probing[n.ID] = true
		return true
	}
	// A task is selected once.
	chosen := make(map[top.Key]bool)
	for _, k := range visible {
		t := g.tasks[k]
		if t == nil || chosen[k] || len(all) >= budget || !may(t) {
			continue
		}
		chosen[k] = true
		all = append(all, &query{task: t})
		if now.Sub(t.curveAt) >= curveInterval && len(all) < budget && t.Status != nil && !probing[t.NodeID] {
			all = append(all, &query{task: t, history: true})
		}
	}
	var rest []*task
	for k, t := range g.tasks {
		if !chosen[k] && (!t.noStatus || now.Sub(t.requestedAt) >= noStatusRetry || now.Sub(t.Started) < startGrace) {
			rest = append(rest, t)
		}
	}
	slices.SortFunc(rest, func(a, b *task) int {
		return cmp.Or(a.requestedAt.Compare(b.requestedAt), cmp.Compare(a.Alloc, b.Alloc), cmp.Compare(a.Task.Task, b.Task.Task))
	})
	for _, t := range rest {
		if len(all) >= budget {
			break
		}
		if may(t) {
			all = append(all, &query{task: t})
		}
	}
	return all
}

// run requests the files concurrently and applies the results.
func (g *Gatherer) run(ctx context.Context, all []*query) {
	var lanes [][]*query
	last := make(map[string]int) // last lane of each node
	nodes := make(map[string]*nodeResult)
	for _, q := range all {
		i, ok := last[q.NodeID]
		if !ok || len(lanes[i]) >= laneSize {
			i = len(lanes)
			lanes = append(lanes, nil)
			last[q.NodeID] = i
		}
		lanes[i] = append(lanes[i], q)
		if nodes[q.NodeID] == nil {
			nodes[q.NodeID] = new(nodeResult)
		}
	}
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for _, lane := range lanes {
		group.Go(func() error {
			n := nodes[lane[0].NodeID]
			for _, q := range lane {
				if n.skip.Load() || ctx.Err() != nil {
					return nil
				}
				if q.history && n.skipHistories.Load() {
					continue
				}
				q.read(ctx, g.files, g.now)
				n.add(q)
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in the queries
	if ctx.Err() != nil {
		return // cancelled requests prove nothing
	}
	for _, q := range all {
		q.apply()
	}
	for id, said := range nodes {
		n := g.nodes[id]
		if n == nil {
			continue
		}
		if problem := said.problem.Load(); problem != nil && (said.skip.Load() || !said.responds.Load()) {
			n.unresponsiveSince, n.problem = g.now(), *problem
		} else {
			n.unresponsiveSince, n.problem = time.Time{}, ""
		}
	}
}

// nodeResult is what a refresh reveals about a node.
type nodeResult struct {
	responds      atomic.Bool // to at least one request
	failed        atomic.Int32
	skip          atomic.Bool // send no further requests
	skipHistories atomic.Bool // send no further requests for histories
	problem       atomic.Pointer[string]
}

// maxFailed is the number of failed reads after which the node is considered at fault instead of
// single tasks.
const maxFailed = 3

func (a *nodeResult) add(q *query) {
	hangs, refused := q.unreachable()
	if q.history {
		// A task can replace its history with a named pipe; other tasks must not lose more than one
		// timeout.
		a.skipHistories.CompareAndSwap(false, hangs)
		return
	}
	if !hangs && !refused {
		a.responds.Store(true)
		return
	}
	problem := q.err.Error()
	a.problem.Store(&problem)
	if hangs || a.failed.Add(1) >= maxFailed && !a.responds.Load() {
		a.skip.Store(true)
	}
}

func (q *query) read(ctx context.Context, f files, now func() time.Time) {
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	q.done, q.at = true, now()
	if q.history {
		rows, err := f.tail(ctx, q.Task, tailBytes)
		q.values, q.err = top.Values(rows), err
		return
	}
	q.status, q.err = f.status(ctx, q.Task)
}

// apply stores the result in the task.
func (q *query) apply() {
	switch {
	case !q.done:
	case q.history:
		// A task without a history has no curve.
		if q.curveAt = q.at; q.err == nil {
			q.Values = q.values
		} else if hangs, _ := q.unreachable(); hangs {
			q.curveAt = q.at.Add(hangBackoff)
		}
	case errors.Is(q.err, fs.ErrNotExist):
		q.requestedAt, q.noStatus, q.Error = q.at, true, ""
	case q.err != nil:
		q.requestedAt, q.noStatus, q.Error = q.at, false, q.err.Error()
	default:
		q.requestedAt, q.noStatus, q.Error, q.Read, q.Status = q.at, false, "", q.at, q.status
	}
}

// unreachable reports whether the request timed out, or failed in a way that may be the node's
// fault.
func (q *query) unreachable() (hangs, refused bool) {
	var response api.UnexpectedResponseError
	switch {
	case q.err == nil, errors.Is(q.err, fs.ErrNotExist), errors.Is(q.err, errInvalid), errors.Is(q.err, errDenied):
		return false, false
	case errors.Is(q.err, errFailed):
		return false, true
	case errors.As(q.err, &response):
		return false, response.StatusCode() >= http.StatusInternalServerError
	}
	return true, false
}

func (g *Gatherer) view() *top.View {
	now := g.now()
	v := &top.View{
		Time: now.UTC(), Address: g.options.Client.Address(), Nodes: []top.Node{}, Tasks: []top.Task{}, GPUs: []top.GPU{},
		Moves: append([]top.Move{}, g.moves...), Queue: append([]store.Queued{}, g.report.Queue...),
		Owners: append([]queue.OwnerShare{}, g.report.Owners...), Notes: append([]string{}, g.notes...), Error: g.listErr,
	}
	newest := make(map[string]*status.Status)
	for _, t := range g.tasks {
		n := g.nodes[t.NodeID]
		if n == nil || t.noStatus && t.Status == nil {
			continue
		}
		if t.Status == nil && t.Error == "" && !n.down && n.unresponsiveSince.IsZero() {
			v.Unread++
			continue
		}
		shown := t.Task
		switch {
		case n.down:
			shown.Stale, shown.Error = true, "node "+n.Name+" is "+n.State
		case !n.unresponsiveSince.IsZero():
			shown.Stale, shown.Error = true, cmp.Or(t.Error, n.problem)
		case t.noStatus:
			shown.Stale, shown.Error = true, "its status has been removed"
		case t.Error != "":
			shown.Stale = true
		case now.Sub(t.Status.Updated) > statusMaxAge:
			shown.Stale, shown.Error = true, "its status is old: the driver plugin may not be running"
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
		shown.Stale, shown.Error = n.down || !n.unresponsiveSince.IsZero(), n.problem
		if s := newest[id]; s != nil {
			shown.PoolCores, shown.Use, shown.Tasks, shown.Updated = s.Node.PoolCores, s.Node.Use, s.Node.Tasks, s.Updated
			shown.Categories, shown.Classes = maps.Clone(s.Node.Counts), maps.Clone(s.Node.Classes)
			shown.RemainingCPUS, shown.SavedS = s.Node.RemainingCPUS, s.Node.SavedS
			shown.Policy, shown.Engine = cmp.Or(s.Policy, shown.Policy), cmp.Or(s.Engine, shown.Engine)
			if g.now().Sub(s.Updated) > statusMaxAge {
				shown.Stale = true
			}
		}
		v.Nodes = append(v.Nodes, shown)
	}
	v.Finish()
	return v
}
