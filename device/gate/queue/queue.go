// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package queue orders waiting requests for GPU memory, and decides which is answered next and how.
// It is pure: time is an argument.
//
// # Order
//
// First come, first served, on each card. A step of priority counts as Rules.HeadStart of waiting.
// All requests age alike, so none is overtaken forever.
//
// A request that fits goes ahead of an earlier one that does not, but only until that one has
// waited for Rules.Patience. From then on the card's memory is reserved for it, as long as a
// running process can free more. A request beyond its own container's limit blocks no other.
//
// Restoring a parked container is a request without a deadline: when its turn has come, a victim
// makes room for it (Victim). A Lazy restore comes after all others. Requests of a parked
// container wait until it is restored.
//
// # Why there is no deadlock
//
// Exclusive use and hold-and-wait are inherent in GPU memory. No preemption and circular wait are
// broken here:
//
//  1. Every request is answered by its deadline: Next answers all that are due, and Wake returns
//     when to call it again. So a circular wait ends at its first deadline at the latest. The gate
//     itself waits for nothing without a deadline.
//  2. Deadlocks are detected before that. A card is alive if a process that holds memory of it does
//     not wait for room, or waits on live cards only: it will release memory or exit. Other cards
//     with requests waiting for room are stuck. After Rules.Settle (another thread of a holder may
//     be about to release memory) Next answers Stuck: a victim is parked or, without one, the oldest
//     request of a process that holds memory of stuck cards is denied. There is one, unless a
//     process is paused: a stuck card has holders, and all of them wait on stuck cards. Each denial
//     removes one wait of such a process, until one runs and its card is alive.
//  3. If only paused holders could make room, Next answers Blocked: one of them is parked or resumed.
//  4. Breaking a deadlock never parks the oldest container of the highest priority whose requests
//     fit on the card (BreakDeadlock). It runs until it ends; then another is the oldest.
package queue

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Rules are the timings of a queue.
type Rules struct {
	// HeadStart is by how much waiting time a step of priority counts.
	HeadStart time.Duration
	// Patience is how long a request waiting for room lets later ones go ahead.
	Patience time.Duration
	// LimitWait is how long a request beyond its container's own limit waits. Frameworks free
	// their caches only when a request is denied.
	LimitWait time.Duration
	// Settle is how long a deadlock must persist before it is broken.
	Settle time.Duration
	// Turn is how long a container may keep its memory while others wait for it, at least TurnCosts
	// times what parking and restoring it take: turns that are paid for by parking lose to a queue.
	Turn      time.Duration
	TurnCosts int
	// Idle is the time without submitted work after which a container is idle.
	Idle time.Duration
}

// Request is a waiting request for memory.
type Request struct {
	ID        uint64 // unique
	Process   ledger.ProcessID
	Container ledger.ContainerID
	Card      ledger.CardID
	Bytes     uint64
	Priority  int // higher is served first
	Since     time.Time
	Deadline  time.Time // zero: none
	Restore   bool
	// Lazy marks a restore that yields to all other requests.
	Lazy bool
}

// ErrParked: the request waits until its container is restored, or has its turn.
var ErrParked = errors.New("the container is parked or waits for its turn")

// ErrUnreported: the request exceeds its container's limit only by the expected holdings of
// disconnected processes. It waits until they report.
var ErrUnreported = errors.New("over the container's limit, unless its other processes hold less than expected")

// View is the queue's view of the gate.
type View interface {
	// Fits returns nil if a request can be granted now; else an error of Ledger.Fits, ErrParked
	// or ErrUnreported.
	Fits(Request) error
	// Holders returns the processes that hold memory of a card.
	Holders(ledger.CardID) []ledger.ProcessID
	// Runs reports whether a process is not paused.
	Runs(ledger.ProcessID) bool
	// Alive reports whether memory of a card is about to come free whatever its holders do.
	Alive(ledger.CardID) bool
	// Unservable reports whether no victim could make room for a request without a deadline.
	// Until that changes, no room is reserved or made for it.
	Unservable(Request) bool
}

// Answer is how a request is answered.
type Answer int

const (
	// Granted: it fits now.
	Granted Answer = iota
	// OverLimit: its container would hold more than its limit.
	OverLimit
	// TooLong: its deadline has come.
	TooLong
	// Stuck: everything that could make room waits. The request is still queued: the caller makes
	// room, or calls Deny.
	Stuck
	// Blocked: it waits for memory of paused processes. It is still queued.
	Blocked
)

// Queue holds the waiting requests.
type Queue struct {
	rules Rules
	lines map[ledger.CardID]*line
	waits map[ledger.ProcessID]int // queued requests
}

type line struct {
	requests   []Request // in order
	stuckSince time.Time // zero: the card is not stuck
}

func New(rules Rules) *Queue {
	return &Queue{rules: rules, lines: make(map[ledger.CardID]*line), waits: make(map[ledger.ProcessID]int)}
}

func (q *Queue) Add(r Request) {
	l := q.lines[r.Card]
	if l == nil {
		l = new(line)
		q.lines[r.Card] = l
	}
	at, _ := slices.BinarySearchFunc(l.requests, r, q.order)
	l.requests = slices.Insert(l.requests, at, r)
	q.waits[r.Process]++
}

func (q *Queue) order(a, b Request) int {
	counts := func(r Request) time.Time { return r.Since.Add(-time.Duration(r.Priority) * q.rules.HeadStart) }
	return cmp.Or(trueFirst(!a.Lazy)-trueFirst(!b.Lazy), counts(a).Compare(counts(b)), cmp.Compare(a.ID, b.ID))
}

func trueFirst(is bool) int {
	if is {
		return 0
	}
	return 1
}

func (q *Queue) Remove(gone func(Request) bool) {
	for _, l := range q.lines {
		l.requests = slices.DeleteFunc(l.requests, func(r Request) bool {
			is := gone(r)
			if is {
				q.removed(r)
			}
			return is
		})
	}
}

func (q *Queue) removed(r Request) {
	if q.waits[r.Process]--; q.waits[r.Process] == 0 {
		delete(q.waits, r.Process)
	}
}

// Deny removes a Stuck request. The others then wait for Rules.Settle before the next is denied.
func (q *Queue) Deny(id uint64) {
	q.Remove(func(r Request) bool { return r.ID == id })
	for _, l := range q.lines {
		l.stuckSince = time.Time{}
	}
}

func (q *Queue) Len() int {
	n := 0
	for _, l := range q.lines {
		n += len(l.requests)
	}
	return n
}

// All yields each waiting request, in order per card.
func (q *Queue) All(yield func(Request) bool) {
	for _, l := range q.lines {
		for _, r := range l.requests {
			if !yield(r) {
				return
			}
		}
	}
}

// Next returns the next answer. The request has left the queue, unless the answer is Stuck or
// Blocked. The caller acts on it, and calls Next until there is none.
func (q *Queue) Next(now time.Time, view View) (Request, Answer, bool) {
	for _, l := range q.lines {
		kept, wanted := false, false // room is reserved for an earlier request; a request waits for room
		for i, r := range l.requests {
			answer, found := Granted, true
			switch err := view.Fits(r); {
			case errors.Is(err, ErrParked):
				found = false
			case err == nil && !kept && !(r.Lazy && wanted):
			case err != nil && !errors.Is(err, ledger.ErrRoom) && !errors.Is(err, ErrUnreported) && !now.Before(r.Since.Add(q.rules.LimitWait)):
				answer = OverLimit
			case !r.Deadline.IsZero() && !now.Before(r.Deadline):
				answer = TooLong
			default:
				room := errors.Is(err, ledger.ErrRoom) && !unservable(r, view)
				wanted = wanted || room
				kept = kept || room && !r.Lazy && !now.Before(r.Since.Add(q.rules.Patience))
				found = false
			}
			if found {
				l.requests = slices.Delete(l.requests, i, i+1)
				q.removed(r)
				return r, answer, true
			}
		}
	}
	return q.findStuck(now, view)
}

// unservable applies to requests without a deadline. Others reserve room for a bounded time
// anyway.
func unservable(r Request, view View) bool { return r.Deadline.IsZero() && view.Unservable(r) }

func (q *Queue) findStuck(now time.Time, view View) (Request, Answer, bool) {
	if q.allAlive(view) {
		return Request{}, 0, false
	}
	waiting := make(map[ledger.CardID][]Request) // for room
	for id, l := range q.lines {
		for _, r := range l.requests {
			if err := view.Fits(r); !r.Lazy && (err == nil || errors.Is(err, ledger.ErrRoom)) {
				waiting[id] = append(waiting[id], r)
			}
		}
	}
	alive, helps := liveCards(waiting, view)
	var oldest, blocked, fits *Request
	for id, l := range q.lines {
		switch {
		case alive[id] || len(waiting[id]) == 0:
			l.stuckSince = time.Time{}
			continue
		case l.stuckSince.IsZero():
			l.stuckSince = now
		}
		if now.Before(l.stuckSince.Add(q.rules.Settle)) {
			continue
		}
		for _, r := range waiting[id] {
			if fits == nil && view.Fits(r) == nil {
				fits = &r
			}
			if helps[r.Process] && (oldest == nil || r.Since.Before(oldest.Since)) {
				oldest = &r
			}
			if blocked == nil || r.Since.Before(blocked.Since) {
				blocked = &r
			}
		}
	}
	switch {
	case fits != nil:
		// Room is reserved for an earlier request that no holder makes room for.
		q.Remove(func(r Request) bool { return r.ID == fits.ID })
		return *fits, Granted, true
	case oldest != nil:
		return *oldest, Stuck, true
	case blocked != nil:
		return *blocked, Blocked, true
	}
	return Request{}, 0, false
}

// First returns the first request of a card that waits for room and is neither lazy nor
// unservable.
func (q *Queue) First(id ledger.CardID, view View) (Request, bool) {
	l := q.lines[id]
	if l == nil {
		return Request{}, false
	}
	for _, r := range l.requests {
		if !r.Lazy && errors.Is(view.Fits(r), ledger.ErrRoom) && !unservable(r, view) {
			return r, true
		}
	}
	return Request{}, false
}

// Postpone extends the deadlines of a container's requests by the time they waited between from
// and to.
func (q *Queue) Postpone(c ledger.ContainerID, from, to time.Time) {
	for _, l := range q.lines {
		for i, r := range l.requests {
			if r.Container != c || r.Deadline.IsZero() {
				continue
			}
			begun := from
			if r.Since.After(from) {
				begun = r.Since
			}
			l.requests[i].Deadline = r.Deadline.Add(to.Sub(begun))
		}
	}
}

// allAlive reports whether each card has a running holder that waits for nothing: the common
// case, and cheap.
func (q *Queue) allAlive(view View) bool {
	all := true
	for id, l := range q.lines {
		alive := len(l.requests) == 0 || view.Alive(id) ||
			slices.ContainsFunc(view.Holders(id), func(p ledger.ProcessID) bool { return q.waits[p] == 0 && view.Runs(p) })
		if alive {
			l.stuckSince = time.Time{}
		}
		all = all && alive
	}
	return all
}

// liveCards returns the cards that will free memory without intervention: a holder does not wait,
// or waits on such cards only. helps are the processes that hold memory of other cards.
func liveCards(waiting map[ledger.CardID][]Request, view View) (alive map[ledger.CardID]bool, helps map[ledger.ProcessID]bool) {
	on := make(map[ledger.ProcessID]map[ledger.CardID]bool) // cards a process waits on
	holders := make(map[ledger.CardID][]ledger.ProcessID)
	alive = make(map[ledger.CardID]bool)
	for id, requests := range waiting {
		for _, r := range requests {
			if on[r.Process] == nil {
				on[r.Process] = make(map[ledger.CardID]bool)
			}
			on[r.Process][id] = true
		}
		alive[id] = view.Alive(id)
		holders[id] = view.Holders(id)
	}
	runs := func(p ledger.ProcessID) bool {
		if !view.Runs(p) {
			return false
		}
		for id := range on[p] {
			if !alive[id] {
				return false
			}
		}
		return true
	}
	for changed := true; changed; {
		changed = false
		for id := range waiting {
			if !alive[id] && slices.ContainsFunc(holders[id], runs) {
				alive[id], changed = true, true
			}
		}
	}
	helps = make(map[ledger.ProcessID]bool)
	for id := range waiting {
		for _, p := range holders[id] {
			helps[p] = helps[p] || !alive[id]
		}
	}
	return alive, helps
}

// Wake returns when Next must be called again even if nothing changes.
func (q *Queue) Wake(now time.Time) (time.Time, bool) {
	var wake time.Time
	sooner := func(t time.Time) {
		if t.After(now) && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	for _, l := range q.lines {
		for _, r := range l.requests {
			if !r.Deadline.IsZero() {
				sooner(r.Deadline)
			}
			sooner(r.Since.Add(q.rules.LimitWait))
		}
		if !l.stuckSince.IsZero() {
			sooner(l.stuckSince.Add(q.rules.Settle))
		}
	}
	return wake, !wake.IsZero()
}
