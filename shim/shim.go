// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package shim is the daemon beside Nomad that places and moves training jobs: FlowCon's
// Algorithm 4 for new tasks, SpeCon's Algorithms 2 and 3 for converged ones, and relocation of
// tasks that would finish much sooner on another node. One shim leads; the others stand by.
// Whatever fails here, jobs keep running where Nomad placed them.
//
// In: Nomad's listing and event stream (cluster, stream), the drivers' status files (allocfs),
// configuration (config), the operators' pause (memory). Out: job registrations and signals
// (move), records and a report in Nomad variables (memory), metrics and health (web).
//
// Start with shim.go. An event becomes a move like this:
//
// \tlisten reads the event stream and posts each batch to the loop
// \tapply updates cluster.State; a held job expedites the next pass
// \treconcile one pass: reads the pause, recovers abandoned moves, then
// \tdecide selects what is due and surveys the nodes' summaries
// \tplace, migrate, relocate, rebalance
// \t build a policy's input and call its pure Decide or Choose
// \tstartMove checks pause and limits (actuator.Gate), starts move.Move
// \tmove.Move claims, freezes, binds, verifies and unbinds the job
// \tfinish records the result, updates limits and back-off
//
// heldJobs and release do the same for jobs held for placement (move.Release). One loop owns
// all state; background runs whatever waits for Nomad or a node.
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

	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/stream"
	"github.com/ebbtide/ebbtide/shim/web"
)

type Shim struct {
	client  *api.Client
	log     hclog.Logger
	holder  string
	metrics *web.Metrics

	mu      sync.Mutex
	config  config.Config
	leads   bool
	problem bool // leads, but is not connected to the event stream
	apart   bool // does not lead, and the lock's state is unknown
}

// New returns a Shim. holder names this process in the lock and in claims.
func New(c config.Config, client *api.Client, holder string, log hclog.Logger) *Shim {
	return &Shim{client: client, log: log, holder: holder, config: c, metrics: web.NewMetrics()}
}

// Reload replaces the configuration. The client, leader and web blocks take effect on the next
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
	lock := &leader.Variable{
		Client: s.client, Namespace: c.Leader.Namespace, Path: path.Join(c.Leader.Path, memory.LeaderName),
		TTL: c.Leader.TTL, Delay: c.Leader.Delay, Holder: s.holder,
	}
	opts := leader.Options{TTL: c.Leader.TTL, Retry: c.Leader.TTL / 3, Report: func(err error) {
		if errors.Is(err, leader.ErrHeld) {
			s.log.Info("another shim leads; standing by")
			s.apartIs(false)
			return
		}
		s.log.Error("not leading", "error", err)
		s.apartIs(true)
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
	case s.leads && s.problem:
		return errors.New("the cluster is not followed")
	case !s.leads && s.apart:
		return errors.New("it is not known which shim leads")
	}
	return nil
}

func (s *Shim) leadsIs(leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads, s.problem, s.apart = leads, false, false
}

func (s *Shim) apartIs(apart bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apart = apart
}

func (s *Shim) problemIs(problem bool) {
	s.mu.Lock()
	s.problem = problem
	s.mu.Unlock()
	connected := 1.0
	if problem {
		connected = 0
	}
	s.metrics.Connected.Set(connected)
}

// term is one period of leadership. Its loop owns all fields and never blocks: what takes time
// runs in the background.
type term struct {
	*Shim
	*errands
	leading context.Context // ends with the term; moves outlive the event stream
	nomad   move.Nomad
	claims  move.Claims

	news       chan func() // changes of the cluster, for the loop to apply
	state      *cluster.State
	follows    bool // state is current
	remembered bool // job memory was read; owned by follow

	surveyor *surveyor
	book     *book
	*flights
	recovery
	operators

	nodes     map[string]Summary // latest summaries
	agenda    []func()           // steps of the decisions in progress
	deciding  int                // decisions in the background
	waiting   bool               // a job is held, or a policy retries
	reported  memory.Report
	longest   time.Duration // longest step of the loop so far
	telling   chan struct{} // limits concurrent signals
	releasing chan struct{} // limits concurrent releases

	placed     map[string]bool           // allocations whose placement was decided
	told       map[cluster.JobKey]string // last reason per job
	relocation cadence
	rebalances cadence
	feasibles  []placement.Load // reused by candidates
}

func (s *Shim) term(leading context.Context, nomad move.Nomad, store memory.Store, held func() error) *term {
	e := newErrands()
	return &term{
		Shim: s, errands: e, leading: leading, nomad: fenced{nomad, held}, claims: memory.Claims{Store: store},
		news: make(chan func()), state: cluster.New(),
		surveyor: &surveyor{nomad: move.API{Client: s.client}, log: s.log, sources: make(map[string]source), silent: make(map[string]time.Time)},
		book:     newBook(leading, e, store, held, s.log),
		flights:  newFlights(s.now().Limits), recovery: recovery{left: make(map[cluster.JobKey]uint64)},
		telling: make(chan struct{}, atATime), releasing: make(chan struct{}, atATime),
		placed: make(map[string]bool), told: make(map[cluster.JobKey]string),
	}
}

// lead acts until ctx ends, then reverts moves in progress while it still holds the lock.
func (s *Shim) lead(ctx context.Context, held *leader.Term) error {
	c := s.now()
	t := s.term(ctx, move.API{Client: s.client}, memory.Store{Client: s.client, Namespace: c.Leader.Namespace, Path: c.Leader.Path}, held.Held)
	s.leadsIs(true)
	s.metrics.Leader.Set(1)
	s.log.Info("leading")
	defer func() {
		s.metrics.Leader.Set(0)
		s.metrics.Connected.Set(0)
		s.leadsIs(false)
		s.log.Info("not leading any more")
	}()
	defer t.drain()
	t.send(func() func() { t.follow(ctx); return nil })
	return t.loop(ctx)
}

// loop runs one step at a time until ctx ends.
func (t *term) loop(ctx context.Context) error {
	due := time.NewTimer(t.now().Interval)
	defer due.Stop()
	hurried := false // the next pass was brought forward
	always := make(chan struct{})
	close(always)
	for {
		if t.waiting && !hurried {
			hurried = true
			due.Reset(min(soon, t.now().Interval))
		}
		var more chan struct{}
		if len(t.agenda) > 0 {
			more = always
		}
		var step func()
		kind := ""
		select {
		case step = <-t.news:
			kind = "news"
		case then := <-t.back:
			step, kind = func() { t.took(then) }, "errand"
		case <-more:
			step, kind = t.agenda[0], "agenda"
			t.agenda = t.agenda[1:]
		case <-due.C:
			hurried = false
			due.Reset(t.now().Interval)
			step, kind = t.look, "look"
		case <-ctx.Done():
			return ctx.Err()
		}
		begun := time.Now()
		step()
		if took := time.Since(begun); took > t.longest {
			t.longest = took
			t.metrics.LongestStep.Set(took.Seconds())
			t.log.Debug("the loop's longest step until now", "kind", kind, "took", took)
		}
	}
}

// expediteDelay is the delay of a pass that was requested; requests in it share the pass.
const soon = 250 * time.Millisecond

func (t *term) later(do func()) { t.agenda = append(t.agenda, do) }

// fetch runs do in the background and what it returns on the loop, unless the cluster has been
// lost in the meantime.
func (t *term) gather(do func() (then func())) {
	t.deciding++
	t.send(func() func() {
		then := do()
		return func() {
			t.deciding--
			if t.follows && t.leading.Err() == nil {
				then()
			}
		}
	})
}

func (t *term) tell(ctx context.Context, what func()) error {
	select {
	case t.news <- what:
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
		t.problemIs(true)
		t.log.Error("the cluster is not followed; trying again", "error", err)
		if time.Since(begun) > time.Minute {
			wait = time.Second
		}
		if t.tell(ctx, func() { t.follows, t.agenda = false, nil }) != nil {
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
const atOnce = 100

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
	state := cluster.Listed(listing)
	var jobs map[cluster.JobKey]memory.Job
	if !t.remembered {
		if jobs, err = t.book.store.Jobs(ctx); err != nil {
			return err
		}
		t.remembered = true
	}
	if err := t.tell(ctx, func() { t.listed(state, jobs) }); err != nil {
		return err
	}
	t.problemIs(false)
	t.log.Info("following the cluster", "nodes", len(listing.Nodes), "allocations", len(listing.Allocs), "jobs", len(listing.Jobs))
	for {
		b, err := events.Next(ctx)
		if err != nil {
			return err
		}
		for events := range slices.Chunk(b.Events, atOnce) {
			if err := t.tell(ctx, func() { t.apply(events) }); err != nil {
				return err
			}
		}
	}
}

func (t *term) listed(state *cluster.State, jobs map[cluster.JobKey]memory.Job) {
	t.state.Become(state)
	for _, j := range t.state.Jobs {
		t.waiting = t.waiting || !j.Stopped && waits(j)
	}
	if jobs != nil {
		t.book.jobs = jobs
		for key, j := range jobs {
			t.gate.Remember(key, j.Last, j.Failures)
		}
	}
	t.follows = true
}

func (t *term) apply(events []stream.Event) {
	for _, e := range events {
		was := t.state.Allocs[e.Key]
		changed, err := t.state.Apply(e)
		if err != nil {
			t.log.Warn("an event is left out", "error", err)
		}
		if changed && e.Topic == api.TopicJob {
			j := t.state.Jobs[cluster.JobKey{Namespace: e.Namespace, ID: e.Key}]
			t.waiting = t.waiting || j != nil && waits(j)
		}
		if a := t.state.Allocs[e.Key]; changed && a != nil && a.Running && (was == nil || !was.Running) {
			t.recall(a)
		}
		t.metrics.Events.Inc()
	}
}

// sendHistory sends each task of a new allocation the duration of its last run, if that was on
// another node.
func (t *term) recall(a *cluster.Alloc) {
	if t.now().DryRun {
		return
	}
	for task, run := range t.state.Runs(a) {
		if run.Node == a.Node {
			continue // that node's driver has it
		}
		t.send(func() func() {
			// Nomad accepts 100 connections at a time by default.
			t.telling <- struct{}{}
			defer func() { <-t.telling }()
			ctx, cancel := context.WithTimeout(t.leading, askWithin)
			defer cancel()
			if err := t.nomad.Signal(ctx, stub(a), task, history.Signal+" "+run.Text); err != nil {
				t.log.Debug("a task is not told what its last run took", "alloc_id", a.ID, "task", task, "error", err)
			}
			return nil
		})
	}
}

// fenced rejects every change once this process no longer leads.
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
