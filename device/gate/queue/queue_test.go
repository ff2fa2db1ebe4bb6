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

// world is a ledger, a queue and a clock.
type world struct {
	*ledger.Ledger
	q     *Queue
	now   time.Time
	alive bool
	last  uint64
}

func newWorld(r Rules, cards ...ledger.CardID) *world {
	w := &world{Ledger: ledger.New(), q: New(r), now: time.Unix(1e9, 0)}
	for _, id := range cards {
		if err := w.AddCard(id, 100, 0); err != nil {
			panic(err)
		}
	}
	return w
}

func (w *world) Alive(ledger.CardID) bool { return w.alive }

// process is process n of the container of the same number.
func (w *world) process(n int) ledger.ProcessID {
	p := ledger.ProcessID{PID: n}
	if err := w.AddProcess(p, ledger.ContainerID(fmt.Sprint(n))); err != nil {
		panic(err)
	}
	return p
}

func (w *world) hold(n int, id ledger.CardID, bytes uint64) {
	g, err := w.Reserve(w.process(n), id, bytes)
	if err != nil {
		panic(err)
	}
	if _, _, err := w.Commit(w.process(n), g, bytes); err != nil {
		panic(err)
	}
}

// ask lets process n wait for up to a minute.
func (w *world) ask(n int, id ledger.CardID, bytes uint64, priority int) uint64 {
	w.last++
	w.q.Add(Request{
		ID: w.last, Process: w.process(n), Container: ledger.ContainerID(fmt.Sprint(n)), Card: id, Bytes: bytes,
		Priority: priority, Since: w.now, Deadline: w.now.Add(time.Minute),
	})
	return w.last
}

// answers asks until there is no answer any more, as the gate does: what is granted is
// reserved, what is stuck is denied.
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
			if _, err := w.Reserve(r.Process, r.Card, r.Bytes); err != nil {
				panic(err)
			}
		case Stuck:
			w.q.Deny(r.ID)
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
	must.NoError(t, w.Return(w.process(1), "x", 40))
	must.Eq(t, map[uint64]Answer{a: Granted}, w.answers())
	must.NoError(t, w.Return(w.process(1), "x", 40))
	must.Eq(t, map[uint64]Answer{b: Granted}, w.answers())
}

// A step of priority is worth a head start, not more.
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
		must.NoError(t, w.Return(w.process(1), "x", 60))
		must.Eq(t, map[uint64]Answer{asked[tc.first]: Granted}, w.answers())
	}
}

// Small requests go ahead of a large one for a while, then room is kept for it.
func TestNext_patience(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 70)
	large := w.ask(2, "x", 60, 0)
	small := w.ask(3, "x", 10, 0)
	must.Eq(t, map[uint64]Answer{small: Granted}, w.answers())
	w.now = w.now.Add(5 * time.Second)
	small = w.ask(4, "x", 10, 0)
	must.MapEmpty(t, w.answers())
	must.NoError(t, w.Return(w.process(1), "x", 50))
	must.Eq(t, map[uint64]Answer{large: Granted, small: Granted}, w.answers())
}

// Who is over the own limit is told at once, or after LimitWait, and holds up nobody.
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

// Two that hold half a card each and wait for more would wait for ever: after Settle one
// of them is denied, and the other one when that has not helped.
func TestNext_stuck(t *testing.T) {
	w := newWorld(rules, "x")
	w.hold(1, "x", 50)
	w.hold(2, "x", 50)
	bystander := w.ask(3, "x", 10, 0) // holds nothing: to deny it would help nobody
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
	must.NoError(t, w.Return(w.process(1), "x", 30))
	must.Eq(t, map[uint64]Answer{b: Granted, bystander: Granted}, w.answers())
}

// A circle over two cards is found, too.
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

// No circle: 3 runs and holds memory of y, for which 1 waits, for which 2 waits.
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
	w.alive = true // somebody makes room
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

func TestVictim(t *testing.T) {
	r := Request{Container: "me", Priority: 5}
	low := Candidate{Container: "low", Priority: 1, Bytes: 1}
	idle := Candidate{Container: "idle", Priority: 5, Idle: time.Minute, Bytes: 1}
	busy := Candidate{Container: "busy", Priority: 5, Bytes: 9}
	never := []Candidate{
		{Container: "pinned", Pinned: true, Bytes: 1},
		{Container: "empty"},
		{Container: "important", Priority: 6, Bytes: 1},
		{Container: "me", Bytes: 1},
	}
	for _, tc := range []struct {
		of   []Candidate
		want ledger.ContainerID
	}{
		{append(never, busy, idle, low), "low"},
		{append(never, busy, idle), "idle"},
		{append(never, busy), "busy"},
	} {
		got, ok := Victim(r, tc.of)
		must.True(t, ok)
		must.Eq(t, tc.want, got.Container)
	}
	_, ok := Victim(r, never)
	must.False(t, ok)
}

// Whatever happens, each request is answered, and by its deadline, if Next is asked after
// each change and when Wake says. Where all wait who hold memory, it is answered after
// Settle: in the end nobody is left who waits while nobody runs.
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
			for id := range w.answers() {
				if _, ok := open[id]; !ok {
					t.Fatalf("request %d is answered twice", id)
				}
				delete(open, id)
			}
			for _, r := range open {
				if !w.now.Before(r.Deadline) {
					t.Fatalf("request %d is late by %v", r.ID, w.now.Sub(r.Deadline))
				}
			}
			must.Eq(t, len(open), w.q.Len())
			must.NoError(t, w.Check())
		}
		// sleep goes on to a time, as the gate does: with a timer.
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
			"limit": func(t *rapid.T) {
				_ = w.SetLimit(ledger.ContainerID(fmt.Sprint(n.Draw(t, "n"))), card.Draw(t, "card"), rapid.Uint64Range(0, 100).Draw(t, "bytes"))
				answer()
			},
			"return": func(t *rapid.T) {
				p, id := w.process(n.Draw(t, "n")), card.Draw(t, "card")
				w.Detach(p) // commits what is reserved
				_ = w.Hold(p, id, w.Process(p, id).Expected/2)
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
					if gone {
						delete(open, r.ID)
					}
					return gone
				})
				w.End(w.process(p))
				answer()
			},
			"sleep":   func(t *rapid.T) { sleep(w.now.Add(seconds("sleep", 10))) },
			"forever": func(t *rapid.T) { sleep(w.now.Add(20 * time.Second)); must.MapEmpty(t, open) },
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
