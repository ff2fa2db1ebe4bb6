// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
)

// DefaultThreshold is the default relative change below which limits are left unchanged.
const DefaultThreshold = 0.10

// minIntervalFraction is the fraction of an interval that counts as a whole one. Otherwise a
// control loop that ticks once per interval would skip every tick that is a millisecond early.
const minIntervalFraction = 0.9

// Damper suppresses frequent and small changes: a task's limits change at most once per Interval
// and only by Threshold or more, relative to those in force. First limits, changes of the set of
// tasks and releases (back to Nomad's limits) apply immediately.
//
// Shares change together, because their sum is conserved; quotas change individually. Damper reads
// no clock. It is not safe for concurrent use.
type Damper struct {
	// Threshold is the minimum relative change; ≤ 0 allows any change.
	Threshold float64
	// Interval is the minimum time between two changes of a task's limits.
	Interval time.Duration
	// Immediate disables Threshold and Interval, for policies that determine how long their limits
	// hold.
	Immediate bool

	shared  time.Time // last change of shares
	entries map[string]*entry
}

type entry struct {
	limits limits.Limits
	quota  time.Time // last change of the quota
	seen   bool
}

func NewDamper(interval time.Duration) *Damper {
	return &Damper{Threshold: DefaultThreshold, Interval: interval}
}

// Next takes the planned limits (plan[i] for reqs[i]) and returns, in the same order, those to
// enforce. It assumes that they are applied; after a failed write the next call returns them again.
// IDs must be unique.
func (d *Damper) Next(now time.Time, reqs []Request, plan []limits.Limits) []limits.Limits {
	if d.entries == nil {
		d.entries = make(map[string]*entry, len(reqs))
	}
	for _, e := range d.entries {
		e.seen = false
	}
	changed := false // in the set of tasks
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
		due := d.Immediate || d.due(now, e.quota) && d.significant(have, want.QuotaCores)
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

// moveShares reports whether shares may change while the set of tasks does not.
func (d *Damper) moveShares(now time.Time, reqs []Request, plan []limits.Limits) bool {
	release, moves := true, false
	for i, r := range reqs {
		have, want := d.entries[r.ID].limits.Shares, plan[i].Shares
		release = release && want == r.base().Shares
		moves = moves || d.significant(float64(have), float64(want))
	}
	return release || moves && d.due(now, d.shared)
}

// significant reports whether the change reaches Threshold. Zero means no quota, so every change
// from or to it is significant.
func (d *Damper) significant(have, want float64) bool {
	if have == want {
		return false
	}
	return have <= 0 || want <= 0 || math.Abs(want-have) >= d.Threshold*have
}

// due reports whether an interval has passed since last, or the clock was set back.
func (d *Damper) due(now, last time.Time) bool {
	gone := now.Sub(last)
	return gone < 0 || float64(gone) >= minIntervalFraction*float64(d.Interval)
}
