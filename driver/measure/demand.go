// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package measure

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
)

// Demand is how many cores a task could use, at least and at most: 0 if unknown. The bounds of a task
// that waits for a CPU are far apart, and prove nothing, so Most stays between them, and Least is what
// it has shown.
type Demand struct{ Least, Most policy.Cores }

const (
	// demandEvery is the time between two readings, of which one takes 20 ms for a thousand threads.
	demandEvery = 5 * time.Second
	// minDemand is the minimum demand: a blocked task must not count as unable to run.
	minDemand policy.Cores = 0.05
	// demandDecay bounds the fall of a demand per reading: a task has phases.
	demandDecay = 0.9
)

// reading is what a task's threads and the task had used at a time.
type reading struct {
	at      time.Time
	threads limits.Threads
	cpu     float64 // CPU-seconds
}

// readDemand learns from the task's threads, unless that was done recently.
func (o *Observer) readDemand(now time.Time) {
	was := o.read
	old := now.Sub(was.at)
	if o.cfg.Threads == nil || !(o.cpu >= 0) || old < demandEvery {
		return
	}
	o.read = reading{now, o.cfg.Threads(), o.cpu}
	if was.at.IsZero() || len(o.read.threads) == 0 {
		return
	}
	least, most := o.read.threads.Demand(was.threads, old)
	// Threads that have exited are missing, but their use is not.
	least = max(least, (o.cpu-was.cpu)/old.Seconds())
	d := &o.now.Demand
	fallen := min(d.Most, max(policy.Cores(most), d.Most*demandDecay))
	d.Most = max(policy.Cores(least), fallen, minDemand)
	d.Least = smooth(d.Least, policy.Cores(least))
}

// smooth is the least demand after a reading. Above a core it falls slowly, because threads that wait
// for each other seem to need less as soon as they get less.
func smooth(was, read policy.Cores) policy.Cores {
	switch kept := was * demandDecay; {
	case kept >= 1:
		return max(read, kept)
	case was > 0 && read < 1:
		return max((read+was)/2, minDemand)
	}
	return max(read, minDemand)
}
