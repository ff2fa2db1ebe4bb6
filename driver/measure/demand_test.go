// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package measure

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
)

func TestObserver_demand(t *testing.T) {
	in(t, func(t *testing.T) {
		now, reads := make(limits.Threads), 0
		k := observe(t, Config{Resume: Resume{Demand: Demand{Most: 1.5}}, Threads: func() limits.Threads {
			reads++
			out := make(limits.Threads, len(now))
			for id, thread := range now {
				out[id] = thread
			}
			return out
		}})
		must.Eq(t, Demand{Most: 1.5}, k.Latest().Demand)
		pass := func(seconds int, threads ...limits.Thread) Demand {
			for range seconds {
				k.set(func() {
					for id, thread := range threads {
						was := now[id]
						now[id] = limits.Thread{Run: was.Run + thread.Run, Wait: was.Wait + thread.Wait}
						k.cpu += thread.Run.Seconds()
					}
				})
				time.Sleep(time.Second)
			}
			return k.Latest().Demand
		}
		of := func(run, wait time.Duration) limits.Thread {
			return limits.Thread{Run: run * time.Millisecond, Wait: wait * time.Millisecond}
		}
		// A fifth of the time it runs, two fifths it waits for a CPU: alone it would run for a third.
		d := pass(10, of(200, 400))
		must.InDelta(t, 1.0/3, float64(d.Least), 0.05)
		must.InDelta(t, 1.5*demandDecay*demandDecay, float64(d.Most), 1e-9, must.Sprint("it may have phases"))
		d = pass(80, of(200, 400))
		must.InDelta(t, 1.0/3, float64(d.Least), 0.01)
		must.InDelta(t, 1.0/3, float64(d.Most), 0.01)
		// Threads that wait for each other seem to need less once they get less.
		d = pass(20, of(1000, 0), of(1000, 0))
		must.Eq(t, Demand{2, 2}, d)
		d = pass(20, of(100, 300), of(100, 300))
		must.Greater(t, 1, d.Least)
		must.Eq(t, policy.Cores(0.05), pass(500, of(0, 0)).Least)
		must.LessEq(t, 630/5+2, reads)
	})
}
