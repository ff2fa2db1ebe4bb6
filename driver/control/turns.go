// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/turns"
	"github.com/ebbtide/ebbtide/driver/twin"
)

const (
	// turnsEvery is the time between decisions about turns, over which the use of the cards is measured:
	// NVML's figures are a second or two old.
	turnsEvery = 10 * time.Second
	// turnsLast is how long a decision is valid for the device plugin, should this process end.
	turnsLast = 3 * turnsEvery
	// maxTurnMarks bounds the decisions over which a step's time on the card is measured.
	maxTurnMarks = 12
	// saturated is the part of the time in which a card has to be busy for its tasks to be in each
	// other's way.
	saturated = 0.9
	// movePerGiB is how many seconds parking a GiB and restoring another one take (docs/gpu.md).
	movePerGiB = 1
	// minUtilisation counts for a task that leaves the card idle for a while.
	minUtilisation = 0.05
)

// cards decides whose turn it is on the cards that tasks share (package turns).
type cards struct {
	at      time.Time                // of the last decision
	regular time.Time                // of the last one that was due
	changed bool                     // decide at once
	tasks   int                      // at the last decision
	ghosts  map[string][]policy.Task // by card: ended before their twins
	told    map[string]handoff.Turns // by directory
}

// turn is a task's use of its card. Amounts are seconds in which it kept the card busy.
type turn struct {
	known    bool // NVML reports how long it keeps the card busy
	busy     float64
	reported float64           // in the last report, which begins at 0 again after parking
	fair     policy.CPUSeconds // of the twin
	level    float64           // busy when the twin was last advanced
	card     string            // with its twin; "" = none
	ran      time.Duration     // since the last regular decision, without pauses
	was      float64           // busy at that time
	most     policy.Cores      // utilisation when nothing else runs there; 0 = unknown
	marks    []turnMark
	ends     bool // it is being stopped, and must not wait
	yields   bool
}

type turnMark struct{ busy, left float64 } // left: steps

// card returns the card that the task uses; "" if none, or several.
func (t *task) card() string {
	if t.gpu == nil || len(t.gpu.Cards) != 1 {
		return ""
	}
	return t.gpu.Cards[0].UUID
}

// useCard adds up what a report says.
func (t *task) useCard(r handoff.Report, since time.Duration) {
	if r.State == handoff.Running {
		t.turn.ran += since
	}
	if r.BusyS == nil {
		return
	}
	if *r.BusyS >= t.turn.reported {
		t.turn.busy += *r.BusyS - t.turn.reported
	} else {
		t.turn.busy += *r.BusyS
	}
	t.turn.known, t.turn.reported = true, *r.BusyS
}

// stepsLeft returns the task's remaining steps; 0 if unknown.
func (t *task) stepsLeft() float64 {
	if r := t.m.Remaining; r.CPUS != nil && r.PerStep > 0 {
		return float64(*r.CPUS / r.PerStep)
	}
	return 0
}

// cardLeft returns how long the task still has to keep its card busy, or busy for it while memory is
// moved; nil if unknown.
func (t *task) cardLeft() *policy.CPUSeconds {
	m := t.turn.marks
	if len(m) < 2 {
		return nil
	}
	first, last := m[0], m[len(m)-1]
	left := policy.CPUSeconds(last.left*(last.busy-first.busy)/(first.left-last.left) - (t.turn.busy - last.busy))
	left = max(left, 0.01) // it is still running
	// Its memory comes to the card in place of another's.
	for _, on := range t.gpu.Cards {
		left += policy.CPUSeconds(on.ParkedMiB+on.WaitingMiB) / 1024 * movePerGiB
	}
	return &left
}

// measureTurn closes the time since the last regular decision. unexplained: the card was busy
// all the time, though its tasks seemed not to fill it.
func (t *task) measureTurn(busy, unexplained bool) {
	u := &t.turn
	if used := policy.Cores((u.busy - u.was) / u.ran.Seconds()); u.ran >= turnsEvery/2 {
		switch {
		case !busy:
			u.most = min(max(used, minUtilisation), 1)
		case unexplained, used > 1.1*u.most:
			u.most = 1 // until it is seen alone
		}
	}
	left, n := t.stepsLeft(), len(u.marks)
	switch {
	case left == 0 || n > 0 && left > u.marks[n-1].left:
		u.marks = nil // it has begun again
	case u.ran > 0 && (n == 0 || left < u.marks[n-1].left && u.busy > u.marks[n-1].busy):
		u.marks = append(u.marks, turnMark{u.busy, left})
		u.marks = u.marks[max(len(u.marks)-maxTurnMarks, 0):]
	}
	u.ran, u.was = 0, u.busy
}

// measureCard measures how the tasks of a card use it.
func measureCard(tasks []*task, since time.Duration) {
	used, most := 0.0, policy.Cores(0)
	for _, t := range tasks {
		if used += t.turn.busy - t.turn.was; t.turn.ran >= turnsEvery/2 {
			most += t.turn.most
		}
	}
	busy := used >= saturated*since.Seconds()
	for _, t := range tasks {
		t.measureTurn(busy, busy && most < 1.05)
	}
}

func (t *task) onCard() turns.Task {
	p := policy.Task{
		ID: t.ID, Kind: t.kind(), Entitlement: 1,
		CPUS: policy.CPUSeconds(t.turn.busy), FairCPUS: t.turn.fair, CapCores: t.turn.most, RemainingCPUS: t.cardLeft(),
	}
	return turns.Task{Task: p, Runs: t.whyRuns() != ""}
}

// whyRuns returns why the task never yields, or "".
func (t *task) whyRuns() string {
	switch {
	case !t.turn.known:
		return "the card does not report which process keeps it busy"
	case t.gpu.NoYield != "":
		return t.gpu.NoYield
	case t.turn.ends || t.move.State != "" || !t.Limited || t.kind() == policy.Service:
		return "it is exempt"
	}
	return ""
}

// decideTurns decides whose turn it is on each card, and tells the device plugin.
func (c *Controller) decideTurns(now time.Time) {
	if c.opts.Turns == "" {
		return
	}
	w := &c.cards
	on, n := make(map[string][]*task), 0
	for _, t := range c.tasks {
		if card := t.card(); card != "" && t.Turns != "" {
			on[card] = append(on[card], t)
			n++
		}
	}
	w.changed = w.changed || n != w.tasks
	due := now.Sub(w.regular) >= turnsEvery
	if len(on) == 0 && len(w.told) == 0 || !due && !w.changed {
		return
	}
	yield := make(map[string][]string)
	for dir := range w.told {
		yield[dir] = nil // unless some still do
	}
	for card, tasks := range on {
		if due {
			measureCard(tasks, now.Sub(w.regular))
		}
		all := c.advanceOnCard(card, tasks, min(now.Sub(w.at), turnsLast))
		yields := turns.Decide(turnsEvery.Seconds(), c.opts.Turns, all)
		for i, t := range tasks { // ghosts follow them
			if t.turn.yields = yields[i]; yields[i] {
				yield[t.Turns] = append(yield[t.Turns], handoff.Holder(t.AllocID, t.Name))
			}
		}
	}
	maps.DeleteFunc(w.ghosts, func(card string, _ []policy.Task) bool { return len(on[card]) == 0 })
	if w.at, w.changed, w.tasks = now, false, n; due {
		w.regular = now
	}
	c.tellTurns(now, yield)
}

// advanceOnCard advances the twins of a card's tasks by the time since the last decision, drops ghosts
// whose twins have ended, and returns the tasks, then the ghosts. The twins of new tasks begin.
func (c *Controller) advanceOnCard(card string, tasks []*task, since time.Duration) []turns.Task {
	var twins []policy.Task
	for _, t := range tasks {
		if t.turn.card == card {
			twins = append(twins, t.onCard().Task)
		}
	}
	n := len(twins)
	twins = append(twins, c.cards.ghosts[card]...)
	twin.Advance(twins, 1, since.Seconds())
	ghosts := slices.DeleteFunc(twins[n:], func(g policy.Task) bool { return twin.Left(g) == 0 })
	c.cards.ghosts[card] = ghosts
	var all []turns.Task
	for _, t := range tasks {
		if t.turn.card == card {
			t.turn.fair, twins = twins[0].FairCPUS, twins[1:]
		} else {
			t.turn.card, t.turn.fair = card, policy.CPUSeconds(t.turn.busy)
		}
		t.turn.level = t.turn.busy
		all = append(all, t.onCard())
	}
	for _, g := range ghosts {
		all = append(all, turns.Task{Task: g})
	}
	return all
}

// tellTurns writes the turns for the device plugin where they have changed or would soon end.
func (c *Controller) tellTurns(now time.Time, yield map[string][]string) {
	w := &c.cards
	for dir, names := range yield {
		slices.Sort(names)
		was, told := w.told[dir]
		if !told && len(names) == 0 || slices.Equal(was.Yield, names) && was.Until.Sub(now) > turnsLast/2 {
			continue
		}
		turns := handoff.Turns{Until: now.Add(turnsLast), Yield: names}
		if err := handoff.WriteTurns(dir, turns); err != nil {
			c.log.Debug("cannot tell the device plugin whose turn it is; all run", "error", err)
			continue
		}
		if w.told[dir] = turns; len(names) == 0 {
			delete(w.told, dir)
		}
	}
}

// leaveCard turns an ended task whose twin still runs into a ghost.
func (c *Controller) leaveCard(t *task) {
	card := t.turn.card // the report may be gone
	if card == "" {
		return
	}
	g := policy.Task{ID: t.ID, Kind: policy.Training, Entitlement: 1, CapCores: t.turn.most, CPUS: policy.CPUSeconds(t.turn.busy), FairCPUS: t.turn.fair, Ended: true}
	if t.kind() == policy.Training && twin.Left(g) > 0 && len(c.cards.ghosts[card]) < maxGhosts {
		c.cards.ghosts[card] = append(c.cards.ghosts[card], g)
	}
}

// Stopping lets a task run that is about to be stopped: it cannot react while it waits for its turn. It
// does not block.
func (c *Controller) Stopping(id string) {
	c.post(func(context.Context) {
		if t := c.find(id); t != nil {
			t.turn.ends, c.cards.changed = true, true
			c.decideTurns(time.Now())
		}
	})
}

// turnStatus returns nil for a task without a twin on a card.
func (t *task) turnStatus() *status.Turn {
	u := t.turn
	if u.card == "" || t.gpu == nil {
		return nil
	}
	s := &status.Turn{Yields: u.yields, CardS: status.Unknown(), RemainingS: number((*float64)(t.cardLeft())), AheadS: status.Unknown(), Utilisation: status.Unknown()}
	if u.known {
		s.CardS, s.AheadS = status.Number(u.busy), status.Number(u.level-float64(u.fair))
	}
	if u.most > 0 {
		s.Utilisation = status.Number(u.most)
	}
	why := t.whyRuns()
	switch {
	case why != "":
		s.Why = "runs: " + why
	case !s.RemainingS.Known():
		s.Why = "runs: it is not known how long it will keep the card busy"
	case u.yields:
		s.Why = fmt.Sprintf("waits, as others come first on its card: it has %.0f s of it to go", float64(s.RemainingS))
	default:
		s.Why = fmt.Sprintf("runs: it has %.0f s of the card to go", float64(s.RemainingS))
	}
	if u.known && s.RemainingS.Known() {
		where := "ahead of"
		if s.AheadS < 0 {
			where = "behind"
		}
		s.Why += fmt.Sprintf("; %.0f s %s its fair share", math.Abs(float64(s.AheadS)), where)
	}
	return s
}
