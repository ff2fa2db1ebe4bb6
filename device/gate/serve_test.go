// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(
		wait.BoolFunc(is), wait.Timeout(30*time.Second), wait.Gap(5*time.Millisecond),
	), must.Sprint(what))
}

// place is where a gate runs, and its options for a restart.
type place struct {
	testing.TB
	socket  string
	options Options
	next    atomic.Int64
}

func newPlace(t testing.TB) *place {
	p := &place{TB: t, socket: filepath.Join(t.TempDir(), "s"), options: options()}
	p.options.Cards[0].Physical = 1 << 40 // as large as needed
	p.options.State = p.socket + ".state"
	p.options.Identify = p.connections
	return p
}

// connections treats each connection as a separate process, in one of ten containers.
func (p *place) connections(_ *net.UnixConn, admit func(string) error) (identify.Process, Life, error) {
	n := int(p.next.Add(1))
	c := identify.Container{ID: strconv.Itoa(n % 10), Alloc: "a", Task: "t"}
	return identify.Process{PID: n, Start: 1, Container: c}, newLife(), admit(c.ID)
}

// processes identifies children of this test by their environment.
func (p *place) processes(conn *net.UnixConn, admit func(string) error) (identify.Process, Life, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return identify.Process{}, nil, err
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return identify.Process{}, nil, err
	}
	if err != nil {
		return identify.Process{}, nil, err
	}
	proc := identify.Process{PID: int(cred.Pid)}
	if proc.Start, err = (identify.Finder{}).Start(proc.PID); err != nil {
		return proc, nil, err
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", proc.PID))
	if err != nil {
		return proc, nil, err
	}
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if id, ok := strings.CutPrefix(string(entry), "GATE_TEST_CONTAINER="); ok {
			proc.Container = identify.Container{ID: id, Alloc: "alloc-" + id, Task: "train"}
		}
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

type running struct {
	*Gate
	end func() // like a kill
}

func (p *place) open() *running {
	p.Helper()
	g, err := New(p.options)
	must.NoError(p, err)
	l, err := Listen(p.socket)
	must.NoError(p, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, l) }()
	end := sync.OnceFunc(func() {
		state, _ := os.ReadFile(p.options.State)
		g.Close()
		if state != nil {
			must.NoError(p, os.WriteFile(p.options.State, state, 0o600))
		}
		cancel()
		must.NoError(p, <-served)
		must.NoError(p, g.ledger.Check())
	})
	p.Cleanup(end)
	return &running{g, end}
}

func (p *place) dial() *client {
	p.Helper()
	c, err := dial(p.socket, uuid0)
	must.NoError(p, err)
	p.Cleanup(func() { c.conn.Close() })
	return c
}

func (r *running) held() ledger.Entry { return r.Cards()[0].Held }

func TestListen(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("x", MaxPath-len(dir)-1))
	l, err := Listen(long)
	must.NoError(t, err)
	info, err := os.Stat(long)
	must.NoError(t, err)
	must.Eq(t, 0o666, info.Mode().Perm())
	l.SetUnlinkOnClose(false)
	must.NoError(t, l.Close())
	l, err = Listen(long)
	must.NoError(t, err, must.Sprint("a socket of a gate that was killed"))
	must.NoError(t, l.Close())
	_, err = Listen(long + "x")
	must.ErrorContains(t, err, "limited to 107 bytes, got 108")
	file := filepath.Join(dir, "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Listen(file)
	must.ErrorContains(t, err, "the path exists and is not a socket")
}

func TestServe_hostile(t *testing.T) {
	p := newPlace(t)
	p.options.Bounds.Hello = 200 * time.Millisecond
	var mu sync.Mutex
	var reports []error
	p.options.Report = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		reports = append(reports, err)
	}
	g := p.open()
	honest := p.dial()
	must.NoError(t, honest.take(mib, 0))

	hello := wire.Message{Type: wire.Hello, Seq: 1, Arg: 1}.Append(nil)
	for name, sent := range map[string][]byte{
		"nothing":            nil,
		"half a message":     hello[:20],
		"a message and half": append(bytes.Clone(hello), hello[:20]...),
		"HTTP":               []byte("GET / HTTP/1.1\r\nHost: gate\r\nUser-Agent: curl\r\n\r\n"),
		"zeros":              make([]byte, 1<<20),
		"hello forever":      bytes.Repeat(hello, 10_000),
	} {
		conn, err := net.Dial("unix", p.socket)
		must.NoError(t, err)
		_, _ = conn.Write(sent) // it may be cut off
		if len(sent) > 0 && strings.Contains(name, "half") {
			must.NoError(t, conn.(*net.UnixConn).CloseWrite())
		}
		must.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err = io.Copy(io.Discard, conn)
		must.False(t, errors.Is(err, os.ErrDeadlineExceeded), must.Sprint(name))
		must.NoError(t, conn.Close())
	}
	must.NoError(t, honest.take(mib, 0))
	m, err := honest.info()
	must.NoError(t, err)
	must.Eq(t, 2*mib, m.ID)
	must.Eq(t, ledger.Entry{Committed: 2 * mib}, g.held())
	soon(t, "each of them is reported", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(reports) == 6
	})
}

func TestServe_badMessage(t *testing.T) {
	p := newPlace(t)
	p.open()
	c := p.dial()
	must.NoError(t, c.giveBack(1))
	m, err := wire.Read(c.conn)
	must.NoError(t, err)
	must.Eq(t, wire.BadMessage, denial(m))
	_, err = wire.Read(c.conn)
	must.ErrorIs(t, err, io.EOF)
}

func TestServe_flood(t *testing.T) {
	p := newPlace(t)
	p.options.Bounds.Rate, p.options.Bounds.Burst = 2000, 100
	g := p.open()
	honest := p.dial()
	stop := make(chan struct{})
	var floods sync.WaitGroup
	for range 4 {
		c := p.dial()
		floods.Go(func() {
			b := bytes.Repeat(wire.Message{Type: wire.Paused}.Append(nil), 1000)
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = c.conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
				_, _ = c.conn.Write(b)
			}
		})
	}
	for range 200 {
		must.NoError(t, honest.take(mib, 0))
	}
	close(stop)
	floods.Wait()
	_, err := honest.info()
	must.NoError(t, err)
	must.Eq(t, 200*mib, g.Cards()[0].Held.Committed)
}

func TestServe_connections(t *testing.T) {
	p := newPlace(t)
	p.options.Bounds.Connections, p.options.Bounds.Sure = 3, 1
	p.open()
	var open int
	for range 50 { // in ten containers
		if c, err := dial(p.socket, uuid0); err == nil {
			open++
			t.Cleanup(func() { c.conn.Close() })
		}
	}
	must.Eq(t, 30, open)
}

func TestConnLimiter(t *testing.T) {
	b := Bounds{Connections: 10, Total: 20, Sure: 2, Rate: 1, Burst: 1}
	d := connLimiter{held: make(map[ledger.ContainerID]*connCount)}
	fill := func(id ledger.ContainerID) (n int) {
		for {
			if _, ok := d.acquire(id, b); !ok {
				return n
			}
			n++
		}
	}
	must.Eq(t, []int{10, 10, 2, 2}, []int{fill("a"), fill("b"), fill("c"), fill("d")})
	for range 5 {
		d.release("a")
	}
	must.Eq(t, []int{1, 0, 0}, []int{fill("c"), fill("a"), fill("b")}, must.Sprint("19 are there, and 20 may be"))
	for id, n := range map[ledger.ContainerID]int{"a": 5, "b": 10, "c": 3, "d": 2} {
		for range n {
			d.release(id)
		}
	}
	must.MapEmpty(t, d.held)
	must.Eq(t, 0, d.total)
}

func TestServe_crowd(t *testing.T) {
	cost := func(waiting int) time.Duration {
		o := options()
		o.Bounds.Waiting = max(1, waiting)
		g, err := New(o)
		must.NoError(t, err)
		defer g.Close()
		b := &bench{t, g}
		holder := b.process(1, "holder")
		holder.take(1000 * mib)
		for n := range waiting / wire.MaxOpen {
			c := b.process(2+n, fmt.Sprint("greedy ", n))
			for range wire.MaxOpen {
				c.want(mib, time.Hour)
			}
		}
		begun := time.Now()
		for range 2000 {
			must.NoError(t, g.receive(holder.s, wire.Message{Type: wire.Return, Device: 1, Bytes: 1}))
		}
		return time.Since(begun)
	}
	few, many := cost(0), cost(4096)
	t.Logf("2000 messages took %v, and %v with 4096 requests waiting", few, many)
	must.Less(t, 300*few, many)
}

// Two hundred clients of ten containers, whose limits are the card, all get what fits.
func TestServe_200(t *testing.T) {
	p := newPlace(t)
	p.options.Cards[0].Physical = 1000 * mib
	g := p.open()
	var clients sync.WaitGroup
	var granted atomic.Int64
	for n := range 200 {
		clients.Go(func() {
			c, err := dial(p.socket, uuid0)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.conn.Close()
			r := rand.New(rand.NewPCG(uint64(n), 0))
			var holds uint64
			for range 30 {
				bytes := 1 + r.Uint64N(20*mib)
				var why denied
				switch err := c.take(bytes, 20*time.Millisecond); {
				case err == nil:
					holds += bytes
					granted.Add(1)
				case !errors.As(err, &why):
					t.Error(err)
					return
				}
				if r.IntN(2) == 0 {
					back := r.Uint64N(holds + 1)
					holds -= back
					if err := c.giveBack(back); err != nil {
						t.Error(err)
						return
					}
				}
			}
			if err := c.giveBack(holds); err != nil {
				t.Error(err)
			}
			if _, err := c.info(); err != nil { // all earlier messages were handled
				t.Error(err)
			}
		})
	}
	check := time.NewTicker(time.Millisecond)
	defer check.Stop()
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-check.C:
		}
		g.mu.Lock()
		err := g.ledger.Check()
		g.mu.Unlock()
		must.NoError(t, err)
	}
	must.Greater(t, 200, granted.Load())
	must.Eq(t, ledger.Entry{}, g.held())
}

func TestMain(m *testing.M) {
	if socket := os.Getenv("GATE_TEST_SOCKET"); socket != "" {
		if err := child(socket, os.Getenv("GATE_TEST_DOES")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(socket, does string) error {
	c, err := dial(socket, uuid0)
	if err != nil {
		return err
	}
	switch does {
	case "churn": // until it is killed, at any point
		for holds := uint64(0); ; {
			bytes := 1 + rand.Uint64N(10*mib)
			m, err := c.ask(wire.Message{Type: wire.Request, Device: c.device, Bytes: bytes, Arg: 10})
			var why denied
			switch {
			case errors.As(err, &why): // it frees what it can, like a framework
				err, holds = c.giveBack(holds), 0
			case err != nil:
			case rand.IntN(3) == 0:
				err = c.giveBack(m.Bytes)
			default:
				holds += m.Bytes
			}
			if err != nil {
				return err
			}
		}
	case "hold": // reconnects with the gate
		if err := c.take(700*mib, 0); err != nil {
			return err
		}
		fmt.Println("holds")
		for {
			_, _ = wire.Read(c.conn)
			for {
				if c, err = dial(socket, uuid0); err == nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			_, _ = fmt.Scanln() // it waits for the test
			if err := c.send(wire.Message{Type: wire.Holds, Device: c.device, Bytes: 600 * mib}); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("unknown: %q", does)
}

func (p *place) start(container, does string) (*exec.Cmd, io.Writer, io.Reader) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GATE_TEST_SOCKET="+p.socket, "GATE_TEST_DOES="+does, "GATE_TEST_CONTAINER="+container)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must.NoError(p, err)
	out, err := cmd.StdoutPipe()
	must.NoError(p, err)
	must.NoError(p, cmd.Start())
	p.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, in, out
}

func TestServe_killed(t *testing.T) {
	p := newPlace(t)
	p.options.Identify = p.processes
	p.options.Cards[0].Physical = 300 * mib
	g := p.open()
	for round := range 5 {
		var children []*exec.Cmd
		for n := range 6 {
			cmd, _, _ := p.start(strconv.Itoa(n%3), "churn")
			children = append(children, cmd)
		}
		soon(t, "they are busy", func() bool {
			s := g.Stats()
			return len(s) == 3 && len(s[0].Usage)*len(s[1].Usage)*len(s[2].Usage) > 0 && s[0].Usage[0].Granted > 100
		})
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
		for _, c := range children {
			must.NoError(t, c.Process.Kill())
		}
		soon(t, fmt.Sprintf("round %d: nothing is held", round), func() bool {
			return g.held() == ledger.Entry{} && len(g.Containers()) == 0
		})
		g.mu.Lock()
		must.NoError(t, g.ledger.Check())
		must.MapEmpty(t, g.pending)
		must.MapEmpty(t, g.processes)
		g.mu.Unlock()
	}
}

// A restarted gate grants nothing that an earlier process may hold, whether it has reconnected or
// not, and notices exits meanwhile.
func TestServe_restart(t *testing.T) {
	p := newPlace(t)
	p.options.Identify = p.processes
	p.options.Cards[0].Physical = 3200 * mib
	g := p.open()
	var children []*exec.Cmd
	var in []io.Writer
	for _, name := range []string{"a", "b", "c"} {
		cmd, w, out := p.start(name, "hold")
		_, err := out.Read(make([]byte, 1))
		must.NoError(t, err)
		children, in = append(children, cmd), append(in, w)
	}
	must.Eq(t, ledger.Entry{Committed: 2100 * mib}, g.held())
	must.Eq(t, 1100*mib, g.Cards()[0].Free)
	g.end()
	must.NoError(t, children[2].Process.Kill())
	must.Error(t, children[2].Wait())

	g = p.open()
	must.Eq(t, ledger.Entry{Expected: 1400 * mib}, g.held())
	soon(t, "two have a connection", func() bool {
		s := g.Stats()
		return len(s) == 2 && s[0].Disconnected+s[1].Disconnected == 0
	})
	must.Eq(t, ledger.Entry{Expected: 1400 * mib}, g.held(), must.Sprint("they have not said what they hold"))
	_, err := fmt.Fprintln(in[0])
	must.NoError(t, err)
	soon(t, "one is back", func() bool { return g.held() == ledger.Entry{Committed: 600 * mib, Expected: 700 * mib} })
	must.NoError(t, children[1].Process.Kill())
	soon(t, "the other one has ended", func() bool { return g.held() == ledger.Entry{Committed: 600 * mib} })
}

func TestServe_restartWithoutState(t *testing.T) {
	p := newPlace(t)
	p.options.Grace = 300 * time.Millisecond
	must.NoError(t, os.WriteFile(p.options.State, []byte("{"), 0o600))
	var reports atomic.Int64
	p.options.Report = func(error) { reports.Add(1) }
	begun := time.Now()
	p.open()
	must.Eq(t, 1, reports.Load())
	c := p.dial()
	must.ErrorIs(t, c.take(1, 0), denied(wire.NoMemory))
	must.NoError(t, c.take(1, time.Minute))
	must.GreaterEq(t, p.options.Grace, time.Since(begun))
}

func TestServe_restartMachine(t *testing.T) {
	p := newPlace(t)
	start, err := identify.Finder{}.Start(os.Getpid())
	must.NoError(t, err)
	for boot, expected := range map[string]uint64{`"another"`: 0, "": 5} {
		if boot == "" {
			id, err := identify.Finder{}.Boot()
			must.NoError(t, err)
			boot = strconv.Quote(id)
		}
		must.NoError(t, os.WriteFile(p.options.State, fmt.Appendf(nil,
			`{"boot": %s, "processes": [{"pid": %d, "start": %d, "container": {"ID": "a"}, "most": {%q: 5, "GPU-gone": 7}}]}`,
			boot, os.Getpid(), start, card0), 0o600))
		g, err := New(p.options)
		must.NoError(t, err)
		must.Eq(t, ledger.Entry{Expected: expected}, g.Cards()[0].Held)
		g.Close()
	}
}

// BenchmarkRequest measures a REQUEST's round trip, and its RETURN.
func BenchmarkRequest(b *testing.B) {
	p := newPlace(b)
	p.options.Bounds.Rate = 1_000_000
	p.open()
	c := p.dial()
	took := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		begun := time.Now()
		if err := c.take(mib, time.Second); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begun))
		if err := c.giveBack(mib); err != nil {
			b.Fatal(err)
		}
	}
	report(b, took)
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(part float64) float64 {
		return float64(took[int(part*float64(len(took)-1))].Nanoseconds()) / 1e3
	}
	b.ReportMetric(at(0.5), "median-µs")
	b.ReportMetric(at(0.99), "p99-µs")
}
