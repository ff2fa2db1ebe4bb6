// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/wire"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/driver/turns"
	"github.com/ebbtide/ebbtide/driver/twin"
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

// The driver's turns and the gate's parking together, on jobs that come at random, with memory and work at
// random, a fifth of them of unknown length. All end, none is denied memory; none whose length is known
// ends later than with its fair share of the card, but for the moves, a decision a job, and two turns for
// each of unknown length, which keeps its memory for one; and the card is idle only while memory moves, or
// until the next decision.
func TestTurns_search(t *testing.T) {
	type trained struct {
		job
		policy.Task
		work       int // steps of a second
		known      bool
		end, wants time.Duration // since the beginning; wants: its twin's
	}
	for seed := range uint64(60) {
		o := options()
		moves := newFakeEvictor()
		o.Evictor, o.Soft = moves, true
		on(t, o, func(b *bench) {
			random := rand.New(rand.NewPCG(seed, 3))
			begun := time.Now()
			var jobs []*trained
			var all sync.WaitGroup
			var mu sync.Mutex // of jobs
			computing := func() (n int) {
				mu.Lock()
				defer mu.Unlock()
				for _, j := range jobs {
					if j.computes.Load() {
						n++
					}
				}
				return max(n, 1)
			}
			count := 3 + random.IntN(6)
			arrive := make([]int, count) // seconds
			for i := range arrive {
				arrive[i] = random.IntN(90)
			}
			slices.Sort(arrive)
			yields := make(map[string]bool)
			decided, idle, last, ended := 0, 0, begun, 0
			decide := func() {
				now := time.Now()
				var tasks []turns.Task
				var twins []policy.Task
				for _, j := range jobs {
					j.CPUS = policy.CPUSeconds(j.done.Load())
					left := max(policy.CPUSeconds(j.work)-j.CPUS, 0.01)
					if j.Ended = j.end > 0; j.Ended {
						left = 0
					}
					if j.known || j.Ended {
						j.RemainingCPUS = &left
					}
					twins = append(twins, j.Task)
				}
				twin.Advance(twins, 1, now.Sub(last).Seconds())
				for i, j := range jobs {
					j.FairCPUS = twins[i].FairCPUS
					if j.wants == 0 && float64(j.FairCPUS) > float64(j.work)-1e-6 {
						j.wants = now.Sub(begun)
					}
					if !j.Ended || twin.Left(j.Task) > 0 {
						tasks = append(tasks, turns.Task{Task: j.Task})
					}
				}
				last = now
				clear(yields)
				for i, y := range turns.Decide(10, fsp.Completion, tasks) {
					yields[tasks[i].ID] = y
				}
				decided++
			}
			for second := 0; second < 90 || ended < len(jobs) || slices.ContainsFunc(jobs, func(j *trained) bool { return j.wants == 0 }); second++ {
				must.Less(t, 3600, second, must.Sprint("seed ", seed, ": they do not end"))
				changed := second%10 == 0
				for len(jobs) < count && arrive[len(jobs)] <= second {
					i := len(jobs)
					j := &trained{work: 20 + random.IntN(100), known: random.IntN(5) > 0}
					j.Task = policy.Task{ID: fmt.Sprint("c", i), Kind: policy.Training, Entitlement: 1, CapCores: 1}
					j.testClient, j.each, j.among = b.process(i+1, j.ID), time.Second, computing
					j.need = uint64(1+random.IntN(9)) * 100 * mib
					j.step = j.need
					mu.Lock()
					jobs = append(jobs, j)
					mu.Unlock()
					all.Go(func() { must.Zero(t, j.run(moves, j.work), must.Sprint("denied, seed ", seed)) })
					changed = true
				}
				for _, j := range jobs {
					if j.end == 0 && j.done.Load() == int64(j.work) {
						j.end = time.Since(begun)
						ended++
						changed = true
					}
				}
				if changed {
					decide()
				}
				b.SetTurns(func(c identify.Container) bool { return yields[c.ID] })
				time.Sleep(time.Second)
				if ended < len(jobs) && !slices.ContainsFunc(jobs, func(j *trained) bool { return j.computes.Load() }) {
					idle++
				}
			}
			all.Wait()
			late, most := time.Duration(0), time.Duration(len(moves.calls)+10*len(jobs))*time.Second
			for _, j := range jobs {
				if j.known {
					late = max(late, j.end-j.wants)
				} else {
					most += 2 * o.Rules.Turn
				}
			}
			t.Logf("seed %d: %d jobs, %d moves, idle %d s, the latest %v after its fair share", seed, len(jobs), len(moves.calls), idle, late)
			must.LessEq(t, len(moves.calls)+2*decided, idle, must.Sprint("seconds without work, seed ", seed))
			must.LessEq(t, most, late, must.Sprint("seed ", seed))
		})
	}
}
