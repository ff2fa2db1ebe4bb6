// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"time"
)

// loop runs a term's steps one after another. They own all of the term's state and never block:
// anything slow runs in the background.
type loop struct {
	*background
	leading     context.Context // until the end of the term; moves outlive the event stream
	updates     chan func()     // changes of the cluster
	steps       []func()        // of the decisions in progress
	deciding    int             // decisions in the background
	synced      bool            // the cluster's state is current
	urgent      bool            // a job is held, or a policy retries
	longestStep time.Duration
}

func newLoop(leading context.Context) *loop {
	return &loop{background: newBackground(), leading: leading, updates: make(chan func())}
}

// serve runs the steps until ctx ends, a pass at each interval, and reports each step that is longer
// than all before it.
func (l *loop) serve(ctx context.Context, interval func() time.Duration, pass func(), longest func(kind string, took time.Duration)) error {
	due := time.NewTimer(interval())
	defer due.Stop()
	expedited := false // the next pass was expedited
	always := make(chan struct{})
	close(always)
	for {
		if l.urgent && !expedited {
			expedited = true
			due.Reset(min(expediteDelay, interval()))
		}
		var ready chan struct{}
		if len(l.steps) > 0 {
			ready = always
		}
		var step func()
		kind := ""
		select {
		case step = <-l.updates:
			kind = "events"
		case then := <-l.results:
			step, kind = func() { l.complete(then) }, "result"
		case <-ready:
			step, kind = l.steps[0], "decision"
			l.steps = l.steps[1:]
		case <-due.C:
			expedited = false
			due.Reset(interval())
			step, kind = pass, "pass"
		case <-ctx.Done():
			return ctx.Err()
		}
		begun := time.Now()
		step()
		if took := time.Since(begun); took > l.longestStep {
			l.longestStep = took
			longest(kind, took)
		}
	}
}

// expediteDelay is the delay of an expedited pass; requests during it share the pass.
const expediteDelay = 250 * time.Millisecond

func (l *loop) enqueue(do func()) { l.steps = append(l.steps, do) }

// fetch runs do in the background and its result on the loop, unless the cluster's state has been
// lost meanwhile.
func (l *loop) fetch(do func() (then func())) {
	l.deciding++
	l.run(func() func() {
		then := do()
		return func() {
			l.deciding--
			if l.synced && l.leading.Err() == nil {
				then()
			}
		}
	})
}

// post has the loop run a change of the cluster's state.
func (l *loop) post(ctx context.Context, change func()) error {
	select {
	case l.updates <- change:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
