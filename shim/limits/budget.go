// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package limits bounds the moves that policies start: concurrent moves, and moves per minute,
// node and job.
package limits

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
)

// Budget decides whether a move may start. It is not safe for concurrent use.
type Budget struct {
	limits config.Limits

	started  []time.Time // starts within the last minute, in order
	inFlight int
	byNode   map[string]int // concurrent moves by node
	jobs     map[cluster.JobKey]*history
}

// history is a job's moves.
type history struct {
	moving   bool
	last     time.Time     // end of the last move
	failures int           // consecutive
	took     time.Duration // the last move, if it failed
}

func NewBudget(limits config.Limits) *Budget {
	return &Budget{limits: limits, byNode: make(map[string]int), jobs: make(map[cluster.JobKey]*history)}
}

// SetLimits replaces the limits for moves yet to start.
func (b *Budget) SetLimits(limits config.Limits) { b.limits = limits }

// Restore sets a job's history from an earlier leader: the end of its last move, and its
// consecutive failures.
func (b *Budget) Restore(job cluster.JobKey, last time.Time, failures int) {
	b.jobs[job] = &history{last: last, failures: failures}
}

// Forget drops a job unless it is being moved.
func (b *Budget) Forget(job cluster.JobKey) {
	if p := b.jobs[job]; p != nil && !p.moving {
		delete(b.jobs, job)
	}
}

const (
	// maxFailures bounds the doubling of the back-off.
	maxFailures = 10
	// waste times the duration of a failed move is the minimum back-off, so that a job that cannot be
	// moved leaves the limits to others most of the time.
	waste = 5
)

// Blocked returns why a move may not start now, "" if it may. The longer of the job's cooldown and
// the configured one applies.
func (b *Budget) Blocked(now time.Time, job cluster.JobKey, cooldown time.Duration, from, to string) string {
	if p := b.jobs[job]; p != nil {
		wait := max(b.limits.Cooldown, cooldown)
		what := "cooldown"
		if p.failures > 0 {
			what = fmt.Sprintf("back-off after %d failures", p.failures)
			wait = max(b.limits.Backoff<<min(p.failures-1, maxFailures), waste*p.took)
		}
		if p.moving {
			return "a move of the job is in flight"
		}
		if until := p.last.Add(wait); !p.last.IsZero() && now.Before(until) {
			return fmt.Sprintf("%s until %s", what, until.UTC().Format(time.RFC3339))
		}
	}
	switch inFlight, begun := b.Usage(now); {
	case inFlight >= b.limits.InFlight:
		return fmt.Sprintf("%d moves are in flight, the limit", inFlight)
	case begun >= b.limits.MovesPerMinute:
		return fmt.Sprintf("%d moves started within a minute, the limit", begun)
	}
	for _, node := range []string{from, to} {
		if b.byNode[node] >= b.limits.PerNode {
			return fmt.Sprintf("%d moves involve node %s, the limit", b.byNode[node], node)
		}
	}
	return ""
}

// Usage returns the moves in flight and those started within a minute.
func (b *Budget) Usage(now time.Time) (inFlight, begun int) {
	for len(b.started) > 0 && now.Sub(b.started[0]) >= time.Minute {
		b.started = b.started[1:]
	}
	return b.inFlight, len(b.started)
}

type Outcome int

const (
	Moved Outcome = iota
	Failed
	Refused     // nothing was changed; the job backs off, the limits are not charged
	Unplaceable // nothing was changed; another node is tried immediately
)

// Begin records the start of a move. The caller must call end once.
func (b *Budget) Begin(now time.Time, job cluster.JobKey, from, to string) (end func(at time.Time, outcome Outcome)) {
	p := b.jobs[job]
	if p == nil {
		p = &history{}
		b.jobs[job] = p
	}
	p.moving = true
	b.started = append(b.started, now)
	b.inFlight++
	b.byNode[from]++
	b.byNode[to]++
	return func(at time.Time, outcome Outcome) {
		p.moving = false
		switch outcome {
		case Moved:
			p.last, p.failures = at, 0
		case Failed, Refused:
			p.last, p.failures, p.took = at, p.failures+1, at.Sub(now)
		}
		if i := slices.Index(b.started, now); i >= 0 && (outcome == Refused || outcome == Unplaceable) {
			b.started = slices.Delete(b.started, i, i+1)
		}
		b.inFlight--
		for _, node := range []string{from, to} {
			if b.byNode[node]--; b.byNode[node] <= 0 {
				delete(b.byNode, node)
			}
		}
	}
}

// Failures returns the number of a job's consecutive failures and the end of its last move.
func (b *Budget) Failures(job cluster.JobKey) (failures int, last time.Time) {
	if p := b.jobs[job]; p != nil {
		return p.failures, p.last
	}
	return 0, time.Time{}
}

// Clone returns a copy for decisions that start nothing.
func (b *Budget) Clone() *Budget {
	jobs := make(map[cluster.JobKey]*history, len(b.jobs))
	for key, h := range b.jobs {
		copied := *h
		jobs[key] = &copied
	}
	return &Budget{limits: b.limits, started: slices.Clone(b.started), inFlight: b.inFlight, byNode: maps.Clone(b.byNode), jobs: jobs}
}
