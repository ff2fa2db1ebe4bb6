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

// Options configure a harness. The zero value is usable.
type Options struct {
	// Logf may be nil.
	Logf func(format string, args ...any)
	// BaseDir is the parent of the run's directory; "" for the temporary directory. Docker is fast
	// only on a filesystem that supports overlay2.
	BaseDir string
}

var ErrNotRoot = errors.New("a Nomad client needs root to run tasks; run as root or with sudo")

// Harness is one run: a directory, a supervisor and its processes.
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

// New creates a run. Call Close; if the program ends without it, the supervisor cleans up.
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
	// For tasks, which run unprivileged.
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

// Close stops and removes everything. The error names what remains.
func (h *Harness) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.mu.Unlock()
	defer h.ports.release()

	// Five steps with deadlines.
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

// Detach keeps everything running after the program exits. `kill PID` of the returned supervisor
// cleans up.
func (h *Harness) Detach(ctx context.Context) (pid int, err error) {
	if _, err := h.super.do(ctx, request{Op: "detach"}); err != nil {
		return 0, err
	}
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	return h.super.cmd.Process.Pid, nil
}

// Start runs a program under the supervisor; its output goes to a log file.
func (h *Harness) Start(ctx context.Context, name string, argv []string, env []string) (*Process, error) {
	if env == nil {
		env = h.environ()
	}
	return h.super.start(ctx, name, request{Args: argv, Env: env, Dir: h.Dir, Log: filepath.Join(h.Dir, name+".log")})
}

// PIDs lists all processes of the run, including tasks.
func (h *Harness) PIDs() []int { return descendants(h.super.cmd.Process.Pid) }

// environ returns this process's environment without variables that affect agents, daemons or
// supervisors.
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

// WriteLogs writes the ends of all logs, and all allocations, for debugging.
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

// tail returns a file's last lines, at most 256 KiB.
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

// Poll repeats a check until it returns nil, or ctx is done: then it returns the last error. It is
// for files and the kernel.
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

// Alive reports whether a process exists and is not a zombie.
func Alive(pid int) bool {
	if unix.Kill(pid, 0) != nil {
		return false
	}
	st, err := statOf(pid)
	return err == nil && st.State != "Z"
}
