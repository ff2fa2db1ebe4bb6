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

// Oldest is the oldest version of NVIDIA's driver that can park processes. 570 has the functions,
// but they fail in cases where later versions succeed (NVIDIA/cuda-checkpoint#34).
const Oldest = "575.57"

// Argument is the first argument of the helper program, libcuda.Helper; the second is the
// library's path.
const Argument = "checkpoint-helper"

// Options configure a helper. Only Version is required.
type Options struct {
	// Version is the version of NVIDIA's driver, as NVML reports it: "580.95.05".
	Version string
	// Library is the path of libcuda.so.1; "" is the system's.
	Library string
	// Program is started with Argument and Library. Default: the running program, even if its
	// file was replaced.
	Program string
	// Env is the helper's environment. Default: this process's, without LD_PRELOAD.
	Env []string
	// Log is called with the lines of the helper's standard error.
	Log func(line string)
	// Begin bounds the loading of the library: 1 minute if 0.
	Begin time.Duration
	// Move bounds a checkpoint or restore, after which the helper is given up: 10 minutes if 0.
	Move time.Duration
	// Short bounds other calls, beyond a lock's timeout: 15 s if 0.
	Short time.Duration
	// Pause is the delay before a short-lived helper is restarted: 100 ms if 0. It doubles, up to
	// 64 times.
	Pause time.Duration
}

// Client calls CUDA through a helper, which it starts when needed. It is safe for concurrent use.
type Client struct {
	opts Options

	starting chan struct{} // held while looking up or starting the helper
	current  *helper
	short    int       // short-lived helpers in a row
	after    time.Time // none is started before
	closed   bool
}

// New returns a client. The caller must call Close.
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

// Check starts the helper, if none runs. The error wraps ErrUnsupported where processes cannot be
// parked.
func (c *Client) Check(ctx context.Context) error {
	_, err := c.helper(ctx)
	return err
}

// Close ends the helper once the calls in progress are done.
func (c *Client) Close() {
	c.starting <- struct{}{}
	defer func() { <-c.starting }()
	c.closed = true
	if c.current != nil {
		_ = c.current.stdin.Close() // on which it exits
		<-c.current.ended
	}
}

// State returns the state of a process. CUDA's errors are a Result, here and below; for a process
// unknown to CUDA InvalidValue or NotInitialized.
func (c *Client) State(ctx context.Context, pid int) (State, error) {
	a, err := c.call(ctx, request{Call: callState, PID: pid})
	return a.State, err
}

// Lock blocks the process's CUDA calls, once its submitted work is done. After the timeout the
// process continues, and the error is NotReady.
func (c *Client) Lock(ctx context.Context, pid int, timeout time.Duration) error {
	ms := max(1, timeout.Milliseconds()) // 0 would be no timeout
	_, err := c.call(ctx, request{Call: callLock, PID: pid, TimeoutMS: uint32(min(ms, 1<<31))})
	return err
}

// Checkpoint moves the memory of a locked process to host memory.
func (c *Client) Checkpoint(ctx context.Context, pid int) error {
	_, err := c.call(ctx, request{Call: callCheckpoint, PID: pid})
	return err
}

// Restore moves the memory back. The process stays locked.
func (c *Client) Restore(ctx context.Context, pid int) error {
	_, err := c.call(ctx, request{Call: callRestore, PID: pid})
	return err
}

// Unlock unblocks a locked process.
func (c *Client) Unlock(ctx context.Context, pid int) error {
	_, err := c.call(ctx, request{Call: callUnlock, PID: pid})
	return err
}

// call sends a request to the helper. If ctx ends first, CUDA continues with it.
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
		h.discard() // a retry starts another
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
		c.noteEnd(time.Since(h.started))
	}
	select {
	case <-time.After(time.Until(c.after)):
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: it keeps crashing; restart delayed: %w", ErrHelper, ctx.Err())
	}
	h, err := start(ctx, c.opts)
	if err != nil {
		c.noteEnd(0)
		return nil, err
	}
	c.current = h
	return h, nil
}

func (c *Client) noteEnd(lived time.Duration) {
	if lived > 64*c.opts.Pause {
		c.short = 0
		return
	}
	c.after = time.Now().Add(c.opts.Pause << min(c.short, 6))
	c.short++
}

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

type helper struct {
	started  time.Time
	kill     func()
	stdin    *os.File
	greeting chan hello // its first message
	ended    chan struct{}
	err      error // set once it has ended

	discarded atomic.Bool // killed, or to be killed after its last request

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
		return !h.discarded.Load()
	}
}

func start(ctx context.Context, opts Options) (*helper, error) {
	failed := func(err error) error { return fmt.Errorf("%w: it could not be started: %w", ErrHelper, err) }
	cmd := exec.Command(opts.Program, Argument, opts.Library)
	cmd.Env = opts.Env
	if cmd.Env == nil {
		cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "LD_PRELOAD=") })
	}
	// Not SIGKILL: it may be restoring a process.
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
		started: time.Now(), stdin: ours[0], greeting: make(chan hello, 1), ended: make(chan struct{}),
		open: make(map[uint64]chan answer), write: json.NewEncoder(ours[0]),
	}

	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the starting thread ends, so this one stays as long as
		// the process.
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
			_, _ = io.Copy(io.Discard, ours[2]) // the rest of a line that is too long
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

// send sends a request. The channel is closed when the helper ends without an answer.
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

// takeOpen removes an open request. A helper that was given up is killed after its last one,
// which may be a restore. mu is held.
func (h *helper) takeOpen(id uint64) {
	delete(h.open, id)
	if h.discarded.Load() && len(h.open) == 0 {
		h.kill()
	}
}

func (h *helper) giveUp(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.discarded.Store(true)
	h.takeOpen(id)
}

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
	close(h.ended) // first: callers then get the next helper at once
	for _, reply := range h.open {
		close(reply)
	}
	h.open = nil
}

func (h *helper) discard() {
	h.discarded.Store(true)
	h.kill()
}
