// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/stream"
	"github.com/ebbtide/ebbtide/shim/web"
	"github.com/ebbtide/ebbtide/webui"
)

type Shim struct {
	client  *api.Client
	log     hclog.Logger
	holder  string
	metrics *web.Metrics

	mu           sync.Mutex
	config       config.Config
	leads        bool
	disconnected bool // leads, but is not connected to the event stream
	lockErr      bool // does not lead, and the lock's state is unknown
}

// New returns a Shim. holder names this process in the lock and in claims.
func New(c config.Config, client *api.Client, holder string, log hclog.Logger) *Shim {
	return &Shim{client: client, log: log, holder: holder, config: c, metrics: web.NewMetrics()}
}

// Reload replaces the configuration. The client, leader, web and ui blocks take effect on the next
// start.
func (s *Shim) Reload(c config.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = c
}

func (s *Shim) now() config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config
}

// Run acts while this process leads, until ctx ends.
func (s *Shim) Run(ctx context.Context) error {
	c := s.now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	defer wait.Wait()
	if c.Web.Address != "" {
		wait.Go(func() {
			if err := web.Serve(ctx, c.Web.Address, s.metrics, s.health); err != nil {
				cancel(err)
			}
		})
	}
	if c.UI.Address != "" {
		wait.Go(func() {
			o := webui.Options{UI: c.UI, Nomad: c.Nomad, ShimNamespace: c.Leader.Namespace, ShimPath: c.Leader.Path, Log: s.log.Named("ui")}
			if err := webui.Serve(ctx, o, func(url string) { s.log.Info("the page is served", "url", url) }); err != nil {
				cancel(err)
			}
		})
	}
	lock := &leader.Variable{
		Client: s.client, Namespace: c.Leader.Namespace, Path: path.Join(c.Leader.Path, memory.LeaderName),
		TTL: c.Leader.TTL, Delay: c.Leader.Delay, Holder: s.holder,
	}
	opts := leader.Options{TTL: c.Leader.TTL, Retry: c.Leader.TTL / 3, Report: func(err error) {
		if errors.Is(err, leader.ErrHeld) {
			s.log.Info("another shim leads; standing by")
			s.setLockErr(false)
			return
		}
		s.log.Error("not leading", "error", err)
		s.setLockErr(true)
	}}
	err := leader.Run(ctx, lock, opts, s.lead)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	return err
}

// health returns an error for the health endpoint; the log has the cause. A standby is healthy
// while it knows that another shim leads.
func (s *Shim) health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.leads && s.disconnected:
		return errors.New("not connected to the cluster's event stream")
	case !s.leads && s.lockErr:
		return errors.New("the leader is unknown")
	}
	return nil
}

func (s *Shim) setLeads(leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads, s.disconnected, s.lockErr = leads, false, false
}

func (s *Shim) setLockErr(apart bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lockErr = apart
}

func (s *Shim) setDisconnected(problem bool) {
	s.mu.Lock()
	s.disconnected = problem
	s.mu.Unlock()
	connected := 1.0
	if problem {
		connected = 0
	}
	s.metrics.Connected.Set(connected)
}

// term is one period of leadership. Its loop owns all fields and never blocks: anything slow runs
// in the background.
type term struct {
	*Shim
	*background
	leading context.Context // until the end of the term; moves outlive the event stream
	nomad   move.Nomad
	claims  move.Claims

	updates  chan func() // changes of the cluster, applied by the loop
	state    *cluster.State
	synced   bool // state is current
	jobsRead bool // job memory has been read; owned by follow

	surveyor *surveyor
	journal  *journal
	*transfers
	recovery
	operatorState

	nodes        map[string]Summary // latest summaries
	steps        []func()           // steps of the decisions in progress
	deciding     int                // decisions in the background
	urgent       bool               // a job is held, or a policy retries
	lastReport   memory.Report
	longestStep  time.Duration // longest step of the loop
	signalSlots  chan struct{} // limits concurrent signals
	releaseSlots chan struct{} // limits concurrent releases

	placed       map[string]bool // allocations whose placement has been decided
	reasons      map[cluster.JobKey]reason
	relocation   schedule
	rebalancing  schedule
	explaining   schedule
	candidateBuf []placement.Load // reused by candidates
}

func (s *Shim) term(leading context.Context, nomad move.Nomad, store memory.Store, held func() error) *term {
	e := newBackground()
	return &term{
		Shim: s, background: e, leading: leading, nomad: fenced{nomad, held}, claims: memory.Claims{Store: store},
		updates: make(chan func()), state: cluster.New(),
		surveyor:  &surveyor{nomad: move.API{Client: s.client}, log: s.log, sources: make(map[string]source), noStatus: make(map[string]time.Time)},
		journal:   newJournal(leading, e, store, held, s.log),
		transfers: newTransfers(s.now().Limits), recovery: recovery{unbound: make(map[cluster.JobKey]uint64)},
		signalSlots: make(chan struct{}, maxParallel), releaseSlots: make(chan struct{}, maxParallel),
		placed: make(map[string]bool), reasons: make(map[cluster.JobKey]reason),
	}
}

// lead leads until ctx ends, then reverts moves in progress while it still holds the lock.
func (s *Shim) lead(ctx context.Context, held *leader.Term) error {
	c := s.now()
	t := s.term(ctx, move.API{Client: s.client}, memory.Store{Client: s.client, Namespace: c.Leader.Namespace, Path: c.Leader.Path}, held.Held)
	s.setLeads(true)
	s.metrics.Leader.Set(1)
	s.log.Info("leading")
	defer func() {
		m := s.metrics
		for _, figure := range []prometheus.Gauge{m.Leader, m.Connected, m.Nodes, m.Allocs, m.Held, m.Orphans} {
			figure.Set(0) // the next leader reports them
		}
		s.setLeads(false)
		s.log.Info("stopped leading")
	}()
	defer t.drain()
	t.run(func() func() { t.follow(ctx); return nil })
	return t.loop(ctx)
}

// loop runs steps sequentially until ctx ends.
func (t *term) loop(ctx context.Context) error {
	due := time.NewTimer(t.now().Interval)
	defer due.Stop()
	expedited := false // the next pass was expedited
	always := make(chan struct{})
	close(always)
	for {
		if t.urgent && !expedited {
			expedited = true
			due.Reset(min(expediteDelay, t.now().Interval))
		}
		var ready chan struct{}
		if len(t.steps) > 0 {
			ready = always
		}
		var step func()
		kind := ""
		select {
		case step = <-t.updates:
			kind = "news"
		case then := <-t.results:
			step, kind = func() { t.complete(then) }, "errand"
		case <-ready:
			step, kind = t.steps[0], "agenda"
			t.steps = t.steps[1:]
		case <-due.C:
			expedited = false
			due.Reset(t.now().Interval)
			step, kind = t.reconcile, "look"
		case <-ctx.Done():
			return ctx.Err()
		}
		begun := time.Now()
		step()
		if took := time.Since(begun); took > t.longestStep {
			t.longestStep = took
			t.metrics.LongestStep.Set(took.Seconds())
			t.log.Debug("longest step so far", "kind", kind, "took", took)
		}
	}
}

// expediteDelay is the delay of an expedited pass; requests during it share the pass.
const expediteDelay = 250 * time.Millisecond

func (t *term) enqueue(do func()) { t.steps = append(t.steps, do) }

// fetch runs do in the background and its result on the loop, unless the cluster's state has been
// lost meanwhile.
func (t *term) fetch(do func() (then func())) {
	t.deciding++
	t.run(func() func() {
		then := do()
		return func() {
			t.deciding--
			if t.synced && t.leading.Err() == nil {
				then()
			}
		}
	})
}

func (t *term) post(ctx context.Context, what func()) error {
	select {
	case t.updates <- what:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow keeps the loop's state current until ctx ends.
func (t *term) follow(ctx context.Context) {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		begun := time.Now()
		err := t.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		t.setDisconnected(true)
		t.log.Error("lost the cluster's event stream; retrying", "error", err)
		if time.Since(begun) > time.Minute {
			wait = time.Second
		}
		if t.post(ctx, func() { t.synced, t.steps = false, nil }) != nil {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// maxEventBatch bounds the events applied in one step: a single change may cause tens of
// thousands.
const maxEventBatch = 100

// listen lists the cluster and applies events until the stream ends.
func (t *term) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := stream.Open(ctx, stream.Nomad(t.client, cluster.Topics()...), stream.Deadline)
	if err != nil {
		return err
	}
	defer events.Close()
	listing, err := cluster.List(ctx, t.client)
	if err != nil {
		return err
	}
	state := cluster.FromListing(listing)
	var jobs map[cluster.JobKey]memory.Job
	if !t.jobsRead {
		if jobs, err = t.journal.store.Jobs(ctx); err != nil {
			return err
		}
		t.jobsRead = true
	}
	if err := t.post(ctx, func() { t.listed(state, jobs) }); err != nil {
		return err
	}
	t.setDisconnected(false)
	t.log.Info("following the cluster", "nodes", len(listing.Nodes), "allocations", len(listing.Allocs), "jobs", len(listing.Jobs))
	for {
		b, err := events.Next(ctx)
		if err != nil {
			return err
		}
		for events := range slices.Chunk(b.Events, maxEventBatch) {
			if err := t.post(ctx, func() { t.apply(events) }); err != nil {
				return err
			}
		}
	}
}

func (t *term) listed(state *cluster.State, jobs map[cluster.JobKey]memory.Job) {
	t.state.Replace(state)
	for _, j := range t.state.Jobs {
		t.urgent = t.urgent || !j.Stopped && isHeld(j)
	}
	if jobs != nil {
		t.journal.jobs = jobs
		for key, j := range jobs {
			t.gate.Restore(key, j.Last, j.Failures)
		}
	}
	t.synced = true
}

func (t *term) apply(events []stream.Event) {
	for _, e := range events {
		was := t.state.Allocs[e.Key]
		changed, err := t.state.Apply(e)
		if err != nil {
			t.log.Warn("ignoring an event", "error", err)
		}
		if changed && e.Topic == api.TopicJob {
			j := t.state.Jobs[cluster.JobKey{Namespace: e.Namespace, ID: e.Key}]
			t.urgent = t.urgent || j != nil && isHeld(j)
		}
		if a := t.state.Allocs[e.Key]; changed && a != nil && a.Running && (was == nil || !was.Running) {
			t.sendHistory(a)
		}
		t.metrics.Events.Inc()
	}
}

// sendHistory sends each task of a new allocation the cost of its last run, if that was on another
// node.
func (t *term) sendHistory(a *cluster.Alloc) {
	if t.now().DryRun {
		return
	}
	for task, run := range t.state.Runs(a) {
		if run.Node == a.Node {
			continue // that node's driver has stored it
		}
		t.run(func() func() {
			// Nomad accepts 100 concurrent connections by default.
			t.signalSlots <- struct{}{}
			defer func() { <-t.signalSlots }()
			ctx, cancel := context.WithTimeout(t.leading, queryTimeout)
			defer cancel()
			if err := t.nomad.Signal(ctx, apiAlloc(a), task, history.Signal+" "+run.Text); err != nil {
				t.log.Debug("cannot send a task its history", "alloc_id", a.ID, "task", task, "error", err)
			}
			return nil
		})
	}
}

// fenced rejects every change after this process has lost the lock.
type fenced struct {
	move.Nomad
	held func() error
}

func (f fenced) Register(ctx context.Context, job *api.Job) (*api.JobRegisterResponse, error) {
	if err := f.held(); err != nil {
		return nil, fmt.Errorf("registering job %s: %w", *job.ID, err)
	}
	return f.Nomad.Register(ctx, job)
}

func (f fenced) Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error {
	if err := f.held(); err != nil {
		return fmt.Errorf("sending %s: %w", signal, err)
	}
	return f.Nomad.Signal(ctx, alloc, task, signal)
}
