// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package gputest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/device/gate"
)

const mib = 1 << 20

func TestMain(m *testing.M) {
	Helper(os.Args)
	os.Exit(m.Run())
}

// harness is a fake card of 1 GiB with a gate that measures it and can park.
type harness struct {
	*Harness
	ctx  context.Context
	gate *Gate
}

func newHarness(t *testing.T, c Card, change ...func(*gate.Options)) *harness {
	t.Helper()
	built := t.TempDir()
	if err := Build(built); errors.Is(err, fake.ErrNoCompiler) {
		t.Skip(err)
	} else {
		must.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	c.Memory, c.Context = 1024*mib, max(c.Context, 8*mib)
	b := &harness{Harness: Fake(built, t.TempDir(), c), ctx: ctx}
	_, err := b.Usage(ctx) // makes the card
	must.NoError(t, err)
	evictor, end, err := b.Evictor(ctx, "", "")
	must.NoError(t, err)
	t.Cleanup(end)
	b.gate, err = b.Open("", 1024*mib, func(o *gate.Options) {
		o.Evictor, o.Measure = evictor, b.Measure
		o.Rules.HeadStart, o.Rules.Settle, o.Rules.Idle = 0, 0, 100*time.Millisecond
		o.Report = func(err error) { t.Log(err) }
		for _, f := range change {
			f(o)
		}
	})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, b.gate.Close()) })
	return b
}

// holder starts a job that holds n MiB until it is released.
func (b *harness) holder(t *testing.T, container string, n int, asks bool) *Process {
	t.Helper()
	j := Job{Container: container, Args: []string{"--steps", "1", "--bytes", strconv.Itoa(n * mib), "--hold-ms", "-1"}, Env: []string{"EBBTIDE_GATE_WAIT_MS=60000"}}
	if asks {
		j.Gate = b.gate
	}
	p, err := b.Start(b.ctx, j)
	must.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Kill()
		_ = p.Wait()
	})
	return p
}

func (b *harness) next(t *testing.T, p *Process, key string) {
	t.Helper()
	_, err := p.Next(b.ctx, key)
	must.NoError(t, err)
}

func (b *harness) eventually(t *testing.T, what string, is func() error) {
	t.Helper()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-b.ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func TestLedger_overhead(t *testing.T) {
	b := newHarness(t, Card{Lazy: 60 * mib})
	p := b.holder(t, "lazy", 100, true)
	b.next(t, p, "step")
	b.eventually(t, "the ledger has what the card shows", func() error {
		s, _ := b.gate.Of("lazy")
		if len(s.Usage) != 1 || s.Usage[0].Held.Overhead+s.Usage[0].Held.Committed < 168*mib {
			return fmt.Errorf("%+v", s.Usage)
		}
		return nil
	})
}

// Contexts of the size of a real card's, which grow at the first launch: neither container is
// denied anything, and the parked one's context is on the host too.
func TestLedger_bigContexts(t *testing.T) {
	b := newHarness(t, Card{Context: 400 * mib, Lazy: 60 * mib})
	first := b.holder(t, "first", 100, true)
	b.next(t, first, "step")
	time.Sleep(200 * time.Millisecond) // it is idle
	second := b.holder(t, "second", 300, true)
	b.next(t, second, "step")
	s, _ := b.gate.Of("first")
	must.True(t, s.Parked)
	b.eventually(t, "the card has the second one only", func() error {
		if u, err := b.Usage(b.ctx); err != nil || u.Used != 760*mib {
			return fmt.Errorf("%d MiB are used (%v)", u.Used/mib, err)
		}
		return nil
	})
	for _, p := range []*Process{second, first} {
		p.Release()
		must.NoError(t, p.Wait())
		must.Zero(t, p.Exit())
	}
}

// The driver rounds allocations up: the excess is in the ledger, and a granted allocation does
// not fail.
func TestLedger_rounding(t *testing.T) {
	b := newHarness(t, Card{Block: 64 * mib})
	p, err := b.Start(b.ctx, Job{
		Container: "rounded", Gate: b.gate,
		Args: []string{"--steps", "8", "--bytes", strconv.Itoa(33 * mib), "--count", "1", "--hold-ms", "-1"},
	})
	must.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Kill()
		_ = p.Wait()
	})
	b.eventually(t, "the ledger has whole blocks", func() error {
		s, _ := b.gate.Of("rounded")
		if len(s.Usage) != 1 || s.Usage[0].Held.Committed < 8*33*mib || s.Usage[0].Held.CardUsage() < 8*64*mib {
			return fmt.Errorf("%+v", s.Usage)
		}
		return nil
	})
	other := b.holder(t, "other", 600, true)
	b.next(t, other, "step")
	s, _ := b.gate.Of("rounded")
	must.True(t, s.Parked)
}

// A process without the library holds memory unknown to the ledger: the driver refuses what was
// granted, and room is made.
func TestLedger_outside(t *testing.T) {
	b := newHarness(t, Card{})
	neighbour := b.holder(t, "neighbour", 600, true)
	b.next(t, neighbour, "step")
	stranger := b.holder(t, "stranger", 200, false)
	b.next(t, stranger, "step")
	p := b.holder(t, "innocent", 300, true) // by the ledger 416 are free
	b.next(t, p, "step")
	s, _ := b.gate.Of("neighbour")
	must.True(t, s.Parked)
}

// A container is not restored before the card itself has room; other requests are answered
// meanwhile.
func TestLedger_restore(t *testing.T) {
	b := newHarness(t, Card{})
	parked := b.holder(t, "parked", 600, true)
	b.next(t, parked, "step")
	time.Sleep(200 * time.Millisecond) // it is idle
	big := b.holder(t, "big", 600, true)
	b.next(t, big, "step")
	stranger := b.holder(t, "stranger", 380, false)
	b.next(t, stranger, "step")
	big.Release()
	must.NoError(t, big.Wait()) // by the ledger there is room for what is parked
	small := b.holder(t, "small", 36, true)
	begun := time.Now()
	b.next(t, small, "step")
	t.Logf("the small one had its memory after %v", time.Since(begun))
	s, _ := b.gate.Of("parked")
	must.True(t, s.Parked)
	must.NoError(t, s.Lost)
	stranger.Release()
	must.NoError(t, stranger.Wait())
	b.eventually(t, "it comes back", func() error {
		if s, _ := b.gate.Of("parked"); s.Parked || s.Lost != nil {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	parked.Release()
	must.NoError(t, parked.Wait())
	must.Zero(t, parked.Exit())
}

func TestLedger_pinned(t *testing.T) {
	for name, j := range map[string]Job{
		"managed memory": {Args: []string{"--alloc", "managed"}},
		"a newer driver": {Env: []string{"EBBTIDE_FAKE_NEWER=cuMemAlloc"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, Card{}, func(o *gate.Options) {
				o.Soft, o.Shares = true, Shares{Otherwise: gate.Share{Bytes: 300 * mib}}
			})
			j.Container, j.Gate = "borrower", b.gate
			j.Args = append(j.Args, "--steps", "4", "--bytes", strconv.Itoa(100*mib))
			p, err := b.Start(b.ctx, j)
			must.NoError(t, err)
			must.Error(t, p.Wait())
			must.Eq(t, 2, p.Exit(), must.Sprint("out of memory at the third step, with the context"))
			borrower := b.holder(t, "free", 600, true)
			b.next(t, borrower, "step")
		})
	}
}
