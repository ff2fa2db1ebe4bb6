// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

type fakeCard struct {
	free  uint64
	by    map[int]uint64
	err   error
	takes time.Duration
}

func (s *fakeCard) options() Options {
	o := options()
	o.Measure = func(card ledger.CardID) (Measured, error) {
		if card != card0 {
			return Measured{Free: 1000 * mib}, nil
		}
		time.Sleep(s.takes)
		return Measured{Free: s.free, By: s.by}, s.err
	}
	return o
}

func TestMeasure_overhead(t *testing.T) {
	s := &fakeCard{free: 840 * mib, by: map[int]uint64{1: 160 * mib}}
	on(t, s.options(), func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(100 * mib)
		c.take(50 * mib) // and has not used it
		m, err := b.measure(card0)
		must.NoError(t, err)
		must.Eq(t, []uint64{840 * mib, 0}, []uint64{m.free, m.untaken}, must.Sprint("NVML tells nothing of the second one"))
		must.Eq(t, ledger.Entry{Committed: 150 * mib, Overhead: 60 * mib}, b.held())
		must.Eq(t, 60*mib, b.ledger.Container("a", card0).Overhead)
		s.by[2] = 20 * mib
		s.by[1] = 90 * mib
		m, err = b.measure(card0)
		must.NoError(t, err)
		must.Eq(t, []uint64{840 * mib, 40 * mib}, []uint64{m.free, m.untaken})
		must.Zero(t, b.held().Overhead)
	})
}

// Memory of an unknown process counts when measured twice, or at once if the driver has refused a
// grant.
func TestMeasure_outside(t *testing.T) {
	s := &fakeCard{free: 600 * mib, by: map[int]uint64{1: 100 * mib}}
	on(t, s.options(), func(b *bench) {
		a := b.process(1, "a")
		a.take(100 * mib)
		for i, want := range []uint64{0, 300 * mib} {
			_, err := b.measure(card0)
			must.NoError(t, err)
			must.Eq(t, want, b.ledger.Outside(card0), must.Sprint(i))
		}
		must.Eq(t, 600*mib, b.ledger.Free(card0))

		s.free = 500 * mib
		a.take(300 * mib) // by the ledger
		a.giveBack(300 * mib)
		time.Sleep(time.Second)
		must.NoError(t, a.send(wire.Message{Type: wire.Full, Device: 1}))
		must.Eq(t, wire.Message{}, a.want(600*mib, time.Minute))
		_, err := b.measure(card0)
		must.NoError(t, err)
		must.Eq(t, 400*mib, b.ledger.Outside(card0))
		must.Eq(t, wire.Message{}, a.recv(), must.Sprint("it waits for the 500 MiB that are free"))
		s.free = 600 * mib
		_, err = b.measure(card0)
		must.NoError(t, err)
		must.Eq(t, wire.Grant, a.recv().Type)
		a.giveBack(600 * mib)

		time.Sleep(time.Second)
		must.NoError(t, a.send(wire.Message{Type: wire.Full, Device: 1}))
		must.Eq(t, wire.Message{}, a.want(mib, time.Minute))
		s.err = errors.New("NVML does not answer")
		_, err = b.measure(card0)
		must.ErrorIs(t, err, s.err)
		must.Eq(t, wire.Grant, a.recv().Type)
	})
}

// parked parks a container of process 1. The gate is locked.
func (b *bench) parked(id ledger.ContainerID) *container {
	c := b.containers[id]
	b.pause(time.Now(), c, pausePark)
	c.memory.Begin(time.Now(), identify.Container{}, false)
	c.memory.Moved = []ledger.ProcessID{{PID: 1, Start: 1}}
	b.parkDone(time.Now(), c, nil, 0)
	b.answer(time.Now())
	return c
}

// A restore needs room on the card and a margin; meanwhile other requests are granted.
func TestMeasure_restore(t *testing.T) {
	s := &fakeCard{free: 1000 * mib}
	o := s.options()
	o.Cards[0].Reserve = 50 * mib
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(600 * mib)
		b.mu.Lock()
		s.free = 610 * mib // less than 600 and a fiftieth of the card
		proc := b.parked("a")
		b.mu.Unlock()
		synctest.Wait()
		c.take(100 * mib)
		s.free = 525 * mib
		c.giveBack(100 * mib)
		time.Sleep(time.Minute)
		synctest.Wait()
		must.SliceEmpty(t, moves.calls)
		s.free = 660 * mib
		for range 2 {
			_, err := b.measure(card0)
			must.NoError(t, err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		must.Eq(t, []string{"restore [1]"}, moves.calls)
		must.False(t, proc.memory.InRound())
	})
}

// A restore fails half done while a measurement that began before is in progress: what it sees of
// the container counts, although the ledger no longer does.
func TestMeasure_restoreFailsMeanwhile(t *testing.T) {
	s := &fakeCard{free: 1000 * mib}
	o := s.options()
	moves := newFakeEvictor()
	o.Evictor = moves
	moves.restore = func() error { return errors.New("CUDA does not answer") }
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(600 * mib)
		b.mu.Lock()
		b.parked("a")
		b.mu.Unlock()
		synctest.Wait() // the restore has begun
		s.free, s.by, s.takes = 400*mib, map[int]uint64{1: 600 * mib}, 2*moves.takes
		_, err := b.measure(card0)
		must.NoError(t, err)
		must.Eq(t, []string{"restore [1]"}, moves.calls)
		must.Eq(t, 600*mib, b.ledger.Outside(card0))
		must.Eq(t, wire.Message{}, c.want(500*mib, time.Minute))
	})
}

// While NVML hangs, a container that waits for its restore stops no grants, and room is not kept
// as if the restore had been tried.
func TestMeasure_restoreHangs(t *testing.T) {
	var hangs atomic.Bool
	hangs.Store(true)
	o := options()
	o.Measure = func(ledger.CardID) (Measured, error) {
		if hangs.Load() {
			time.Sleep(10 * time.Second)
			return Measured{}, errors.New("NVML does not answer")
		}
		return Measured{Free: 1000 * mib}, nil
	}
	moves := newFakeEvictor()
	o.Evictor = moves
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(600 * mib)
		b.mu.Lock()
		parked := b.parked("a")
		b.mu.Unlock()
		for range 60 {
			time.Sleep(time.Second)
			c.take(mib)
		}
		must.SliceEmpty(t, moves.calls)
		b.mu.Lock()
		unsure := parked.memory.Unsure
		b.mu.Unlock()
		must.False(t, unsure)
		hangs.Store(false)
		time.Sleep(10*time.Second + retryRestore + moves.takes)
		synctest.Wait()
		must.Eq(t, []string{"restore [1]"}, moves.calls)
	})
}
