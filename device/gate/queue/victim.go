// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Candidate is a container that might be parked.
type Candidate struct {
	Container ledger.ContainerID
	Priority  int
	// Arrived is the start of its first process, Placed its arrival or last restore.
	Arrived, Placed time.Time
	// Active is its last known submission of work.
	Active time.Time
	// Cost is what parking and restoring it take.
	Cost time.Duration
	// Yields: it waits for its turn on the card, so parking it delays it by nothing.
	Yields bool
	// OverShare: it holds more than its share.
	OverShare bool
	// Fixed: it cannot be parked, at least not now.
	Fixed    bool
	Freeable uint64
	// Freeable is what parking it would free, CardUsage what it holds of the card, Waiting what its
	// requests wait for, in bytes.
	CardUsage, Waiting uint64
}

// Demand is a request to make room for.
type Demand struct {
	Request
	// Shortfall is how much must come free, in bytes.
	Shortfall uint64
	// OverShare: its container would hold more than its share.
	OverShare bool
}

// Victim returns the container to park for a demand, one that
//
//   - waits for its turn on the card;
//   - or is idle and has no higher priority; a request gains a step of priority for each
//     Rules.HeadStart that it waits;
//   - or, once the request has waited for Rules.Patience: has a lower priority; or has had its
//     turn, and holds more than its share while the request stays within its own, or has no
//     higher priority. A restored container keeps its turn in any case: otherwise one of low
//     priority would be parked again before doing any work.
//
// Containers that wait for their turn are preferred, then those above their share, then low priority,
// then idle ones, then the longest placed. There is no victim if all of them together free too little.
func (rules Rules) Victim(now time.Time, d Demand, candidates []Candidate) (Candidate, bool) {
	waited := now.Sub(d.Since)
	aged := d.Priority
	if rules.HeadStart > 0 {
		aged += int(waited / rules.HeadStart)
	}
	idle := func(c Candidate) bool { return now.Sub(c.Active) >= rules.Idle }
	over := func(c Candidate) bool { return c.OverShare && !d.OverShare }
	var fit []Candidate
	var free uint64
	for _, c := range candidates {
		early := idle(c) && c.Priority <= aged
		turn, back := now.Sub(c.Placed) >= max(rules.Turn, time.Duration(rules.TurnCosts)*c.Cost), c.Placed.After(c.Arrived)
		late := c.Priority < d.Priority && (turn || !back) || turn && (over(c) || c.Priority <= aged)
		may := c.Container != d.Container && (c.Yields || early || late && waited >= rules.Patience)
		if may && !c.Fixed && c.Freeable > 0 {
			fit = append(fit, c)
			free += c.Freeable
		}
	}
	if len(fit) == 0 || free < d.Shortfall {
		return Candidate{}, false
	}
	return slices.MinFunc(fit, func(a, b Candidate) int {
		return cmp.Or(
			trueFirst(a.Yields)-trueFirst(b.Yields),
			trueFirst(over(a))-trueFirst(over(b)),
			cmp.Compare(a.Priority, b.Priority),
			trueFirst(idle(a))-trueFirst(idle(b)),
			a.Placed.Compare(b.Placed),
			cmp.Compare(b.Freeable, a.Freeable),
			cmp.Compare(a.Container, b.Container))
	}), true
}

// BreakDeadlock returns the containers to park when all on a card wait for each other. The oldest
// of the highest priority stays and gets what it wants, then the next, as long as they fit.
func BreakDeadlock(capacity uint64, candidates []Candidate) []Candidate {
	order := slices.SortedFunc(slices.Values(candidates), func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Arrived.Compare(b.Arrived), cmp.Compare(a.Container, b.Container))
	})
	left := capacity
	for _, c := range order {
		if c.Fixed || c.Freeable == 0 { // it stays in any case
			left -= min(left, c.CardUsage)
		}
	}
	var leave []Candidate
	for _, c := range order {
		stays := c.Fixed || c.Freeable == 0
		needs := c.Waiting
		if !stays {
			needs += c.CardUsage
		}
		switch {
		case needs <= left:
			left -= needs
		case !stays:
			leave = append(leave, c)
		}
	}
	return leave
}
