// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// MaxPath is the longest path of a Unix socket, in bytes (sun_path).
const MaxPath = 107

// minConnection is how long a connection counts at least: reconnecting in a loop hits the limit.
const minConnection = time.Second

var errTooManyConnections = errors.New("too many connections")

// Listen creates the socket, in place of an earlier gate's. Everyone may connect: access to its
// directory, which is mounted into containers, is the permission.
func Listen(path string) (*net.UnixListener, error) {
	if len(path) > MaxPath {
		return nil, fmt.Errorf("listening at %q: a Unix socket's path is limited to %d bytes, got %d: choose a shorter directory", path, MaxPath, len(path))
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("listening at %q: the path exists and is not a socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replacing the socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("making the socket accessible to containers: %w", err)
	}
	return l, nil
}

// maxUnidentified bounds the connections of unidentified clients. More wait in the backlog.
const maxUnidentified = 64

type connLimiter struct {
	mu    sync.Mutex
	total int // over all containers
	held  map[ledger.ContainerID]*connCount
}

type connCount struct {
	connections int
	rate        *rateLimiter
}

// acquire takes a connection for a container, and returns the rate limit of all its connections.
func (d *connLimiter) acquire(id ledger.ContainerID, b Bounds) (*rateLimiter, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.held[id]
	if at == nil {
		at = &connCount{rate: newRateLimiter(time.Now(), b.Rate, b.Burst)}
		d.held[id] = at
	}
	if at.connections >= b.Sure && (at.connections >= b.Connections || d.total >= b.Total) {
		return nil, false
	}
	at.connections++
	d.total++
	return at.rate, true
}

// Connections returns the number of connections.
func (g *Gate) Connections() int {
	g.connections.mu.Lock()
	defer g.connections.mu.Unlock()
	return g.connections.total
}

func (d *connLimiter) release(id ledger.ContainerID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total--
	at := d.held[id]
	if at.connections--; at.connections == 0 {
		delete(d.held, id)
	}
}

// Serve serves clients until ctx ends, then closes the listener and all connections. The error is
// why no more clients can be accepted.
func (g *Gate) Serve(ctx context.Context, l *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()
	unknown := make(chan struct{}, maxUnidentified)
	for {
		select {
		case unknown <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			g.opts.Report(fmt.Errorf("accepting a client: %w", err))
			<-unknown
			select {
			case <-time.After(100 * time.Millisecond): // connections may end meanwhile
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return fmt.Errorf("accepting clients: %w", err)
		}
		connections.Go(func() { g.connection(ctx, conn, sync.OnceFunc(func() { <-unknown })) })
	}
}

// connection serves a client. It calls known once the client's container is known.
func (g *Gate) connection(ctx context.Context, conn *net.UnixConn, known func()) {
	defer known()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	ended, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	begun := time.Now()
	var limiter *rateLimiter
	proc, life, err := g.opts.Identify(conn, func(id string) error {
		known()
		var free bool
		if limiter, free = g.connections.acquire(ledger.ContainerID(id), g.opts.Bounds); !free {
			g.opts.Metrics.Rejected.Inc()
			return errTooManyConnections
		}
		context.AfterFunc(ended, func() {
			time.AfterFunc(time.Until(begun.Add(minConnection)), func() { g.connections.release(ledger.ContainerID(id)) })
		})
		return nil
	})
	if err != nil {
		if !errors.Is(err, errTooManyConnections) { // do not log a flood
			g.opts.Report(fmt.Errorf("rejecting a client: %w", err))
		}
		return
	}
	id := proc.Container.ID

	s := newSession(proc, life)
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer conn.Close() // also unblocks the reader
		s.write(conn, g.opts.Bounds.Write)
	}()
	err = g.read(s, conn, limiter)
	if errors.Is(err, wire.ErrBad) {
		s.send(wire.Message{Type: wire.Denied, Arg: uint64(wire.BadMessage)})
	}
	s.cut()
	<-written
	fault := err
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, errSessionOver) {
		fault = nil // not a fault of the client
	}
	if fault != nil {
		g.opts.Report(fmt.Errorf("cutting off process %d of container %s: %w", proc.PID, id, fault))
	}
	g.disconnected(s, fault)
}

func (g *Gate) read(s *session, conn *net.UnixConn, limiter *rateLimiter) error {
	if err := conn.SetReadDeadline(time.Now().Add(g.opts.Bounds.Hello)); err != nil {
		return err
	}
	in := newReader(conn)
	for first := true; ; first = false {
		m, err := wire.Read(in)
		if err != nil {
			return err
		}
		if wait := limiter.next(time.Now()); wait > 0 {
			select {
			case <-time.After(wait):
			case <-s.done:
				return errSessionOver
			}
		}
		if err := g.receive(s, m); err != nil {
			return err
		}
		if first {
			if err := conn.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
		}
	}
}

// write sends queued messages, and flushes the rest when the session is cut.
func (s *session) write(conn *net.UnixConn, within time.Duration) {
	var b []byte
	for {
		b = b[:0]
		select {
		case m := <-s.out:
			b = m.Append(b)
		case <-s.done:
		}
		for more := true; more; {
			select {
			case m := <-s.out:
				b = m.Append(b)
			default:
				more = false
			}
		}
		if len(b) == 0 {
			return
		}
		if err := conn.SetWriteDeadline(time.Now().Add(within)); err != nil {
			return
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}
