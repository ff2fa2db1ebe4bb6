// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/twin"
)

// twins let the node's training tasks run a second time, as plain Nomad would have it
// (package twin). They have the CPU that the tasks got from the kernel, and what was
// idle meanwhile; so a node that stands still, or is busy with something else, costs
// nobody anything, and a plugin that was away goes on from the kernel's counters.
type twins struct {
	ghosts []policy.Task     // tasks that have ended before their twins
	cores  policy.Cores      // that the twins had lately
	at     time.Time         // of the last look; zero: the first one is to come
	idle   float64           // core-seconds of the machine until then
	gone   policy.CPUSeconds // used by tasks that have ended since then
	saved  time.Duration     // by how much earlier all tasks ended than their twins

	dirty    bool      // not written yet
	restored time.Time // when an earlier process wrote what was taken over
}

// fair is what a task's twin has had.
type fair struct {
	cpu   policy.CPUSeconds
	used  policy.CPUSeconds // by the task, when that was reckoned
	most  policy.Cores      // that the task can use; 0 = all
	over  time.Time         // when the twin ended before the task; zero: it has not
	first policy.CPUSeconds // the task's size as it was first estimated; 0 = never
	seen  bool              // it was there at the last look
	last  look              // when most was learnt
}

// look is a look at what a task's threads would use.
type look struct {
	at      time.Time
	threads limits.Threads
	used    float64 // CPU-seconds
}

const (
	// mostGhosts bounds what is remembered of tasks that have ended.
	mostGhosts = 1000
	// leastCap keeps a task that waits for something from counting as one that never runs.
	leastCap policy.Cores = 0.05
	// fades is how fast what a task could use is forgotten, at each look: its phases differ.
	fades = 0.9
)

// trains says whether the task has a twin.
func (t *task) trains() bool { return t.Limited && t.kind() == policy.Training }

// size returns what the task still needs, as of its CPU usage now; nil if that is not
// known.
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
		*left = max(*left, t.m.Remaining.PerStep) // it has not ended yet
	}
	if t.reached.Rank() >= policy.Acceptable.Rank() {
		quality = new(policy.CPUSeconds)
	}
	return left, quality
}

// withTwin adds to a task in a snapshot what it needs and what its twin has had.
func (t *task) withTwin(p policy.Task) policy.Task {
	p.CapCores, p.CPUS, p.FairCPUS = t.fair.most, policy.CPUSeconds(t.usage.CPUSeconds), t.fair.cpu
	p.RemainingCPUS, p.QualityCPUS = t.size()
	return p
}

// advanceTwins lets the twins of a snapshot's tasks run until now, and drops the ghosts
// whose twins have ended. tasks are the snapshot's that run.
// others is what else the pool is used for.
func (c *Controller) advanceTwins(s *policy.Snapshot, tasks []*task, others policy.Cores, now time.Time) {
	w := &c.twins
	used := w.gone
	w.gone = 0
	for i, t := range tasks {
		if t.trains() {
			used += max(s.Tasks[i].CPUS-t.fair.used, 0)
			t.learnCap(now)
			s.Tasks[i].CapCores = t.fair.most
		} else {
			others += t.cores
		}
	}
	seconds := now.Sub(w.at).Seconds()
	pool := max(c.pool-others, leastCap)
	idle, known := c.idleTime()
	w.cores = pool
	switch spare := idle - w.idle; {
	case w.at.IsZero() || seconds <= 0:
		// An earlier process's tasks: how long it was away does not matter.
		seconds = float64(used) / float64(pool)
	case known:
		w.cores = min(pool, policy.Cores((float64(used)+max(spare, 0))/seconds))
	}
	// A task that has joined since the last look had no twin until now.
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
		if !t.trains() {
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

// learnCap takes note of how many cores the task's threads would use if there were
// enough: how many of them run or wait for one, on average.
func (t *task) learnCap(now time.Time) {
	was := t.fair.last
	seconds := now.Sub(was.at).Seconds()
	if seconds < 1 {
		return
	}
	t.fair.last = look{now, t.cgroup.Threads(), t.usage.CPUSeconds}
	if was.at.IsZero() || len(t.fair.last.threads) == 0 {
		return
	}
	// Threads that have ended since are not counted, and what they have used is.
	most := policy.Cores(max(t.fair.last.threads.Since(was.threads).Seconds(), t.usage.CPUSeconds-was.used) / seconds)
	t.fair.most = max(most, t.fair.most*fades, leastCap)
	if quota := policy.Cores(t.base.QuotaCores); quota > 0 {
		t.fair.most = min(t.fair.most, quota)
	}
}

// idleTime returns the machine's idle time so far, in core-seconds; false if it is not known.
func (c *Controller) idleTime() (float64, bool) {
	if c.opts.Idle == nil {
		return 0, false
	}
	idle, err := c.opts.Idle()
	if err != nil {
		c.log.Debug("the machine's idle time is not known", "error", err)
		return 0, false
	}
	return idle, true
}

// endTwin takes leave of a task that has ended: it becomes a ghost if its twin has not
// ended yet. It returns by how much earlier than its twin the task has ended, and, if it
// is later, why; false if it had no twin.
func (c *Controller) endTwin(t *task, now time.Time) (ahead time.Duration, why string, ok bool) {
	if !t.trains() || t.cgroup == nil || c.twins.at.IsZero() {
		return 0, "", false
	}
	ghost := policy.Task{
		ID: t.ID, Kind: policy.Training, Entitlement: t.entitlement(), CapCores: t.fair.most,
		CPUS: policy.CPUSeconds(t.usage.CPUSeconds), FairCPUS: t.fair.cpu, Ended: true,
	}
	if twin.Left(ghost) > 0 {
		all := []policy.Task{ghost}
		for _, o := range c.tasks {
			if o != t && o.trains() && o.cgroup != nil {
				all = append(all, o.withTwin(policy.Task{Entitlement: o.entitlement()}))
			}
		}
		all = append(all, c.twins.ghosts...)
		ahead = time.Duration(min(twin.Due(all, 0, max(c.twins.cores, leastCap)), 1e9) * float64(time.Second))
		c.twins.ghosts = append(c.twins.ghosts, ghost)
		if n := len(c.twins.ghosts); n > mostGhosts {
			c.twins.ghosts = slices.Clone(c.twins.ghosts[n-mostGhosts:])
		}
	} else {
		switch over := ghost.FairCPUS / max(ghost.CPUS, 1e-9); {
		case !t.fair.over.IsZero():
			ahead = -now.Sub(t.fair.over)
		case over > 1: // it was shorter than it seemed
			ahead = -time.Duration(float64(now.Sub(t.began)) * float64(1-1/over))
		}
		why = t.lateBecause(c.pool)
	}
	c.twins.gone += max(ghost.CPUS-t.fair.used, 0)
	c.twins.dirty = true
	if t.usage.CPUSeconds < float64(leastCap)*now.Sub(t.began).Seconds() {
		return 0, "", false // it has waited for something else than CPU
	}
	c.twins.saved += ahead
	return ahead, why, true
}

// lateBecause guesses why a task has ended later than its twin.
func (t *task) lateBecause(pool policy.Cores) string {
	used := policy.CPUSeconds(t.usage.CPUSeconds)
	switch off := float64(t.fair.first / used); {
	case t.move.State != "":
		return "it was being moved"
	case t.fair.first == 0:
		return "how much it had to do was never known"
	case off < 0.9 || off > 1.1:
		return fmt.Sprintf("it was taken for %.0f CPU-seconds at first, and used %.0f", t.fair.first, used)
	case t.fair.most > 0 && t.fair.most < 0.9*pool:
		return fmt.Sprintf("it can use %.2g cores only, so time that it waited could not be made up for", float64(t.fair.most))
	}
	return "the node was not as it had been foreseen"
}

// sayEnd tells people how a task has ended, beside its twin.
func (c *Controller) sayEnd(t *task, now time.Time) (said bool) {
	ahead, why, ok := c.endTwin(t, now)
	took := now.Sub(t.began)
	if !ok || c.mode() == plan.ModeNone || ahead.Abs() < took/50 {
		return false // it had no twin, or is level with it
	}
	ended := status.Ended{Took: took, Fair: took + ahead}
	if ahead < 0 {
		ended.Why = why
	}
	t.log.Info("ended", "after", took, "ahead", ahead)
	t.show.Send("fair-finish", ended.String(), now)
	return true
}

// entitlement is what Nomad gave the task, as the kernel divides CPU by it.
func (t *task) entitlement() float64 { return float64(t.cgroup.Conversion().Weight(t.base.Shares)) }

// keptTwins is what a later process of the plugin goes on with.
type keptTwins struct {
	At     time.Time     `json:"at"`
	Ghosts []policy.Task `json:"ghosts"`
	SavedS float64       `json:"saved_s"`
}

// maxTwins bounds what is read of it, in bytes.
const maxTwins = 1 << 20

// keepTwins writes the ghosts into the private directory of an allocation.
func (c *Controller) keepTwins(in private.Dir) {
	if !c.twins.dirty {
		return
	}
	c.twins.dirty = false
	data, err := json.Marshal(keptTwins{time.Now(), c.twins.ghosts, c.twins.saved.Seconds()})
	if err == nil {
		err = in.WriteSealed(private.TwinsName, data, false)
	}
	if err != nil {
		c.log.Debug("the tasks that have ended before their twins cannot be remembered", "error", err)
	}
}

// restoreTwins takes over what an earlier process has left beside a task: the newest
// counts.
func (c *Controller) restoreTwins(t *task) {
	w := &c.twins
	var kept keptTwins
	data, err := t.Private.ReadSealed(private.TwinsName, maxTwins)
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	// There mostly is none, or this process knows better.
	if err == nil && w.at.IsZero() && kept.At.After(w.restored) {
		w.restored, w.ghosts, w.saved = kept.At, kept.Ghosts, time.Duration(kept.SavedS*float64(time.Second))
	}
	if e := t.earlier; e != nil && !slices.ContainsFunc(w.ghosts, func(g policy.Task) bool { return g.ID == e.ID }) {
		w.ghosts = append(w.ghosts, *e)
	}
}
