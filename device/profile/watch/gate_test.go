// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/wire"
	"github.com/ebbtide/ebbtide/device/profile"
)

type life struct {
	over, closed chan struct{}
	once         sync.Once
}

func (l *life) Wait() error {
	select {
	case <-l.over:
		return nil
	case <-l.closed:
		return errors.New("closed")
	}
}

func (l *life) Kill() error { return nil }

func (l *life) Close() { l.once.Do(func() { close(l.closed) }) }

type program struct {
	conn    net.Conn
	answers chan wire.Message
	writing sync.Mutex
	paused  atomic.Bool
	pauses  atomic.Int32
}

func (p *program) say(m wire.Message) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := p.conn.Write(m.Append(nil))
	return err
}

func (p *program) listen() {
	defer close(p.answers)
	for {
		m, err := wire.Read(p.conn)
		switch {
		case err != nil:
			return
		case m.Type == wire.Pause:
			p.paused.Store(true)
			p.pauses.Add(1)
			_ = p.say(wire.Message{Type: wire.Paused})
		case m.Type == wire.Resume:
			p.paused.Store(false)
		case m.Seq > 0:
			p.answers <- m
		}
	}
}

func (p *program) ask(m wire.Message, want wire.Type) (wire.Message, error) {
	m.Seq = 1
	if err := p.say(m); err != nil {
		return m, err
	}
	if a := <-p.answers; a.Type != want {
		return a, fmt.Errorf("asked %+v, and was told %+v", m, a)
	} else {
		return a, nil
	}
}

// work holds 100 MiB for two seconds and 700 MiB for another.
func (p *program) work(card wire.UUID) error {
	defer p.conn.Close()
	if _, err := p.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}, wire.Welcome); err != nil {
		return err
	}
	id, arg := card.Words()
	at, err := p.ask(wire.Message{Type: wire.Attach, ID: id, Arg: arg}, wire.Attached)
	if err != nil {
		return err
	}
	for _, step := range []struct{ mib, ticks int }{{100, 200}, {600, 100}} {
		if _, err := p.ask(wire.Message{Type: wire.Request, Device: at.Device, Bytes: uint64(step.mib) * mib}, wire.Grant); err != nil {
			return err
		}
		for done := 0; done < step.ticks; {
			time.Sleep(10 * time.Millisecond)
			if !p.paused.Load() {
				done++
			}
		}
	}
	return nil
}

type seen struct {
	*gate.Gate
	looks atomic.Int32
}

func (s *seen) Stats() []gate.Status {
	s.looks.Add(1)
	return s.Gate.Stats()
}

// On a real gate two jobs with colliding peaks both finish, because one is paused.
func TestWatcher_gate(t *testing.T) {
	card := wire.UUID{15: 0xa0}
	var come atomic.Int32
	ended := map[string]chan struct{}{"j1": make(chan struct{}), "j2": make(chan struct{})}
	o := gate.Default()
	o.Cards = []gate.Card{{UUID: card, Physical: 1000 * mib}}
	o.Identify = func(_ *net.UnixConn, admit func(string) error) (identify.Process, gate.Life, error) {
		n := int(come.Add(1))
		c := identify.Container{ID: fmt.Sprint("j", n), Job: "md", Alloc: "alloc", Task: "task"}
		return identify.Process{PID: n, Start: 1, Container: c}, &life{over: ended[c.ID], closed: make(chan struct{})}, admit(c.ID)
	}
	o.Report = func(err error) { t.Error(err) }
	g, err := gate.New(o)
	must.NoError(t, err)
	defer g.Close()
	path := filepath.Join(t.TempDir(), "s")
	l, err := gate.Listen(path)
	must.NoError(t, err)
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all.Go(func() { _ = g.Serve(ctx, l) })

	s, err := profile.Open(t.TempDir(), o.Report)
	must.NoError(t, err)
	key := profile.Key{Job: "md", Task: "task"}
	must.NoError(t, s.Add(key, profile.Run{WidthS: 1, Bytes: []uint64{100 * mib, 100 * mib, 700 * mib}, Seconds: 3, Whole: true}))
	opts := Default()
	opts.Horizon = time.Second
	opts.Params.RestS = 1
	seen := &seen{Gate: g}
	all.Go(func() { New(seen, s, hclog.NewNullLogger(), opts).Run(ctx, 20*time.Millisecond) })
	for seen.looks.Load() < 2 { // containers in the first pass count as started before
		time.Sleep(time.Millisecond)
	}

	var programs []*program
	failed := make(chan error, 2)
	for i := range 2 {
		conn, err := net.Dial("unix", path)
		must.NoError(t, err)
		p := &program{conn: conn, answers: make(chan wire.Message, 1)}
		programs = append(programs, p)
		all.Go(p.listen)
		all.Go(func() {
			failed <- p.work(card)
			close(ended[fmt.Sprint("j", i+1)])
		})
		for int(come.Load()) <= i {
			time.Sleep(time.Millisecond)
		}
	}
	for range programs {
		must.NoError(t, <-failed)
	}
	one, other := programs[0].pauses.Load(), programs[1].pauses.Load()
	must.Eq(t, 0, min(one, other))
	must.Positive(t, max(one, other))
	deadline := time.Now().Add(30 * time.Second)
	for p, _ := s.Profile(key); len(p.Runs) < 3; p, _ = s.Profile(key) {
		must.True(t, time.Now().Before(deadline), must.Sprint("both are measured"))
		time.Sleep(10 * time.Millisecond)
	}
	must.Eq(t, 700*mib, s.Summaries()[0].Peak)
}
