// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/stream"
)

// follower keeps the cluster's store current.
type follower struct {
	*Shim
	leading context.Context
	store   *cluster.Store
	nomad   move.Nomad
	changed chan struct{} // told of what a pass should not wait for
	signals sync.WaitGroup
	slots   chan struct{} // limits concurrent signals: Nomad accepts 100 connections by default
}

// follow follows the cluster until the end of the leadership.
func (f *follower) follow() {
	defer f.signals.Wait()
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		begun := time.Now()
		err := f.listen(f.leading)
		if f.leading.Err() != nil {
			return
		}
		f.store.Lost()
		f.setDisconnected(true)
		f.log.Error("lost the cluster's event stream; retrying", "error", err)
		if time.Since(begun) > time.Minute {
			wait = time.Second
		}
		select {
		case <-time.After(wait):
		case <-f.leading.Done():
			return
		}
	}
}

// listen lists the cluster and applies events until the stream ends.
func (f *follower) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := stream.Open(ctx, stream.Nomad(f.client, cluster.Topics()...), stream.Deadline)
	if err != nil {
		return err
	}
	defer events.Close()
	listing, err := cluster.List(ctx, f.client)
	if err != nil {
		return err
	}
	f.store.Replace(listing)
	f.setDisconnected(false)
	f.log.Info("following the cluster", "nodes", len(listing.Nodes), "allocations", len(listing.Allocs), "jobs", len(listing.Jobs))
	f.hurry()
	for {
		b, err := events.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range b.Events {
			f.apply(e)
		}
	}
}

func (f *follower) apply(e stream.Event) {
	f.metrics.Events.Inc()
	c, err := f.store.Apply(e)
	if err != nil {
		f.log.Warn("ignoring an event", "error", err)
	}
	switch j := c.Job; {
	case c.Was == nil && c.Is == nil && j != nil && j.Held:
		f.hurry()
	case c.Was != nil && c.Is == nil && j != nil && j.Queued: // its place may be a waiting job's
		f.hurry()
	case c.Is != nil && c.Is.Running && (c.Was == nil || !c.Was.Running):
		f.sendHistory(c.Is)
	}
}

// hurry asks for a pass at once.
func (f *follower) hurry() {
	select {
	case f.changed <- struct{}{}:
	default: // it has been asked for
	}
}

// sendHistory sends each task of a new allocation the cost of its last run, if that was on another
// node.
func (f *follower) sendHistory(a *cluster.Alloc) {
	if f.now().DryRun {
		return
	}
	for task, run := range f.store.Runs(a.Job, a.Group) {
		if run.Node == a.Node {
			continue // that node's driver has stored it
		}
		f.signals.Go(func() {
			f.slots <- struct{}{}
			defer func() { <-f.slots }()
			ctx, cancel := context.WithTimeout(f.leading, queryTimeout)
			defer cancel()
			if err := f.nomad.Signal(ctx, apiAlloc(a), task, history.Signal+" "+run.Text); err != nil {
				f.log.Debug("cannot send a task its history", "alloc_id", a.ID, "task", task, "error", err)
			}
		})
	}
}
