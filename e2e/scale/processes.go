// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ebbtide/ebbtide/e2e/scale/measure"
	"github.com/ebbtide/ebbtide/e2e/scale/nomad"
)

// itself returns a command that runs this program, stopped with ctx.
func itself(ctx context.Context, args ...string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	// Children die with this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

type generator struct {
	address string
	cancel  context.CancelFunc
	cmd     *exec.Cmd
}

func generate(ctx context.Context, o nomad.Options, stderr io.Writer) (*generator, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := itself(ctx, asGenerator, "-nodes", strconv.Itoa(o.Nodes), "-per-node", strconv.Itoa(o.PerNode),
		"-trainings", fmt.Sprint(o.Trainings), "-waiting", fmt.Sprint(o.Waiting), "-seed", fmt.Sprint(o.Seed))
	if err != nil {
		cancel()
		return nil, err
	}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("starting the load generator: %w", err)
	}
	g := &generator{cancel: cancel, cmd: cmd}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		g.close()
		return nil, fmt.Errorf("reading the load generator's address: %w", err)
	}
	g.address = strings.TrimSpace(line)
	return g, nil
}

func (g *generator) close() {
	g.cancel()
	_ = g.cmd.Wait()
}

func (g *generator) requests(ctx context.Context) (r nomad.Requests, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, g.address+nomad.RequestsPath, nil)
	if err != nil {
		return r, err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return r, fmt.Errorf("asking for the requests: %w", err)
	}
	defer resp.Body.Close()
	return r, json.NewDecoder(resp.Body).Decode(&r)
}

// measureOnce measures in a separate process.
func measureOnce(ctx context.Context, o measure.Options, stderr io.Writer) (r measure.Report, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	cmd, err := itself(ctx, asMeasured, "-options", string(text))
	if err != nil {
		return r, err
	}
	cmd.Stderr = stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("measuring: %w", err)
	}
	return r, json.Unmarshal(out, &r)
}

// watched is the resource use of a running shim.
type watched struct {
	Cores    float64 // of one core
	PeakMiB  float64
	StepS    float64        // longest step of its loop
	Requests nomad.Requests // from start to end
}

// watch runs `ebbtide shim` and measures it for a given time, from settle after it is connected.
// act, if not nil, runs during that time.
func watch(ctx context.Context, g *generator, settle, long time.Duration, act func(context.Context) error, stderr io.Writer) (w watched, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "ebbtide-scale-")
	if err != nil {
		return w, err
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "shim.hcl")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return w, err
	}
	web := l.Addr().String()
	if err := l.Close(); err != nil {
		return w, err
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, "dry_run = true\nweb {\n  address = %q\n}\n", web), 0o600); err != nil {
		return w, err
	}
	cmd, err := itself(ctx, asEbbtide, "shim", "-config", config)
	if err != nil {
		return w, err
	}
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+g.address, "NOMAD_TOKEN=", "NOMAD_NAMESPACE=", "NOMAD_REGION=")
	log := &follower{told: make(chan struct{}), what: []byte("following the cluster")}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return w, fmt.Errorf("starting the shim: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		cancel()
		<-ended
		if err == nil {
			w.Requests, err = g.requests(context.WithoutCancel(ctx))
		}
	}()
	sleep := func(d time.Duration, or <-chan struct{}) error {
		select {
		case <-time.After(d):
			return nil
		case <-or:
			return nil
		case e := <-ended:
			ended <- e
			return fmt.Errorf("the shim has ended: %v; it said:\n%s", e, log.last())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := sleep(5*time.Minute, log.told); err != nil {
		return w, err
	}
	if err := sleep(settle, nil); err != nil {
		return w, err
	}
	acted := make(chan error, 1)
	if act != nil {
		go func() { acted <- act(ctx) }()
	}
	begun := time.Now()
	first, err := cpu(cmd.Process.Pid)
	if err != nil {
		return w, err
	}
	if err := sleep(long, nil); err != nil {
		return w, err
	}
	last, err := cpu(cmd.Process.Pid)
	if err != nil {
		return w, err
	}
	w.Cores = (last - first) / time.Since(begun).Seconds()
	if w.PeakMiB, err = measure.Peak(cmd.Process.Pid); err != nil {
		return w, err
	}
	if w.StepS, err = longestStep(ctx, web); err != nil {
		return w, err
	}
	select {
	case err := <-acted:
		return w, err
	default:
		return w, nil
	}
}

// longestStep reads the shim's metric.
func longestStep(ctx context.Context, web string) (float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+web+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "ebbtide_shim_loop_longest_step_seconds "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, cmp.Or(lines.Err(), errors.New("the shim does not report its longest step"))
}

// follower waits for a text, and keeps the end of the output.
type follower struct {
	told chan struct{}
	what []byte
	seen bool
	tail []byte
}

func (f *follower) Write(p []byte) (int, error) {
	f.tail = append(f.tail, p...)
	if !f.seen && bytes.Contains(f.tail, f.what) {
		f.seen = true
		close(f.told)
	}
	f.tail = f.tail[max(0, len(f.tail)-4096):]
	return len(p), nil
}

// last returns the end of an ended process's output.
func (f *follower) last() []byte { return f.tail }

// userHZ is the unit of CPU times in /proc, in ticks per second.
const userHZ = 100

// cpu returns a process's use in CPU-seconds.
func cpu(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name is in parentheses and may contain any character.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat is short: %q", pid, text)
	}
	var sum float64
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum += ticks / userHZ
	}
	return sum, nil
}

// load returns the one-minute load average, "unknown" if unreadable.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(data))
	if err != nil || len(fields) == 0 {
		return "unknown"
	}
	return fields[0]
}
