// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

const gib = 1 << 30

var (
	p1 = ProcessID{PID: 101, Start: 1}
	p2 = ProcessID{PID: 102, Start: 2}
	p3 = ProcessID{PID: 103, Start: 3}
)

// two has a card of 10 GiB less a reserve of 1, processes 1 and 2 in container a, process 3 in b.
func two(t testing.TB) *Ledger {
	l := New()
	must.NoError(t, l.AddCard("x", 10*gib, gib))
	must.NoError(t, l.AddProcess(p1, "a"))
	must.NoError(t, l.AddProcess(p2, "a"))
	must.NoError(t, l.AddProcess(p3, "b"))
	t.Cleanup(func() { must.NoError(t, l.Check()) })
	return l
}

func take(t testing.TB, l *Ledger, p ProcessID, bytes uint64) {
	t.Helper()
	must.NoError(t, l.Grant(p, "x", bytes))
}

func TestLedger_life(t *testing.T) {
	l := two(t)
	take(t, l, p1, 2*gib)
	must.Eq(t, Entry{Committed: 2 * gib}, l.Total("x"))
	must.Eq(t, Entry{Committed: 2 * gib}, l.Container("a", "x"))
	must.Eq(t, 7*gib, l.Free("x"))

	must.ErrorIs(t, l.Grant(p1, "x", 0), ErrAmount)
	must.ErrorIs(t, l.Grant(p1, "y", 1), ErrUnknown)
	must.ErrorIs(t, l.Release(p1, "x", 3*gib), ErrAmount)
	must.ErrorIs(t, l.Release(p2, "x", gib), ErrAmount, must.Sprint("it is another's"))
	must.NoError(t, l.Release(p1, "x", gib))
	l.End(p1)
	must.Eq(t, Entry{}, l.Total("x"))
	must.ErrorIs(t, l.Grant(p1, "x", 1), ErrUnknown)
}

func TestLedger_Fits(t *testing.T) {
	l := two(t)
	must.NoError(t, l.SetLimit("a", "x", 5*gib))
	take(t, l, p1, 3*gib)
	for _, tc := range []struct {
		c     ContainerID
		bytes uint64
		want  error
	}{
		{"a", 2 * gib, nil},
		{"a", 2*gib + 1, ErrLimit},
		{"a", 5*gib + 1, ErrAmount},
		{"b", 6 * gib, nil},
		{"b", 6*gib + 1, ErrRoom},
		{"b", 9 * gib, ErrRoom},
		{"b", 9*gib + 1, ErrAmount},
		{"b", math.MaxUint64, ErrAmount},
	} {
		must.ErrorIs(t, l.Fits(tc.c, "x", tc.bytes), tc.want)
	}
	must.ErrorIs(t, l.Fits("a", "y", 1), ErrUnknown)
	must.Eq(t, 2*gib, l.Room("a", "x"))
	must.Eq(t, 6*gib, l.Room("b", "x"))
}

func TestLedger_shrink(t *testing.T) {
	l := two(t)
	take(t, l, p1, 4*gib)
	must.NoError(t, l.SetLimit("a", "x", 2*gib))
	must.Eq(t, 4*gib, l.Container("a", "x").LimitUsage())
	must.ErrorIs(t, l.Grant(p2, "x", 1), ErrLimit)
	must.NoError(t, l.Release(p1, "x", 2*gib))
	must.ErrorIs(t, l.Grant(p2, "x", 1), ErrLimit)
	must.NoError(t, l.Release(p1, "x", 1))
	must.NoError(t, l.Grant(p2, "x", 1))
	l.Forget("a")
	must.Eq(t, 9*gib, l.Limit("a", "x"))
}

func TestLedger_park(t *testing.T) {
	l := two(t)
	take(t, l, p1, 4*gib)
	l.Park(p1)
	must.Eq(t, Entry{Parked: 4 * gib}, l.Total("x"))
	must.Eq(t, 9*gib, l.Free("x"))
	must.SliceEmpty(t, l.Holders("x"))
	must.NoError(t, l.Release(p1, "x", gib), must.Sprint("what is parked can be freed"))
	take(t, l, p3, 7*gib)
	must.NoError(t, l.SetLimit("a", "x", gib))
	must.ErrorIs(t, l.Unpark(p1, "x", true), ErrRoom)
	must.NoError(t, l.Release(p3, "x", gib))
	must.NoError(t, l.Unpark(p1, "x", true))
	must.Eq(t, Entry{Committed: 9 * gib}, l.Total("x"))
	l.Park(p1)
	l.Detach(p1)
	must.Eq(t, Entry{Parked: 3 * gib}, l.Process(p1, "x"), must.Sprint("without a connection it stays parked"))
	must.NoError(t, l.Hold(p1, "x", 3*gib+7))
	must.Eq(t, Entry{Parked: 3 * gib, Committed: 7}, l.Process(p1, "x"))
	l.End(p1)
	must.NoError(t, l.ExpectParked(p2, "x", gib))
	must.NoError(t, l.Hold(p2, "x", gib/2))
	must.Eq(t, Entry{Parked: gib / 2}, l.Process(p2, "x"))
	must.ErrorIs(t, l.Unpark(p2, "y", true), ErrUnknown)
	must.NoError(t, l.Unpark(p2, "x", false))
	must.Eq(t, Entry{Expected: gib / 2}, l.Process(p2, "x"), must.Sprint("it has still to say what it holds"))
}

func TestLedger_overhead(t *testing.T) {
	l := two(t)
	take(t, l, p1, 8*gib)
	must.NoError(t, l.SetOverhead(p3, "x", 2*gib))
	must.Eq(t, 0, l.Free("x"))
	must.ErrorIs(t, l.Grant(p3, "x", 1), ErrRoom)
	must.NoError(t, l.Release(p1, "x", 2*gib))
	must.Eq(t, gib, l.Free("x"))
	must.ErrorIs(t, l.SetOverhead(p3, "x", 11*gib), ErrAmount)
	must.ErrorIs(t, l.SetOverhead(ProcessID{PID: 1}, "x", 1), ErrUnknown)
}

func TestLedger_reconnect(t *testing.T) {
	l := two(t)
	take(t, l, p1, 4*gib)
	l.Detach(p1)
	must.Eq(t, Entry{Expected: 4 * gib}, l.Process(p1, "x"))
	must.Eq(t, 5*gib, l.Free("x"))
	must.ErrorIs(t, l.Release(p1, "x", 1), ErrAmount)

	must.NoError(t, l.SetLimit("a", "x", 2*gib))
	must.NoError(t, l.Hold(p1, "x", 4*gib))
	must.Eq(t, Entry{Committed: 4 * gib}, l.Process(p1, "x"), must.Sprint("beyond its limit: it was granted"))
}

func TestLedger_claim(t *testing.T) {
	l := two(t)
	must.NoError(t, l.SetLimit("a", "x", 4*gib))
	take(t, l, p2, gib)
	must.NoError(t, l.Hold(p1, "x", 9*gib))
	must.Eq(t, Entry{Committed: 3 * gib, Unverified: 6 * gib}, l.Process(p1, "x"))
	must.Eq(t, 5*gib, l.Free("x"))
	must.ErrorIs(t, l.Grant(p2, "x", 1), ErrLimit, must.Sprint("its own container pays"))
	must.NoError(t, l.Release(p1, "x", 7*gib))
	must.Eq(t, Entry{Committed: 2 * gib}, l.Process(p1, "x"))
	must.ErrorIs(t, l.Hold(p3, "x", 10*gib+1), ErrAmount)
}

func TestLedger_add(t *testing.T) {
	l := two(t)
	must.ErrorContains(t, l.AddCard("x", gib, 0), "already")
	must.ErrorIs(t, l.AddCard("y", gib, gib), ErrAmount)
	must.ErrorIs(t, l.AddCard("y", math.MaxUint64, 0), ErrAmount)
	must.ErrorContains(t, l.AddProcess(p1, "b"), "is in container a")
	must.ErrorIs(t, l.SetLimit("a", "y", 1), ErrUnknown)
	must.Eq(t, []CardID{"x"}, l.Cards())
}

// Whatever the calls and their order, the sums agree, no card is over-committed, and facts leave
// no room for grants.
func TestLedger_invariant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New()
		cards := []CardID{"x", "y"}
		for _, id := range cards {
			must.NoError(t, l.AddCard(id, 100, rapid.Uint64Range(0, 20).Draw(t, "reserve")))
		}
		processes := []ProcessID{{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 1}}
		process := rapid.SampledFrom(processes)
		amount := rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64Range(0, 120), rapid.Just(uint64(math.MaxUint64)), rapid.Just(uint64(math.MaxInt64)))
		container := func(p ProcessID) ContainerID { return ContainerID([]string{"a", "b"}[p.PID%2]) }
		card := rapid.SampledFrom(cards)
		for _, p := range processes {
			must.NoError(t, l.AddProcess(p, container(p)))
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { p := process.Draw(t, "p"); must.NoError(t, l.AddProcess(p, container(p))) },
			"limit": func(t *rapid.T) {
				_ = l.SetLimit(container(process.Draw(t, "p")), card.Draw(t, "card"), amount.Draw(t, "n"))
			},
			"grant": func(t *rapid.T) {
				p, id, n := process.Draw(t, "p"), card.Draw(t, "card"), amount.Draw(t, "n")
				before, held := l.Free(id), l.Container(container(p), id).LimitUsage()
				if l.Grant(p, id, n) == nil {
					must.LessEq(t, before, n)
					must.Eq(t, before-n, l.Free(id))
					must.LessEq(t, l.Limit(container(p), id), held+n)
				} else {
					must.Eq(t, before, l.Free(id))
				}
			},
			"return":   func(t *rapid.T) { _ = l.Release(process.Draw(t, "p"), card.Draw(t, "card"), amount.Draw(t, "n")) },
			"overhead": func(t *rapid.T) { _ = l.SetOverhead(process.Draw(t, "p"), card.Draw(t, "card"), amount.Draw(t, "n")) },
			"expect":   func(t *rapid.T) { _ = l.Expect(process.Draw(t, "p"), card.Draw(t, "card"), amount.Draw(t, "n")) },
			"hold": func(t *rapid.T) {
				p, id, n := process.Draw(t, "p"), card.Draw(t, "card"), amount.Draw(t, "n")
				free := l.Free(id)
				was := l.Process(p, id)
				if l.Hold(p, id, n) == nil {
					// Others lose nothing that this process could not have requested.
					must.LessEq(t, l.Limit(container(p), id)+was.LimitUsage(), was.LimitUsage()+free-min(free, l.Free(id)))
				}
			},
			"detach": func(t *rapid.T) {
				before := map[CardID]uint64{}
				for _, id := range cards {
					before[id] = l.Free(id)
				}
				l.Detach(process.Draw(t, "p"))
				for _, id := range cards {
					must.Eq(t, before[id], l.Free(id))
				}
			},
			"park": func(t *rapid.T) {
				p := process.Draw(t, "p")
				l.Park(p)
				for _, id := range cards {
					must.Eq(t, 0, l.Process(p, id).Committed+l.Process(p, id).Expected)
				}
			},
			"unpark": func(t *rapid.T) {
				p, id := process.Draw(t, "p"), card.Draw(t, "card")
				free, parked := l.Free(id), l.Process(p, id).Parked
				if l.Unpark(p, id, rapid.Bool().Draw(t, "known")) == nil {
					must.Eq(t, free-parked, l.Free(id))
				} else {
					must.Eq(t, free, l.Free(id))
				}
			},
			"expect parked": func(t *rapid.T) {
				_ = l.ExpectParked(process.Draw(t, "p"), card.Draw(t, "card"), amount.Draw(t, "n"))
			},
			"end": func(t *rapid.T) {
				p := process.Draw(t, "p")
				l.End(p)
				for _, id := range cards {
					must.Eq(t, Entry{}, l.Process(p, id))
				}
			},
			"": func(t *rapid.T) { must.NoError(t, l.Check()) },
		})
	})
}

func BenchmarkGrantReturn(b *testing.B) {
	l := two(b)
	for b.Loop() {
		if err := l.Grant(p1, "x", gib); err != nil {
			b.Fatal(err)
		}
		if err := l.Release(p1, "x", gib); err != nil {
			b.Fatal(err)
		}
	}
}
