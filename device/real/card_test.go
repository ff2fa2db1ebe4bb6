// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/device/real/report"
)

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

func TestPlugin(t *testing.T) {
	dir, err := fake.Beside()
	must.NoError(t, err)
	if dir == "" {
		t.Skip("it is part of the bundle only")
	}
	out, err := exec.CommandContext(within(t, time.Minute), filepath.Join(dir, "ebbtide-gpu"), "-version").CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	must.StrHasPrefix(t, "ebbtide-gpu ", string(out))
}

// However a program finds the driver, its memory is in the gate's ledger, and it sees the limit.
func TestResolve(t *testing.T) {
	const limit, piece, pieces = 3 * gib, 16 * mib, 4
	for _, how := range []string{"linked", "dlsym", "next", "procaddress"} {
		for _, kind := range []string{"sync", "async", "vmm"} {
			t.Run(how+"/"+kind, func(t *testing.T) {
				ctx := within(t, time.Minute)
				g := open(t, budget, limit)
				p := start(t, ctx, gputest.Job{Container: "one", Gate: g, Args: []string{
					"--resolve", how, "--alloc", kind, "--steps", strconv.Itoa(pieces), "--bytes", strconv.Itoa(piece), "--windows", "4", "--count", "1", "--hold-ms", "-1",
				}})
				var l gputest.Line
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

// A greedy job gets its limit, context included, and no more, according to NVML.
func TestAccuracy(t *testing.T) {
	const limit = 3 * gib
	for _, kind := range []string{"sync", "async", "vmm", "array"} {
		t.Run(kind, func(t *testing.T) {
			ctx := within(t, time.Minute)
			g := open(t, budget, limit)
			before := usage(t, ctx)
			p := start(t, ctx, gputest.Job{Container: "greedy", Gate: g, Env: []string{"EBBTIDE_GATE_WAIT_MS=10"}, Args: []string{
				"--mode", "fill", "--alloc", kind, "--bytes", strconv.Itoa(64 * mib), "--least", strconv.Itoa(2 * mib), "--hold-ms", "-1",
			}})
			l := next(t, ctx, p, "code")
			must.Eq(t, 2, l.Int("code"))
			must.Eq(t, limit, l.Int("memory"))
			got := onCard(t, ctx, before, p)
			part := float64(got) / limit
			record(t, report.Measured("accuracy", "what a greedy job has on the card according to NVML, with its context, of its limit of 3 GiB", "%", 100*part).For(kind))
			must.Between(t, 0.99, part, 1)
			p.Release()
			must.NoError(t, p.Wait())
		})
	}
}

func TestThreads(t *testing.T) {
	ctx := within(t, time.Minute)
	g := open(t, budget, 4*gib)
	p := start(t, ctx, gputest.Job{Container: "threads", Gate: g, Args: []string{
		"--threads", "8", "--steps", "10", "--bytes", strconv.Itoa(4 * mib), "--windows", "2", "--alloc", "sync",
	}})
	next(t, ctx, p, "done")
	must.NoError(t, p.Wait())
}

func TestPause(t *testing.T) {
	ctx := within(t, time.Minute)
	g := open(t, budget, 4*gib)
	p := start(t, ctx, gputest.Job{Container: "paused", Gate: g, Args: []string{
		"--steps", "2", "--bytes", strconv.Itoa(16 * mib), "--count", "150", "--pause-ms", "10", "--windows", "4",
	}})
	next(t, ctx, p, "round")
	var took []float64
	for range 3 {
		begun := time.Now()
		must.NoError(t, g.Stop(ctx, "paused"))
		took = append(took, time.Since(begun).Seconds()*1000)
		// At most the line of a finished round is on its way.
		time.Sleep(100 * time.Millisecond)
		p.Forget()
		still, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err := p.Next(still, "round")
		cancel()
		must.ErrorIs(t, err, context.DeadlineExceeded, must.Sprint("a round during the pause"))
		g.Go()
		next(t, ctx, p, "round")
	}
	record(t, report.Measured("pause", "until a job with short kernels has stopped", "ms", took...))
	next(t, ctx, p, "done")
	must.NoError(t, p.Wait())
}
