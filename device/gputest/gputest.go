// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package gputest runs programs on a fake or real card under a real gate in this process, without
// Nomad and containers: a variable names the container that a program belongs to.
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
	Reserved uint64        // kept by the driver beyond that
	Context  uint64        // of a context
	Block    uint64        // to which allocations are rounded up; 0: 512
	Lazy     uint64        // taken by a process's first launch
	Kernel   time.Duration // of each launch
	Latency  time.Duration // of an allocation
	Copy     time.Duration // of parking or restoring a MiB
	// Serial runs the kernels of all processes one after the other; otherwise each process has a
	// card's speed.
	Serial bool
}

// Harness runs programs on a card.
type Harness struct {
	dir     string // of what has been built
	scratch string
	fake    bool
	context uint64
	env     []string

	mu    sync.Mutex
	gates int
}

// Build compiles what a harness needs into a folder. The error is fake.ErrNoCompiler where that
// is impossible.
func Build(dir string) error { return fake.Build(dir) }

// Fake returns a harness with a fake card, whose state is in the folder scratch.
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
		"EBBTIDE_FAKE_COPY_US=" + strconv.FormatInt(c.Copy.Microseconds(), 10),
		"EBBTIDE_FAKE_SERIAL=" + serial,
	}
	return h
}

// Real returns a harness with this machine's first card. context is how many bytes a context
// takes there.
func Real(built, scratch string, context uint64) *Harness {
	// NVML orders cards by bus address; CUDA does only if told to.
	return &Harness{dir: built, scratch: scratch, context: context, env: []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}}
}

// IsFake reports whether the card is fake.
func (h *Harness) IsFake() bool { return h.fake }

// Context returns how many bytes a context takes.
func (h *Harness) Context() uint64 { return h.context }

// Library returns the path of the preload library.
func (h *Harness) Library() string { return filepath.Join(h.dir, "libebbtide-cuda.so") }

// Workload returns the path of the workload.
func (h *Harness) Workload() string { return filepath.Join(h.dir, "workload") }

// Env returns the variables that a program needs to find the card.
func (h *Harness) Env() []string { return slices.Clone(h.env) }

// Job is a program that uses the card.
type Job struct {
	// Container is its container; its jobs share a limit.
	Container string
	// Gate is the gate that it uses; nil: it runs without the preload library.
	Gate *Gate
	// Program is the workload (device/fake) if "".
	Program string
	Args    []string
	// Env is added to this process's environment and the card's.
	Env []string
}

// Line is a line of JSON in a program's output.
type Line map[string]any

// Float returns a number of the line, or 0.
func (l Line) Float(key string) float64 { f, _ := l[key].(float64); return f }

// Int returns a whole number of the line, or 0.
func (l Line) Int(key string) int64 { return int64(l.Float(key)) }

// Process is a running job.
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

const unread = 4096

// Start starts a job, which is killed when ctx ends. The caller calls Wait.
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

// ErrEnded: the program ended without the expected line.
var ErrEnded = errors.New("the program ended before")

// Next returns the next line with the key; "": the next line. Earlier lines are dropped.
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
				return nil, fmt.Errorf("waiting for %q: the program reported %v: %v", key, l, p.Wait())
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %q: %w", key, ctx.Err())
		}
	}
}

// Forget drops the lines printed so far.
func (p *Process) Forget() {
	for len(p.lines) > 0 {
		<-p.lines
	}
}

// Tell sends the byte that a program waits for.
func (p *Process) Tell() error {
	if _, err := p.stdin.Write([]byte{'\n'}); err != nil {
		return fmt.Errorf("continuing process %d: %w", p.PID, err)
	}
	return nil
}

// Release closes the standard input, for which a program may wait.
func (p *Process) Release() { _ = p.stdin.Close() }

// Wait waits for the end. The error has what the program wrote to standard error.
func (p *Process) Wait() error {
	p.once.Do(func() {
		p.Release()
		for range p.lines {
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

// Kill kills the process. Wait must still be called.
func (p *Process) Kill() error { return p.cmd.Process.Kill() }

// Exit returns the exit status after Wait: −1 if it was killed; of the workload, 2 is out of
// memory, 5 corrupt memory.
func (p *Process) Exit() int { return p.cmd.ProcessState.ExitCode() }

// CPU returns the CPU time used, after Wait.
func (p *Process) CPU() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// Usage is the card's usage according to NVML.
type Usage struct {
	Total, Used uint64         // bytes, with what the driver keeps
	Processes   map[int]uint64 // bytes by pid, as far as known
	CUDA        int            // newest version known to the driver, 1000 · major + 10 · minor; 0 if unknown
}

// Usage queries NVML in a process without a context and without the preload library.
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
		return u, fmt.Errorf("querying NVML: %w", err)
	}
	if u.Total == 0 {
		return u, errors.New("querying NVML: it reports no memory")
	}
	return u, nil
}
