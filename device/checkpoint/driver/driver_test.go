// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// TestMain is also the helper, over a driver named by its path.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != Argument {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, "it has begun")
	unsupported := ""
	switch os.Args[2] {
	case "none":
		unsupported = "there is no driver"
	case "silent":
		time.Sleep(time.Minute)
	case "garbage":
		fmt.Println("{}\nwell")
		time.Sleep(time.Minute)
	case "gone":
		os.Exit(7)
	}
	if err := Serve(context.Background(), os.Stdin, os.Stdout, script{}, 12090, unsupported, time.Second); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// script is a driver whose pids are results; process 7 returns the helper's pid as its state, 8
// kills it, 9 takes 300 ms and 10 a minute.
type script struct{}

func (script) State(pid int) (State, Result) {
	switch pid {
	case 7:
		return State(os.Getpid()), Success
	case 8:
		os.Exit(3)
	case 9:
		time.Sleep(300 * time.Millisecond)
	case 10:
		time.Sleep(time.Minute)
	}
	return Locked, Result(pid % 100)
}
func (script) Lock(_ int, ms uint32) Result { return Result(ms) }
func (script) Checkpoint(int) Result        { return 1001 }
func (script) Restore(int) Result           { return 1002 }
func (script) Unlock(int) Result            { return 1003 }

func client(t *testing.T, how string, change ...func(*Options)) *Client {
	opts := Options{Version: "580.95.05", Library: how, Pause: time.Millisecond}
	for _, f := range change {
		f(&opts)
	}
	c := New(opts)
	t.Cleanup(c.Close)
	return c
}

func TestClient_calls(t *testing.T) {
	c, ctx := client(t, "well"), t.Context()
	must.NoError(t, c.Check(ctx))
	s, err := c.State(ctx, 100)
	must.NoError(t, err)
	must.Eq(t, Locked, s)
	_, err = c.State(ctx, 1)
	must.ErrorIs(t, err, InvalidValue)
	must.ErrorContains(t, err, "state of process 1: CUDA's error 1 (invalid value)")
	must.ErrorIs(t, c.Lock(ctx, 5, 600*time.Millisecond), NotReady)
	must.ErrorIs(t, c.Lock(ctx, 5, 0), InvalidValue, must.Sprint("1 ms, since 0 would be without end"))
	must.ErrorIs(t, c.Checkpoint(ctx, 5), Result(1001))
	must.ErrorIs(t, c.Restore(ctx, 5), Result(1002))
	must.ErrorIs(t, c.Unlock(ctx, 5), Result(1003))
}

func TestClient_concurrent(t *testing.T) {
	c := client(t, "well")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := c.State(t.Context(), 9)
			must.ErrorIs(t, err, Result(9))
		})
	}
	for i := range 1000 {
		_, err := c.State(t.Context(), 100+i%50)
		must.True(t, i%50 == 0 == (err == nil), must.Sprint(i, err))
	}
	all.Wait()

	done := make(chan error)
	go func() { _, err := c.State(t.Context(), 9); done <- err }()
	for c.current.under() == 0 {
		time.Sleep(time.Millisecond)
	}
	c.Close()
	must.ErrorIs(t, <-done, Result(9))
	must.ErrorIs(t, c.Check(t.Context()), ErrClosed)
}

func (h *helper) under() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open)
}

func TestClient_unsupported(t *testing.T) {
	for name, tc := range map[string]struct{ how, version, want string }{
		"no driver":        {how: "none", version: "580.95.05", want: "there is no driver"},
		"too old":          {how: "well", version: "570.211.01", want: "the driver is of version 570.211.01; it must be 575.57 or later"},
		"a little too old": {how: "well", version: "575.51.03", want: "575.51.03"},
		"not known":        {how: "well", want: `the driver's version "" cannot be read`},
		"no number":        {how: "well", version: "580.x", want: `"580.x"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, tc.how, func(o *Options) { o.Version = tc.version })
			for range 3 {
				err := c.Check(t.Context())
				must.ErrorIs(t, err, ErrUnsupported)
				must.ErrorContains(t, err, tc.want)
			}
		})
	}
	must.NoError(t, supported("575.57.08"))
	must.NoError(t, supported("575.57"))
	must.NoError(t, supported("610"))
}

func TestClient_helperEnds(t *testing.T) {
	c, ctx := client(t, "well"), t.Context()
	first, err := c.State(ctx, 7)
	must.NoError(t, err)
	pending := make(chan error)
	go func() { _, err := c.State(ctx, 10); pending <- err }()
	for c.current.under() == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err = c.State(ctx, 8)
	must.ErrorIs(t, err, ErrHelper)
	must.ErrorContains(t, err, "exit status 3")
	must.ErrorIs(t, <-pending, ErrHelper)
	second, err := c.State(ctx, 7)
	must.NoError(t, err)
	must.NotEq(t, first, second)

	must.NoError(t, syscall.Kill(int(second), syscall.SIGKILL))
	<-c.current.ended
	third, err := c.State(ctx, 7)
	must.NoError(t, err)
	must.NotEq(t, second, third)
}

func TestClient_stuck(t *testing.T) {
	c := client(t, "well", func(o *Options) { o.Short = 500 * time.Millisecond })
	other := make(chan error)
	go func() {
		time.Sleep(350 * time.Millisecond)
		_, err := c.State(t.Context(), 9) // takes 300 ms
		other <- err
	}()
	_, err := c.State(t.Context(), 10)
	must.ErrorIs(t, err, ErrStuck)
	must.ErrorIs(t, err, ErrHelper)
	must.ErrorContains(t, err, "CUDA does not answer within 500ms")
	old := c.current
	_, err = c.State(t.Context(), 100)
	must.NoError(t, err)
	must.NotEq(t, old.started, c.current.started)
	must.ErrorIs(t, <-other, Result(9), must.Sprint("what another has asked for is not cut off"))
	<-old.ended

	ctx, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	before := c.current
	_, err = c.State(ctx, 9)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = c.State(t.Context(), 100)
	must.NoError(t, err)
	must.Eq(t, before.started, c.current.started)
}

func TestClient_cannotStart(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no program": {func(o *Options) { o.Program = "/nowhere/at/all" }, "no such file"},
		"silent":     {func(o *Options) { o.Library, o.Begin = "silent", 300*time.Millisecond }, "it has not loaded CUDA within 300ms"},
		"gone":       {func(o *Options) { o.Library = "gone" }, "exit status 7"},
	} {
		t.Run(name, func(t *testing.T) {
			err := client(t, "", tc.change).Check(t.Context())
			must.ErrorIs(t, err, ErrHelper)
			must.ErrorContains(t, err, tc.want)
		})
	}
	t.Run("garbage", func(t *testing.T) {
		c := client(t, "garbage")
		_, err := c.State(t.Context(), 100) // it may have been killed before, or after this was sent
		must.ErrorIs(t, err, ErrHelper)
	})
}

func TestClient_backsOff(t *testing.T) {
	c := client(t, "gone", func(o *Options) { o.Pause = 20 * time.Millisecond })
	begun := time.Now()
	for range 4 {
		must.ErrorIs(t, c.Check(t.Context()), ErrHelper)
	}
	must.GreaterEq(t, (20+40+80)*time.Millisecond, time.Since(begun))
	ctx, end := context.WithTimeout(t.Context(), time.Millisecond)
	defer end()
	err := c.Check(ctx)
	must.ErrorIs(t, err, ErrHelper)
	must.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestClient_environment(t *testing.T) {
	t.Setenv("LD_PRELOAD", "/nowhere.so")
	lines := make(chan string, 16)
	c := client(t, "well", func(o *Options) { o.Log = func(s string) { lines <- s } })
	pid, err := c.State(t.Context(), 7)
	must.NoError(t, err)
	must.Eq(t, "it has begun", <-lines) // and nothing from the loader before
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	must.NoError(t, err)
	must.StrNotContains(t, string(environ), "LD_PRELOAD=")
	must.StrContains(t, string(environ), "PATH=")
}

func TestClient_parentEnds(t *testing.T) {
	if os.Getenv("EBBTIDE_TEST_PARENT") != "" {
		c := client(t, "well")
		pid, err := c.State(t.Context(), 7)
		must.NoError(t, err)
		fmt.Printf("\npid %d\n", pid)
		time.Sleep(time.Minute)
	}
	parent := exec.Command("/proc/self/exe", "-test.run=^TestClient_parentEnds$")
	parent.Env = append(os.Environ(), "EBBTIDE_TEST_PARENT=1")
	out, err := parent.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, parent.Start())
	var pid int
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "pid %d", &pid)
	}
	must.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	must.Positive(t, pid)
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		must.Less(t, 10*time.Second, time.Since(begun))
	}
}

func TestServe(t *testing.T) {
	t.Run("no request", func(t *testing.T) {
		err := Serve(t.Context(), strings.NewReader("well\n"), io.Discard, script{}, 1, "", time.Second)
		must.ErrorContains(t, err, "reading a request: invalid character 'w'")
	})
	t.Run("an unknown call", func(t *testing.T) {
		var out strings.Builder
		must.NoError(t, Serve(t.Context(), strings.NewReader(`{"id": 5, "call": "destroy"}`+"\n"), &out, script{}, 1, "", time.Second))
		must.Eq(t, []string{`{"cuda":1}`, `{"id":5,"result":1}`}, slices.Collect(strings.FieldsSeq(out.String())))
	})
	t.Run("ends with its context, and after its grace", func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		r, w := io.Pipe()
		defer w.Close()
		done := make(chan error)
		begun := make(slow)
		go func() { done <- Serve(ctx, r, io.Discard, begun, 1, "", 50*time.Millisecond) }()
		_, err := io.WriteString(w, `{"id": 1, "call": "unlock"}`+"\n")
		must.NoError(t, err)
		<-begun
		defer close(begun)
		end()
		must.ErrorContains(t, <-done, "CUDA calls have not returned within 50ms")
	})
	t.Run("no reader", func(t *testing.T) {
		err := Serve(t.Context(), strings.NewReader(""), deaf{}, script{}, 1, "", time.Second)
		must.ErrorContains(t, err, "sending hello")
	})
}

// slow signals the start of an unlock, and blocks until released.
type slow chan struct{}

func (slow) State(int) (State, Result) { return 0, Success }
func (slow) Lock(int, uint32) Result   { return Success }
func (slow) Checkpoint(int) Result     { return Success }
func (slow) Restore(int) Result        { return Success }
func (s slow) Unlock(int) Result       { s <- struct{}{}; <-s; return Success }

type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, errors.New("deaf") }

func TestNames(t *testing.T) {
	must.Eq(t, "checkpointed", Checkpointed.String())
	must.Eq(t, "state 5", State(5).String())
	must.Eq(t, "state -1", State(-1).String())
	must.Eq(t, "CUDA's error 801 (not supported)", NotSupported.Error())
	must.Eq(t, "CUDA's error 4711", Result(4711).Error())
}
