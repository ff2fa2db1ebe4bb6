// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/e2e/scale/measure"
	"github.com/ebbtide/ebbtide/e2e/scale/nomad"
)

// size holds the measurements of one size.
type size struct {
	percent float64
	cluster nomad.Options
	lists   []measure.Report // by separate processes; the last one is complete
	idle    *watched
	follows *watched // with events at a low rate
	queues  *watched // with jobs in the queue
	rate    float64  // events per second
	load    string   // of the machine, before
}

func all(ctx context.Context, o options, stdout, stderr io.Writer) error {
	stderr = &shared{w: stderr}
	logf := func(format string, args ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}
	largest := slices.Max(o.percents)
	var sizes []size
	var failed error
	for _, percent := range o.percents {
		s, err := one(ctx, o, percent, percent == largest, logf, stderr)
		if err != nil {
			failed = fmt.Errorf("at %g %%: %w", percent, err)
			break
		}
		sizes = append(sizes, s)
	}
	if len(sizes) > 0 {
		fmt.Fprint(stdout, table(o, sizes).Text())
	}
	return failed
}

// shared is a writer for several processes.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

func one(ctx context.Context, o options, percent float64, watching bool, logf func(string, ...any), stderr io.Writer) (s size, err error) {
	s = size{percent: percent, cluster: o.cluster(percent), rate: o.rate, load: load()}
	logf("%d nodes, %d allocations; the machine's load is %s.", s.cluster.Nodes, s.cluster.Nodes*s.cluster.PerNode, s.load)
	g, err := generate(ctx, s.cluster, stderr)
	if err != nil {
		return s, err
	}
	defer g.close()
	opts := measure.Options{Address: g.address, Seed: o.seed}
	for i := range o.lists {
		if i == o.lists-1 {
			opts.Events, opts.Batch, opts.Pours, opts.Decisions, opts.Rebalance = o.events, o.batch, o.pours, o.decisions, o.rebalances
		}
		r, err := measureOnce(ctx, opts, stderr)
		if err != nil {
			return s, err
		}
		logf("List and model: %.2f s, %.0f MiB.", r.ModelS, r.PeakMiB)
		s.lists = append(s.lists, r)
	}
	if !watching || o.idle == 0 {
		return s, s.refused(ctx, g)
	}
	// Other processes' requests would be counted.
	g.close()
	if g, err = generate(ctx, s.cluster, stderr); err != nil {
		return s, err
	}
	defer g.close()
	idle, err := watch(ctx, g, o.settle, o.idle, nil, stderr)
	if err != nil {
		return s, err
	}
	s.idle = &idle
	logf("Idle: %.2f %% of a core.", 100*idle.Cores)
	follows, err := watch(ctx, g, o.settle, o.idle, func(ctx context.Context) error {
		p := nomad.Pour{Events: int(o.rate * 2 * (o.idle + time.Minute).Seconds()), Batch: 1, Rate: o.rate}
		if err := measure.Ask(ctx, g.address, p); ctx.Err() == nil {
			return err
		}
		return nil
	}, stderr)
	if err != nil {
		return s, err
	}
	s.follows = &follows
	logf("With %g events/s: %.2f %% of a core.", o.rate, 100*follows.Cores)
	if err := s.refused(ctx, g); err != nil || o.waiting == 0 {
		return s, err
	}
	g.close()
	with := s.cluster
	with.Waiting = max(1, int(float64(o.waiting)*percent/100))
	if g, err = generate(ctx, with, stderr); err != nil {
		return s, err
	}
	defer g.close()
	queues, err := watch(ctx, g, o.settle, o.idle, nil, stderr)
	if err != nil {
		return s, err
	}
	s.queues = &queues
	logf("With %d jobs waiting: %.2f %% of a core.", with.Waiting, 100*queues.Cores)
	return s, s.refused(ctx, g)
}

// refused fails if the shim has sent unsupported requests, which would distort figures.
func (s size) refused(ctx context.Context, g *generator) error {
	r, err := g.requests(ctx)
	if err != nil {
		return err
	}
	if len(r.Unknown) > 0 {
		return errors.New("the load generator does not know " + r.Unknown[0])
	}
	return nil
}
