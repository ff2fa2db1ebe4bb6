// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package shim is the daemon beside Nomad that moves training jobs between nodes: a new
// task goes to where it can learn fastest (FlowCon, Algorithm 4), one that has converged
// makes room for those that learn on (SpeCon, Algorithm 2), and when all have, nodes that
// have run empty get some of them (Algorithm 3).
//
// Of several shims one acts (package leader). It lists the cluster and follows Nomad's
// events (cluster, stream); at each interval it looks for tasks that have just begun or
// that have asked to be moved, asks the nodes how their tasks do, and the policy for a
// decision (placement, migration, rebalance). What the policy wants passes a gate
// (actuator), is done step by step (move) and is written down (memory).
//
// Whatever fails here, jobs run on as Nomad has placed them.
package shim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/shim/actuator"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/stream"
	"github.com/ebbtide/ebbtide/shim/web"
)

// Shim is the daemon.
type Shim struct {
	client  *api.Client
	log     hclog.Logger
	holder  string
	metrics *web.Metrics

	mu      sync.Mutex
	config  config.Config
	leads   bool
	problem error // why the cluster is not followed, while this process leads
	apart   error // why it is not known who leads, while it does not
}

// New returns a Shim. Holder names this process for people.
func New(c config.Config, client *api.Client, holder string, log hclog.Logger) *Shim {
	return &Shim{client: client, log: log, holder: holder, config: c, metrics: web.NewMetrics()}
}

// Reload sets another configuration. What is said of the cluster, the leader and the web
// takes effect with the next start.
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

// Run acts whenever this process is the leader, until ctx ends.
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
		Client: s.client, Namespace: c.Leader.Namespace, Path: c.Leader.Path + "/leader",
		TTL: c.Leader.TTL, Delay: c.Leader.Delay, Holder: s.holder,
	}
	opts := leader.Options{TTL: c.Leader.TTL, Retry: c.Leader.TTL / 3, Report: func(err error) {
		if errors.Is(err, leader.ErrHeld) {
			s.log.Info("another shim leads; standing by")
			s.apartIs(nil)
			return
		}
		s.log.Error("not leading", "error", err)
		s.apartIs(err)
	}}
	err := leader.Run(ctx, lock, opts, s.lead)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	return err
}

// health says what is wrong. A standby is well, if it knows that it is one.
func (s *Shim) health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leads {
		return s.problem
	}
	return s.apart
}

func (s *Shim) leadsIs(leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads, s.problem, s.apart = leads, nil, nil
}

func (s *Shim) apartIs(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apart = err
}

func (s *Shim) problemIs(err error) {
	s.mu.Lock()
	s.problem = err
	s.mu.Unlock()
	connected := 0.0
	if err == nil {
		connected = 1
	}
	s.metrics.Connected.Set(connected)
}

// term is the time for which this process leads. Its loop owns everything in it.
type term struct {
	*Shim
	leading context.Context // ends with the term; a move outlives the stream
	held    *leader.Term
	nomad   move.Nomad
	store   memory.Store
	claims  move.Claims
	gate    *actuator.Gate
	jobs    map[cluster.JobKey]memory.Job
	state   *cluster.State
	ended   chan func(context.Context) // takes over what a move has come to
	moves   sync.WaitGroup
	slots   chan struct{} // of releases
	telling chan struct{} // of what is told to tasks that have begun

	sources    map[string]source             // who has told of a node last
	inbound    map[string]int                // moves under way, by their target
	placed     map[string]bool               // allocations whose placement was looked at
	tried      map[cluster.JobKey]memory.Job // what a dry run would remember of jobs
	silent     map[string]time.Time          // allocations that were found to have no status
	releasing  map[cluster.JobKey]bool       // jobs that have waited and are let run now
	moving     map[cluster.JobKey]bool       // jobs of which this process makes, or finishes, a move
	watch      move.Watch                    // of the records of moves
	looked     time.Time                     // when they were looked at last
	looking    bool                          // they are
	left       map[cluster.JobKey]uint64     // jobs that were bound without a record, as they were when that was seen to
	waiting    bool                          // a job has come that waits
	relocated  time.Time                     // when it was last looked at
	rebalanced time.Time                     // likewise
	told       map[cluster.JobKey]string     // what was said last of a job
	feasibles  []placement.Load              // room for the nodes of one decision, kept for the next one
}

// lead acts until ctx ends. Moves that are under way are undone then, as far as this
// process still leads.
func (s *Shim) lead(ctx context.Context, held *leader.Term) error {
	c := s.now()
	store := memory.Store{Client: s.client, Namespace: c.Leader.Namespace, Path: c.Leader.Path}
	t := &term{
		Shim: s, leading: ctx, held: held, nomad: fenced{move.API{Client: s.client}, held},
		store: store, claims: memory.Claims{Store: store},
		gate: actuator.NewGate(c.Limits), state: cluster.New(),
		ended: make(chan func(context.Context)), slots: make(chan struct{}, releases), telling: make(chan struct{}, atATime), told: make(map[cluster.JobKey]string),
		inbound: make(map[string]int), placed: make(map[string]bool), tried: make(map[cluster.JobKey]memory.Job), silent: make(map[string]time.Time), releasing: make(map[cluster.JobKey]bool), moving: make(map[cluster.JobKey]bool), left: make(map[cluster.JobKey]uint64),
	}
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
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		begun := time.Now()
		err := t.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.problemIs(err)
		s.log.Error("the cluster is not followed; trying again", "error", err)
		if time.Since(begun) > time.Minute {
			wait = time.Second
		}
		select {
		case <-time.After(wait):
		case over := <-t.ended:
			over(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drain waits for the moves that are under way.
func (t *term) drain() {
	done := make(chan struct{})
	go func() { t.moves.Wait(); close(done) }()
	for {
		select {
		case over := <-t.ended:
			over(context.Background())
		case <-done:
			return
		}
	}
}

// follow lists the cluster, follows what changes and acts, until the stream ends.
func (t *term) follow(ctx context.Context) error {
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
	t.state.Replace(listing)
	for _, j := range t.state.Jobs {
		t.waiting = t.waiting || !j.Stopped && waits(j)
	}
	if t.jobs == nil {
		if t.jobs, err = t.store.Jobs(ctx); err != nil {
			return err
		}
		for key, j := range t.jobs {
			t.gate.Remember(key, j.Last, j.Failures)
		}
	}
	t.problemIs(nil)
	t.log.Info("following the cluster", "nodes", len(t.state.Nodes), "allocations", len(t.state.Allocs), "jobs", len(t.state.Jobs))

	batches := make(chan stream.Batch)
	over := make(chan error, 1)
	go func() {
		for {
			b, err := events.Next(ctx)
			if err != nil {
				over <- err
				return
			}
			select {
			case batches <- b:
			case <-ctx.Done():
				over <- ctx.Err()
				return
			}
		}
	}()
	due := time.NewTimer(t.now().Interval)
	defer due.Stop()
	hurried := false // a job that waits has made the next look an early one
	for {
		if t.waiting && !hurried {
			hurried = true
			due.Reset(min(soon, t.now().Interval))
		}
		select {
		case b := <-batches:
			t.apply(b)
		case over := <-t.ended:
			over(ctx)
		case <-due.C:
			c := t.now()
			hurried, t.waiting = false, false
			t.gate.Limits(c.Limits)
			begun := time.Now()
			t.decide(ctx, c)
			t.metrics.Decision.Observe(time.Since(begun).Seconds())
			t.metrics.Nodes.Set(float64(len(t.state.Nodes)))
			t.metrics.Allocs.Set(float64(len(t.state.Allocs)))
			due.Reset(c.Interval)
		case err := <-over:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// soon is how long a job waits for a node that has come to wait for one. Several that come
// at once are placed at once.
const soon = 250 * time.Millisecond

// apply takes events over.
func (t *term) apply(b stream.Batch) {
	for _, e := range b.Events {
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

// recall tells the tasks of an allocation that has begun what their last runs took, if
// those were on another node.
func (t *term) recall(a *cluster.Alloc) {
	if t.now().DryRun {
		return
	}
	for task, run := range t.state.Runs(a) {
		if run.Node == a.Node {
			continue // which has kept it
		}
		t.moves.Go(func() {
			// Nomad takes 100 connections at a time, and many may begin at once.
			t.telling <- struct{}{}
			defer func() { <-t.telling }()
			ctx, cancel := context.WithTimeout(t.leading, askWithin)
			defer cancel()
			if err := t.nomad.Signal(ctx, stub(a), task, history.Signal+" "+run.Text); err != nil {
				t.log.Debug("a task is not told what its last run took", "alloc_id", a.ID, "task", task, "error", err)
			}
		})
	}
}

// fenced is a cluster in which nothing is changed by a process that does not lead any
// more.
type fenced struct {
	move.Nomad
	held *leader.Term
}

func (f fenced) Register(ctx context.Context, job *api.Job) (*api.JobRegisterResponse, error) {
	if err := f.held.Held(); err != nil {
		return nil, fmt.Errorf("registering job %s: %w", *job.ID, err)
	}
	return f.Nomad.Register(ctx, job)
}

func (f fenced) Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error {
	if err := f.held.Held(); err != nil {
		return fmt.Errorf("sending %s: %w", signal, err)
	}
	return f.Nomad.Signal(ctx, alloc, task, signal)
}
