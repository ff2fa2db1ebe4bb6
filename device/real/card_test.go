// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/peer"
	"github.com/ebbtide/ebbtide/device/rig"
)

// The card as the plugin tells Nomad of it.
func TestFingerprint(t *testing.T) {
	c := site.card
	must.StrHasPrefix(t, "GPU-", c.UUID)
	must.NotEq(t, "", c.Name)
	must.NotEq(t, "", c.Driver)
	must.RegexMatch(t, pciAddress, c.PCIBusID)
	must.Eq(t, "", c.Unhealthy)
	u, err := site.library.Usage(c.UUID)
	must.NoError(t, err)
	must.Between(t, c.Memory-c.Memory/20, u.Used+u.Free, c.Memory)
	seen := usage(t, within(t, time.Minute))
	must.Eq(t, c.Memory, seen.Total)
}

// However a program finds the driver, its memory is on the gate's books, and the limit is what it
// sees.
func TestResolve(t *testing.T) {
	const limit, piece, pieces = 3 * gib, 16 * mib, 4
	for _, how := range []string{"linked", "dlsym", "next", "procaddress"} {
		for _, kind := range []string{"sync", "async", "vmm"} {
			t.Run(how+"/"+kind, func(t *testing.T) {
				ctx := within(t, time.Minute)
				g := open(t, budget, limit)
				p := start(t, ctx, rig.Job{Container: "one", Gate: g, Args: []string{
					"--resolve", how, "--alloc", kind, "--steps", strconv.Itoa(pieces), "--bytes", strconv.Itoa(piece), "--windows", "4", "--count", "1", "--hold-ms", "-1",
				}})
				var l rig.Line
				for range pieces {
					l = next(t, ctx, p, "step")
					must.Eq(t, limit, l.Int("memory"))
				}
				next(t, ctx, p, "round")
				must.LessEq(t, int64(limit-pieces*piece), l.Int("free"))
				must.GreaterEq(t, uint64(pieces*piece), held(t, g, "one"))
				must.LessEq(t, limit, held(t, g, "one"))
				p.Release()
				next(t, ctx, p, "done")
				must.NoError(t, p.Wait()) // its memory held what was computed
			})
		}
	}
}

// A greedy job gets its limit, by NVML, context included, and no more.
func TestAccuracy(t *testing.T) {
	const limit = 3 * gib
	for _, kind := range []string{"sync", "async", "vmm", "array"} {
		t.Run(kind, func(t *testing.T) {
			ctx := within(t, time.Minute)
			g := open(t, budget, limit)
			before := usage(t, ctx)
			p := start(t, ctx, rig.Job{Container: "greedy", Gate: g, Env: []string{"EBBTIDE_GATE_WAIT_MS=10"}, Args: []string{
				"--mode", "fill", "--alloc", kind, "--bytes", strconv.Itoa(64 * mib), "--least", strconv.Itoa(2 * mib), "--hold-ms", "-1",
			}})
			l := next(t, ctx, p, "code")
			must.Eq(t, 2, l.Int("code"))
			must.Eq(t, limit, l.Int("memory"))
			got := onCard(t, ctx, before, p)
			part := float64(got) / limit
			record("accuracy", map[string]any{"kind": kind, "limit_mib": limit / mib, "card_mib": float64(got) / mib, "percent": 100 * part})
			must.Between(t, 0.99, part, 1)
			p.Release()
			must.NoError(t, p.Wait())
		})
	}
}

func TestThreads(t *testing.T) {
	ctx := within(t, time.Minute)
	g := open(t, budget, 4*gib)
	p := start(t, ctx, rig.Job{Container: "threads", Gate: g, Args: []string{
		"--threads", "8", "--steps", "10", "--bytes", strconv.Itoa(4 * mib), "--windows", "2", "--alloc", "sync",
	}})
	next(t, ctx, p, "done")
	must.NoError(t, p.Wait())
}

// During a pause nothing of a job moves, and afterwards it goes on as if nothing had been.
func TestPause(t *testing.T) {
	ctx := within(t, time.Minute)
	g := open(t, budget, 4*gib)
	p := start(t, ctx, rig.Job{Container: "paused", Gate: g, Args: []string{
		"--steps", "2", "--bytes", strconv.Itoa(16 * mib), "--count", "150", "--pause-ms", "10", "--windows", "4",
	}})
	next(t, ctx, p, "round")
	for range 3 {
		begun := time.Now()
		must.NoError(t, g.Pause(ctx, "paused", "a test"))
		record("pause", map[string]any{"ms": time.Since(begun).Seconds() * 1000})
		// At most the line of a round that was done is on its way.
		time.Sleep(100 * time.Millisecond)
		p.Forget()
		still, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err := p.Next(still, "round")
		cancel()
		must.ErrorIs(t, err, context.DeadlineExceeded, must.Sprint("a round during the pause"))
		must.NoError(t, g.Resume("paused", "a test"))
		next(t, ctx, p, "round")
	}
	next(t, ctx, p, "done")
	must.NoError(t, p.Wait())
}

// What is moved to host memory and back holds what it held.
func TestPark(t *testing.T) {
	ctx := within(t, 3*time.Minute)
	parker, end, err := site.Evictor(ctx, site.card.UUID, site.card.Driver)
	if errors.Is(err, driver.ErrUnsupported) {
		t.Skip(err)
	}
	must.NoError(t, err)
	defer end()
	const data = 2 * gib
	g := open(t, budget, 4*gib)
	before := usage(t, ctx)
	p := start(t, ctx, rig.Job{Container: "parked", Gate: g, Args: []string{
		"--steps", "4", "--bytes", strconv.Itoa(data / 4), "--count", "200", "--pause-ms", "10", "--windows", "16", "--hold-ms", "-1",
	}})
	for range 3 {
		next(t, ctx, p, "round")
		start, err := peer.Finder{}.Start(p.PID)
		must.NoError(t, err)
		who := []ledger.ProcessID{{PID: p.PID, Start: start}}
		full := onCard(t, ctx, before, p)
		must.NoError(t, g.Pause(ctx, "parked", "a test"))
		begun := time.Now()
		_, err = parker.Park(ctx, who)
		must.NoError(t, err)
		away := time.Since(begun)
		must.GreaterEq(t, uint64(data), full-onCard(t, ctx, before, p), must.Sprint("what came free"))
		begun = time.Now()
		must.NoError(t, parker.Restore(ctx, who))
		record("park", map[string]any{"mib": full / mib, "park_s": away.Seconds(), "return_s": time.Since(begun).Seconds()})
		must.NoError(t, g.Resume("parked", "a test"))
	}
	p.Release()
	next(t, ctx, p, "done")
	must.NoError(t, p.Wait())
}

// Jobs that want twice what there is: all end well, and there is never more on the card than
// there may be.
func TestOversubscribed(t *testing.T) {
	const jobs = 5
	ctx := within(t, 2*time.Minute)
	g := open(t, budget, budget)
	before := usage(t, ctx)
	data := (budget - jobs*site.Context()) / 2 / (16 * mib) * (16 * mib) // two fit, and the contexts of all
	begun := time.Now()
	var all []*rig.Process
	for i := range jobs {
		all = append(all, start(t, ctx, rig.Job{
			Container: fmt.Sprintf("job%d", i), Gate: g, Env: []string{"EBBTIDE_GATE_WAIT_MS=120000"},
			Args: []string{"--steps", "1", "--bytes", strconv.FormatUint(data, 10), "--windows", "8", "--count", "30", "--pause-ms", "20", "--seed", strconv.Itoa(i)},
		}))
	}
	var most uint64
	var wait sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	wait.Go(func() {
		for watching.Err() == nil {
			if u, err := site.Usage(watching); err == nil && u.Used > before.Used {
				most = max(most, u.Used-before.Used)
			}
		}
	})
	for _, p := range all {
		must.NoError(t, p.Wait())
		must.Zero(t, p.Exit())
	}
	stop()
	wait.Wait()
	took := time.Since(begun)
	must.LessEq(t, budget, most)
	record("oversubscribed", map[string]any{
		"jobs": jobs, "wanted_times": float64(jobs*(data+site.Context())) / budget, "makespan_s": took.Seconds(), "most_percent": 100 * float64(most) / budget,
	})
}

// What the library costs on this driver. Both ways alternate.
func TestCost(t *testing.T) {
	const rounds = 5
	ctx := within(t, 4*time.Minute)
	one := func(key string, library bool, args ...string) float64 {
		t.Helper()
		j := rig.Job{Container: "cost", Args: args}
		if library {
			j.Gate = open(t, budget, 4*gib)
		}
		p := start(t, ctx, j)
		l := next(t, ctx, p, key)
		must.NoError(t, p.Wait())
		return l.Float(key)
	}
	for _, m := range []struct {
		name, key string
		args      []string
	}{
		{"allocation", "p50", []string{"--mode", "many", "--count", "20000", "--bytes", "4096"}},
		{"launch", "ns", []string{"--mode", "loop", "--count", "20000"}},
		{"loop", "p50", []string{"--mode", "loop", "--count", "2000", "--work", "200000"}},
	} {
		var plain, ours, ratio []float64
		for round := range rounds {
			first := one(m.key, round%2 == 1, m.args...)
			second := one(m.key, round%2 == 0, m.args...)
			if round%2 == 1 {
				first, second = second, first
			}
			plain, ours, ratio = append(plain, first), append(ours, second), append(ratio, second/first)
		}
		slices.Sort(plain)
		slices.Sort(ours)
		slices.Sort(ratio)
		record("cost", map[string]any{"of": m.name, "driver_ns": plain, "library_ns": ours, "ratio": ratio})
		// An order of magnitude: what a lock or a system call in the way would cost.
		must.Less(t, 10*plain[rounds/2]+2000, ours[rounds/2], must.Sprint(strings.Join(m.args, " ")))
	}
}
