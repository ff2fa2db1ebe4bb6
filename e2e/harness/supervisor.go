// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// supervisorEnv passes the directory to a supervisor. It is checked in init, before main would run
// the caller's tests again.
const supervisorEnv = "EBBTIDE_HARNESS_SUPERVISE"

func init() {
	if dir := os.Getenv(supervisorEnv); dir != "" {
		os.Exit(supervise(dir, os.Stdin, os.Stdout, os.Stderr))
	}
}

type request struct {
	ID   int      `json:"id"`
	Op   string   `json:"op"` // "start", "bridge", "cgroup", "allocs", "clean", "detach"
	Args []string `json:"args,omitempty"`
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`
	Log  string   `json:"log,omitempty"`
}

// response is a response (ID > 0), or reports a process's exit (Exited > 0).
type response struct {
	ID     int      `json:"id,omitempty"`
	PID    int      `json:"pid,omitempty"`
	Err    string   `json:"err,omitempty"`
	Left   []string `json:"left,omitempty"`
	Exited int      `json:"exited,omitempty"`
	Status string   `json:"status,omitempty"`
}

// supervise is the supervisor's main function. in is closed when its creator ends.
func supervise(dir string, in io.Reader, out, log io.Writer) int {
	// Ctrl-C is for the creator; the supervisor detects the creator's end.
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintf(log, "becoming a subreaper: %v\n", err)
		return 1
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, unix.SIGTERM)
	children := make(chan os.Signal, 16)
	signal.Notify(children, unix.SIGCHLD)

	requests := make(chan request)
	go func() {
		defer close(requests)
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r request
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				fmt.Fprintf(log, "request %q: %v\n", lines.Text(), err)
				return
			}
			requests <- r
		}
	}()

	answers := json.NewEncoder(out)
	s := newSite(dir, log)
	started := make(map[int]bool)
	reap := func() {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				return
			}
			if started[pid] {
				delete(started, pid)
				fmt.Fprintf(log, "process %d ended: %s\n", pid, describe(status))
				_ = answers.Encode(response{Exited: pid, Status: describe(status)})
			}
		}
	}

	detached := false
	for {
		select {
		case <-children:
			reap()
		case <-terminate:
			s.clean(reap)
			return 0
		case r, open := <-requests:
			if !open {
				if detached {
					requests = nil // until SIGTERM
					continue
				}
				fmt.Fprintln(log, "the creator has ended: cleaning up")
				s.clean(reap)
				return 0
			}
			answer := response{ID: r.ID}
			var err error
			switch r.Op {
			case "start":
				if answer.PID, err = startProcess(r); err == nil {
					started[answer.PID] = true
					fmt.Fprintf(log, "process %d: %s\n", answer.PID, strings.Join(r.Args, " "))
				}
			case "bridge":
				s.bridges = append(s.bridges, r.Args...)
			case "cgroup":
				s.cgroups = append(s.cgroups, r.Args...)
			case "allocs":
				s.allocs = append(s.allocs, r.Args...)
			case "detach":
				detached = true
			case "clean":
				answer.Left = s.clean(reap)
			default:
				err = fmt.Errorf("unknown request %q", r.Op)
			}
			if err != nil {
				answer.Err = err.Error()
			}
			_ = answers.Encode(answer)
			if r.Op == "clean" {
				return 0
			}
		}
	}
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// startProcess starts a process in a new session, so Ctrl-C does not reach it, and appends its
// output to a file.
func startProcess(r request) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	log, err := os.OpenFile(r.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return 0, fmt.Errorf("opening the log of %s: %w", filepath.Base(r.Args[0]), err)
	}
	defer log.Close()
	p, err := os.StartProcess(r.Args[0], r.Args, &os.ProcAttr{
		Dir: r.Dir, Env: r.Env,
		Files: []*os.File{null, log, log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", r.Args[0], err)
	}
	pid := p.Pid
	_ = p.Release() // supervise waits for all children
	return pid, nil
}

// supervisor is the creator's side of the connection.
type supervisor struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	next    int
	waiting map[int]chan response
	exits   map[int]chan string // by PID; closed after the status was sent
	dead    chan struct{}
}

func newSupervisor(dir string) (*supervisor, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding our own binary for the supervisor: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "supervisor.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the supervisor's log: %w", err)
	}
	defer log.Close()

	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), supervisorEnv+"="+dir)
	// go test waits until its stderr is closed.
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the supervisor: %w", err)
	}
	s := &supervisor{
		cmd: cmd, in: in,
		waiting: make(map[int]chan response),
		exits:   make(map[int]chan string),
		dead:    make(chan struct{}),
	}
	go s.read(out)
	return s, nil
}

func (s *supervisor) read(out io.Reader) {
	defer close(s.dead)
	dec := json.NewDecoder(out)
	for {
		var r response
		if dec.Decode(&r) != nil {
			return
		}
		s.mu.Lock()
		if r.Exited > 0 {
			ch := s.exit(r.Exited)
			ch <- r.Status
			close(ch)
		} else if ch := s.waiting[r.ID]; ch != nil {
			delete(s.waiting, r.ID)
			ch <- r
		}
		s.mu.Unlock()
	}
}

// exit returns the channel for a process's exit. The caller holds mu.
func (s *supervisor) exit(pid int) chan string {
	if s.exits[pid] == nil {
		s.exits[pid] = make(chan string, 1)
	}
	return s.exits[pid]
}

func (s *supervisor) do(ctx context.Context, r request) (response, error) {
	ch := make(chan response, 1)
	s.mu.Lock()
	s.next++
	r.ID = s.next
	s.waiting[r.ID] = ch
	line, err := json.Marshal(r)
	if err == nil {
		_, err = s.in.Write(append(line, '\n'))
	}
	s.mu.Unlock()
	if err != nil {
		return response{}, fmt.Errorf("asking the supervisor to %s: %w", r.Op, err)
	}
	select {
	case answer := <-ch:
		if answer.Err != "" {
			return answer, errors.New(answer.Err)
		}
		return answer, nil
	case <-s.dead:
		return response{}, fmt.Errorf("the supervisor ended before it could %s", r.Op)
	case <-ctx.Done():
		return response{}, fmt.Errorf("waiting for the supervisor to %s: %w", r.Op, ctx.Err())
	}
}

// Process is a process under the supervisor.
type Process struct {
	PID  int
	Name string
	Log  string // path of its output

	done   chan struct{}
	status string // valid once done is closed
}

func (s *supervisor) start(ctx context.Context, name string, r request) (*Process, error) {
	r.Op = "start"
	answer, err := s.do(ctx, r)
	if err != nil {
		return nil, err
	}
	p := &Process{PID: answer.PID, Name: name, Log: r.Log, done: make(chan struct{})}
	s.mu.Lock()
	ch := s.exit(p.PID)
	s.mu.Unlock()
	go func() {
		defer close(p.done)
		select {
		case p.status = <-ch:
			s.mu.Lock()
			delete(s.exits, p.PID)
			s.mu.Unlock()
		case <-s.dead:
			p.status = "its supervisor ended"
		}
	}()
	return p, nil
}

func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended, or nil while it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s (pid %d) ended: %s", p.Name, p.PID, p.status)
	default:
		return nil
	}
}

// Signal sends a signal. It fails if the process has ended.
func (p *Process) Signal(sig unix.Signal) error {
	if err := p.Err(); err != nil {
		return err
	}
	if err := unix.Kill(p.PID, sig); err != nil {
		return fmt.Errorf("sending %s to %s (pid %d): %w", unix.SignalName(sig), p.Name, p.PID, err)
	}
	return nil
}

func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of %s (pid %d): %w", p.Name, p.PID, ctx.Err())
	}
}
