// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package gputest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// variable names the container that a process belongs to.
const variable = "EBBTIDE_TEST_CONTAINER"

// Gate is a serving gate.
type Gate struct {
	*gate.Gate
	path string
	end  func() error

	mu      sync.Mutex
	reports []error
}

func (h *Harness) uuid(text string) (wire.UUID, error) {
	if h.fake {
		text = "GPU-ebb71de0-fa4e-4000-8000-000000000001"
	}
	u, err := wire.ParseUUID(text)
	if err != nil {
		return u, fmt.Errorf("the card's UUID: %w", err)
	}
	return u, nil
}

// Shares are containers' shares by ID, on any card.
type Shares struct {
	Of        map[string]gate.Share
	Otherwise gate.Share
}

// Join implements gate.Shares.
func (l Shares) Join(c identify.Container, _ ledger.CardID) (gate.Share, error) {
	if s, ok := l.Of[c.ID]; ok {
		return s, nil
	}
	return l.Otherwise, nil
}

// Leave implements gate.Shares.
func (Shares) Leave(identify.Container) {}

// Open opens a gate over that many bytes of the card, with gate.Default as changed. uuid is the
// real card's. The caller calls Close.
func (h *Harness) Open(uuid string, bytes uint64, change func(*gate.Options)) (*Gate, error) {
	card, err := h.uuid(uuid)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.gates++
	g := &Gate{path: filepath.Join(h.scratch, fmt.Sprintf("gate%d", h.gates))}
	h.mu.Unlock()
	o := gate.Default()
	o.Cards = []gate.Card{{UUID: card, Physical: bytes}}
	o.Identify = identifyByEnv
	o.Report = func(err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reports = append(g.reports, err)
	}
	if change != nil {
		change(&o)
	}
	if g.Gate, err = gate.New(o); err != nil {
		return nil, err
	}
	l, err := gate.Listen(g.path)
	if err != nil {
		g.Gate.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, l) }()
	go g.Watch(ctx)
	g.end = sync.OnceValue(func() error {
		g.Gate.Close()
		cancel()
		return <-served
	})
	return g, nil
}

// Measure implements gate.Options.Measure.
func (h *Harness) Measure(ledger.CardID) (gate.Measured, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	u, err := h.Usage(ctx)
	return gate.Measured{Free: u.Total - u.Used, By: u.Processes}, err
}

// Path returns the path of the gate's socket.
func (g *Gate) Path() string { return g.path }

// Close ends the gate. The error includes what the gate has reported.
func (g *Gate) Close() error {
	err := g.end()
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(append(g.reports, err)...)
}

// Of returns the status of a container; false if the gate does not know it.
func (g *Gate) Of(container string) (gate.Status, bool) {
	for _, s := range g.Stats() {
		if s.Container.ID == container {
			return s, true
		}
	}
	return gate.Status{}, false
}

// Stop lets a container wait for its turn, and returns when the work that it had submitted is done.
func (g *Gate) Stop(ctx context.Context, container string) error {
	g.SetTurns(func(c identify.Container) bool { return c.ID == container })
	for {
		if s, known := g.Of(container); known && s.Yields && s.Stopped {
			return nil
		}
		select {
		case <-time.After(100 * time.Microsecond):
		case <-ctx.Done():
			return fmt.Errorf("stopping container %s: %w", container, ctx.Err())
		}
	}
}

// Go lets all containers run.
func (g *Gate) Go() { g.SetTurns(func(identify.Container) bool { return false }) }

// identifyByEnv takes the process from the kernel, and the container from its environment,
// without the checks of package identify.
func identifyByEnv(conn *net.UnixConn, admit func(string) error) (identify.Process, gate.Life, error) {
	var proc identify.Process
	raw, err := conn.SyscallConn()
	if err != nil {
		return proc, nil, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return proc, nil, e
	}
	if err != nil {
		return proc, nil, err
	}
	proc.PID = int(cred.Pid)
	if proc.Start, err = (identify.Finder{}).Start(proc.PID); err != nil {
		return proc, nil, err
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", proc.PID))
	if err != nil {
		return proc, nil, fmt.Errorf("reading the environment of process %d: %w", proc.PID, err)
	}
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if id, ok := strings.CutPrefix(string(entry), variable+"="); ok && id != "" {
			proc.Container = identify.Container{ID: id, Alloc: "alloc-" + id, Task: "train", Job: id, Namespace: "default"}
		}
	}
	if proc.Container.ID == "" {
		return proc, nil, fmt.Errorf("process %d belongs to no container: %s is not set", proc.PID, variable)
	}
	if err := admit(proc.Container.ID); err != nil {
		return proc, nil, err
	}
	life, err := identify.Finder{}.Open(proc.PID, proc.Start)
	if err != nil {
		return proc, nil, err
	}
	return proc, life, nil
}
