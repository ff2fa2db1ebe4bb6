// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

const mib = 1 << 20

var (
	uuid0 = wire.UUID{15: 0xa0}
	uuid1 = wire.UUID{15: 0xa1}
	card0 = ledger.CardID(uuid0.String())
)

func options() Options {
	o := Default()
	o.Cards = []Card{{uuid0, 1000 * mib, 0}, {uuid1, 1000 * mib, 0}}
	o.Credit = 0
	return o
}

// life is a process that exits when the test closes over.
type life struct {
	over, closed chan struct{}
	once, killed sync.Once
}

func newLife() *life { return &life{over: make(chan struct{}), closed: make(chan struct{})} }

func (l *life) Wait() error {
	select {
	case <-l.over:
		return nil
	case <-l.closed:
		return errors.New("closed")
	}
}

func (l *life) Kill() error {
	l.killed.Do(func() {
		select {
		case <-l.over:
		default:
			close(l.over)
		}
	})
	return nil
}

func (l *life) Close() { l.once.Do(func() { close(l.closed) }) }

type bench struct {
	*testing.T
	*Gate
}

func on(t *testing.T, o Options, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		g, err := New(o)
		must.NoError(t, err)
		defer g.Close()
		f(&bench{t, g})
		synctest.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		must.NoError(t, g.ledger.Check())
	})
}

type testClient struct {
	*bench
	s       *session
	life    *life
	seq     uint64
	recalls int
}

// process adds a process of a container with card 0 attached.
func (b *bench) process(pid int, container string) *testClient {
	b.Helper()
	t := b.connect(pid, container)
	t.hello()
	return t
}

func (b *bench) connect(pid int, container string) *testClient {
	l := newLife()
	proc := identify.Process{PID: pid, Start: 1, Container: identify.Container{ID: container, Alloc: "alloc-" + container, Task: "train"}}
	return &testClient{bench: b, s: newSession(proc, l), life: l}
}

func (t *testClient) hello() {
	t.Helper()
	must.Eq(t, wire.Welcome, t.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
	m := t.attach(uuid0)
	must.Eq(t, wire.Message{Type: wire.Attached, Seq: t.seq, Device: 1, Bytes: 1000 * mib}, m)
}

func (t *testClient) attach(u wire.UUID) wire.Message {
	id, arg := u.Words()
	return t.ask(wire.Message{Type: wire.Attach, ID: id, Arg: arg})
}

func (t *testClient) send(m wire.Message) error {
	err := t.receive(t.s, m)
	if err != nil {
		t.s.cut()
		t.disconnected(t.s, err)
	}
	return err
}

func (t *testClient) recv() wire.Message {
	for {
		select {
		case m := <-t.s.out:
			if m.Type == wire.Recall { // it holds nothing unused
				t.recalls++
				continue
			}
			return m
		default:
			return wire.Message{}
		}
	}
}

func (t *testClient) ask(m wire.Message) wire.Message {
	t.Helper()
	t.seq++
	m.Seq = t.seq
	must.NoError(t, t.send(m))
	return t.recv()
}

func (t *testClient) want(bytes uint64, wait time.Duration) wire.Message {
	t.Helper()
	return t.ask(wire.Message{Type: wire.Request, Device: 1, Bytes: bytes, Arg: uint64(wait.Milliseconds())})
}

func (t *testClient) take(bytes uint64) {
	t.Helper()
	must.Eq(t, wire.Grant, t.want(bytes, 0).Type)
}

func (t *testClient) giveBack(bytes uint64) {
	t.Helper()
	must.NoError(t, t.send(wire.Message{Type: wire.Return, Device: 1, Bytes: bytes}))
}

func denial(m wire.Message) wire.Reason {
	if m.Type != wire.Denied {
		return 0
	}
	return wire.Reason(m.Arg)
}

func (b *bench) held() ledger.Entry { return b.Cards()[0].Held }

func TestGate_request(t *testing.T) {
	on(t, options(), func(b *bench) {
		a := b.process(1, "a")
		m := a.want(100*mib, 0)
		must.Eq(t, wire.Message{Type: wire.Grant, Seq: a.seq, Device: 1, Bytes: 100 * mib}, m)
		must.Eq(t, ledger.Entry{Committed: 100 * mib}, b.held())
		m = a.ask(wire.Message{Type: wire.Request, Flags: 2, Device: 1, Bytes: 100 * mib})
		must.Eq(t, wire.Message{Type: wire.Grant, Seq: a.seq, Device: 1, Bytes: 100 * mib}, m, must.Sprint("a flag without meaning"))
		a.giveBack(160 * mib)
		must.Eq(t, ledger.Entry{Committed: 40 * mib}, b.held())
		m = a.ask(wire.Message{Type: wire.Info, Device: 1})
		must.Eq(t, wire.Message{Type: wire.Figures, Seq: a.seq, Device: 1, Bytes: 1000 * mib, ID: 40 * mib, Arg: 960 * mib}, m)
		must.Eq(t, wire.NoMemory, denial(a.want(1<<63, time.Hour)))
		must.Eq(t, wire.UnknownDevice, denial(a.attach(wire.UUID{1})))
		close(a.life.over)
		synctest.Wait()
		must.Eq(t, ledger.Entry{}, b.held())
		must.SliceEmpty(t, b.Containers())
	})
}

func TestGate_waits(t *testing.T) {
	on(t, options(), func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(1000 * mib)
		must.Eq(t, wire.NoMemory, denial(c.want(1, 0)))
		must.Eq(t, wire.Message{}, c.want(400*mib, time.Minute))
		time.Sleep(30 * time.Second)
		a.giveBack(400 * mib)
		must.Eq(t, wire.Grant, c.recv().Type)
		must.Eq(t, Counts{Granted: 1, GrantedBytes: 400 * mib, Waited: 30 * time.Second}, b.Stats()[1].Usage[0].Counts)

		must.Eq(t, wire.Message{}, c.want(mib, time.Minute))
		time.Sleep(time.Minute - time.Millisecond)
		synctest.Wait()
		must.Eq(t, wire.Message{}, c.recv())
		time.Sleep(time.Millisecond)
		synctest.Wait()
		must.Eq(t, wire.TooLong, denial(c.recv()))
		must.Eq(t, 1, b.Stats()[1].Usage[0].TooLong)
		must.Eq(t, map[string]float64{
			"ebbtide_gpu_grants_total": 2, "ebbtide_gpu_granted_bytes_total": 1400 * mib, "ebbtide_gpu_denials_total reason=timeout": 1,
			"ebbtide_gpu_request_wait_seconds count": 2, "ebbtide_gpu_request_wait_seconds sum": 30,
		}, b.counted(), must.Sprint("a request that would not wait counts nowhere"))
	})
}

func TestGate_limit(t *testing.T) {
	on(t, options(), func(b *bench) {
		must.ErrorIs(t, b.SetShare("a", card0, 1), ErrUnknown)
		a := b.process(1, "a")
		a.take(500 * mib)
		must.NoError(t, b.SetShare("a", card0, 300*mib))
		must.Eq(t, wire.Message{Type: wire.Share, Device: 1, Bytes: 300 * mib}, a.recv())
		must.NoError(t, b.SetShare("a", card0, 300*mib))
		must.Eq(t, wire.Message{}, a.recv(), must.Sprint("nothing new"))
		must.Eq(t, wire.NoMemory, denial(a.want(1, time.Hour)), must.Sprint("at once: its framework can free what it caches"))
		a.giveBack(200 * mib)
		must.Eq(t, wire.NoMemory, denial(a.want(1, time.Hour)))
		a.giveBack(1)
		must.Eq(t, wire.Grant, a.want(1, 0).Type)
		must.ErrorIs(t, b.SetShare("a", "GPU-x", 1), ErrUnknown)
	})
}

func TestGate_credit(t *testing.T) {
	o := options()
	o.Credit = 64 * mib
	on(t, o, func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		want := func(t *testClient, bytes uint64) uint64 {
			return t.ask(wire.Message{Type: wire.Request, Flags: wire.FlagCredit, Device: 1, Bytes: bytes, Arg: 1000}).Bytes
		}
		must.Eq(t, 64*mib, want(a, 1))
		must.Eq(t, 128*mib, want(a, 65*mib))
		must.Eq(t, 64*mib, want(a, 64*mib))
		must.NoError(t, b.SetShare("a", card0, 300*mib))
		a.recv()
		must.Eq(t, 44*mib, want(a, mib), must.Sprint("as far as the limit goes"))
		must.Eq(t, 600*mib, a.process(3, "c").want(600*mib, 0).Bytes)
		must.Eq(t, wire.Message{}, c.want(110*mib, time.Minute))
		must.Eq(t, mib, want(c, mib), must.Sprint("no surplus while a request waits"))
	})
}

// A process that reconnects has what it held. Meanwhile that is granted to no other.
func TestGate_reconnects(t *testing.T) {
	on(t, options(), func(b *bench) {
		a := b.process(1, "a")
		a.take(600 * mib)
		a.want(100*mib, 0) // the connection is lost before it is used
		a.disconnected(a.s, nil)
		must.Eq(t, ledger.Entry{Expected: 700 * mib}, b.held())
		must.Eq(t, 1, b.Stats()[0].Disconnected)
		c := b.process(2, "b")
		must.Eq(t, wire.NoMemory, denial(c.want(301*mib, 0)))
		must.Eq(t, wire.Message{}, c.want(350*mib, time.Minute))

		again := b.connect(1, "a")
		must.Eq(t, wire.Welcome, again.ask(wire.Message{Type: wire.Hello, Arg: 1}).Type)
		must.Eq(t, wire.Resume, again.recv().Type, must.Sprint("it may have missed one"))
		must.Eq(t, wire.Attached, again.attach(uuid0).Type)
		must.NoError(t, again.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 600 * mib}))
		must.Eq(t, ledger.Entry{Committed: 950 * mib}, b.held())
		must.Eq(t, wire.Grant, c.recv().Type, must.Sprint("less is held than was expected"))
	})
}

// A process that exceeds its limit only by another's expected memory waits until that one has
// reconnected, or for its deadline.
func TestGate_unreported(t *testing.T) {
	on(t, options(), func(b *bench) {
		a, other := b.process(1, "a"), b.process(2, "a")
		a.take(500 * mib)
		other.take(400 * mib)
		other.want(100*mib, 0) // the connection is lost before it is used
		other.disconnected(other.s, nil)
		must.Eq(t, wire.NoMemory, denial(a.want(50*mib, 0)))
		must.Eq(t, wire.NoMemory, denial(a.want(501*mib, time.Hour)))
		must.Eq(t, wire.Message{}, a.want(50*mib, time.Minute))
		again := b.connect(2, "a")
		must.Eq(t, wire.Welcome, again.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
		again.recv()
		again.attach(uuid0)
		must.NoError(t, again.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 400 * mib}))
		must.Eq(t, wire.Grant, a.recv().Type)
	})
}

func TestGate_replaces(t *testing.T) {
	on(t, options(), func(b *bench) {
		a := b.process(1, "a")
		a.take(600 * mib)
		again := b.connect(1, "a")
		must.Eq(t, wire.Welcome, again.ask(wire.Message{Type: wire.Hello, Arg: 1}).Type)
		must.Eq(t, wire.Resume, again.recv().Type)
		must.Eq(t, wire.Attached, again.attach(uuid0).Type)
		must.ErrorIs(t, a.send(wire.Message{Type: wire.Paused}), errSessionOver)
		must.NoError(t, again.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 500 * mib}))
		must.Eq(t, ledger.Entry{Committed: 500 * mib}, b.held())
		must.ErrorIs(t, again.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 1}), wire.ErrBad)
		must.Eq(t, ledger.Entry{Expected: 500 * mib}, b.held(), must.Sprint("it is cut off, and still holds it"))
	})
}

func TestGate_badMessages(t *testing.T) {
	for name, m := range map[string]wire.Message{
		"second hello":         {Type: wire.Hello, Seq: 9, Arg: 1},
		"unknown device":       {Type: wire.Request, Seq: 9, Device: 2, Bytes: 1},
		"device 0":             {Type: wire.Return, Bytes: 1},
		"return of too much":   {Type: wire.Return, Device: 1, Bytes: 100*mib + 1},
		"return of all":        {Type: wire.Return, Device: 1, Bytes: 1<<64 - 1},
		"holds too late":       {Type: wire.Holds, Device: 1, Bytes: 1},
		"the gate's own words": {Type: wire.Resume},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, options(), func(b *bench) {
				a, c := b.process(1, "a"), b.process(2, "b")
				a.take(100 * mib)
				c.take(200 * mib)
				must.ErrorIs(t, a.send(m), wire.ErrBad)
				must.Eq(t, ledger.Entry{Expected: 100 * mib, Committed: 200 * mib}, b.held())
				must.Eq(t, 1, b.Stats()[0].Faults)
				must.Eq(t, wire.Grant, c.want(700*mib, 0).Type)
			})
		})
	}
	on(t, options(), func(b *bench) {
		must.ErrorIs(t, b.connect(1, "a").send(wire.Message{Type: wire.Paused}), wire.ErrBad)
		must.Error(t, b.connect(1, "a").send(wire.Message{Type: wire.Hello, Seq: 1, Arg: 2}))
		first := b.process(1, "a")
		liar := b.connect(2, "a")
		liar.s.proc.Container.Alloc = "another"
		must.ErrorIs(t, liar.send(wire.Message{Type: wire.Hello, Seq: 1, Arg: 1}), identify.ErrContradiction)
		must.NoError(t, first.send(wire.Message{Type: wire.Paused}))
	})
}

func TestGate_claims(t *testing.T) {
	on(t, options(), func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		must.NoError(t, b.SetShare("a", card0, 300*mib))
		must.NoError(t, a.send(wire.Message{Type: wire.Holds, Device: 1, Bytes: 1000 * mib}))
		must.Eq(t, ledger.Entry{Committed: 300 * mib, Unverified: 700 * mib}, b.held())
		must.Eq(t, wire.Grant, c.want(700*mib, 0).Type)
	})
}

func TestGate_bounds(t *testing.T) {
	o := options()
	o.Bounds.Waiting = 100
	on(t, o, func(b *bench) {
		full := b.process(9, "z")
		full.take(990 * mib)
		a, a2 := b.process(1, "a"), b.process(2, "a")
		for range wire.MaxOpen {
			must.Eq(t, wire.Message{}, a.want(20*mib, time.Hour))
		}
		for range 100 - wire.MaxOpen {
			must.Eq(t, wire.Message{}, a2.want(20*mib, time.Hour))
		}
		must.Eq(t, wire.NoMemory, denial(a2.want(20*mib, time.Hour)), must.Sprint("its container has enough waiting"))
		must.Eq(t, 100, b.Stats()[0].Usage[0].Waiting)
		must.ErrorIs(t, a.send(wire.Message{Type: wire.Request, Seq: 1000, Device: 1, Bytes: 1}), wire.ErrBad)
		must.Eq(t, 100-wire.MaxOpen, b.Stats()[0].Usage[0].Waiting)
		must.ErrorIs(t, a2.send(wire.Message{Type: wire.Request, Seq: a2.seq - 1, Device: 1, Bytes: 1}), wire.ErrBad)

		silent := b.process(4, "d")
		for range maxUnsent + 1 {
			must.NoError(t, silent.send(wire.Message{Type: wire.Info, Seq: 7, Device: 1}))
		}
		select {
		case <-silent.s.done:
		default:
			t.Fatal("it is not cut off")
		}
	})
}

func TestGate_recall(t *testing.T) {
	on(t, options(), func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(1000 * mib)
		must.Eq(t, wire.NoMemory, denial(c.want(mib, 0)))
		must.Eq(t, wire.Message{}, a.recv())
		must.Eq(t, 0, a.recalls, must.Sprint("it has not waited"))
		must.Eq(t, wire.Message{}, c.want(mib, time.Hour))
		must.Eq(t, wire.Message{}, c.want(mib, time.Hour))
		must.Eq(t, wire.Message{}, a.recv())
		must.Eq(t, 1, a.recalls)
		must.Eq(t, 0, c.recalls)
		a.giveBack(mib)
		must.Eq(t, wire.Grant, c.recv().Type)
	})
}

func TestGate_stuck(t *testing.T) {
	on(t, options(), func(b *bench) {
		a, c := b.process(1, "a"), b.process(2, "b")
		a.take(500 * mib)
		c.take(500 * mib)
		must.Eq(t, wire.Message{}, a.want(mib, time.Hour))
		time.Sleep(time.Millisecond)
		must.Eq(t, wire.Message{}, c.want(mib, time.Hour))
		time.Sleep(b.opts.Rules.Settle)
		synctest.Wait()
		must.Eq(t, wire.NoMemory, denial(a.recv()))
		must.Eq(t, wire.Message{}, c.recv())
		a.giveBack(mib)
		must.Eq(t, wire.Grant, c.recv().Type)
	})
}

// pauseFor pauses a container, and returns when it has stopped.
func (b *bench) pauseFor(ctx context.Context, id ledger.ContainerID, reason string) error {
	b.mu.Lock()
	c := b.containers[id]
	p := b.pause(time.Now(), c, reason)
	all := p.all
	b.mu.Unlock()
	return b.awaitPause(ctx, c, p, all, reason)
}

func TestGate_pause(t *testing.T) {
	on(t, options(), func(b *bench) {
		one, two, other := b.process(1, "a"), b.process(2, "a"), b.process(3, "b")
		paused := make(chan error, 1)
		begin := func(ctx context.Context) {
			go func() { paused <- b.pauseFor(ctx, "a", pausePark) }()
			synctest.Wait()
			must.Eq(t, wire.Pause, one.recv().Type)
			must.Eq(t, wire.Pause, two.recv().Type)
			must.Eq(t, wire.Message{}, other.recv())
		}
		begin(b.Context())
		must.NoError(t, one.send(wire.Message{Type: wire.Paused}))
		synctest.Wait()
		must.Eq(t, 0, len(paused), must.Sprint("the other one has not answered"))
		close(two.life.over) // an exited process submits nothing
		must.NoError(t, <-paused)
		must.True(t, b.Stats()[0].Stopped)
		late := b.connect(4, "a")
		late.ask(wire.Message{Type: wire.Hello, Arg: 1})
		must.Eq(t, wire.Pause, late.recv().Type)
		must.False(t, b.Stats()[0].Stopped)
		time.Sleep(time.Minute)
		b.mu.Lock()
		b.resume(time.Now(), b.containers["a"], pausePark)
		b.mu.Unlock()
		must.Eq(t, wire.Resume, one.recv().Type)
		must.Eq(t, wire.Resume, late.recv().Type)
		s := b.Stats()[0]
		must.Eq(t, []any{1, time.Minute, false}, []any{s.Pauses, s.PausedFor, s.Paused})

		two = late
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		begin(ctx)
		must.NoError(t, one.send(wire.Message{Type: wire.Paused}))
		err := <-paused
		must.ErrorIs(t, err, context.DeadlineExceeded)
		must.ErrorContains(t, err, "1 of its processes")
		must.Eq(t, wire.Resume, one.recv().Type)
		must.Eq(t, wire.Resume, two.recv().Type)
	})
}

type shares struct {
	mu    sync.Mutex
	calls []string
	gate  *Gate
}

func (s *shares) Join(c identify.Container, card ledger.CardID) (Share, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "join "+c.ID)
	if c.ID == "denied" {
		return Share{}, errors.New("not on this card")
	}
	for _, other := range s.gate.Containers() { // it may call the gate
		if other.ID != c.ID {
			if err := s.gate.SetShare(ledger.ContainerID(other.ID), card, 400*mib); err != nil {
				return Share{}, err
			}
		}
	}
	return Share{Bytes: 500 * mib, Most: 600 * mib, Priority: 7}, nil
}

func (s *shares) Leave(c identify.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "leave "+c.ID)
}

func TestGate_seats(t *testing.T) {
	on(t, options(), func(b *bench) {
		a := b.connect(1, "a")
		a.s.proc.Container.Cards = []string{string(card0)}
		a.hello()
		must.Eq(t, wire.UnknownDevice, denial(a.attach(uuid1)))
		a.take(100 * mib)
	})
}

func TestGate_shares(t *testing.T) {
	o := options()
	s := new(shares)
	o.Shares = s
	on(t, o, func(b *bench) {
		s.gate = b.Gate
		a := b.process(1, "a")
		must.Eq(t, 500*mib, a.ask(wire.Message{Type: wire.Info, Device: 1}).Bytes)
		c := b.process(2, "b")
		must.Eq(t, wire.Message{Type: wire.Share, Device: 1, Bytes: 400 * mib}, a.recv())
		must.Eq(t, 7, b.Stats()[1].Priority)
		b.process(3, "b")
		denied := b.connect(4, "denied")
		must.Eq(t, wire.Welcome, denied.ask(wire.Message{Type: wire.Hello, Arg: 1}).Type)
		must.Eq(t, wire.UnknownDevice, denial(denied.attach(uuid0)))
		a.disconnected(a.s, nil)
		close(c.life.over)
		synctest.Wait()
		must.Eq(t, []string{"join a", "join b", "join denied", "leave a"}, s.calls)
	})
}

// At any moment the state file is an upper bound of what each process holds.
func TestGate_stateCovers(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		o := options()
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must.NoError(r, err)
		o.State = filepath.Join(dir, "state")
		g, err := New(o)
		must.NoError(r, err)
		defer g.Close()
		b := &bench{t, g}
		talkers := []*testClient{b.process(1, "a"), b.process(2, "a"), b.process(3, "b")}
		var holds [3]uint64
		r.Repeat(map[string]func(*rapid.T){
			"take": func(r *rapid.T) {
				n, bytes := rapid.IntRange(0, 2).Draw(r, "n"), rapid.Uint64Range(1, 300*mib).Draw(r, "bytes")
				if talkers[n].want(bytes, 0).Type == wire.Grant {
					holds[n] += bytes
				}
			},
			"give back": func(r *rapid.T) {
				n := rapid.IntRange(0, 2).Draw(r, "n")
				bytes := rapid.Uint64Range(0, holds[n]).Draw(r, "bytes")
				talkers[n].giveBack(bytes)
				holds[n] -= bytes
			},
			"": func(r *rapid.T) {
				var s state
				if file, err := os.ReadFile(o.State); err == nil {
					must.NoError(r, json.Unmarshal(file, &s))
				}
				most := make(map[int]uint64)
				for _, p := range s.Processes {
					most[p.PID] = p.Most[card0]
				}
				for n, bytes := range holds {
					must.GreaterEq(r, bytes, most[n+1])
				}
			},
		})
	})
}

// Whatever two clients send, the ledger is right and neither ends the other's session.
func FuzzGate(f *testing.F) {
	message := func(proc byte, m wire.Message) []byte { return append([]byte{proc}, m.Append(nil)...) }
	id, arg := uuid0.Words()
	var story []byte
	for proc := range byte(2) {
		story = append(story, message(proc, wire.Message{Type: wire.Hello, Seq: 1, Arg: 1})...)
		story = append(story, message(proc, wire.Message{Type: wire.Attach, Seq: 2, ID: id, Arg: arg})...)
		story = append(story, message(proc, wire.Message{Type: wire.Request, Seq: 3, Device: 1, Bytes: 600 * mib, Arg: 1})...)
	}
	f.Add(story)
	f.Add(append(story, message(0, wire.Message{Type: wire.Return, Device: 1, Bytes: mib})...))
	f.Add(message(0, wire.Message{Type: wire.Holds, Device: 1, Bytes: 1 << 62}))
	f.Fuzz(func(t *testing.T, story []byte) {
		g, err := New(options())
		must.NoError(t, err)
		defer g.Close()
		b := &bench{t, g}
		honest := b.process(100, "honest")
		honest.take(100 * mib)
		talkers := [2]*testClient{b.connect(1, "hostile"), b.connect(2, "hostile")}
		for ; len(story) > wire.Size; story = story[1+wire.Size:] {
			proc := story[0] % 2
			m, err := wire.Decode(story[1 : 1+wire.Size])
			if err != nil || talkers[proc].send(m) != nil {
				talkers[proc] = b.connect(int(proc)+1, "hostile")
			}
			must.NoError(t, b.ledger.Check())
			must.Eq(t, 100*mib, b.ledger.Container("honest", card0).LimitUsage())
		}
		must.Eq(t, fmt.Sprint(100*mib), fmt.Sprint(honest.ask(wire.Message{Type: wire.Info, Device: 1}).ID))
	})
}

type slowShares struct {
	shares
	let chan struct{}
}

func (k *slowShares) Join(c identify.Container, card ledger.CardID) (Share, error) {
	<-k.let
	return k.shares.Join(c, card)
}

// A container that ends while it joins leaves nothing behind; one of the same name that has come
// meanwhile stays.
func TestGate_leaveDuringJoin(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		o := options()
		k := new(slowShares)
		o.Shares = k
		on(t, o, func(b *bench) {
			k.gate, k.let = b.Gate, make(chan struct{})
			a := b.connect(1, "a")
			must.Eq(t, wire.Welcome, a.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
			go func() {
				id, arg := uuid0.Words()
				_ = b.receive(a.s, wire.Message{Type: wire.Attach, Seq: 7, ID: id, Arg: arg})
			}()
			synctest.Wait()
			close(a.life.over)
			synctest.Wait()
			if replaced {
				next := b.connect(2, "a")
				must.Eq(t, wire.Welcome, next.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}).Type)
			}
			close(k.let)
			synctest.Wait()
			must.Eq(t, []string{"join a", "leave a"}, k.calls)
		})
	}
}
