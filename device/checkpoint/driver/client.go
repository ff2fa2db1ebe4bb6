// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Oldest is the oldest version of NVIDIA's driver with which processes are parked. 570 has
// the functions, but they fail on what later ones can do (NVIDIA/cuda-checkpoint#34).
const Oldest = "575.57"

// Argument is the first argument of a program that is to be the helper, libcuda.Helper; the
// second is the library's path.
const Argument = "checkpoint-helper"

// Options say how a helper is started. Only Version must be set.
type Options struct {
	// Version is NVIDIA's driver's version, as NVML tells it: "580.95.05".
	Version string
	// Library is the path of libcuda.so.1; "" is where the system has it.
	Library string
	// Program is what is started, with Argument and Library. Without, it is what runs now,
	// also if its file was replaced.
	Program string
	// Env is the helper's environment. Without, it has this process's but LD_PRELOAD.
	Env []string
	// Log is given each line that the helper writes to its standard error.
	Log func(line string)
	// Begin is how long the helper may take to load the library: 1 minute if 0.
	Begin time.Duration
	// Move is how long a checkpoint or restore may take before CUDA is taken for stuck, and
	// its helper is given up: 10 minutes if 0.
	Move time.Duration
	// Short is the same for other calls, beyond a lock's time-out: 15 s if 0.
	Short time.Duration
	// Pause is how long a helper that ends without having lived for a while is left alone. It
	// doubles, up to 64 times as much: 100 ms if 0.
	Pause time.Duration
}

// Client has a helper do what it is asked for. The helper is started with the first request,
// and again with the next one after it has ended. It is safe for concurrent use.
type Client struct {
	opts Options

	starting chan struct{} // held by who looks for the helper or starts it
	current  *helper
	short    int       // helpers in a row that have not lived for a while
	after    time.Time // until then none is started
	closed   bool
}

// New returns a client. Close must be called.
func New(opts Options) *Client {
	if opts.Log == nil {
		opts.Log = func(string) {}
	}
	opts.Program = cmp.Or(opts.Program, "/proc/self/exe")
	opts.Begin = cmp.Or(opts.Begin, time.Minute)
	opts.Move = cmp.Or(opts.Move, 10*time.Minute)
	opts.Short = cmp.Or(opts.Short, 15*time.Second)
	opts.Pause = cmp.Or(opts.Pause, 100*time.Millisecond)
	return &Client{opts: opts, starting: make(chan struct{}, 1)}
}

// Check starts the helper, if there is none. The error wraps ErrUnsupported where processes
// cannot be parked.
func (c *Client) Check(ctx context.Context) error {
	_, err := c.helper(ctx)
	return err
}

// Close ends the helper, once the calls under way are done.
func (c *Client) Close() {
	c.starting <- struct{}{}
	defer func() { <-c.starting }()
	c.closed = true
	if c.current != nil {
		_ = c.current.stdin.Close() // by which it ends
		<-c.current.ended
	}
}

// State asks for the state of a process. An error of CUDA's is a Result, here and below; that
// CUDA knows no such process is InvalidValue or NotInitialized.
func (c *Client) State(ctx context.Context, pid int) (State, error) {
	a, err := c.call(ctx, request{Call: callState, PID: pid})
	return a.State, err
}

// Lock makes the process's calls of CUDA wait, once what it has submitted is done. If that
// takes longer than the time-out, the process goes on as before, and the error is NotReady.
func (c *Client) Lock(ctx context.Context, pid int, timeout time.Duration) error {
	ms := max(1, timeout.Milliseconds()) // 0 would be for ever
	_, err := c.call(ctx, request{Call: callLock, PID: pid, TimeoutMS: uint32(min(ms, 1<<31))})
	return err
}

// Checkpoint moves the memory of a locked process to the host's.
func (c *Client) Checkpoint(ctx context.Context, pid int) error {
	_, err := c.call(ctx, request{Call: callCheckpoint, PID: pid})
	return err
}

// Restore moves it back. The process stays locked.
func (c *Client) Restore(ctx context.Context, pid int) error {
	_, err := c.call(ctx, request{Call: callRestore, PID: pid})
	return err
}

// Unlock lets a locked process go on.
func (c *Client) Unlock(ctx context.Context, pid int) error {
	_, err := c.call(ctx, request{Call: callUnlock, PID: pid})
	return err
}

// call has the helper do something. When ctx ends first, CUDA goes on with it.
func (c *Client) call(ctx context.Context, r request) (answer, error) {
	what := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("%s of process %d: %w", r.Call, r.PID, err)
	}
	h, err := c.helper(ctx)
	if err != nil {
		return answer{}, what(err)
	}
	id, reply, err := h.send(r)
	if err != nil {
		h.discard() // whoever tries again gets another
		return answer{}, what(err)
	}
	limit := c.opts.Short + time.Duration(r.TimeoutMS)*time.Millisecond
	if r.Call == callCheckpoint || r.Call == callRestore {
		limit = c.opts.Move
	}
	stuck := time.NewTimer(limit)
	defer stuck.Stop()
	select {
	case a, ok := <-reply:
		switch {
		case !ok:
			return a, what(h.err)
		case a.Result != Success:
			return a, what(a.Result)
		}
		return a, nil
	case <-stuck.C:
		h.giveUp(id)
		return answer{}, what(fmt.Errorf("%w within %v", ErrStuck, limit))
	case <-ctx.Done():
		return answer{}, what(ctx.Err())
	}
}

// helper returns the helper, and starts one if there is none.
func (c *Client) helper(ctx context.Context) (*helper, error) {
	if err := supported(c.opts.Version); err != nil {
		return nil, err
	}
	select {
	case c.starting <- struct{}{}:
		defer func() { <-c.starting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.closed {
		return nil, ErrClosed
	}
	if h := c.current; h != nil {
		if h.runs() {
			return h, nil
		}
		c.current = nil
		c.noteEnd(time.Since(h.begun))
	}
	select {
	case <-time.After(time.Until(c.after)):
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: it has ended too often to be started again at once: %w", ErrHelper, ctx.Err())
	}
	h, err := start(ctx, c.opts)
	if err != nil {
		c.noteEnd(0)
		return nil, err
	}
	c.current = h
	return h, nil
}

// leave notes that a helper has ended after a time. One that has lived for a while is
// replaced at once.
func (c *Client) noteEnd(lived time.Duration) {
	if lived > 64*c.opts.Pause {
		c.short = 0
		return
	}
	c.after = time.Now().Add(c.opts.Pause << min(c.short, 6))
	c.short++
}

// supported compares the driver's version.
func supported(version string) error {
	parse := func(s string) (n []int) {
		for part := range strings.SplitSeq(s, ".") {
			i, err := strconv.Atoi(part)
			if err != nil {
				return nil
			}
			n = append(n, i)
		}
		return n
	}
	v := parse(version)
	switch {
	case v == nil:
		return fmt.Errorf("%w: the driver's version %q cannot be read; it must be %s or later", ErrUnsupported, version, Oldest)
	case slices.Compare(v, parse(Oldest)) < 0:
		return fmt.Errorf("%w: the driver is of version %s; it must be %s or later", ErrUnsupported, version, Oldest)
	}
	return nil
}

// helper is a helper that runs, or has run.
type helper struct {
	begun    time.Time
	kill     func()
	stdin    *os.File
	greeting chan hello // what it said first
	ended    chan struct{}
	err      error // why; once it has ended

	doomed atomic.Bool // it was killed, or will be with its last request

	mu    sync.Mutex
	last  uint64
	open  map[uint64]chan answer // nil: it has ended
	write *json.Encoder
}

func (h *helper) runs() bool {
	select {
	case <-h.ended:
		return false
	default:
		return !h.doomed.Load()
	}
}

// start starts a helper and hears what it says first.
func start(ctx context.Context, opts Options) (*helper, error) {
	failed := func(err error) error { return fmt.Errorf("%w: it could not be started: %w", ErrHelper, err) }
	cmd := exec.Command(opts.Program, Argument, opts.Library)
	cmd.Env = opts.Env
	if cmd.Env == nil {
		cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "LD_PRELOAD=") })
	}
	// SIGTERM and not SIGKILL: it may be bringing a process's memory back.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var ours, theirs [3]*os.File
	shut := func(files [3]*os.File) {
		for _, f := range files {
			if f != nil {
				_ = f.Close()
			}
		}
	}
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			shut(ours)
			shut(theirs)
			return nil, failed(err)
		}
		if ours[i], theirs[i] = r, w; i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	h := &helper{
		begun: time.Now(), stdin: ours[0], greeting: make(chan hello, 1), ended: make(chan struct{}),
		open: make(map[uint64]chan answer), write: json.NewEncoder(ours[0]),
	}

	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread ends that has started the process: this
		// one stays until the process has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		shut(theirs)
		if err != nil {
			shut(ours)
			started <- err
			return
		}
		h.kill = func() { _ = cmd.Process.Kill() }
		started <- nil
		var readers sync.WaitGroup
		var bad error
		readers.Go(func() { bad = h.readAnswers(ours[1]) })
		readers.Go(func() {
			lines := bufio.NewScanner(ours[2])
			for lines.Scan() {
				opts.Log(lines.Text())
			}
			_, _ = io.Copy(io.Discard, ours[2]) // of a line that is too long
		})
		err = cmd.Wait()
		readers.Wait()
		h.finish(ours, cmp.Or(bad, err))
	}()
	if err := <-started; err != nil {
		return nil, failed(err)
	}

	limit := time.NewTimer(opts.Begin)
	defer limit.Stop()
	var err error
	select {
	case first := <-h.greeting:
		if first.Unsupported == "" {
			return h, nil
		}
		err = fmt.Errorf("%w: %s", ErrUnsupported, first.Unsupported)
	case <-h.ended:
		return nil, h.err
	case <-limit.C:
		err = failed(fmt.Errorf("it has not loaded CUDA within %v", opts.Begin))
	case <-ctx.Done():
		err = failed(ctx.Err())
	}
	h.discard()
	<-h.ended
	return nil, err
}

// listen hears what the helper says until it ends.
func (h *helper) readAnswers(r io.Reader) error {
	dec := json.NewDecoder(r)
	var first hello
	err := dec.Decode(&first)
	if err == nil {
		h.greeting <- first
	}
	for err == nil {
		var a answer
		if err = dec.Decode(&a); err != nil {
			break
		}
		h.mu.Lock()
		reply := h.open[a.ID]
		h.takeOpen(a.ID)
		h.mu.Unlock()
		if reply != nil {
			reply <- a
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	h.discard()
	_, _ = io.Copy(io.Discard, r)
	return fmt.Errorf("reading its answer: %w", err)
}

// ask sends a request. The channel is closed when the helper ends without an answer.
func (h *helper) send(r request) (id uint64, _ <-chan answer, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		return 0, nil, h.err
	}
	h.last++
	r.ID = h.last
	reply := make(chan answer, 1)
	h.open[r.ID] = reply
	if err := h.write.Encode(r); err != nil {
		delete(h.open, r.ID)
		return 0, nil, fmt.Errorf("%w: %w", ErrHelper, err)
	}
	return r.ID, reply, nil
}

// settle takes a request off the open ones. A helper that was given up ends with its last:
// that may be one that brings a process back. mu is held.
func (h *helper) takeOpen(id uint64) {
	delete(h.open, id)
	if h.doomed.Load() && len(h.open) == 0 {
		h.kill()
	}
}

// giveUp gives up a helper because of a request that it does not answer.
func (h *helper) giveUp(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doomed.Store(true)
	h.takeOpen(id)
}

// finish is called when the helper has ended.
func (h *helper) finish(ours [3]*os.File, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range ours {
		_ = f.Close()
	}
	h.err = ErrHelper
	if err != nil {
		h.err = fmt.Errorf("%w: %w", ErrHelper, err)
	}
	close(h.ended) // first: whoever is told asks for the next helper at once
	for _, reply := range h.open {
		close(reply)
	}
	h.open = nil
}

// end kills the helper. It is used no more.
func (h *helper) discard() {
	h.doomed.Store(true)
	h.kill()
}
