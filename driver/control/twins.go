// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/twin"
)

// twins simulates the node's training tasks under plain Nomad (package twin). The twins share the
// CPU that the kernel gave the tasks plus the idle CPU. A node that is suspended or busy with other
// work therefore harms no task, and a restarted plugin continues from the kernel's counters.
type twins struct {
	ghosts []policy.Task     // tasks that ended before their twins
	cores  policy.Cores      // recently available to the twins
	at     time.Time         // time of the last update; zero: none
	idle   map[int]float64   // idle seconds of each CPU at that time
	gone   policy.CPUSeconds // used by tasks that have ended since
	saved  time.Duration     // total time by which tasks succeeded before their twins

	dirty    bool      // not yet stored
	restored time.Time // time of the restored state
}

type fair struct {
	cpu   policy.CPUSeconds
	used  policy.CPUSeconds // by the task at the last update
	over  time.Time         // end of the twin, if before the task's; else zero
	first policy.CPUSeconds // the first estimate of the task's size; 0 = none
	seen  bool              // present at the last update
}

const (
	// maxGhosts bounds the number of ghosts.
	maxGhosts = 1000
	// minCores is the least that the twins have; a task that used less waited for something else.
	minCores policy.Cores = 0.05
)

func (t *task) hasTwin() bool { return t.Limited && t.kind() == policy.Training }

// demand returns how many cores the task could use, at most its quota.
func (t *task) demand() measure.Demand {
	d := t.m.Demand
	if quota := policy.Cores(t.base.QuotaCores); quota > 0 {
		d.Least, d.Most = min(d.Least, quota), min(d.Most, quota)
	}
	return d
}

// size returns the task's remaining work at its current CPU usage; nil if unknown.
func (t *task) size() (left, quality *policy.CPUSeconds) {
	since := policy.CPUSeconds(max(t.usage.CPUSeconds-t.m.CPU, 0))
	if !(since >= 0) {
		since = 0
	}
	less := func(of *policy.CPUSeconds) *policy.CPUSeconds {
		if of == nil {
			return nil
		}
		x := max(*of-since, 0)
		return &x
	}
	left, quality = less(t.m.Remaining.CPUS), less(t.m.Remaining.QualityCPUS)
	if left != nil {
		*left = max(*left, t.m.Remaining.PerStep) // it is still running
	}
	if t.reached.Rank() >= policy.Acceptable.Rank() {
		quality = new(policy.CPUSeconds)
	}
	return left, quality
}

// withTwin adds remaining work and the twin's CPU time to a snapshot's task.
func (t *task) withTwin(p policy.Task) policy.Task {
	p.CapCores, p.CPUS, p.FairCPUS = t.demand().Most, policy.CPUSeconds(t.usage.CPUSeconds), t.fair.cpu
	p.RemainingCPUS, p.QualityCPUS = t.size()
	p.Overhead = t.m.Overhead
	return p
}

// advanceTwins advances the twins of a snapshot's tasks to now and drops ghosts whose twins have
// ended. tasks are the snapshot's running ones; others is the CPU use of the rest of the pool.
func (c *Controller) advanceTwins(s *policy.Snapshot, tasks []*task, others policy.Cores, now time.Time) {
	w := &c.twins
	used := w.gone
	w.gone = 0
	for i, t := range tasks {
		if t.hasTwin() {
			used += max(s.Tasks[i].CPUS-t.fair.used, 0)
		} else {
			others += t.cores
		}
	}
	seconds := now.Sub(w.at).Seconds()
	pool := max(c.pool-others, minCores)
	idle := c.idleTimes()
	spare := 0.0
	for cpu, is := range idle {
		if was, ok := w.idle[cpu]; ok { // neither lost to a task that owns it nor returned by one
			spare += max(is-was, 0)
		}
	}
	w.cores = pool
	switch {
	case w.at.IsZero() || seconds <= 0:
		// After a restart of the plugin: its downtime does not count.
		seconds = float64(used) / float64(pool)
	case idle != nil:
		w.cores = min(pool, policy.Cores((float64(used)+spare)/seconds))
	}
	// A task that has joined since the last update had no twin until now.
	var here []int
	var running []policy.Task
	for i, t := range s.Tasks {
		if i >= len(tasks) || tasks[i].fair.seen || w.at.IsZero() {
			here, running = append(here, i), append(running, t)
		}
	}
	w.at, w.idle = now, idle
	twin.Advance(running, w.cores, max(seconds, 0))
	for k, i := range here {
		s.Tasks[i].FairCPUS = running[k].FairCPUS
	}
	for i, t := range tasks {
		if !t.hasTwin() {
			continue
		}
		t.fair.cpu, t.fair.used, t.fair.seen = s.Tasks[i].FairCPUS, s.Tasks[i].CPUS, true
		if left := s.Tasks[i].RemainingCPUS; t.fair.first == 0 && left != nil {
			t.fair.first = s.Tasks[i].CPUS + *left
		}
		switch over := twin.Left(s.Tasks[i]) == 0; {
		case !over:
			t.fair.over = time.Time{}
		case t.fair.over.IsZero():
			t.fair.over = now
		}
	}
	w.ghosts = slices.DeleteFunc(slices.Clone(s.Tasks[len(tasks):]), func(t policy.Task) bool { return twin.Left(t) == 0 })
	s.Tasks = append(s.Tasks[:len(tasks):len(tasks)], w.ghosts...)
	w.dirty = true
}

// idleTimes returns the idle seconds of each of the pool's CPUs; nil if unknown.
func (c *Controller) idleTimes() map[int]float64 {
	if c.opts.Idle == nil {
		return nil
	}
	idle, err := c.opts.Idle(c.cpus)
	if err != nil {
		c.log.Debug("the CPUs' idle times are not known", "error", err)
		return nil
	}
	return idle
}

// endTwin turns an ended task whose twin is still running into a ghost. It returns how long before
// its twin the task ended and, if negative, why; ok is false without a twin.
func (c *Controller) endTwin(t *task, now time.Time) (ahead time.Duration, why string, ok bool) {
	if !t.hasTwin() || t.cgroup == nil || c.twins.at.IsZero() {
		return 0, "", false
	}
	ghost := policy.Task{
		ID: t.ID, Kind: policy.Training, Entitlement: t.entitlement(), CapCores: t.demand().Most,
		CPUS: policy.CPUSeconds(t.usage.CPUSeconds), FairCPUS: t.fair.cpu, Ended: true,
	}
	if twin.Left(ghost) > 0 {
		all := []policy.Task{ghost}
		for _, o := range c.tasks {
			if o != t && o.hasTwin() && o.cgroup != nil {
				all = append(all, o.withTwin(policy.Task{Entitlement: o.entitlement()}))
			}
		}
		all = append(all, c.twins.ghosts...)
		ahead = time.Duration(min(twin.Due(all, 0, max(c.twins.cores, minCores)), 1e9) * float64(time.Second))
		c.twins.ghosts = append(c.twins.ghosts, ghost)
		if n := len(c.twins.ghosts); n > maxGhosts {
			c.twins.ghosts = slices.Clone(c.twins.ghosts[n-maxGhosts:])
		}
	} else {
		switch over := ghost.FairCPUS / max(ghost.CPUS, 1e-9); {
		case !t.fair.over.IsZero():
			ahead = -now.Sub(t.fair.over)
		case over > 1: // the task was smaller than estimated
			ahead = -time.Duration(float64(now.Sub(t.began)) * float64(1-1/over))
		}
		why = t.lateReason(c.pool)
	}
	c.twins.gone += max(ghost.CPUS-t.fair.used, 0)
	c.twins.dirty = true
	if t.usage.CPUSeconds < float64(minCores)*now.Sub(t.began).Seconds() {
		return 0, "", false // it waited for something other than CPU
	}
	return ahead, why, true
}

func (t *task) lateReason(pool policy.Cores) string {
	used, most := policy.CPUSeconds(t.usage.CPUSeconds), t.demand().Most
	switch off := float64(t.fair.first / used); {
	case t.move.State != "":
		return "it was being moved"
	case t.fair.first == 0:
		return "its size was never known"
	case off < 0.9 || off > 1.1:
		return fmt.Sprintf("it was first estimated at %.0f CPU-seconds, and used %.0f", t.fair.first, used)
	case most > 0 && most < 0.9*pool:
		return fmt.Sprintf("it can use only %.2g cores, too few to catch up", float64(most))
	}
	return "the node changed in the meantime"
}

func (c *Controller) reportEnd(t *task, now time.Time, succeeded bool) (said bool) {
	ahead, why, ok := c.endTwin(t, now)
	if ok = ok && succeeded; ok {
		c.twins.saved += ahead
	}
	took := now.Sub(t.began)
	ended := status.Ended{Took: took, Fair: took + ahead}
	c.opts.Metrics.Ended(ended, t.usage.CPUSeconds-float64(t.fair.cpu), ok)
	if !ok || c.mode() == plan.ModeNone || ended.Level() {
		return false
	}
	if ahead < 0 {
		ended.Why = why
	}
	t.log.Info("ended", "after", took, "ahead", ahead)
	t.show.Send("fair-finish", ended.String(), now)
	return true
}

// entitlement returns what Nomad gave the task, as the kernel's weight.
func (t *task) entitlement() float64 { return float64(t.cgroup.Conversion().Weight(t.base.Shares)) }

// twinState is stored for a later plugin process.
type twinState struct {
	At     time.Time     `json:"at"`
	Ghosts []policy.Task `json:"ghosts"`
	SavedS float64       `json:"saved_s"`
}

const maxTwins = 1 << 20

func (c *Controller) saveTwins(in private.Dir) {
	if !c.twins.dirty {
		return
	}
	c.twins.dirty = false
	data, err := json.Marshal(twinState{time.Now(), c.twins.ghosts, c.twins.saved.Seconds()})
	if err == nil {
		err = in.WriteSealed(private.TwinsName, data, false)
	}
	if err != nil {
		c.log.Debug("cannot store the twins of ended tasks", "error", err)
	}
}

// restoreTwins restores an earlier process's state from a task's private directory, if newer.
func (c *Controller) restoreTwins(t *task) {
	w := &c.twins
	var kept twinState
	data, err := t.Private.ReadSealed(private.TwinsName, maxTwins)
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	// Usually there is none, or this process has newer state.
	if err == nil && w.at.IsZero() && kept.At.After(w.restored) {
		w.restored, w.ghosts, w.saved = kept.At, kept.Ghosts, time.Duration(kept.SavedS*float64(time.Second))
	}
	if e := t.earlier; e != nil && !slices.ContainsFunc(w.ghosts, func(g policy.Task) bool { return g.ID == e.ID }) {
		w.ghosts = append(w.ghosts, *e)
	}
}
