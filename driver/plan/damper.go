// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
)

// DefaultThreshold is the least relative change that is worth a write.
const DefaultThreshold = 0.10

// early is how much of an interval must have passed to count as one. A control
// loop that ticks once per interval would else skip every tick that comes a
// millisecond early.
const early = 0.9

// Damper keeps limits from fluttering: a change must be by Threshold or more,
// relative to what is in force, and comes at most once per Interval per task.
// Immediate are: the first limits of a task, all limits when a task joined or
// left, and releases (a task gets back what Nomad set).
//
// Shares move together or not at all, because their sum is what is conserved;
// quotas move one by one. The Damper is pure: it knows the time only as an
// argument. It is not safe for concurrent use.
type Damper struct {
	// Threshold is the least relative change; not positive means any.
	Threshold float64
	// Interval is the least time between two changes of a task.
	Interval time.Duration
	// Immediate lets every change through: the policy has said for how long its limits may
	// be in force, and reckons with that.
	Immediate bool

	shared  time.Time // of the last change of shares
	entries map[string]*entry
}

type entry struct {
	limits limits.Limits
	quota  time.Time // of the last change of the quota
	seen   bool
}

// NewDamper is a Damper with DefaultThreshold.
func NewDamper(interval time.Duration) *Damper {
	return &Damper{Threshold: DefaultThreshold, Interval: interval}
}

// Next takes what Limits wants for reqs (plan[i] for reqs[i]) and returns, in the
// same order, what should be in force: the new limits or the ones before. What
// it returns it takes for applied; a write that fails is the caller's to retry
// (the next call returns the same limits again). IDs must be unique.
func (d *Damper) Next(now time.Time, reqs []Request, plan []limits.Limits) []limits.Limits {
	if d.entries == nil {
		d.entries = make(map[string]*entry, len(reqs))
	}
	for _, e := range d.entries {
		e.seen = false
	}
	changed := false // membership
	for _, r := range reqs {
		e, known := d.entries[r.ID]
		if !known {
			e = &entry{quota: now}
			d.entries[r.ID] = e
			changed = true
		}
		e.seen = true
	}
	for id, e := range d.entries {
		if !e.seen {
			delete(d.entries, id)
			changed = true
		}
	}

	shares := changed || d.Immediate || d.moveShares(now, reqs, plan)
	out := make([]limits.Limits, len(reqs))
	moved := false
	for i, r := range reqs {
		e, want := d.entries[r.ID], plan[i]
		if shares && e.limits.Shares != want.Shares {
			e.limits.Shares = want.Shares
			moved = true
		}
		have := e.limits.QuotaCores
		release := want.QuotaCores == r.base().QuotaCores
		due := d.Immediate || d.due(now, e.quota) && d.matters(have, want.QuotaCores)
		if have != want.QuotaCores && (changed || release || due) {
			e.limits.QuotaCores = want.QuotaCores
			e.quota = now
		}
		out[i] = e.limits
	}
	if moved {
		d.shared = now
	}
	return out
}

// moveShares says whether the shares of a set that has not changed may move now.
func (d *Damper) moveShares(now time.Time, reqs []Request, plan []limits.Limits) bool {
	release, matters := true, false
	for i, r := range reqs {
		have, want := d.entries[r.ID].limits.Shares, plan[i].Shares
		release = release && want == r.base().Shares
		matters = matters || d.matters(float64(have), float64(want))
	}
	return release || matters && d.due(now, d.shared)
}

// matters says whether the step from have to want is large enough. Zero is "no
// quota": to and from it every step is.
func (d *Damper) matters(have, want float64) bool {
	if have == want {
		return false
	}
	return have <= 0 || want <= 0 || math.Abs(want-have) >= d.Threshold*have
}

// due says whether an interval has passed. A clock that went back does not
// hold anything up.
func (d *Damper) due(now, last time.Time) bool {
	gone := now.Sub(last)
	return gone < 0 || float64(gone) >= early*float64(d.Interval)
}
