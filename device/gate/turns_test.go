// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

func waits(ids ...string) func(identify.Container) bool {
	return func(c identify.Container) bool {
		for _, id := range ids {
			if c.ID == id {
				return true
			}
		}
		return false
	}
}

// A container that yields is paused, and its requests wait, as long as that is repeated.
func TestTurns(t *testing.T) {
	on(t, options(), func(b *bench) {
		a := b.process(1, "a")
		a.take(100 * mib)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Pause, a.recv().Type)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Message{}, a.recv())
		must.Eq(t, []any{true, true, 1}, []any{b.Stats()[0].Yields, b.Stats()[0].Paused, b.Stats()[0].Pauses})
		must.Eq(t, wire.Message{}, a.want(mib, time.Second))
		time.Sleep(time.Minute)
		synctest.Wait()
		must.Eq(t, wire.Message{}, a.recv(), must.Sprint("the wait does not count"))
		b.SetTurns(waits())
		must.Eq(t, wire.Resume, a.recv().Type)
		must.Eq(t, wire.Grant, a.recv().Type)
		must.False(t, b.Stats()[0].Paused)
	})
}

// Several processes may wait for each other, and pinned memory may be another's.
func TestTurns_unheld(t *testing.T) {
	on(t, options(), func(b *bench) {
		a := b.process(1, "a")
		must.Eq(t, "", b.Stats()[0].NoYield)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Pause, a.recv().Type)
		second := b.connect(2, "a")
		second.ask(wire.Message{Type: wire.Hello, Arg: 1})
		must.Eq(t, wire.Pause, second.recv().Type)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Resume, a.recv().Type)
		must.Eq(t, wire.Resume, second.recv().Type)
		must.StrContains(t, b.Stats()[0].NoYield, "several of its processes")
		close(second.life.over)
		synctest.Wait()
		must.NoError(t, a.send(wire.Message{Type: wire.Pinned, Arg: 1}))
		synctest.Wait()
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Message{}, a.recv())
		must.Eq(t, wire.WhyPinned(1), b.Stats()[0].NoYield)
	})
}

// A container that waits for its turn is parked at once for one that runs, and restored once its turn
// comes, not before.
func TestTurns_parked(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "c")
		a.take(600 * mib)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Message{}, c.want(600*mib, time.Hour))
		a.stop()
		time.Sleep(moves.takes)
		synctest.Wait()
		must.Eq(t, wire.Grant, c.recv().Type, must.Sprint("without waiting for the end of a turn"))
		must.NoError(t, a.send(wire.Message{Type: wire.Active}))
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		must.Eq(t, []string{"park [1]"}, moves.calls, must.Sprint("it has no turn"))
		b.SetTurns(waits("c"))
		must.Eq(t, wire.Message{}, a.recv())
		c.stop()
		time.Sleep(2 * moves.takes)
		synctest.Wait()
		must.Eq(t, []string{"park [1]", "park [2]", "restore [1]"}, moves.calls)
		must.Eq(t, wire.Resume, a.recv().Type)
		must.True(t, b.Stats()[1].Parked)
		close(a.life.over)
		time.Sleep(2 * moves.takes)
		synctest.Wait()
		s := b.Stats()[0]
		must.Eq(t, []any{false, true}, []any{s.Parked, s.Yields}, must.Sprint("there is room, but it has no turn"))
		b.SetTurns(waits())
		must.Eq(t, wire.Resume, c.recv().Type)
	})
}

// Nothing waits for memory of one that waits for its turn and cannot be parked.
func TestTurns_blocked(t *testing.T) {
	on(t, options(), func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "c")
		a.take(1000 * mib)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Pause, a.recv().Type)
		must.Eq(t, wire.Message{}, c.want(mib, time.Hour))
		time.Sleep(b.opts.Rules.Settle)
		synctest.Wait()
		must.Eq(t, wire.Resume, a.recv().Type)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Message{}, a.recv(), must.Sprint("not again at once"))
		a.giveBack(mib)
		must.Eq(t, wire.Grant, c.recv().Type)
		time.Sleep(retryYield)
		b.SetTurns(waits("a"))
		must.Eq(t, wire.Pause, a.recv().Type)
	})
}

// Of jobs that need most of the card each, one runs at a time, in the order of the turns: all end, none is
// denied, and the card is idle only while memory moves.
func TestTurns_order(t *testing.T) {
	o := options()
	moves := newFakeEvictor()
	o.Evictor, o.Soft = moves, true
	on(t, o, func(b *bench) {
		const jobs = 6
		var ended [jobs]atomic.Int64
		var all sync.WaitGroup
		begun := time.Now()
		for i := range jobs {
			j := &job{testClient: b.process(i+1, fmt.Sprint("c", i)), need: 840 * mib, step: 120 * mib, each: time.Second}
			all.Go(func() {
				must.Zero(t, j.run(moves, 100))
				ended[i].Store(int64(time.Since(begun)))
			})
			time.Sleep(time.Second)
		}
		for turn := jobs - 1; turn >= 0; { // the last first
			b.SetTurns(func(c identify.Container) bool { return c.ID != fmt.Sprint("c", turn) })
			time.Sleep(time.Second)
			if ended[turn].Load() > 0 {
				turn--
			}
		}
		all.Wait()
		var order []time.Duration
		for i := range ended {
			order = append([]time.Duration{time.Duration(ended[i].Load())}, order...)
		}
		t.Log(order, len(moves.calls), "moves")
		must.True(t, slices.IsSorted(order), must.Sprint(order))
		must.Less(t, jobs*107*time.Second*11/10, order[jobs-1])
	})
}
