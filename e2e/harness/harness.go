// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options say how a harness is made. The zero value is usable.
type Options struct {
	// Logf tells people what is going on; nil tells nobody.
	Logf func(format string, args ...any)
	// BaseDir is where the run's directory is made; "" means the system's
	// directory for temporary files. The filesystem must be able to hold
	// Docker's overlay2 layers for daemons to be fast.
	BaseDir string
}

// ErrNotRoot says that a harness needs root, as a Nomad client and dockerd do.
var ErrNotRoot = errors.New("a Nomad client needs root to run tasks; run as root or with sudo")

// Harness is one run: a directory, a supervisor and what they started.
type Harness struct {
	Dir   string
	Tools *Tools

	logf  func(format string, args ...any)
	super *supervisor
	ports *portBlocks

	mu      sync.Mutex
	agents  []*Agent
	dockers []*Docker
	closed  bool
}

// New makes a run. Close must be called; if the program ends without it, the
// supervisor does what Close would have done.
func New(opts Options) (*Harness, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	logf := opts.Logf
	if logf == nil {
		logf = func(string, ...any) {}
	}
	root, err := FindRoot()
	if err != nil {
		return nil, err
	}
	base := opts.BaseDir
	if base == "" {
		base = os.TempDir()
	}
	dir, err := os.MkdirTemp(base, "ebbtide-")
	if err != nil {
		return nil, fmt.Errorf("making the run's directory: %w", err)
	}
	// Tasks run as nobody and must be able to reach their directories.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	super, err := newSupervisor(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &Harness{Dir: dir, Tools: NewTools(root, logf), logf: logf, super: super, ports: &portBlocks{}}, nil
}

// Close ends everything and removes every trace. The error names what could not
// be removed.
func (h *Harness) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.mu.Unlock()
	defer h.ports.release()

	// Five steps, each with a deadline of its own.
	ctx, cancel := context.WithTimeout(context.Background(), 5*cleanDeadline)
	defer cancel()
	answer, err := h.super.do(ctx, request{Op: "clean"})
	_ = h.super.in.Close()
	_ = h.super.cmd.Wait()
	if err != nil {
		return err
	}
	if len(answer.Left) > 0 {
		return fmt.Errorf("left behind after the run in %s: %s", h.Dir, strings.Join(answer.Left, "; "))
	}
	if exists(h.Dir) {
		return fmt.Errorf("left behind after the run: %s", h.Dir)
	}
	return nil
}

// Detach lets everything run on after the program has ended and returns the PID
// of the supervisor: `kill PID` (SIGTERM) cleans up.
func (h *Harness) Detach(ctx context.Context) (pid int, err error) {
	if _, err := h.super.do(ctx, request{Op: "detach"}); err != nil {
		return 0, err
	}
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	return h.super.cmd.Process.Pid, nil
}

// Start starts any program under the supervisor; its output goes to a log file
// in the run's directory.
func (h *Harness) Start(ctx context.Context, name string, argv []string, env []string) (*Process, error) {
	if env == nil {
		env = h.environ()
	}
	return h.super.start(ctx, name, request{Args: argv, Env: env, Dir: h.Dir, Log: filepath.Join(h.Dir, name+".log")})
}

// PIDs lists all processes of the run, those of tasks included.
func (h *Harness) PIDs() []int { return descendants(h.super.cmd.Process.Pid) }

// environ is the environment of what the harness starts: ours, less what would
// change how an agent, a daemon or a supervisor behaves.
func (h *Harness) environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == supervisorEnv,
			strings.HasPrefix(name, "NOMAD_"),
			strings.HasPrefix(name, "DOCKER_"),
			strings.HasPrefix(name, "EBBTIDE_"),
			strings.HasPrefix(name, "CONSUL_"),
			strings.HasPrefix(name, "VAULT_"):
			continue
		}
		env = append(env, kv)
	}
	return env
}

// WriteLogs writes the ends of all logs of the run, and what is known of every
// allocation, for a person who looks for the cause of a failure.
func (h *Harness) WriteLogs(w io.Writer, lines int) {
	h.mu.Lock()
	agents := append([]*Agent(nil), h.agents...)
	h.mu.Unlock()
	for _, a := range agents {
		a.describeAllocs(w)
	}
	var logs []string
	for _, pattern := range []string{"*.log", "*/*.log"} {
		found, _ := filepath.Glob(filepath.Join(h.Dir, pattern))
		logs = append(logs, found...)
	}
	sort.Strings(logs)
	for _, path := range logs {
		text, err := tail(path, lines)
		if err != nil {
			fmt.Fprintf(w, "--- %s: %v\n", path, err)
			continue
		}
		fmt.Fprintf(w, "--- the last %d lines of %s\n%s\n", lines, strings.TrimPrefix(path, h.Dir+"/"), text)
	}
}

// CopyLogs copies all logs of the run to a directory.
func (h *Harness) CopyLogs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var logs []string
	for _, pattern := range []string{"*.log", "*/*.log", "*/agent.hcl"} {
		found, _ := filepath.Glob(filepath.Join(h.Dir, pattern))
		logs = append(logs, found...)
	}
	var errs []error
	for _, path := range logs {
		rel, _ := filepath.Rel(h.Dir, path)
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(rel, "/", "-")), data, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tail reads the last lines of a file, at most 256 KiB of them.
func tail(path string, lines int) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	from := max(0, st.Size()-256<<10)
	data, err := io.ReadAll(io.NewSectionReader(f, from, st.Size()-from))
	if err != nil {
		return "", err
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n"), nil
}

// Poll repeats a check until it returns nil, and returns its last error when the
// context ends first. It is for what has no API to wait on: files and the kernel.
func Poll(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w; last: %w", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Alive says whether a process exists and is no zombie.
func Alive(pid int) bool {
	if unix.Kill(pid, 0) != nil {
		return false
	}
	_, state, err := parentOf(pid)
	return err == nil && state != "Z"
}
