// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

type fakeEvictor struct {
	takes         time.Duration
	park, restore func() error // results, if not nil
	freed         map[ledger.CardID]uint64

	mu     sync.Mutex
	parked map[int]bool // by pid
	calls  []string
}

func newFakeEvictor() *fakeEvictor {
	return &fakeEvictor{takes: time.Second, parked: make(map[int]bool)}
}

func pids(processes []ledger.ProcessID) []int {
	var out []int
	for _, p := range processes {
		out = append(out, p.PID)
	}
	slices.Sort(out)
	return out
}

func (g *fakeEvictor) Park(_ context.Context, processes []ledger.ProcessID) (map[ledger.CardID]uint64, error) {
	time.Sleep(g.takes)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, fmt.Sprint("park ", pids(processes)))
	if g.park != nil {
		if err := g.park(); err != nil {
			return nil, err
		}
	}
	for _, p := range processes {
		g.parked[p.PID] = true
	}
	return g.freed, nil
}

func (g *fakeEvictor) Restore(_ context.Context, processes []ledger.ProcessID) error {
	time.Sleep(g.takes)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, fmt.Sprint("restore ", pids(processes)))
	if g.restore != nil {
		if err := g.restore(); err != nil {
			return err
		}
	}
	for _, p := range processes {
		delete(g.parked, p.PID)
	}
	return nil
}

func (g *fakeEvictor) has(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.parked[pid]
}

func (t *testClient) stop() {
	t.Helper()
	synctest.Wait()
	must.Eq(t, wire.Pause, t.recv().Type)
	must.NoError(t, t.send(wire.Message{Type: wire.Paused}))
}

// With parking, what is left of its share is free for a container, whatever others hold.
func TestFigures_soft(t *testing.T) {
	for _, parks := range []bool{true, false} {
		o := options()
		o.Soft = true
		if parks {
			o.Evictor = newFakeEvictor()
		}
		on(t, o, func(b *bench) {
			a, c := b.process(1, "a"), b.process(2, "c")
			a.take(900 * mib)
			c.take(50 * mib)
			must.NoError(t, b.SetShare("c", card0, 400*mib))
			free := uint64(50 * mib)
			if parks {
				free = 350 * mib
			}
			synctest.Wait()
			for m := c.recv(); m.Type != 0; m = c.recv() { // its limit
				must.Eq(t, wire.Share, m.Type)
			}
			m := c.ask(wire.Message{Type: wire.Info, Device: 1})
			must.Eq(t, wire.Message{Type: wire.Figures, Seq: c.seq, Device: 1, Bytes: 400 * mib, ID: 50 * mib, Arg: free}, m)
		})
	}
}

// In a deadlock the last container is parked; when the other exits, it is restored and gets what
// it waited for.
func TestPark_stuck(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a := b.process(1, "a")
		a.take(500 * mib)
		time.Sleep(time.Second)
		c, c2 := b.process(2, "b"), b.process(3, "b")
		c.take(300 * mib)
		c2.take(200 * mib)
		must.Eq(t, wire.Message{}, a.want(100*mib, time.Hour))
		must.Eq(t, wire.Message{}, c.want(10*mib, time.Second))
		must.Eq(t, wire.Message{}, c2.want(mib, time.Hour))
		time.Sleep(b.opts.Rules.Settle)
		c.stop()
		must.Eq(t, wire.Message{}, a.recv())
		c2.stop()
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, []string{"park [2 3]"}, moves.calls)
		must.Eq(t, wire.Grant, a.recv().Type)
		s := b.Stats()[1]
		must.Eq(t, []any{true, 1, uint64(500 * mib), uint64(0)}, []any{s.Parked, s.Parks, s.Usage[0].Held.Parked, s.Usage[0].Held.CardUsage()})
		must.Eq(t, wire.Message{}, c.recv(), must.Sprint("its time does not run while it is parked"))

		time.Sleep(30 * time.Second)
		close(a.life.over)
		synctest.Wait()
		must.Eq(t, wire.Message{}, c2.recv())
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, []string{"park [2 3]", "restore [2 3]"}, moves.calls)
		must.Eq(t, []wire.Type{wire.Resume, wire.Grant}, []wire.Type{c.recv().Type, c.recv().Type})
		must.Eq(t, []wire.Type{wire.Resume, wire.Grant}, []wire.Type{c2.recv().Type, c2.recv().Type})
		must.Eq(t, ledger.Entry{Committed: 511 * mib}, b.held())
		counted := b.counted()
		for name, want := range map[string]float64{
			"parkings_total result=ok": 1, "park_duration_seconds sum": 1, "restores_total result=ok": 1, "restore_duration_seconds sum": 1,
		} {
			must.Eq(t, want, counted["ebbtide_gpu_"+name], must.Sprint(name))
		}
	})
}

// A container that cannot be parked continues, and another is parked; ErrPinned is final.
func TestPark_fails(t *testing.T) {
	for _, fail := range []error{errors.New("no room in the host's memory"), parking.ErrPinned} {
		o := options()
		moves := newFakeEvictor()
		moves.park = func() error { return fail }
		o.Evictor = moves
		on(t, o, func(b *bench) {
			a, c := b.process(1, "a"), b.process(2, "b")
			a.take(500 * mib)
			c.take(500 * mib)
			must.NoError(t, a.send(wire.Message{Type: wire.Pinned, Arg: wire.PinnedIPC}))
			must.Eq(t, wire.Message{}, a.want(100*mib, time.Hour))
			time.Sleep(b.opts.Rules.Idle + time.Second)
			c.stop()
			time.Sleep(2 * moves.takes)
			synctest.Wait()
			must.Eq(t, wire.Resume, c.recv().Type)
			must.False(t, b.Stats()[1].Parked)
			must.ErrorIs(t, b.Stats()[1].ParkError, fail)
			must.Eq(t, 1, b.counted()["ebbtide_gpu_parkings_total result=failed"])
			moves.park = nil
			time.Sleep(parking.RetryAfter + b.opts.Rules.Idle)
			synctest.Wait()
			must.Eq(t, errors.Is(fail, parking.ErrPinned), c.recv().Type != wire.Pause)
		})
	}
}

func TestPark_silent(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		c.take(1000 * mib)
		must.Eq(t, wire.Message{}, a.want(mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		synctest.Wait()
		must.Eq(t, wire.Pause, c.recv().Type)
		time.Sleep(pauseWithin)
		synctest.Wait()
		must.Eq(t, wire.Resume, c.recv().Type)
		must.SliceEmpty(t, moves.calls)
		must.Eq(t, ledger.Entry{Committed: 1000 * mib}, b.held())
	})
}

func TestPark_restoreFails(t *testing.T) {
	for _, lost := range []bool{false, true} {
		o := options()
		moves := newFakeEvictor()
		o.Evictor = moves
		on(t, o, func(b *bench) {
			a, c := b.process(1, "a"), b.process(2, "b")
			c.take(1000 * mib)
			must.Eq(t, wire.Message{}, a.want(mib, time.Hour))
			time.Sleep(b.opts.Rules.Idle + time.Second)
			c.stop()
			time.Sleep(moves.takes)
			synctest.Wait()
			moves.mu.Lock()
			moves.restore = func() error {
				if lost {
					return fmt.Errorf("restoring: %w", parking.ErrLost)
				}
				return errors.New("the card is not as free as it should be")
			}
			moves.mu.Unlock()
			must.Eq(t, wire.Grant, a.recv().Type)
			close(a.life.over)
			time.Sleep(moves.takes + time.Millisecond)
			synctest.Wait()
			if lost {
				// It is killed only after the loss has been reported.
				must.Eq(t, wire.Message{}, c.recv())
				must.ErrorIs(t, b.Stats()[0].Lost, parking.ErrLost)
				time.Sleep(killDelay)
				synctest.Wait()
				must.SliceEmpty(t, b.Stats())
				must.Eq(t, ledger.Entry{}, b.held())
				return
			}
			must.Eq(t, ledger.Entry{Parked: 1000 * mib}, b.held())
			moves.mu.Lock()
			moves.restore = nil
			moves.mu.Unlock()
			time.Sleep(retryRestore + moves.takes)
			synctest.Wait()
			must.Eq(t, wire.Resume, c.recv().Type)
			must.Eq(t, ledger.Entry{Committed: 1000 * mib}, b.held())
		})
	}
}

// A container that was idle when parked stays parked while another wants the room, until it has
// work to submit.
func TestPark_lazy(t *testing.T) {
	o := options()
	o.Lazy = true
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		idle, a := b.process(1, "idle"), b.process(2, "a")
		idle.take(600 * mib)
		time.Sleep(b.opts.Rules.Idle)
		must.Eq(t, wire.Message{}, a.want(600*mib, time.Hour))
		idle.stop()
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Grant, a.recv().Type)
		for range 60 {
			time.Sleep(5 * time.Second)
			must.NoError(t, a.send(wire.Message{Type: wire.Active}))
		}
		synctest.Wait()
		must.Eq(t, wire.Message{}, a.recv(), must.Sprint("it is not disturbed"))
		must.NoError(t, idle.send(wire.Message{Type: wire.Active}))
		time.Sleep(b.opts.Rules.Patience + time.Second)
		a.stop()
		time.Sleep(2 * moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Resume, idle.recv().Type)
		must.Eq(t, []string{"park [1]", "park [2]", "restore [1]"}, moves.calls)
	})
}

func TestPark_footprint(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	moves.freed = map[ledger.CardID]uint64{card0: 700 * mib}
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		c.take(600 * mib)
		must.Eq(t, wire.Message{}, a.want(800*mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		c.stop()
		must.NoError(t, c.send(wire.Message{Type: wire.Active}))
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Grant, a.recv().Type)
		a.giveBack(450 * mib)
		synctest.Wait()
		must.Eq(t, 1, len(moves.calls), must.Sprint("650 MiB are free"))
		a.giveBack(50 * mib)
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, []string{"park [2]", "restore [2]"}, moves.calls)
	})
}

func TestPark_twoCards(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		both, a, c := b.process(1, "both"), b.process(2, "a"), b.process(3, "c")
		both.attach(uuid1)
		c.attach(uuid1)
		both.take(600 * mib)
		second := func(t *testClient, bytes uint64) wire.Message {
			return t.ask(wire.Message{Type: wire.Request, Device: 2, Bytes: bytes, Arg: 3600_000})
		}
		must.Eq(t, wire.Grant, second(both, 600*mib).Type)
		must.Eq(t, wire.Message{}, a.want(500*mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		both.stop()
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Grant, a.recv().Type)
		must.Eq(t, wire.Grant, second(c, 500*mib).Type)
		must.NoError(t, both.send(wire.Message{Type: wire.Active}))
		close(a.life.over)
		time.Sleep(time.Second)
		synctest.Wait()
		must.Eq(t, []string{"park [1]"}, moves.calls, must.Sprint("the other card is taken"))
		close(c.life.over)
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, []string{"park [1]", "restore [1]"}, moves.calls)
		must.Eq(t, wire.Resume, both.recv().Type)
		must.Eq(t, 600*mib, b.Cards()[0].Held.Committed)
		must.Eq(t, 600*mib, b.Cards()[1].Held.Committed)
	})
}

func TestPark_restoreOnly(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor, o.RestoreOnly = moves, true
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(500 * mib)
		c.take(500 * mib)
		must.Eq(t, wire.Message{}, a.want(mib, time.Hour))
		time.Sleep(2 * b.opts.Rules.Turn) // c is idle, and has had its turn
		must.Eq(t, wire.Message{}, c.want(mib, time.Hour))
		time.Sleep(b.opts.Rules.Settle)
		synctest.Wait()
		must.Eq(t, wire.NoMemory, denial(a.recv()))
		must.SliceEmpty(t, moves.calls)
	})
}

func TestPark_restart(t *testing.T) {
	for _, moving := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := options()
			moves := newFakeEvictor()
			o.Evictor = moves
			o.State = filepath.Join(t.TempDir(), "state")
			g, err := New(o)
			must.NoError(t, err)
			b := &bench{t, g}
			a, c := b.process(1, "a"), b.process(2, "b")
			c.take(600 * mib)
			must.Eq(t, wire.Message{}, a.want(500*mib, time.Hour))
			time.Sleep(b.opts.Rules.Idle + time.Second)
			c.stop()
			if !moving {
				time.Sleep(2 * moves.takes)
			}
			synctest.Wait()
			g.Close()
			time.Sleep(2 * moves.takes)
			synctest.Wait()

			// The processes of this test do not exist on the host.
			lives := map[int]*life{1: newLife(), 2: newLife()}
			o.Open = func(pid int, _ uint64) (Life, error) { return lives[pid], nil }
			o.RestoreOnly = true // even if nothing may be parked now
			g, err = New(o)
			must.NoError(t, err)
			defer g.Close()
			b = &bench{t, g}
			st := b.Stats()[len(b.Stats())-1]
			must.True(t, st.Parked)
			must.True(t, st.Paused)
			if moving {
				must.GreaterEq(t, 600*mib, b.held().Expected, must.Sprint("its room is kept"))
			} else {
				must.Eq(t, 600*mib, st.Usage[0].Held.Parked+st.Usage[0].Held.Expected)
			}
			close(lives[1].over)
			time.Sleep(2 * moves.takes)
			synctest.Wait()
			must.Eq(t, "restore [2]", moves.calls[len(moves.calls)-1])
			must.False(t, moves.has(2))
			again := b.connect(2, "b")
			must.Eq(t, wire.Welcome, again.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
			must.Eq(t, wire.Resume, again.recv().Type)
			again.attach(uuid0)
			must.NoError(t, again.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 600 * mib}))
			must.Eq(t, 600*mib, b.Stats()[len(b.Stats())-1].Usage[0].Held.Committed)
			must.NoError(t, g.ledger.Check())
		})
	}
}

// parkOne has c, which must be idle, parked for a request of a.
func parkOne(b *bench, moves *fakeEvictor, a *testClient, bytes uint64, victims ...*testClient) {
	b.Helper()
	must.Eq(b, wire.Message{}, a.want(bytes, time.Hour))
	time.Sleep(b.opts.Rules.Idle + time.Second)
	for _, v := range victims {
		v.stop()
	}
	time.Sleep(moves.takes)
	synctest.Wait()
	must.Eq(b, wire.Grant, a.recv().Type)
}

// Requests of a parked container count for its restore only within its limit: they neither
// overflow the sum nor claim the whole card.
func TestPark_requestsTooMuch(t *testing.T) {
	for _, most := range []uint64{1000 * mib, 700 * mib} {
		o := options()
		moves := newFakeEvictor()
		o.Evictor = moves
		on(t, o, func(b *bench) {
			a, c := b.process(1, "a"), b.process(2, "b")
			must.NoError(t, b.SetShare("b", card0, most))
			for c.recv() != (wire.Message{}) {
			}
			c.take(600 * mib)
			must.Eq(t, wire.Message{}, a.want(500*mib, time.Hour))
			time.Sleep(b.opts.Rules.Idle + time.Second)
			c.stop()
			must.Eq(t, wire.Message{}, c.want(math.MaxUint64-600*mib+1, time.Hour))
			must.NoError(t, c.send(wire.Message{Type: wire.Active}))
			time.Sleep(moves.takes)
			synctest.Wait()
			must.Eq(t, wire.Grant, a.recv().Type)
			must.Eq(t, 1, len(moves.calls))
			d := b.process(3, "d")
			d.take(400 * mib)
			close(a.life.over)
			time.Sleep(moves.takes)
			synctest.Wait()
			must.Eq(t, []string{"park [2]", "restore [2]"}, moves.calls)
			must.Eq(t, wire.Resume, c.recv().Type)
			must.Eq(t, wire.NoMemory, denial(c.recv()))
		})
	}
}

// A process of a parked container that holds nothing of a card is left alone when another's
// memory there is restored.
func TestPark_processPerCard(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		r0, a := b.process(1, "ddp"), b.process(3, "a")
		r1 := b.connect(2, "ddp")
		must.Eq(t, wire.Welcome, r1.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
		r1.attach(uuid1)
		r0.take(600 * mib)
		must.Eq(t, wire.Grant, r1.ask(wire.Message{Type: wire.Request, Device: 2, Bytes: 600 * mib}).Type)
		parkOne(b, moves, a, 500*mib, r0, r1)
		must.NoError(t, r0.send(wire.Message{Type: wire.Active}))
		close(a.life.over)
		time.Sleep(2 * moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Resume, r0.recv().Type)
		for _, card := range b.Cards() {
			must.Eq(t, ledger.Entry{Committed: 600 * mib}, card.Held)
		}
		r0.giveBack(100 * mib)
		must.NoError(t, r1.send(wire.Message{Type: wire.Return, Device: 2, Bytes: 100 * mib}))
	})
}

// A container that cannot be restored, because a fixed one holds too much, does not reserve
// the card.
func TestPark_unservable(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		must.NoError(t, a.send(wire.Message{Type: wire.Pinned, Arg: wire.PinnedIPC}))
		c.take(800 * mib)
		parkOne(b, moves, a, 300*mib, c)
		must.NoError(t, c.send(wire.Message{Type: wire.Active})) // it wants to be restored
		time.Sleep(b.opts.Rules.Patience + time.Second)
		d, e := b.process(3, "d"), b.process(4, "e")
		d.take(600 * mib)
		must.Eq(t, wire.Message{}, e.want(200*mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		d.stop()
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Grant, e.recv().Type)
		close(a.life.over)
		synctest.Wait()
		close(e.life.over)
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Resume, c.recv().Type)
	})
}

// A restored container keeps its turn against a higher priority: otherwise both would be moved
// forever, and it would never run.
func TestPark_lowPriorityTurn(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	moves.takes = 10 * time.Second // longer than Rules.Patience
	o.Evictor = moves
	on(t, o, func(b *bench) {
		high := &job{testClient: b.process(1, "high"), need: 600 * mib, step: 600 * mib, each: time.Second}
		low := &job{testClient: b.process(2, "low"), need: 600 * mib, step: 600 * mib, each: time.Second}
		b.mu.Lock()
		b.containers["high"].priority, b.containers["low"].priority = 60, 50
		b.mu.Unlock()
		var ended [2]time.Time
		var all sync.WaitGroup
		for i, j := range []*job{high, low} {
			all.Go(func() {
				must.Zero(t, j.run(moves, []int{600, 120}[i]))
				ended[i] = time.Now()
			})
			time.Sleep(time.Second)
		}
		all.Wait()
		must.Less(t, 0, ended[1].Compare(ended[0]), must.Sprint("the short job ends first"))
	})
}

// A container is not paused while a process has not reported its holdings on one of its cards.
func TestPark_inFlightElsewhere(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		c, a := b.process(1, "c"), b.process(2, "a")
		c.attach(uuid1)
		c.take(600 * mib)
		must.Eq(t, wire.Grant, c.ask(wire.Message{Type: wire.Request, Device: 2, Bytes: mib}).Type)
		c.disconnected(c.s, nil)
		c = b.connect(1, "c")
		must.Eq(t, wire.Welcome, c.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
		must.Eq(t, wire.Resume, c.recv().Type)
		c.attach(uuid0)
		c.attach(uuid1)
		must.NoError(t, c.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 600 * mib}))
		must.Eq(t, wire.Message{}, a.want(500*mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		synctest.Wait()
		must.Eq(t, wire.Message{}, c.recv())
		must.NoError(t, c.send(wire.Message{Type: wire.Holds, Device: 2, Bytes: mib}))
		time.Sleep(victimInterval)
		c.stop()
		time.Sleep(moves.takes)
	})
}

// Nor is it parked if a process has lost its connection since.
func TestPark_inFlightSince(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		c, c2, a := b.process(1, "c"), b.process(2, "c"), b.process(3, "a")
		c.take(400 * mib)
		c2.take(200 * mib)
		must.Eq(t, wire.Message{}, a.want(500*mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		c.stop()
		c.disconnected(c.s, nil)
		c2.stop()
		synctest.Wait()
		must.Eq(t, wire.Resume, c2.recv().Type)
		must.SliceEmpty(t, moves.calls)
		must.NoError(t, b.Stats()[1].ParkError, must.Sprint("no failure: it is tried again"))
	})
}

// A failed park does not count against deadlines. A successful one does not either, for requests
// made during it.
func TestPark_deadlines(t *testing.T) {
	for _, fails := range []bool{true, false} {
		o := options()
		moves := newFakeEvictor()
		moves.takes = time.Minute
		if fails {
			moves.park = func() error { return errors.New("no room in the host's memory") }
		}
		o.Evictor = moves
		on(t, o, func(b *bench) {
			a, c := b.process(1, "a"), b.process(2, "b")
			a.take(300 * mib)
			c.take(700 * mib)
			must.Eq(t, wire.Message{}, a.want(100*mib, time.Hour))
			time.Sleep(b.opts.Rules.Idle)
			c.stop()
			time.Sleep(moves.takes - 20*time.Second)
			must.Eq(t, wire.Message{}, c.want(200*mib, 15*time.Second))
			time.Sleep(20 * time.Second)
			synctest.Wait()
			if !fails {
				must.Eq(t, wire.Grant, a.recv().Type)
				close(a.life.over)
				time.Sleep(moves.takes)
				synctest.Wait()
				must.Eq(t, wire.Resume, c.recv().Type)
				must.Eq(t, wire.Grant, c.recv().Type)
				return
			}
			must.Eq(t, wire.Resume, c.recv().Type)
			time.Sleep(14 * time.Second)
			synctest.Wait()
			must.Eq(t, wire.Message{}, c.recv())
			time.Sleep(time.Second)
			synctest.Wait()
			must.Eq(t, wire.TooLong, denial(c.recv()))
		})
	}
}

// A container with the name of one that was about to be parked is not paused for it.
func TestPark_replaced(t *testing.T) {
	o := options()
	o.Evictor = newFakeEvictor()
	on(t, o, func(b *bench) {
		a := b.process(1, "a")
		again := b.connect(2, "a")
		b.mu.Lock()
		b.park(time.Now(), b.containers["a"], b.containers["a"].Container)
		b.removeProcess(a.s.process)
		must.NoError(t, b.Gate.hello(time.Now(), again.s, wire.Message{Seq: 1, Arg: wire.Version}))
		b.mu.Unlock()
		synctest.Wait()
		must.Eq(t, wire.Welcome, again.recv().Type)
		must.Eq(t, wire.Message{}, again.recv())
		must.False(t, b.Stats()[0].Paused)
	})
}

func TestPause_joinsLate(t *testing.T) {
	on(t, options(), func(b *bench) {
		a := b.process(1, "a")
		done := make(chan error, 1)
		go func() { done <- b.pauseFor(b.Context(), "a", pauseTurn) }()
		a.stop()
		must.NoError(t, <-done)
		late := b.connect(2, "a")
		must.Eq(t, wire.Welcome, late.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
		go func() { done <- b.pauseFor(b.Context(), "a", pausePark) }()
		synctest.Wait()
		must.SliceEmpty(t, drained(done), must.Sprint("it has not stopped"))
		late.stop()
		must.NoError(t, <-done)
	})
}

func drained(c chan error) (out []error) {
	for {
		select {
		case err := <-c:
			out = append(out, err)
		default:
			return out
		}
	}
}

// Holdings that a process reports only after the park has begun were not parked, and stay in the
// ledger.
func TestPark_newProcess(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		c.take(600 * mib)
		must.Eq(t, wire.Message{}, a.want(500*mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		c.stop()
		synctest.Wait()
		late := b.connect(3, "b")
		must.Eq(t, wire.Welcome, late.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
		must.Eq(t, wire.Pause, late.recv().Type)
		late.attach(uuid0)
		must.NoError(t, late.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 300 * mib}))
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, ledger.Entry{Parked: 600 * mib, Committed: 800 * mib}, b.held())
		must.NoError(t, c.send(wire.Message{Type: wire.Active}))
		close(a.life.over)
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, ledger.Entry{Committed: 900 * mib}, b.held())
		must.Eq(t, wire.Resume, c.recv().Type)
	})
}

func TestPark_twoRestores(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c, d := b.process(1, "a"), b.process(2, "c"), b.process(3, "d")
		a.take(100 * mib)
		c.take(100 * mib)
		b.mu.Lock()
		for _, id := range []ledger.ContainerID{"a", "c"} {
			b.containers[id].memory.Begin(time.Now(), identify.Container{}, false)
			b.startRestore(b.containers[id])
		}
		b.mu.Unlock()
		synctest.Wait()
		must.Eq(t, wire.Message{}, d.want(mib, time.Hour))
		parked := func() (n int) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, c := range b.containers {
				if c.memory.InRound() {
					n++
				}
			}
			return n
		}
		must.Eq(t, 2, parked())
		time.Sleep(moves.takes + time.Millisecond)
		synctest.Wait()
		must.Eq(t, 1, parked())
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, 0, parked())
		must.Eq(t, wire.Grant, d.recv().Type)
	})
}

func again(t *testing.T, o Options, lives map[int]*life) *bench {
	t.Helper()
	o.Open = func(pid int, _ uint64) (Life, error) {
		if l, ok := lives[pid]; ok {
			return &life{over: l.over, closed: make(chan struct{})}, nil
		}
		return nil, identify.ErrGone
	}
	g, err := New(o)
	must.NoError(t, err)
	return &bench{t, g}
}

// After a restart all processes of a parked container are restored, including those that hold
// nothing by the ledger.
func TestPark_restartAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		moves := newFakeEvictor()
		o.Evictor = moves
		o.State = filepath.Join(t.TempDir(), "state")
		b := again(t, o, nil)
		a, c, c2 := b.process(1, "a"), b.process(2, "b"), b.process(3, "b")
		c.take(600 * mib)
		parkOne(b, moves, a, 500*mib, c, c2)
		must.True(t, moves.has(3))
		b.Close()
		close(a.life.over)
		b = again(t, o, map[int]*life{2: c.life, 3: c2.life})
		defer b.Close()
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, "restore [2 3]", moves.calls[len(moves.calls)-1])
	})
}

// After a restart with a smaller capacity as much as possible is restored, and the gate does not
// loop.
func TestPark_restartSmaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		moves := newFakeEvictor()
		o.Evictor = moves
		o.State = filepath.Join(t.TempDir(), "state")
		b := again(t, o, nil)
		a, c, c2 := b.process(1, "a"), b.process(2, "b"), b.process(3, "b")
		c.take(600 * mib)
		c2.take(350 * mib)
		parkOne(b, moves, a, 500*mib, c, c2)
		b.Close()
		close(a.life.over)
		o.Cards[0].Reserve = 100 * mib
		b = again(t, o, map[int]*life{2: c.life, 3: c2.life})
		defer b.Close()
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, "restore [2 3]", moves.calls[len(moves.calls)-1])
		must.Eq(t, 900*mib, b.held().CardUsage())
		must.False(t, b.Stats()[0].Parked)
	})
}

// After a restart a container that was being parked keeps its room until it is restored: its
// state is unknown.
func TestPark_restartUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		moves := newFakeEvictor()
		o.Evictor = moves
		o.State = filepath.Join(t.TempDir(), "state")
		b := again(t, o, nil)
		a, c := b.process(1, "a"), b.process(2, "b")
		c.take(600 * mib)
		must.Eq(t, wire.Message{}, a.want(500*mib, time.Hour))
		time.Sleep(b.opts.Rules.Idle + time.Second)
		c.stop()
		synctest.Wait()
		b.Close()
		time.Sleep(2 * moves.takes)
		close(a.life.over)
		moves.restore = func() error { return errors.New("CUDA does not answer") }
		b = again(t, o, map[int]*life{2: c.life})
		defer b.Close()
		back := b.connect(2, "b")
		must.Eq(t, wire.Welcome, back.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
		back.attach(uuid0)
		back.recv()
		must.NoError(t, back.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 600 * mib}))
		time.Sleep(moves.takes + time.Millisecond)
		synctest.Wait()
		must.Eq(t, ledger.Entry{Committed: 600 * mib}, b.held())
		moves.mu.Lock()
		moves.restore = nil
		moves.mu.Unlock()
		time.Sleep(retryRestore + moves.takes)
		synctest.Wait()
		must.False(t, moves.has(2))
		must.Eq(t, ledger.Entry{Committed: 600 * mib}, b.held())
		must.Eq(t, wire.Resume, back.recv().Type)
	})
}

func TestPark_closed(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		c.take(600 * mib)
		parkOne(b, moves, a, 500*mib, c)
		must.NoError(t, c.send(wire.Message{Type: wire.Return, Device: 1, Bytes: 600 * mib}))
		b.Close()
		time.Sleep(time.Hour)
		synctest.Wait()
		must.Eq(t, []string{"park [2]"}, moves.calls)
	})
}

type job struct {
	*testClient
	need, step uint64
	each       time.Duration
	among      func() int // that share the card; nil: one
	computes   atomic.Bool
	done       atomic.Int64 // steps

	mu      sync.Mutex
	changed *sync.Cond
	paused  bool
	answers []wire.Message
}

// run returns how many requests were denied.
func (j *job) run(moves *fakeEvictor, steps int) (denied int) {
	j.changed = sync.NewCond(&j.mu)
	go func() {
		for {
			select {
			case m := <-j.s.out:
				j.mu.Lock()
				switch m.Type {
				case wire.Pause, wire.Resume:
					j.paused = m.Type == wire.Pause
				case wire.Grant, wire.Denied:
					j.answers = append(j.answers, m)
				}
				j.changed.Broadcast()
				j.mu.Unlock()
				if m.Type == wire.Pause {
					if err := j.send(wire.Message{Type: wire.Paused}); !errors.Is(err, errSessionOver) {
						must.NoError(j, err)
					}
				}
			case <-j.life.over:
				return
			}
		}
	}()
	pid := j.s.proc.PID
	wait := func(ok func() bool) {
		j.mu.Lock()
		defer j.mu.Unlock()
		for !ok() {
			j.changed.Wait()
		}
	}
	for held := uint64(0); held < j.need; held += j.step {
		j.seq++
		must.NoError(j, j.send(wire.Message{Type: wire.Request, Seq: j.seq, Device: 1, Bytes: j.step, Arg: 3600_000}))
		wait(func() bool { return len(j.answers) > 0 })
		if j.answers[0].Type == wire.Grant {
			wait(func() bool { return !j.paused })
		} else {
			denied++
		}
		j.answers = nil
		time.Sleep(j.each)
	}
	for range steps {
		wait(func() bool { return !j.paused })
		must.False(j, moves.has(pid), must.Sprint("it runs while its memory is parked"))
		must.NoError(j, j.send(wire.Message{Type: wire.Active}))
		j.computes.Store(true)
		took := j.each
		if j.among != nil {
			took *= time.Duration(j.among())
		}
		time.Sleep(took)
		j.done.Add(1)
		j.computes.Store(false)
	}
	close(j.life.over)
	return denied
}

// The paper's experiment: of N equal jobs four fit. All finish without a denial, in little more
// than the minimum time.
func TestPark_many(t *testing.T) {
	for _, n := range []int{4, 5, 7, 20} {
		o := options()
		moves := newFakeEvictor()
		o.Evictor = moves
		o.Soft = true
		on(t, o, func(b *bench) {
			begun := time.Now()
			var all sync.WaitGroup
			random := rand.New(rand.NewPCG(1, uint64(n)))
			for i := range n {
				j := &job{testClient: b.process(i+1, fmt.Sprint("c", i)), need: 240 * mib, step: 60 * mib, each: time.Second}
				all.Go(func() { must.Zero(t, j.run(moves, 300)) })
				time.Sleep(time.Duration(random.IntN(3)) * time.Second)
			}
			all.Wait()
			synctest.Wait()
			must.Eq(t, ledger.Entry{}, b.held())
			batches := (n + 3) / 4
			took := time.Since(begun)
			t.Logf("%d jobs: %v, %d moves", n, took, len(moves.calls))
			must.Less(t, time.Duration(batches)*330*time.Second*13/10, took)
		})
	}
}

// Any job that fits an empty card finishes without a denial.
func TestPark_random(t *testing.T) {
	for seed := range uint64(20) {
		o := options()
		moves := newFakeEvictor()
		o.Evictor = moves
		o.Soft = true
		on(t, o, func(b *bench) {
			random := rand.New(rand.NewPCG(seed, 2))
			var all sync.WaitGroup
			for i := range 3 + random.IntN(10) {
				name := fmt.Sprint("c", i)
				j := &job{
					testClient: b.process(i+1, name), each: time.Duration(1+random.IntN(20)) * time.Second,
					need: uint64(1+random.IntN(10)) * 100 * mib, step: 100 * mib,
				}
				b.mu.Lock()
				b.containers[ledger.ContainerID(name)].priority = 1 + random.IntN(100)
				must.NoError(t, b.setShare(b.containers[ledger.ContainerID(name)], card0, uint64(random.IntN(10))*100*mib))
				b.mu.Unlock()
				steps := random.IntN(60)
				all.Go(func() { must.Zero(t, j.run(moves, steps)) })
				time.Sleep(time.Duration(random.IntN(30)) * time.Second)
			}
			all.Wait()
			synctest.Wait()
			must.Eq(t, ledger.Entry{}, b.held())
		})
	}
}

func TestPark_pinned(t *testing.T) {
	for reason := uint64(wire.PinnedManaged); reason <= wire.PinnedMulticast; reason++ {
		o := options()
		o.Evictor = newFakeEvictor()
		on(t, o, func(b *bench) {
			a := b.process(1, "a")
			a.take(100 * mib)
			must.NoError(t, b.Stats()[0].ParkError)
			must.NoError(t, a.send(wire.Message{Type: wire.Pinned, Arg: reason}))
			must.EqError(t, b.Stats()[0].ParkError, wire.WhyPinned(reason))
			b.opts.RestoreOnly = true
			must.NoError(t, b.Stats()[0].ParkError)
		})
	}
}

// A soft share is reported to a container but not enforced.
func TestGate_soft(t *testing.T) {
	o := options()
	o.Soft = true
	on(t, o, func(b *bench) {
		a := b.process(1, "a")
		must.NoError(t, b.SetShare("a", card0, 300*mib))
		must.Eq(t, wire.Message{Type: wire.Share, Device: 1, Bytes: 300 * mib}, a.recv())
		must.Eq(t, 300*mib, a.ask(wire.Message{Type: wire.Info, Device: 1}).Bytes)
		a.take(900 * mib)
		must.Eq(t, wire.NoMemory, denial(a.want(1001*mib, time.Hour)), must.Sprint("more than the card has"))
		must.ErrorIs(t, b.SetShare("a", "GPU-none", 1), ErrUnknown)
	})
	// For one that cannot be parked it is: what it borrowed could not be reclaimed.
	on(t, o, func(b *bench) {
		a := b.process(1, "a")
		must.NoError(t, b.SetShare("a", card0, 300*mib))
		a.recv()
		a.take(200 * mib)
		must.NoError(t, a.send(wire.Message{Type: wire.Pinned, Arg: wire.PinnedManaged}))
		a.take(100 * mib)
		must.Eq(t, wire.NoMemory, denial(a.want(1, time.Hour)))
	})
	s := new(shares)
	o.Shares = s
	on(t, o, func(b *bench) {
		s.gate = b.Gate
		a := b.process(1, "a")
		a.take(600 * mib)
		must.Eq(t, wire.NoMemory, denial(a.want(1, time.Hour)))
		must.Eq(t, 500*mib, a.ask(wire.Message{Type: wire.Info, Device: 1}).Bytes)
	})
}
