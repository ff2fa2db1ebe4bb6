// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

var rules = Rules{HeadStart: time.Second, Patience: 5 * time.Second, Settle: time.Second / 4}

type world struct {
	*ledger.Ledger
	q          *Queue
	now        time.Time
	alive      bool
	paused     map[int]bool // processes
	parked     map[ledger.ContainerID]bool
	unservable map[uint64]bool // by ID
	last       uint64
}

func newWorld(r Rules, cards ...ledger.CardID) *world {
	w := &world{
		Ledger: ledger.New(), q: New(r), now: time.Unix(1e9, 0),
		paused: make(map[int]bool), parked: make(map[ledger.ContainerID]bool), unservable: make(map[uint64]bool),
	}
	for _, id := range cards {
		if err := w.AddCard(id, 100, 0); err != nil {
			panic(err)
		}
	}
	return w
}

func (w *world) Alive(ledger.CardID) bool { return w.alive }

func (w *world) Unservable(r Request) bool { return w.unservable[r.ID] }

func (w *world) Runs(p ledger.ProcessID) bool { return !w.paused[p.PID] }

func (w *world) Fits(r Request) error {
	switch {
	case r.Restore:
		return w.FitsCard(r.Card, r.Bytes)
	case w.parked[r.Container]:
		return ErrParked
	}
	return w.Ledger.Fits(r.Container, r.Card, r.Bytes)
}

func (w *world) process(n int) ledger.ProcessID {
	p := ledger.ProcessID{PID: n}
	if err := w.AddProcess(p, ledger.ContainerID(fmt.Sprint(n))); err != nil {
		panic(err)
	}
	return p
}

func (w *world) hold(n int, id ledger.CardID, bytes uint64) {
	if err := w.Grant(w.process(n), id, bytes); err != nil {
		panic(err)
	}
}

func (w *world) ask(n int, id ledger.CardID, bytes uint64, priority int) uint64 {
	w.last++
	w.q.Add(Request{
		ID: w.last, Process: w.process(n), Container: ledger.ContainerID(fmt.Sprint(n)), Card: id, Bytes: bytes,
		Priority: priority, Since: w.now, Deadline: w.now.Add(time.Minute),
	})
	return w.last
}

// answers calls Next until there is no more answer, like the gate: it grants what fits and denies
// what is stuck.
func (w *world) answers() map[uint64]Answer {
	out := make(map[uint64]Answer)
	for {
		r, a, ok := w.q.Next(w.now, w)
		if !ok {
			return out
		}
		out[r.ID] = a
		switch a {
		case Granted:
			if r.Restore {
				if err := w.FitsCard(r.Card, r.Bytes); err != nil {
					panic(err)
				}
				_ = w.Grant(r.Process, r.Card, r.Bytes) // whatever its limit
				break
			}
			if err := w.Grant(r.Process, r.Card, r.Bytes); err != nil {
				panic(err)
			}
		case Stuck:
			w.q.Deny(r.ID)
		case Blocked:
			return out
		}
	}
}

func TestNext_firstCome(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 100)
	a := w.ask(2, "x", 40, 0)
	w.now = w.now.Add(time.Millisecond)
	b := w.ask(3, "x", 40, 0)
	must.MapEmpty(t, w.answers())
	must.NoError(t, w.Release(w.process(1), "x", 40))
	must.Eq(t, map[uint64]Answer{a: Granted}, w.answers())
	must.NoError(t, w.Release(w.process(1), "x", 40))
	must.Eq(t, map[uint64]Answer{b: Granted}, w.answers())
}

// A step of priority is worth a head start, no more.
func TestNext_ages(t *testing.T) {
	for _, tc := range []struct {
		after time.Duration
		first int
	}{{9 * time.Second, 1}, {11 * time.Second, 0}} {
		w := newWorld(rules, "x")
		w.hold(1, "x", 100)
		asked := []uint64{w.ask(2, "x", 60, 0)}
		w.now = w.now.Add(tc.after)
		asked = append(asked, w.ask(3, "x", 60, 10))
		must.NoError(t, w.Release(w.process(1), "x", 60))
		must.Eq(t, map[uint64]Answer{asked[tc.first]: Granted}, w.answers())
	}
}

// Small requests go ahead of a large one for a while, then room is reserved for it.
func TestNext_patience(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 70)
	large := w.ask(2, "x", 60, 0)
	small := w.ask(3, "x", 10, 0)
	must.Eq(t, map[uint64]Answer{small: Granted}, w.answers())
	w.now = w.now.Add(5 * time.Second)
	small = w.ask(4, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	must.NoError(t, w.Release(w.process(1), "x", 50))
	must.Eq(t, map[uint64]Answer{large: Granted, small: Granted}, w.answers())
}

func TestNext_noReservationInVain(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 40)
	w.ask(2, "x", 70, 0)
	w.now = w.now.Add(5 * time.Second)
	small := w.ask(1, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	w.now = w.now.Add(rules.Settle)
	must.Eq(t, map[uint64]Answer{small: Granted}, w.answers())
}

func TestNext_limit(t *testing.T) {
	for _, wait := range []time.Duration{0, 2 * time.Second} {
		r := rules
		r.LimitWait = wait
		w := newWorld(r, "x")
		must.NoError(t, w.SetLimit("1", "x", 50))
		w.hold(1, "x", 50)
		over := w.ask(1, "x", 10, 50)
		never := w.ask(1, "x", 60, 50)
		other := w.ask(2, "x", 10, 0)
		if wait == 0 {
			must.Eq(t, map[uint64]Answer{over: OverLimit, never: OverLimit, other: Granted}, w.answers())
			continue
		}
		must.Eq(t, map[uint64]Answer{other: Granted}, w.answers())
		at, ok := w.q.Wake(w.now)
		must.True(t, ok)
		must.Eq(t, wait, at.Sub(w.now))
		w.now = at
		must.Eq(t, map[uint64]Answer{over: OverLimit, never: OverLimit}, w.answers())
	}
}

func TestNext_deadline(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 100)
	a := w.ask(2, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	at, ok := w.q.Wake(w.now)
	must.True(t, ok)
	must.Eq(t, time.Minute, at.Sub(w.now))
	w.now = at
	must.Eq(t, map[uint64]Answer{a: TooLong}, w.answers())
	_, ok = w.q.Wake(w.now)
	must.False(t, ok)
}

// Two processes that hold half a card each and wait for more would deadlock: after Settle one is
// denied, and the other if that does not help.
func TestNext_stuck(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 50)
	w.hold(2, "x", 50)
	bystander := w.ask(3, "x", 10, 0) // holds nothing: denying it would not help
	w.now = w.now.Add(time.Millisecond)
	a := w.ask(1, "x", 10, 0)
	must.MapEmpty(t, w.answers(), must.Sprint("2 may return memory"))
	w.now = w.now.Add(time.Second)
	b := w.ask(2, "x", 20, 100)
	must.MapEmpty(t, w.answers())
	at, _ := w.q.Wake(w.now)
	must.Eq(t, rules.Settle, at.Sub(w.now))
	w.now = at
	must.Eq(t, map[uint64]Answer{a: Stuck}, w.answers())
	must.NoError(t, w.Release(w.process(1), "x", 30))
	must.Eq(t, map[uint64]Answer{b: Granted, bystander: Granted}, w.answers())
}

func TestNext_circle(t *testing.T) {
	w := newWorld(rules, "x", "y")
	w.hold(1, "x", 100)
	w.hold(2, "y", 100)
	a := w.ask(1, "y", 10, 0)
	w.now = w.now.Add(time.Millisecond)
	w.ask(2, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	w.now = w.now.Add(rules.Settle)
	must.Eq(t, map[uint64]Answer{a: Stuck}, w.answers())
	must.MapEmpty(t, w.answers(), must.Sprint("1 runs, and may return memory of x"))
}

// No deadlock: 3 runs and holds memory of y, for which 1 waits, for which 2 waits.
func TestNext_chain(t *testing.T) {
	w := newWorld(rules, "x", "y")
	w.hold(1, "x", 100)
	w.hold(3, "y", 100)
	w.ask(1, "y", 10, 0)
	w.ask(2, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	w.now = w.now.Add(30 * time.Second)
	must.MapEmpty(t, w.answers())
}

func TestNext_alive(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 50)
	w.hold(2, "x", 50)
	a := w.ask(1, "x", 10, 0)
	w.now = w.now.Add(time.Millisecond)
	w.ask(2, "x", 10, 0)
	w.alive = true // room is being made
	must.MapEmpty(t, w.answers())
	w.now = w.now.Add(30 * time.Second)
	must.MapEmpty(t, w.answers())
	w.alive = false
	must.MapEmpty(t, w.answers())
	w.now = w.now.Add(rules.Settle)
	must.Eq(t, map[uint64]Answer{a: Stuck}, w.answers())
}

func TestRemove(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 100)
	w.ask(2, "x", 10, 0)
	b := w.ask(3, "x", 10, 0)
	w.q.Remove(func(r Request) bool { return r.Process.PID == 2 })
	must.Eq(t, 1, w.q.Len())
	for r := range w.q.All {
		must.Eq(t, b, r.ID)
	}
}

func TestNext_blocked(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 100)
	w.paused[1] = true
	a := w.ask(2, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	w.now = w.now.Add(rules.Settle)
	must.Eq(t, map[uint64]Answer{a: Blocked}, w.answers())
	must.Eq(t, 1, w.q.Len())
	w.paused[1] = false
	must.MapEmpty(t, w.answers(), must.Sprint("1 runs"))
}

// A restore waits for room like other requests; a lazy one comes after all others. The
// container's requests wait until then.
func TestNext_restore(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 100)
	w.parked["2"] = true
	own := w.ask(2, "x", 1, 0)
	back := func(n int, lazy bool) uint64 {
		w.last++
		w.q.Add(Request{
			ID: w.last, Process: w.process(n), Container: ledger.ContainerID(fmt.Sprint(n)), Card: "x", Bytes: 40,
			Since: w.now, Restore: true, Lazy: lazy,
		})
		return w.last
	}
	lazy := back(3, true)
	w.now = w.now.Add(time.Second)
	eager := back(2, false)
	w.now = w.now.Add(time.Hour)
	must.MapEmpty(t, w.answers(), must.Sprint("neither has a deadline"))
	first, _ := w.q.First("x", w)
	must.Eq(t, eager, first.ID)
	must.NoError(t, w.Release(w.process(1), "x", 30))
	must.MapEmpty(t, w.answers())
	must.NoError(t, w.Release(w.process(1), "x", 10))
	must.Eq(t, map[uint64]Answer{eager: Granted}, w.answers())
	w.parked["2"] = false
	w.q.Postpone("2", w.now.Add(-time.Hour), w.now)
	must.NoError(t, w.Release(w.process(1), "x", 41))
	must.Eq(t, map[uint64]Answer{own: Granted, lazy: Granted}, w.answers())
	_, ok := w.q.First("x", w)
	must.False(t, ok)
}

func TestNext_lazy(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 50)
	w.ask(2, "x", 60, 0)
	w.q.Add(Request{ID: 99, Process: w.process(3), Container: "3", Card: "x", Bytes: 40, Since: w.now, Restore: true, Lazy: true})
	must.MapEmpty(t, w.answers())
}

func TestNext_unservable(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 50)
	w.q.Add(Request{ID: 99, Process: w.process(2), Container: "2", Card: "x", Bytes: 60, Since: w.now, Restore: true})
	w.unservable[99] = true
	w.now = w.now.Add(rules.Patience)
	first := w.ask(3, "x", 10, 0)
	must.Eq(t, map[uint64]Answer{first: Granted}, w.answers())
	_, ok := w.q.First("x", w)
	must.False(t, ok)
	w.unservable[99] = false
	w.ask(3, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	r, _ := w.q.First("x", w)
	must.Eq(t, 99, r.ID)

	w = newWorld(rules, "x")
	w.hold(1, "x", 50)
	w.unservable[w.ask(2, "x", 60, 0)] = true
	w.now = w.now.Add(rules.Patience)
	w.ask(3, "x", 10, 0)
	must.MapEmpty(t, w.answers(), must.Sprint("it has a deadline"))
}

func TestPostpone(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 100)
	early := w.ask(2, "x", 10, 0)
	parked := w.now.Add(10 * time.Second)
	w.now = parked.Add(time.Hour - time.Second)
	late := w.ask(2, "x", 10, 0)
	w.now = w.now.Add(time.Second)
	w.q.Postpone("2", parked, w.now)
	for r := range w.q.All {
		must.Eq(t, map[uint64]time.Duration{early: 50 * time.Second, late: time.Minute}[r.ID], r.Deadline.Sub(w.now))
	}
}

func TestVictim(t *testing.T) {
	rules := Rules{HeadStart: time.Second, Patience: 5 * time.Second, Turn: time.Minute, TurnCosts: 10, Idle: 30 * time.Second}
	now := time.Unix(1e9, 0)
	someone := func(name string, change func(*Candidate)) Candidate {
		c := Candidate{Container: ledger.ContainerID(name), Priority: 50, Arrived: now, Placed: now, Active: now, Freeable: 10}
		change(&c)
		return c
	}
	busy := someone("busy", func(*Candidate) {})
	idle := someone("idle", func(c *Candidate) { c.Active = now.Add(-time.Minute) })
	low := someone("low", func(c *Candidate) { c.Priority = 49 })
	lower := someone("lower", func(c *Candidate) { c.Priority = 48 })
	high := someone("high", func(c *Candidate) { c.Priority = 60; c.Active = now.Add(-time.Hour); c.Placed = now.Add(-time.Hour) })
	over := someone("over", func(c *Candidate) { c.OverShare = true; c.Placed = now.Add(-time.Minute); c.Priority = 90 })
	turn := someone("turn", func(c *Candidate) { c.Placed = now.Add(-time.Minute) })
	long := someone("long", func(c *Candidate) { c.Placed = now.Add(-time.Hour) })
	dear := someone("dear", func(c *Candidate) { c.Placed = now.Add(-10 * time.Minute); c.Cost = time.Minute + 1 })
	back := someone("back", func(c *Candidate) { c.Priority = 40; c.Arrived = now.Add(-time.Hour) })
	fixed := someone("fixed", func(c *Candidate) { c.Fixed = true; c.Priority = 0 })
	empty := someone("empty", func(c *Candidate) { c.Freeable = 0; c.Priority = 0 })
	me := someone("me", func(c *Candidate) { c.Priority = 0 })

	for name, tc := range map[string]struct {
		of     []Candidate
		waited time.Duration
		demand Demand
		want   ledger.ContainerID // "": none
	}{
		"a busy one stays":                       {[]Candidate{busy}, time.Hour, Demand{}, ""},
		"an idle one goes at once":               {[]Candidate{busy, idle}, 0, Demand{}, "idle"},
		"a lower priority goes, after some time": {[]Candidate{busy, low}, 5 * time.Second, Demand{}, "low"},
		"and not before":                         {[]Candidate{busy, low}, 4 * time.Second, Demand{}, ""},
		"a restored one keeps its turn":          {[]Candidate{back}, time.Hour, Demand{}, ""},
		"the lowest goes first":                  {[]Candidate{low, lower, idle}, 5 * time.Second, Demand{}, "lower"},
		"a higher one stays":                     {[]Candidate{high}, 9 * time.Second, Demand{}, ""},
		"but a waiting request gains on it":      {[]Candidate{high}, 10 * time.Second, Demand{}, "high"},
		"one over its share goes":                {[]Candidate{low, over}, 5 * time.Second, Demand{}, "over"},
		"but not for one over its own share":     {[]Candidate{over}, 5 * time.Second, Demand{OverShare: true}, ""},
		"one goes after its turn":                {[]Candidate{busy, turn}, 5 * time.Second, Demand{}, "turn"},
		"no sooner than parking it is worth":     {[]Candidate{dear, turn}, 5 * time.Second, Demand{}, "turn"},
		"the longest placed goes first":          {[]Candidate{turn, long}, 5 * time.Second, Demand{}, "long"},
		"no other can":                           {[]Candidate{fixed, empty, me}, time.Hour, Demand{}, ""},
		"none goes in vain":                      {[]Candidate{idle}, 0, Demand{Shortfall: 11}, ""},
		"two are enough":                         {[]Candidate{idle, turn}, 5 * time.Second, Demand{Shortfall: 20}, "idle"},
	} {
		d := tc.demand
		d.Request = Request{Container: "me", Priority: 50, Since: now.Add(-tc.waited)}
		got, ok := rules.Victim(now, d, tc.of)
		must.Eq(t, tc.want != "", ok, must.Sprint(name))
		must.Eq(t, tc.want, got.Container, must.Sprint(name))
	}
}

func TestBreakDeadlock(t *testing.T) {
	now := time.Unix(1e9, 0)
	someone := func(name string, priority int, age time.Duration, holds, wants uint64) Candidate {
		return Candidate{Container: ledger.ContainerID(name), Priority: priority, Arrived: now.Add(-age), Freeable: holds, CardUsage: holds, Waiting: wants}
	}
	fixed := someone("fixed", 1, 0, 30, 10)
	fixed.Fixed = true
	for name, tc := range map[string]struct {
		of   []Candidate
		want []ledger.ContainerID
	}{
		"the younger one":           {[]Candidate{someone("young", 50, 1, 50, 10), someone("old", 50, 2, 50, 10)}, []ledger.ContainerID{"young"}},
		"the one of lower priority": {[]Candidate{someone("low", 49, 2, 50, 10), someone("high", 50, 1, 50, 10)}, []ledger.ContainerID{"low"}},
		"several at once": {
			[]Candidate{someone("a", 50, 4, 25, 25), someone("b", 50, 3, 25, 25), someone("c", 50, 2, 25, 25), someone("d", 50, 1, 25, 25)},
			[]ledger.ContainerID{"c", "d"},
		},
		"a small one may stay where a larger one cannot": {
			[]Candidate{someone("a", 50, 3, 50, 20), someone("large", 50, 2, 40, 20), someone("small", 50, 1, 10, 10)},
			[]ledger.ContainerID{"large"},
		},
		"a fixed one stays": {[]Candidate{fixed, someone("a", 50, 2, 40, 20), someone("b", 50, 1, 30, 10)}, []ledger.ContainerID{"b"}},
		"one that wants more than the others leave goes": {[]Candidate{fixed, someone("a", 50, 2, 70, 20)}, []ledger.ContainerID{"a"}},
		"one that holds nothing makes no room":           {[]Candidate{someone("a", 50, 2, 100, 0), someone("new", 50, 1, 0, 10)}, nil},
	} {
		var got []ledger.ContainerID
		for _, c := range BreakDeadlock(100, tc.of) {
			got = append(got, c.Container)
		}
		must.Eq(t, tc.want, got, must.Sprint(name))
	}
}

// Each request is answered by its deadline, and if all holders wait, one is answered after
// Settle: in the end no request waits while nothing runs.
func TestNext_answersAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(name string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most*4).Draw(t, name)) * time.Second / 4
		}
		w := newWorld(Rules{
			HeadStart: seconds("head start", 2), Patience: seconds("patience", 10),
			LimitWait: seconds("limit wait", 5), Settle: seconds("settle", 2),
		}, "x", "y")
		open := make(map[uint64]Request)
		answer := func() {
			for again := true; again; {
				again = false
				for id, a := range w.answers() {
					r, ok := open[id]
					switch {
					case !ok:
						t.Fatalf("request %d is answered twice", id)
					case a == Blocked: // still queued
						continue
					case r.Restore:
						delete(w.parked, r.Container)
						again = true
					}
					delete(open, id)
				}
			}
			for _, r := range open {
				if !r.Restore && !w.parked[r.Container] && !w.now.Before(r.Deadline) {
					t.Fatalf("request %d is late by %v", r.ID, w.now.Sub(r.Deadline))
				}
			}
			must.Eq(t, len(open), w.q.Len())
			must.NoError(t, w.Check())
		}
		sleep := func(until time.Time) {
			for {
				at, ok := w.q.Wake(w.now)
				if !ok || at.After(until) {
					break
				}
				w.now = at
				answer()
			}
			w.now = until
			answer()
		}
		n := rapid.IntRange(1, 5)
		card := rapid.SampledFrom([]ledger.CardID{"x", "y"})
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				p, id := n.Draw(t, "n"), card.Draw(t, "card")
				w.last++
				r := Request{
					ID: w.last, Process: w.process(p), Container: ledger.ContainerID(fmt.Sprint(p)), Card: id,
					Bytes: rapid.Uint64Range(1, 110).Draw(t, "bytes"), Priority: rapid.IntRange(-3, 3).Draw(t, "priority"),
					Since: w.now, Deadline: w.now.Add(seconds("wait", 20)),
				}
				w.q.Add(r)
				open[r.ID] = r
				answer()
			},
			"parked": func(t *rapid.T) {
				p, id := n.Draw(t, "n"), card.Draw(t, "card")
				c := ledger.ContainerID(fmt.Sprint(p))
				if w.parked[c] {
					return
				}
				w.parked[c] = true
				w.last++
				r := Request{
					ID: w.last, Process: w.process(p), Container: c, Card: id, Bytes: rapid.Uint64Range(0, 100).Draw(t, "bytes"),
					Priority: rapid.IntRange(-3, 3).Draw(t, "priority"), Since: w.now, Restore: true, Lazy: rapid.Bool().Draw(t, "lazy"),
				}
				w.unservable[r.ID] = rapid.Bool().Draw(t, "unservable")
				w.q.Add(r)
				open[r.ID] = r
				answer()
			},
			"pause": func(t *rapid.T) {
				p := n.Draw(t, "n")
				w.paused[p] = !w.paused[p]
				answer()
			},
			"empty": func(t *rapid.T) {
				clear(w.paused)
				for p := 1; p <= 5; p++ {
					w.End(w.process(p))
					w.process(p)
				}
				answer()
				for range len(open) {
					for p := 1; p <= 5; p++ {
						w.End(w.process(p))
						w.process(p)
					}
					answer()
				}
				for _, r := range open {
					must.False(t, r.Restore, must.Sprintf("%+v stays parked", r))
				}
				must.MapEmpty(t, w.parked)
			},
			"limit": func(t *rapid.T) {
				_ = w.SetLimit(ledger.ContainerID(fmt.Sprint(n.Draw(t, "n"))), card.Draw(t, "card"), rapid.Uint64Range(0, 100).Draw(t, "bytes"))
				answer()
			},
			"return": func(t *rapid.T) {
				p, id := w.process(n.Draw(t, "n")), card.Draw(t, "card")
				must.NoError(t, w.Release(p, id, w.Process(p, id).Committed/2))
				answer()
			},
			"overhead": func(t *rapid.T) {
				_ = w.SetOverhead(w.process(n.Draw(t, "n")), card.Draw(t, "card"), rapid.Uint64Range(0, 30).Draw(t, "bytes"))
				answer()
			},
			"end": func(t *rapid.T) {
				p := n.Draw(t, "n")
				w.q.Remove(func(r Request) bool {
					gone := r.Process.PID == p
					if gone && r.Restore {
						delete(w.parked, r.Container)
					}
					if gone {
						delete(open, r.ID)
					}
					return gone
				})
				w.End(w.process(p))
				answer()
			},
			"sleep": func(t *rapid.T) { sleep(w.now.Add(seconds("sleep", 10))) },
			"forever": func(t *rapid.T) {
				sleep(w.now.Add(20 * time.Second))
				for _, r := range open {
					must.True(t, r.Restore || w.parked[r.Container], must.Sprintf("%+v", r))
				}
			},
		})
	})
}

func BenchmarkNext(b *testing.B) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 100)
	for range 1000 {
		w.ask(2, "x", 10, 0)
	}
	for b.Loop() {
		if _, _, ok := w.q.Next(w.now, w); ok {
			b.Fatal("nothing fits")
		}
	}
}
