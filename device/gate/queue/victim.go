// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Candidate is a container that could be evicted from a card.
type Candidate struct {
	Container ledger.ContainerID
	Priority  int
	// Arrived is when its first process came, and Placed when it came or last came back.
	Arrived, Placed time.Time
	// Active is when it was last known to have submitted work.
	Active time.Time
	// Over is whether it holds more than its share.
	Over bool
	// Pinned is whether it cannot be evicted, or not now.
	Pinned bool
	// Bytes is what eviction would free.
	Bytes uint64
	// Taken is what it takes of the card, and Wants what its requests wait for, in bytes.
	Taken, Wants uint64
}

// Demand is what room is made for.
type Demand struct {
	Request
	// Lacking is how much must come free, in bytes.
	Lacking uint64
	// Over is whether its container would hold more than its share.
	Over bool
}

// Victim returns which container is evicted from a card, so that there is room for a
// demand. It is one that
//
//   - is idle and has no higher priority; a request gains a step of priority for each
//     Rules.HeadStart that it waits;
//   - or, when the request has waited for Rules.Patience: has a lower priority; or has had
//     its turn, and holds more than its share while the request stays within its own, or has
//     no higher priority. Who has been away keeps its turn in any case: else one of a low
//     priority would come back only to leave again, with nothing done.
//
// Of these it is who holds more than its share, then the lowest priority, then who is idle,
// then who has been there longest. Nobody is evicted if all that may be are not enough.
func (rules Rules) Victim(now time.Time, d Demand, candidates []Candidate) (Candidate, bool) {
	waited := now.Sub(d.Since)
	aged := d.Priority
	if rules.HeadStart > 0 {
		aged += int(waited / rules.HeadStart)
	}
	idle := func(c Candidate) bool { return now.Sub(c.Active) >= rules.Idle }
	over := func(c Candidate) bool { return c.Over && !d.Over }
	var fit []Candidate
	var free uint64
	for _, c := range candidates {
		early := idle(c) && c.Priority <= aged
		turn, back := now.Sub(c.Placed) >= rules.Turn, c.Placed.After(c.Arrived)
		late := c.Priority < d.Priority && (turn || !back) || turn && (over(c) || c.Priority <= aged)
		may := c.Container != d.Container && (early || late && waited >= rules.Patience)
		if may && !c.Pinned && c.Bytes > 0 {
			fit = append(fit, c)
			free += c.Bytes
		}
	}
	if len(fit) == 0 || free < d.Lacking {
		return Candidate{}, false
	}
	return slices.MinFunc(fit, func(a, b Candidate) int {
		return cmp.Or(
			first(over(a))-first(over(b)),
			cmp.Compare(a.Priority, b.Priority),
			first(idle(a))-first(idle(b)),
			a.Placed.Compare(b.Placed),
			cmp.Compare(b.Bytes, a.Bytes),
			cmp.Compare(a.Container, b.Container))
	}), true
}

// Unstick returns who is evicted from a card of so many bytes when everybody on it waits for
// everybody. The oldest of the highest priority stays and gets what it wants, then the next
// one, as long as that fits; the others leave, and are not asked one by one.
func Unstick(capacity uint64, candidates []Candidate) []Candidate {
	order := slices.SortedFunc(slices.Values(candidates), func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Arrived.Compare(b.Arrived), cmp.Compare(a.Container, b.Container))
	})
	left := capacity
	for _, c := range order {
		if c.Pinned || c.Bytes == 0 { // it stays in any case
			left -= min(left, c.Taken)
		}
	}
	var leave []Candidate
	for _, c := range order {
		stays := c.Pinned || c.Bytes == 0
		needs := c.Wants
		if !stays {
			needs += c.Taken
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
