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
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
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

// term is one period of leadership: what its parts share. The loop owns all fields.
type term struct {
	*Shim
	*loop
	nomad    move.Nomad
	claims   move.Claims
	jobsRead bool // job memory has been read; owned by follow

	view
	surveyor *surveyor
	nodes    map[string]Summary // latest summaries
	journal  *journal
	reasons
	operatorState
	lastReport  memory.Report
	signalSlots chan struct{} // limits concurrent signals

	recovery   *recovery
	placer     *placer
	migrator   *migrator
	rebalancer *rebalancer
	relocator  *relocator
	queuer     *queuer
}

func (s *Shim) term(leading context.Context, nomad move.Nomad, store memory.Store, held func() error) *term {
	l, v := newLoop(leading), view{cluster.New(), newTransfers(s.now().Limits)}
	t := &term{
		Shim: s, loop: l, nomad: fenced{nomad, held}, claims: memory.Claims{Store: store}, view: v,
		surveyor:    &surveyor{nomad: move.API{Client: s.client}, log: s.log, sources: make(map[string]source), noStatus: make(map[string]time.Time)},
		journal:     newJournal(leading, l.background, store, held, s.log),
		reasons:     reasons{cluster: v, out: s.log, latest: make(map[cluster.JobKey]reason)},
		signalSlots: make(chan struct{}, maxParallel),
	}
	t.recovery = &recovery{term: t, unbound: make(map[cluster.JobKey]uint64)}
	t.placer = &placer{term: t, decided: make(map[string]bool), releases: make(chan struct{}, maxParallel)}
	t.migrator, t.rebalancer, t.relocator = &migrator{t}, &rebalancer{term: t}, &relocator{term: t}
	t.queuer = &queuer{term: t, jobs: make(map[cluster.JobKey]*queuedJob), order: []memory.Queued{}}
	return t
}

// lead leads until ctx ends, then reverts moves in progress while it still holds the lock.
func (s *Shim) lead(ctx context.Context, held *leader.Term) error {
	c := s.now()
	t := s.term(ctx, move.API{Client: s.client, Agent: c.Nomad.Agent}, memory.Store{Client: s.client, Namespace: c.Leader.Namespace, Path: c.Leader.Path}, held.Held)
	s.setLeads(true)
	s.metrics.Leader.Set(1)
	s.log.Info("leading")
	defer func() {
		m := s.metrics
		for _, figure := range []prometheus.Gauge{m.Leader, m.Connected, m.Nodes, m.Allocs, m.Held, m.Queued, m.QueuedLate, m.Suspended, m.Orphans, m.Unreadable, m.Ignored} {
			figure.Set(0) // the next leader reports them
		}
		s.setLeads(false)
		s.log.Info("stopped leading")
	}()
	defer t.drain()
	t.run(func() func() { t.follow(ctx); return nil })
	return t.serve(ctx, func() time.Duration { return t.now().Interval }, t.reconcile, func(kind string, took time.Duration) {
		t.metrics.LongestStep.Set(took.Seconds())
		t.log.Debug("longest step so far", "kind", kind, "took", took)
	})
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
		t.urgent = t.urgent || !j.Stopped && j.Held
	}
	if jobs != nil {
		t.journal.jobs = jobs
		now := time.Now()
		for key, j := range jobs {
			if j.Last.After(now) { // by the clock of an earlier leader
				j.Last = now
			}
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
			t.urgent = t.urgent || j != nil && j.Held
		}
		if was != nil && t.state.Allocs[e.Key] == nil { // its place may be a waiting job's
			j := t.state.Jobs[was.Job]
			t.urgent = t.urgent || j != nil && j.Queued
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
	for task, run := range t.state.Runs(a.Job, a.Group) {
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

func (f fenced) Register(ctx context.Context, job *document.Job) (*api.JobRegisterResponse, error) {
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
