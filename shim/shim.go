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
// decision (placement, migration, rebalance, relocate). What the policy wants passes a gate
// (actuator), is done step by step (move) and is written down (memory). One loop decides;
// whatever waits for Nomad or a node is an errand beside it.
//
// Whatever fails here, jobs run on as Nomad has placed them.
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
	"github.com/ebbtide/ebbtide/webui"
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
	problem bool // the cluster is not followed, while this process leads
	apart   bool // it is not known which one leads, while it does not
}

// New returns a Shim. Holder names this process for people.
func New(c config.Config, client *api.Client, holder string, log hclog.Logger) *Shim {
	return &Shim{client: client, log: log, holder: holder, config: c, metrics: web.NewMetrics()}
}

// Reload sets another configuration. What is said of the cluster, the leader, the web and
// the page takes effect with the next start.
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

// health says what is wrong; the log says why. A standby is well, if it knows that it is one.
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

// term is the time for which this process leads. Its loop owns everything in it and waits
// for nobody: what takes time is an errand.
type term struct {
	*Shim
	*errands
	leading context.Context // ends with the term; a move outlives the stream
	nomad   move.Nomad
	claims  move.Claims

	news       chan func() // what has changed in the cluster, for the loop to take over
	state      *cluster.State
	follows    bool // the state is the cluster's
	remembered bool // what is remembered of jobs was read; the follower's

	surveyor *surveyor
	book     *book
	*flights
	recovery
	operators

	nodes     map[string]Summary // as they have last said
	agenda    []func()           // what is to be decided, each a step of the loop
	deciding  int                // errands of decisions
	waiting   bool               // somebody waits for a decision
	reported  memory.Report
	longest   time.Duration // step of the loop
	telling   chan struct{} // of what is told to tasks that have begun
	releasing chan struct{} // of jobs that are let run

	placed     map[string]bool           // allocations whose placement was looked at
	told       map[cluster.JobKey]string // what was said last of a job
	relocation cadence
	rebalances cadence
	feasibles  []placement.Load // room for the nodes of one decision, kept for the next one
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

// lead acts until ctx ends. Moves that are under way are undone then, as far as this
// process still leads.
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

// loop does what there is to do, until ctx ends.
func (t *term) loop(ctx context.Context) error {
	due := time.NewTimer(t.now().Interval)
	defer due.Stop()
	hurried := false // somebody who waits has made the next look an early one
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

// soon is how long somebody waits who waits for a decision. Several that come at once are
// decided on at once.
const soon = 250 * time.Millisecond

// later has something decided in a step of its own.
func (t *term) later(do func()) { t.agenda = append(t.agenda, do) }

// gather learns beside the loop what a decision needs, and goes on with it, unless the
// cluster is not followed any more.
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

// tell has the loop take something over.
func (t *term) tell(ctx context.Context, what func()) error {
	select {
	case t.news <- what:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow tells the loop what the cluster is like, until ctx ends.
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

// atOnce bounds the events that are taken over in a step of the loop: a change may bring
// tens of thousands.
const atOnce = 100

// listen lists the cluster and follows what changes, until the stream ends.
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

// listed takes over what was listed, and what is remembered of jobs if it was read.
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

// apply takes events over.
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
		t.send(func() func() {
			// Nomad takes 100 connections at a time, and many may begin at once.
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

// fenced is a cluster in which nothing is changed by a process that does not lead any
// more.
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
