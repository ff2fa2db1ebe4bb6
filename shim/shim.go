// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/shim/web"
	"github.com/ebbtide/ebbtide/top/page"
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
			o := page.Options{UI: c.UI, Nomad: c.Nomad, ShimNamespace: c.Leader.Namespace, ShimPath: c.Leader.Path, Log: s.log.Named("ui")}
			if err := page.Serve(ctx, o, func(url string) { s.log.Info("the page is served", "url", url) }); err != nil {
				cancel(err)
			}
		})
	}
	lock := &leader.Variable{
		Client: s.client, Namespace: c.Leader.Namespace, Path: path.Join(c.Leader.Path, store.LeaderName),
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
