// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package gputest runs programs on a card, as containers do, under a real gate in this process: for
// tests and measurements, on the fake card or a real one. There is no Nomad and no container: a
// program is told which container it stands for by a variable of its environment.
package gputest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/fake"
)

// Card is a fake card.
type Card struct {
	Memory   uint64        // bytes
	Reserved uint64        // bytes that the driver keeps beyond that
	Context  uint64        // bytes that a context takes
	Block    uint64        // bytes of which an allocation takes whole ones; 0: 512
	Lazy     uint64        // bytes that a process's first launch takes
	Kernel   time.Duration // that each launch takes
	Latency  time.Duration // of an allocation
	// Serial has the kernels of all processes run one after the other, as on a card that each of
	// them fills. Otherwise each process has a card's speed for itself.
	Serial bool
}

// Rig is a card with what is needed to use it.
type Harness struct {
	dir     string // of what has been built
	scratch string
	fake    bool
	context uint64
	env     []string

	mu    sync.Mutex
	gates int
}

// Build compiles what rigs need into a folder. The error is fake.ErrNoCompiler where that
// cannot be.
func Build(dir string) error { return fake.Build(dir) }

// Fake returns a rig with a fake card. It keeps its state in scratch, a folder of its own.
func Fake(built, scratch string, c Card) *Harness {
	h := &Harness{dir: built, scratch: scratch, fake: true, context: c.Context}
	serial := "0"
	if c.Serial {
		serial = "1"
	}
	h.env = []string{
		"LD_LIBRARY_PATH=" + built,
		"EBBTIDE_FAKE_GPU=" + filepath.Join(scratch, "card"),
		"EBBTIDE_FAKE_MEMORY=" + strconv.FormatUint(c.Memory, 10),
		"EBBTIDE_FAKE_RESERVED=" + strconv.FormatUint(c.Reserved, 10),
		"EBBTIDE_FAKE_CONTEXT=" + strconv.FormatUint(c.Context, 10),
		"EBBTIDE_FAKE_BLOCK=" + strconv.FormatUint(max(c.Block, 512), 10),
		"EBBTIDE_FAKE_LAZY=" + strconv.FormatUint(c.Lazy, 10),
		"EBBTIDE_FAKE_KERNEL_US=" + strconv.FormatInt(c.Kernel.Microseconds(), 10),
		"EBBTIDE_FAKE_LATENCY_US=" + strconv.FormatInt(c.Latency.Microseconds(), 10),
		"EBBTIDE_FAKE_SERIAL=" + serial,
	}
	return h
}

// Real returns a rig with this machine's first card, of which a context is taken to need so
// many bytes. scratch is a folder of its own.
func Real(built, scratch string, context uint64) *Harness {
	// NVML counts cards by their place on the bus; CUDA does only if it is told to.
	return &Harness{dir: built, scratch: scratch, context: context, env: []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}}
}

// IsFake says whether there is no real card.
func (h *Harness) IsFake() bool { return h.fake }

// Context is how many bytes a context is taken to need.
func (h *Harness) Context() uint64 { return h.context }

// Library is the path of the preload library.
func (h *Harness) Library() string { return filepath.Join(h.dir, "libebbtide-cuda.so") }

// Workload is the path of the workload.
func (h *Harness) Workload() string { return filepath.Join(h.dir, "workload") }

// Env are the variables that a program needs to find the card.
func (h *Harness) Env() []string { return slices.Clone(h.env) }

// Job is a program that uses the card.
type Job struct {
	// Container that it stands for. Jobs of one container share what it may have.
	Container string
	// Gate that it asks; without, it runs without the preload library.
	Gate *Gate
	// Program and its arguments; without a program it is the workload (device/fake).
	Program string
	Args    []string
	// Env comes on top of this process's environment and of what the card needs.
	Env []string
}

// Line is a line of JSON that a program has printed.
type Line map[string]any

// Float returns a number of the line; 0 if it is not there.
func (l Line) Float(key string) float64 { f, _ := l[key].(float64); return f }

// Int is Float as a whole number.
func (l Line) Int(key string) int64 { return int64(l.Float(key)) }

// Process is a job that runs.
type Process struct {
	PID   int
	Begun time.Time
	Ended time.Time // after Wait

	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan Line
	errs  bytes.Buffer
	read  chan struct{}
	once  sync.Once
	err   error
}

// unread is how many lines a program may be ahead of who reads them.
const unread = 4096

// Start starts a job, which is killed when ctx ends. Wait must be called.
func (h *Harness) Start(ctx context.Context, j Job) (*Process, error) {
	program := j.Program
	if program == "" {
		program = h.Workload()
		if slices.Contains(j.Args, "linked") {
			program += "-linked"
		}
	}
	cmd := exec.CommandContext(ctx, program, j.Args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), h.env...)
	cmd.Env = append(cmd.Env, variable+"="+j.Container)
	if j.Gate != nil {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+h.Library(), "EBBTIDE_GATE="+j.Gate.path, "EBBTIDE_GATE_LOG=1",
			"EBBTIDE_GATE_CONTEXT="+strconv.FormatUint(h.context, 10))
	}
	cmd.Env = append(cmd.Env, j.Env...)
	p := &Process{cmd: cmd, lines: make(chan Line, unread), read: make(chan struct{})}
	cmd.Stderr = &p.errs
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	p.stdin, p.Begun = stdin, time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	p.PID = cmd.Process.Pid
	go func() {
		defer close(p.read)
		defer close(p.lines)
		s := bufio.NewScanner(out)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			l := Line{}
			if json.Unmarshal(s.Bytes(), &l) != nil {
				continue
			}
			select {
			case p.lines <- l:
			case <-ctx.Done():
			}
		}
	}()
	return p, nil
}

// ErrEnded says that a program has ended without the line that was waited for.
var ErrEnded = errors.New("the program ended before")

// Next returns the next line that has the key, or, without one, the next; earlier ones are
// dropped.
func (p *Process) Next(ctx context.Context, key string) (Line, error) {
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				return nil, fmt.Errorf("waiting for %q: %w: %v", key, ErrEnded, p.Wait())
			}
			if _, ok := l[key]; ok {
				return l, nil
			}
			if _, ok := l["error"]; key == "" && !ok {
				return l, nil
			} else if ok {
				return nil, fmt.Errorf("waiting for %q: the program says %v: %v", key, l, p.Wait())
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %q: %w", key, ctx.Err())
		}
	}
}

// Forget drops what has been printed and was not asked for.
func (p *Process) Forget() {
	for len(p.lines) > 0 {
		<-p.lines
	}
}

// Tell tells a program that has asked to go on.
func (p *Process) Tell() error {
	if _, err := p.stdin.Write([]byte{'\n'}); err != nil {
		return fmt.Errorf("telling process %d to go on: %w", p.PID, err)
	}
	return nil
}

// Release ends the standard input, for which a program may wait.
func (p *Process) Release() { _ = p.stdin.Close() }

// Wait waits for the end. The error says what the program complained of; Exit tells its status.
func (p *Process) Wait() error {
	p.once.Do(func() {
		p.Release()
		for range p.lines { // nobody reads them any more
		}
		<-p.read
		err := p.cmd.Wait()
		p.Ended = time.Now()
		if err != nil {
			p.err = fmt.Errorf("%s %s: %w: %s", filepath.Base(p.cmd.Path), strings.Join(p.cmd.Args[1:], " "), err, strings.TrimSpace(p.errs.String()))
		}
	})
	return p.err
}

// Kill ends the process at once, as a crash would. Wait must be called all the same.
func (p *Process) Kill() error { return p.cmd.Process.Kill() }

// Exit is the exit status after Wait: of the workload, 2 is out of memory, 5 memory that does not
// hold what was computed. −1: it was killed.
func (p *Process) Exit() int { return p.cmd.ProcessState.ExitCode() }

// CPU is the processor time that was used, after Wait.
func (p *Process) CPU() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// Usage is what NVML says of the card.
type Usage struct {
	Total, Used uint64         // bytes, with what the driver keeps
	Processes   map[int]uint64 // bytes of each, as far as NVML tells
	CUDA        int            // the newest version that the driver knows, 1000 · major + 10 · minor; 0 if NVML does not tell
}

// Usage asks NVML, in a process without a context and without the preload library.
func (h *Harness) Usage(ctx context.Context) (Usage, error) {
	u := Usage{Processes: make(map[int]uint64)}
	p, err := h.Start(ctx, Job{Args: []string{"--mode", "card"}})
	if err != nil {
		return u, err
	}
	for l := range p.lines {
		if _, ok := l["pid"]; ok {
			u.Processes[int(l.Int("pid"))] = uint64(l.Float("used"))
		}
		if _, ok := l["card_total"]; ok {
			u.Total, u.Used, u.CUDA = uint64(l.Float("card_total")), uint64(l.Float("card_used")), int(l.Int("cuda"))
		}
	}
	if err := p.Wait(); err != nil {
		return u, fmt.Errorf("asking NVML: %w", err)
	}
	if u.Total == 0 {
		return u, errors.New("asking NVML: it tells of no memory")
	}
	return u, nil
}
