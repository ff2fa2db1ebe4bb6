// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package plan decides which jobs on a card pause before their memory collides, and which
// go on: the execution planning of Chen et al. in its mode for HPC, in which a paused job
// keeps its memory.
//
// Decide is a pure function.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The rules that a Decision can name.
const (
	// RuleFits: what it holds, and what it will, has room.
	RuleFits = "gpu.plan.fits"
	// RuleUnknown: no profile says what it will hold; the gate lets it wait if need be.
	RuleUnknown = "gpu.plan.unknown"
	// RuleFirst: it is the first in order, which is never paused. Its rise does not fit,
	// and the gate makes room or lets it wait.
	RuleFirst = "gpu.plan.first"
	// RuleFixed: its rise does not fit, but it cannot be paused.
	RuleFixed = "gpu.plan.fixed"
	// RuleRest: its rise does not fit, but it was resumed a short while ago.
	RuleRest = "gpu.plan.rest"
	// RuleHalted: somebody else has paused it.
	RuleHalted = "gpu.plan.halted"
	// RulePause: its rise would not fit, so it is paused before.
	RulePause = "gpu.plan.pause"
	// RuleWait: it is paused, and its rise does not fit yet.
	RuleWait = "gpu.plan.wait"
	// RuleResume: it was paused, and fits now.
	RuleResume = "gpu.plan.resume"
	// RuleAged: it was paused for as long as a job may be, and goes on whatever fits.
	RuleAged = "gpu.plan.aged"
	// RuleAlone: it was paused, and nobody else would run.
	RuleAlone = "gpu.plan.alone"
)

// Output is what Decide decides.
type Output struct {
	// Jobs has one entry for each job of the input, in the input's order.
	Jobs []Decision `json:"jobs"`
	// FreeMiB is what is left when the rises that were given room have come; less than 0
	// if more is held than there is.
	FreeMiB int `json:"free_mib"`
}

// Decision is what becomes of one job.
type Decision struct {
	// ID is the job's, as the input gave it.
	ID string `json:"id"`
	// Pause says that the plan has it paused, from now on or still.
	Pause bool `json:"pause"`
	// Rule is the stable name of the rule that decided.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Decide plans a card. It does not change the input.
//
// What is held is held, by paused jobs too: only rises, from what a job holds to the most
// that its profile expects within the horizon, can be avoided. What nobody holds is given
// to rises in this order; of equal ones by priority, then arrival, then id:
//
//  1. the job that is first among those that run. It is never paused, so somebody always
//     runs: if its own rise does not fit beside what others hold, no pause helps it, and
//     none is made for it;
//  2. those that run and may not be paused: they cannot be, or were resumed less than
//     Params.RestS ago; and those that were paused for Params.MaxPauseS: they go on, so
//     that every pause ends, and others make room for them;
//  3. others that run. One whose rise does not fit any more is paused: the last in order,
//     and no more of them than necessary, for one that fits behind it goes on;
//  4. those that are paused. One whose rise fits with Params.Margin to spare, or at all
//     while the first one's does not, goes on. None takes room from one that runs.
//
// A rise of 2 that does not fit is not counted: the gate makes its requests wait until
// there is room, and no pause of others changes that. If nobody runs, the first one that
// is paused goes on.
func Decide(in Input) Output {
	c := card{in: in, free: in.MemoryMiB, margin: int(in.Params.Margin * float64(in.MemoryMiB)), out: make([]Decision, len(in.Jobs))}
	order := make([]int, len(in.Jobs))
	for i, j := range in.Jobs {
		order[i] = i
		c.free -= j.HeldMiB
		c.out[i].ID = j.ID
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := in.Jobs[a], in.Jobs[b]
		return cmp.Or(cmp.Compare(y.priority(), x.priority()), cmp.Compare(x.ArrivedS, y.ArrivedS), strings.Compare(x.ID, y.ID))
	})
	runs := func(j Job) bool { return !j.Halted && j.PausedS == nil }
	if !slices.ContainsFunc(in.Jobs, runs) { // then a paused one is first
		runs = func(j Job) bool { return !j.Halted }
	}
	if first := slices.IndexFunc(order, func(i int) bool { return runs(in.Jobs[i]) }); first >= 0 {
		c.decideFirst(order[first], in.Jobs[order[first]])
	}
	for _, step := range []func(i int, j Job){c.decideFixed, c.decideRunning, c.decidePaused} {
		for _, i := range order {
			if c.out[i].Rule == "" {
				step(i, in.Jobs[i])
			}
		}
	}
	return Output{Jobs: c.out, FreeMiB: c.free}
}

// card is a card that is planned.
type card struct {
	in     Input
	free   int // MiB that nobody holds or was given for a rise
	margin int // MiB that are left over when a job is resumed
	out    []Decision
}

// goOn lets a job run. Its rise has room if there is enough.
func (c *card) allow(i int, rule, why string) {
	j := c.in.Jobs[i]
	left := c.free
	if j.rise() <= c.free {
		c.free -= j.rise()
	}
	c.record(i, rule, left, why)
}

// say notes a decision. left is what there was for the job's rise.
func (c *card) record(i int, rule string, left int, why string) {
	j := c.in.Jobs[i]
	will := "what it will hold is not known"
	if j.AheadMiB != nil {
		will = fmt.Sprintf("expected to hold up to %d MiB, %d more", j.HeldMiB+j.rise(), j.rise())
	}
	c.out[i].Rule = rule
	c.out[i].Why = fmt.Sprintf("%s; holds %d MiB, %s; %d MiB were left for it", why, j.HeldMiB, will, left)
}

// fits lets a job run whose rise has room, and says so; false if it has none.
func (c *card) allowIfFits(i int) bool {
	j := c.in.Jobs[i]
	switch {
	case j.AheadMiB == nil:
		c.allow(i, RuleUnknown, "no profile knows it: it runs, and the gate lets it wait if need be")
	case j.rise() == 0:
		c.allow(i, RuleFits, "it is not expected to hold more")
	case j.rise() <= c.free:
		c.allow(i, RuleFits, "it has room")
	default:
		return false
	}
	return true
}

// first is step 1.
func (c *card) decideFirst(i int, j Job) {
	switch {
	case j.PausedS != nil:
		c.allow(i, RuleAlone, "resumed: nobody else would run")
	case !c.allowIfFits(i):
		// Who can end should, so that it gets its memory.
		c.margin = 0
		c.allow(i, RuleFirst, "the first in order is not paused, and no pause of others makes room: the gate does, or lets it wait")
	}
}

// must is step 2.
func (c *card) decideFixed(i int, j Job) {
	p := c.in.Params
	switch {
	case j.Halted && j.PausedS == nil:
		c.record(i, RuleHalted, c.free, "somebody else has paused it")
	case j.PausedS != nil && *j.PausedS >= p.MaxPauseS:
		c.allow(i, RuleAged, fmt.Sprintf("resumed: it was paused for %.4g s, which is as long as may be", *j.PausedS))
	case j.PausedS != nil:
	case j.Fixed && !c.allowIfFits(i):
		c.allow(i, RuleFixed, "no room, but it cannot be paused: the gate lets it wait")
	case j.Fixed: // it fits
	case j.ResumedS != nil && *j.ResumedS < p.RestS && !c.allowIfFits(i):
		c.allow(i, RuleRest, fmt.Sprintf("no room, but it was resumed %.4g s ago, and is not paused again for %.4g s: the gate lets it wait", *j.ResumedS, p.RestS))
	}
}

// run is step 3.
func (c *card) decideRunning(i int, j Job) {
	if j.PausedS != nil || c.allowIfFits(i) {
		return
	}
	c.out[i].Pause = true
	c.record(i, RulePause, c.free, "paused before it would not fit: those before it in order need the room")
}

// resume is step 4.
func (c *card) decidePaused(i int, j Job) {
	if j.rise() == 0 || j.rise() <= c.free-c.margin {
		c.allow(i, RuleResume, "resumed: it has room")
		return
	}
	c.out[i].Pause = true
	c.record(i, RuleWait, c.free, fmt.Sprintf("stays paused until there is room, with %d MiB to spare", c.margin))
}
