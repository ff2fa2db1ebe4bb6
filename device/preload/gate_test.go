// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package preload

import (
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

type message struct {
	Magic                       uint32
	Type, Flags                 uint16
	Seq, Device, Bytes, ID, Arg uint64
}

const (
	hello, attach, request, giveBack, info, holds, pinned, paused, active = 1, 2, 3, 6, 7, 8, 9, 10, 11

	welcome, attached, denied, grant, infoIs, limitIs, pause, resume = 65, 66, 67, 68, 69, 80, 81, 82
)

// gate is a minimal gate, with one limit for all its clients together.
type gate struct {
	t    *testing.T
	path string
	ln   net.Listener

	mu      sync.Mutex
	limit   uint64
	waiting int                 // requests that wait
	held    map[net.Conn]uint64 // granted, less what was returned
	seen    map[uint16]int
	heard   []message // HOLDS, PINNED, PAUSED
	most    uint64
	over    bool // was more granted than the limit?
	hellos  int
	bad     int
	wg      sync.WaitGroup
}

func startGate(t *testing.T, limit uint64) *gate {
	g := &gate{t: t, path: filepath.Join(t.TempDir(), "gate.sock"), limit: limit, seen: map[uint16]int{},
		held: map[net.Conn]uint64{}}
	g.listen()
	t.Cleanup(g.stop)
	return g
}

func (g *gate) listen() {
	ln, err := net.Listen("unix", g.path)
	must.NoError(g.t, err)
	g.ln = ln
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			g.mu.Lock()
			g.held[c] = 0
			g.mu.Unlock()
			g.wg.Add(1)
			go func() {
				defer g.wg.Done()
				g.serve(c)
			}()
		}
	}()
}

// stop ends the gate as a crash would.
func (g *gate) stop() {
	g.ln.Close()
	g.mu.Lock()
	for c := range g.held {
		c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

func (g *gate) sum() uint64 {
	var n uint64
	for _, b := range g.held {
		n += b
	}
	return n
}

func (g *gate) send(c net.Conn, m message) {
	m.Magic = 0x31544245
	_ = binary.Write(c, binary.LittleEndian, m)
}

func (g *gate) all(m message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.held {
		g.send(c, m)
	}
}

func (g *gate) serve(c net.Conn) {
	defer func() {
		c.Close()
		g.mu.Lock()
		delete(g.held, c)
		g.mu.Unlock()
	}()
	for {
		var m message
		if err := binary.Read(c, binary.LittleEndian, &m); err != nil {
			if err != io.EOF {
				return
			}
			return
		}
		g.mu.Lock()
		g.seen[m.Type]++
		a := message{Seq: m.Seq, Device: 7}
		switch m.Type {
		case hello:
			g.hellos++
			a.Type, a.Arg, a.Device = welcome, 1, 0
		case attach:
			a.Type, a.Bytes = attached, 1<<30
		case request:
			room := uint64(0)
			if s := g.sum(); s < g.limit {
				room = g.limit - s
			}
			if m.Bytes > room {
				if m.Arg > 0 {
					g.waiting++
					g.wg.Add(1)
					go g.later(c, m, time.Now().Add(time.Duration(m.Arg)*time.Millisecond))
					break
				}
				a.Type, a.Arg = denied, 3
				break
			}
			g.held[c] += m.Bytes
			a.Type, a.Bytes = grant, m.Bytes
		case giveBack:
			if m.Bytes > g.held[c] {
				g.bad++
			} else {
				g.held[c] -= m.Bytes
			}
		case info:
			s := g.sum()
			a.Type, a.Bytes, a.ID, a.Arg = infoIs, g.limit, s, 1<<30-min(s, 1<<30)
		case holds:
			g.held[c] = m.Bytes
			g.heard = append(g.heard, m)
		case pinned, paused, active:
			g.heard = append(g.heard, m)
		default:
			g.bad++
		}
		s := g.sum()
		g.most = max(g.most, s)
		g.over = g.over || (s > g.limit && m.Type != holds)
		if a.Type != 0 {
			g.send(c, a)
		}
		g.mu.Unlock()
	}
}

// later grants a waiting request when there is room, or denies it at its deadline.
func (g *gate) later(c net.Conn, m message, until time.Time) {
	defer g.wg.Done()
	for {
		time.Sleep(5 * time.Millisecond)
		g.mu.Lock()
		s := g.sum()
		_, alive := g.held[c]
		done := true
		switch {
		case !alive:
		case s < g.limit && m.Bytes <= g.limit-s:
			g.held[c] += m.Bytes
			g.send(c, message{Type: grant, Seq: m.Seq, Device: 7, Bytes: m.Bytes})
		case time.Now().After(until):
			g.send(c, message{Type: denied, Seq: m.Seq, Device: 7, Arg: 4})
		default:
			done = false
		}
		if done {
			g.waiting--
		}
		g.mu.Unlock()
		if done {
			return
		}
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range 1000 {
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("never: " + what)
}

func (g *gate) count(typ uint16) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[typ]
}

// fine: no rule of the protocol was broken, and no client holds anything.
func (g *gate) fine() {
	g.t.Helper()
	eventually(g.t, "all clients gone", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.held) == 0
	})
	must.Zero(g.t, g.bad, must.Sprint("messages that cannot be"))
	must.False(g.t, g.over, must.Sprint("more than the limit was granted"))
}
