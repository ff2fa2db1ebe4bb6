// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package plan decides which jobs on a card pause before their memory collides: the execution
// planning of Chen et al. in its HPC mode, in which a paused job keeps its memory. Decide is
// pure.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The rules of a Decision.
const (
	// RuleFits: what it holds and will hold has room.
	RuleFits = "gpu.plan.fits"
	// RuleUnknown: no profile predicts what it will hold; the gate makes it wait if necessary.
	RuleUnknown = "gpu.plan.unknown"
	// RuleFirst: it is first in order, which is never paused. Its rise does not fit: the gate
	// makes room or makes it wait.
	RuleFirst = "gpu.plan.first"
	// RuleFixed: its rise does not fit, but it cannot be paused.
	RuleFixed = "gpu.plan.fixed"
	// RuleRest: its rise does not fit, but it was resumed recently.
	RuleRest = "gpu.plan.rest"
	// RuleHalted: it is paused for another reason.
	RuleHalted = "gpu.plan.halted"
	// RulePause: its rise would not fit, so it is paused before it.
	RulePause = "gpu.plan.pause"
	// RuleWait: it is paused, and its rise does not fit yet.
	RuleWait = "gpu.plan.wait"
	// RuleResume: it was paused, and fits now.
	RuleResume = "gpu.plan.resume"
	// RuleAged: it was paused for the maximum time.
	RuleAged = "gpu.plan.aged"
	// RuleAlone: it was paused, and no other job would run.
	RuleAlone = "gpu.plan.alone"
)

// Output is the result of Decide.
type Output struct {
	// Jobs are in the input's order.
	Jobs []Decision `json:"jobs"`
	// FreeMiB is what is left after all admitted rises; negative if more is held than there is.
	FreeMiB int `json:"free_mib"`
}

// Decision is the result for a job.
type Decision struct {
	ID string `json:"id"`
	// Pause: the plan pauses it, or keeps it paused.
	Pause bool   `json:"pause"`
	Rule  string `json:"rule"`
	Why   string `json:"why"`
}

// Decide plans a card. It does not change the input.
//
// Held memory stays held, by paused jobs too: only rises can be avoided, from what a job holds to
// the most its profile expects within the horizon. Free memory is assigned to rises in this order;
// within a step by priority, then arrival, then ID:
//
//  1. the first running job. It is never paused, so one always runs: if its own rise does not fit
//     in addition to what others hold, no pause helps it;
//  2. running jobs that cannot be paused or were resumed less than Params.RestS ago, and jobs that
//     were paused for Params.MaxPauseS, which are resumed;
//  3. other running jobs. One whose rise no longer fits is paused, no more than necessary, because
//     a smaller one behind it may fit and continue;
//  4. paused jobs. One whose rise fits with Params.Margin to spare, or at all while the first job's
//     does not, is resumed.
//
// A rise of step 2 that does not fit is not counted: the gate makes its requests wait. If no job
// runs, the first paused one is resumed.
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
	if !slices.ContainsFunc(in.Jobs, runs) { // then the first paused one is first
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

type card struct {
	in     Input
	free   int // neither held nor assigned to a rise, in MiB
	margin int // to leave over when resuming a job, in MiB
	out    []Decision
}

// allow lets a job run, and assigns room to its rise if there is enough.
func (c *card) allow(i int, rule, why string) {
	j := c.in.Jobs[i]
	left := c.free
	if j.rise() <= c.free {
		c.free -= j.rise()
	}
	c.record(i, rule, left, why)
}

func (c *card) record(i int, rule string, left int, why string) {
	j := c.in.Jobs[i]
	will := "its future usage is unknown"
	if j.AheadMiB != nil {
		will = fmt.Sprintf("expected to hold up to %d MiB, %d more", j.HeldMiB+j.rise(), j.rise())
	}
	c.out[i].Rule = rule
	c.out[i].Why = fmt.Sprintf("%s; holds %d MiB, %s; %d MiB were left for it", why, j.HeldMiB, will, left)
}

// allowIfFits lets a job run if its rise has room, and reports whether it has.
func (c *card) allowIfFits(i int) bool {
	j := c.in.Jobs[i]
	switch {
	case j.AheadMiB == nil:
		c.allow(i, RuleUnknown, "it has no profile: it runs, and the gate makes it wait if necessary")
	case j.rise() == 0:
		c.allow(i, RuleFits, "it is not expected to hold more")
	case j.rise() <= c.free:
		c.allow(i, RuleFits, "it has room")
	default:
		return false
	}
	return true
}

// decideFirst is step 1.
func (c *card) decideFirst(i int, j Job) {
	switch {
	case j.PausedS != nil:
		c.allow(i, RuleAlone, "resumed: no other job would run")
	case !c.allowIfFits(i):
		// Any job that can finish should, so that the first gets its memory.
		c.margin = 0
		c.allow(i, RuleFirst, "the first in order is not paused, and pausing others makes no room: the gate does, or makes it wait")
	}
}

// decideFixed is step 2.
func (c *card) decideFixed(i int, j Job) {
	p := c.in.Params
	switch {
	case j.Halted && j.PausedS == nil:
		c.record(i, RuleHalted, c.free, "it is paused for another reason")
	case j.PausedS != nil && *j.PausedS >= p.MaxPauseS:
		c.allow(i, RuleAged, fmt.Sprintf("resumed: it was paused for %.4g s, the maximum", *j.PausedS))
	case j.PausedS != nil:
	case j.Fixed && !c.allowIfFits(i):
		c.allow(i, RuleFixed, "no room, but it cannot be paused: the gate makes it wait")
	case j.Fixed: // it fits
	case j.ResumedS != nil && *j.ResumedS < p.RestS && !c.allowIfFits(i):
		c.allow(i, RuleRest, fmt.Sprintf("no room, but it was resumed %.4g s ago, and is not paused again for %.4g s: the gate makes it wait", *j.ResumedS, p.RestS))
	}
}

// decideRunning is step 3.
func (c *card) decideRunning(i int, j Job) {
	if j.PausedS != nil || c.allowIfFits(i) {
		return
	}
	c.out[i].Pause = true
	c.record(i, RulePause, c.free, "paused before it would not fit: those before it in order need the room")
}

// decidePaused is step 4.
func (c *card) decidePaused(i int, j Job) {
	if j.rise() == 0 || j.rise() <= c.free-c.margin {
		c.allow(i, RuleResume, "resumed: it has room")
		return
	}
	c.out[i].Pause = true
	c.record(i, RuleWait, c.free, fmt.Sprintf("stays paused until there is room, with %d MiB to spare", c.margin))
}
