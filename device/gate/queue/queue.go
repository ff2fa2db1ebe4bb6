// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package queue orders the requests for GPU memory that have to wait, and says which one
// is answered next and how.
//
// # Order
//
// First come, first served, on each card. A request of a higher priority is treated as if
// it had come earlier, by Rules.HeadStart for each step. That is an order in which
// everybody ages alike: nobody is overtaken for ever, only by what comes within a known
// time.
//
// A request that fits goes ahead of an earlier one that does not, so that room is not
// idle, but only while the earlier one has waited for less than Rules.Patience. From then
// on the card's room is kept for it, as long as somebody runs who can make more. A request
// over its own container's limit holds up nobody.
//
// A container that is parked, its memory in the host's, comes back by a request as well. It
// has no deadline, and need not have one: when its turn has come, somebody else makes room
// (see Victim). If nothing of it wants to run it is Lazy: it comes after all others.
// The requests of its processes wait until it is back.
//
// # Why there is no deadlock
//
// Four conditions make a deadlock: what is held is not shared, it is held while more is
// waited for, it is not taken away, and the waits form a circle. The first two are what
// GPU memory is. Here the others are broken:
//
//  1. Every request has a deadline, and is answered by then: Next answers every one
//     whose deadline has come, whatever else is true, and Wake says when to ask Next
//     again. So a circle ends by itself, at the latest at its first deadline. Nothing
//     that the gate does waits for anything but a deadline: a grant that is not used
//     stays within its container's limit, and a client that does not read is cut off.
//  2. It does not come to that. A card is alive if somebody who holds memory of it does
//     not wait for room, or waits on cards that are alive: that one runs on, and returns
//     memory or ends. A card that is not alive, though requests wait on it for room, is
//     stuck. If it stays so for Rules.Settle (a process has several threads, and another
//     one may be about to return memory), Next says Stuck: a victim is evicted, and if
//     there is none, of the requests whose processes hold memory of stuck cards the one
//     that has waited longest is denied. There is one, unless somebody is paused: a stuck
//     card has no room, so it has holders, and all of them wait on stuck cards. Each denial
//     makes one wait fewer of a process that holds what others need; after finitely many,
//     such a process runs, with an error that it could have had on a card of its own, and
//     its card is alive.
//  3. A holder that is paused does not run either. If only such holders could make room,
//     Next says Blocked: one of them is evicted or resumed.
//  4. Who is evicted because all were stuck is never the oldest of the highest priority, if
//     what it wants fits on the card (Unstick). So that one goes on until it ends, and then
//     there is another oldest one.
//
// The package is pure: it knows the time only as an argument.
package queue

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Rules are the times of a queue.
type Rules struct {
	// HeadStart is how much earlier a request counts as having come for each step of
	// priority.
	HeadStart time.Duration
	// Patience is how long a request that waits for room lets later ones go ahead.
	Patience time.Duration
	// LimitWait is how long a request over its container's own limit waits. Frameworks
	// free what they have cached when a request is denied, and not before: to wait would
	// only delay that.
	LimitWait time.Duration
	// Settle is how long everybody must have waited for everybody.
	Settle time.Duration
	// Turn is how long a container may keep what it holds while others wait for it.
	Turn time.Duration
	// Idle is for how long a container must not have submitted anything to count as idle.
	Idle time.Duration
}

// Request waits for memory.
type Request struct {
	ID        uint64 // unique
	Process   ledger.ProcessID
	Container ledger.ContainerID
	Card      ledger.CardID
	Bytes     uint64
	Priority  int // more is sooner
	Since     time.Time
	Deadline  time.Time // zero: none
	// Return is whether a parked container is to come back.
	Return bool
	// Lazy is whether it can as well stay away: it comes when nobody else wants the room.
	Lazy bool
}

// ErrAway says that a request waits until its container is back.
var ErrAway = errors.New("the container is away")

// ErrUnheard says that a request is over its container's limit only by what is expected of
// processes that are not back yet. It waits until they have said what they hold.
var ErrUnheard = errors.New("over the container's limit, unless its other processes hold less than is expected")

// View is what the queue sees of the ledger.
type View interface {
	// Fits says whether a request can be granted now: as Ledger.Fits, ErrAway, or ErrUnheard.
	Fits(Request) error
	// Holders are the processes that hold memory of a card.
	Holders(ledger.CardID) []ledger.ProcessID
	// Runs says whether a process runs if it waits for nothing: it is not paused.
	Runs(ledger.ProcessID) bool
	// Alive says that memory of a card is about to come free, whatever its holders do:
	// a victim is being evicted, or processes are still expected back.
	Alive(ledger.CardID) bool
	// Hopeless says of a request that waits for room, and has no deadline, that nobody can
	// make it: whoever is evicted, somebody else holds too much. It gets no room until that
	// one leaves; until then none is kept or made for it.
	Hopeless(Request) bool
}

// Answer says how a request is answered.
type Answer int

const (
	// Granted: it fits now.
	Granted Answer = iota
	// OverLimit: its container would hold more than its limit.
	OverLimit
	// TooLong: its deadline has come.
	TooLong
	// Stuck: everybody who could make room waits. The request is still in the queue: either
	// room is made for it, and View.Alive says so, or the caller denies it with Deny.
	Stuck
	// Blocked: it waits for memory of processes that are paused. It is still in the queue.
	Blocked
)

// Queue holds the requests that wait.
type Queue struct {
	rules Rules
	lines map[ledger.CardID]*line
	waits map[ledger.ProcessID]int // how many requests of a process are in the queue
}

// line is the queue for one card.
type line struct {
	requests []Request // in order
	stuck    time.Time // since then, if not zero
}

// New returns an empty queue.
func New(rules Rules) *Queue {
	return &Queue{rules: rules, lines: make(map[ledger.CardID]*line), waits: make(map[ledger.ProcessID]int)}
}

// Add lets a request wait.
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

// order compares two requests by when they have come, as far as that counts.
func (q *Queue) order(a, b Request) int {
	counts := func(r Request) time.Time { return r.Since.Add(-time.Duration(r.Priority) * q.rules.HeadStart) }
	return cmp.Or(first(!a.Lazy)-first(!b.Lazy), counts(a).Compare(counts(b)), cmp.Compare(a.ID, b.ID))
}

// first orders what is before what is not.
func first(is bool) int {
	if is {
		return 0
	}
	return 1
}

// Remove takes requests out without an answer.
func (q *Queue) Remove(gone func(Request) bool) {
	for _, l := range q.lines {
		l.requests = slices.DeleteFunc(l.requests, func(r Request) bool {
			is := gone(r)
			if is {
				q.left(r)
			}
			return is
		})
	}
}

// left is told that a request is not in the queue any more.
func (q *Queue) left(r Request) {
	if q.waits[r.Process]--; q.waits[r.Process] == 0 {
		delete(q.waits, r.Process)
	}
}

// Deny takes out a request that was Stuck. What its process does now may help the others:
// they wait for Rules.Settle again before the next one is denied.
func (q *Queue) Deny(id uint64) {
	q.Remove(func(r Request) bool { return r.ID == id })
	for _, l := range q.lines {
		l.stuck = time.Time{}
	}
}

// Len is how many requests wait.
func (q *Queue) Len() int {
	n := 0
	for _, l := range q.lines {
		n += len(l.requests)
	}
	return n
}

// All calls yield with each request that waits, each card's in their order.
func (q *Queue) All(yield func(Request) bool) {
	for _, l := range q.lines {
		for _, r := range l.requests {
			if !yield(r) {
				return
			}
		}
	}
}

// Next returns the next answer. The request is not in the queue any more, unless the
// answer is Stuck. The caller does what was answered, and asks again until there is none.
func (q *Queue) Next(now time.Time, view View) (Request, Answer, bool) {
	for _, l := range q.lines {
		kept, wanted := false, false // the room is kept for an earlier request; one waits for room
		for i, r := range l.requests {
			answer, found := Granted, true
			switch err := view.Fits(r); {
			case errors.Is(err, ErrAway):
				found = false
			case err == nil && !kept && !(r.Lazy && wanted):
			case err != nil && !errors.Is(err, ledger.ErrRoom) && !errors.Is(err, ErrUnheard) && !now.Before(r.Since.Add(q.rules.LimitWait)):
				answer = OverLimit
			case !r.Deadline.IsZero() && !now.Before(r.Deadline):
				answer = TooLong
			default:
				room := errors.Is(err, ledger.ErrRoom) && !hopeless(r, view)
				wanted = wanted || room
				kept = kept || room && !r.Lazy && !now.Before(r.Since.Add(q.rules.Patience))
				found = false
			}
			if found {
				l.requests = slices.Delete(l.requests, i, i+1)
				q.left(r)
				return r, answer, true
			}
		}
	}
	return q.stuck(now, view)
}

// hopeless says that nobody can make room for a request. One with a deadline is not asked for:
// what is kept for it is kept for a bounded time.
func hopeless(r Request, view View) bool { return r.Deadline.IsZero() && view.Hopeless(r) }

// stuck finds the request to be sacrificed where everybody waits for everybody.
func (q *Queue) stuck(now time.Time, view View) (Request, Answer, bool) {
	if q.allAlive(view) {
		return Request{}, 0, false
	}
	waiting := make(map[ledger.CardID][]Request) // for room: who is over a limit waits for no other
	for id, l := range q.lines {
		for _, r := range l.requests {
			if err := view.Fits(r); !r.Lazy && (err == nil || errors.Is(err, ledger.ErrRoom)) {
				waiting[id] = append(waiting[id], r)
			}
		}
	}
	alive, helps := living(waiting, view)
	var oldest, blocked, fits *Request
	for id, l := range q.lines {
		switch {
		case alive[id] || len(waiting[id]) == 0:
			l.stuck = time.Time{}
			continue
		case l.stuck.IsZero():
			l.stuck = now
		}
		if now.Before(l.stuck.Add(q.rules.Settle)) {
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
		// Room is kept for an earlier request that nobody makes room for.
		q.Remove(func(r Request) bool { return r.ID == fits.ID })
		return *fits, Granted, true
	case oldest != nil:
		return *oldest, Stuck, true
	case blocked != nil:
		return *blocked, Blocked, true
	}
	return Request{}, 0, false
}

// First returns the request for which room is to be made next on a card: the first that
// waits for room, does not come back lazily, and is not hopeless.
func (q *Queue) First(id ledger.CardID, view View) (Request, bool) {
	l := q.lines[id]
	if l == nil {
		return Request{}, false
	}
	for _, r := range l.requests {
		if !r.Lazy && errors.Is(view.Fits(r), ledger.ErrRoom) && !hopeless(r, view) {
			return r, true
		}
	}
	return Request{}, false
}

// Postpone moves the deadlines of a container's requests by as long as they have waited
// between two times.
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

// allAlive says whether on each card somebody holds memory who waits for nothing. It is
// so nearly always, and quickly found.
func (q *Queue) allAlive(view View) bool {
	all := true
	for id, l := range q.lines {
		alive := len(l.requests) == 0 || view.Alive(id) ||
			slices.ContainsFunc(view.Holders(id), func(p ledger.ProcessID) bool { return q.waits[p] == 0 && view.Runs(p) })
		if alive {
			l.stuck = time.Time{}
		}
		all = all && alive
	}
	return all
}

// living returns the cards of which memory will come free without our doing: somebody
// holds it who does not wait, or who waits on such cards only. helps are the processes
// that hold memory of the other cards.
func living(waiting map[ledger.CardID][]Request, view View) (alive map[ledger.CardID]bool, helps map[ledger.ProcessID]bool) {
	on := make(map[ledger.ProcessID]map[ledger.CardID]bool) // what a process waits on
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

// Wake returns when Next has to be asked again although nothing has changed.
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
		if !l.stuck.IsZero() {
			sooner(l.stuck.Add(q.rules.Settle))
		}
	}
	return wake, !wake.IsZero()
}
