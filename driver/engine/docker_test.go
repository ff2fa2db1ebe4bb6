// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/pkg/stdcopy"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestPrepareKeepsTheConfigAndAddsOurLabels(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "train", NodeID: "node-1"}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(map[string]any{
		"image":    "trainer:1",
		"args":     []string{"-x"},
		"labels":   []map[string]string{{"team": "vision"}},
		"port_map": []map[string]int{{"http": 8080}},
		"mount":    []map[string]any{{"type": "bind", "source": "/a", "target": "/b", "readonly": true}},
		"sysctl":   []map[string]string{{"net.core.somaxconn": "1024"}},
		"auth":     map[string]any{"username": "u", "password": "p"},
		"progress": map[string]any{"metric": "loss"},
	}))
	e := &DockerEngine{}
	_, err := e.Prepare(t.Context(), cfg)
	must.NoError(t, err)

	var got docker.TaskConfig
	must.NoError(t, cfg.DecodeDriverConfig(&got))
	must.Eq(t, "trainer:1", got.Image)
	must.Eq(t, []string{"-x"}, got.Args)
	must.Eq(t, map[string]string{"team": "vision", LabelNode: "node-1", labelTask: "train"}, map[string]string(got.Labels))
	must.Eq(t, map[string]int{"http": 8080}, map[string]int(got.PortMap))
	must.Eq(t, "1024", got.Sysctl["net.core.somaxconn"])
	must.Len(t, 1, got.Mounts)
	must.True(t, got.Mounts[0].ReadOnly)
	must.Eq(t, "p", got.Auth.Password)

	var own struct {
		Progress map[string]any `codec:"progress"`
	}
	must.NoError(t, cfg.DecodeDriverConfig(&own))
	must.Eq[any](t, "loss", own.Progress["metric"], must.Sprint("a recovered task reads its options from the handle"))
}

func daemon(t *testing.T, routes map[string]any) (*DockerEngine, *[]string) {
	var calls []string
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if strings.HasPrefix(path, "/v1.") {
			path = path[strings.Index(path[1:], "/")+1:]
		}
		calls = append(calls, r.Method+" "+path)
		switch answer := routes[path].(type) {
		case nil:
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"message":"No such container"}`)
		case time.Duration:
			time.Sleep(answer)
		default:
			_ = json.NewEncoder(w).Encode(answer)
		}
	})
	return e, &calls
}

func serve(t *testing.T, answer http.HandlerFunc) *DockerEngine {
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	var config []byte
	must.NoError(t, base.MsgPackEncode(&config, map[string]any{"endpoint": "tcp://" + srv.Listener.Addr().String()}))
	e, err := NewDocker(config, 2*time.Second)
	must.NoError(t, err)
	return e
}

func handle(t *testing.T, id string) *drivers.TaskHandle {
	h := drivers.NewTaskHandle(1)
	h.Config = &drivers.TaskConfig{Name: "train"}
	must.NoError(t, h.SetDriverState(map[string]any{"ContainerID": id}))
	return h
}

func TestInspect(t *testing.T) {
	e, _ := daemon(t, map[string]any{
		"/containers/abc/json": map[string]any{"Id": "abc", "State": map[string]any{"Running": true, "Pid": 42, "Status": "running"}},
		"/containers/rm/json":  map[string]any{"Id": "rm", "State": map[string]any{"Status": "removing", "ExitCode": 137}},
	})
	st, err := e.Inspect(t.Context(), handle(t, "abc"))
	must.NoError(t, err)
	must.Eq(t, State{Running: true, PID: 42}, st)
	st, err = e.Inspect(t.Context(), handle(t, "rm"))
	must.NoError(t, err)
	must.Eq(t, State{Removing: true, ExitCode: 137}, st)
	_, err = e.Inspect(t.Context(), handle(t, "gone"))
	must.ErrorIs(t, err, ErrGone)
	_, err = e.Inspect(t.Context(), handle(t, ""))
	must.ErrorContains(t, err, "names no container")
}

func TestUnreachableIsTyped(t *testing.T) {
	e, _ := daemon(t, map[string]any{"/containers/slow/json": time.Second})
	e.timeout = 50 * time.Millisecond
	_, err := e.Inspect(t.Context(), handle(t, "slow"))
	must.ErrorIs(t, err, ErrUnreachable)

	var config []byte
	must.NoError(t, base.MsgPackEncode(&config, map[string]any{"endpoint": "unix:///nowhere/docker.sock"}))
	e, err = NewDocker(config, time.Second)
	must.NoError(t, err)
	_, err = e.Inspect(t.Context(), handle(t, "abc"))
	must.ErrorIs(t, err, ErrUnreachable)
	must.False(t, e.OutlivesDaemon(t.Context()))
}

// TestExecPassesAllOutputOn has a daemon that reports the command's start only after
// its output, and its end even later.
func TestExecPassesAllOutputOn(t *testing.T) {
	const size = 1 << 20
	for name, tty := range map[string]bool{"streams": false, "terminal": true} {
		t.Run(name, func(t *testing.T) {
			var inspected, sent atomic.Int32
			input := make(chan string, 1)
			e := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/containers/abc/exec"):
					_ = json.NewEncoder(w).Encode(map[string]any{"Id": "run"})
				case strings.HasSuffix(r.URL.Path, "/exec/run/start"):
					must.NoError(t, json.NewDecoder(r.Body).Decode(&map[string]any{}))
					conn, rw, err := http.NewResponseController(w).Hijack()
					must.NoError(t, err)
					defer conn.Close()
					_, _ = rw.WriteString("HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
					_ = rw.Flush()
					line, _ := rw.ReadString('\n')
					input <- line
					var out io.Writer = conn
					if !tty {
						out = stdcopy.NewStdWriter(conn, stdcopy.Stdout)
						_, _ = stdcopy.NewStdWriter(conn, stdcopy.Stderr).Write([]byte("warning"))
					}
					for range size / 1024 {
						_, _ = out.Write(bytes.Repeat([]byte("x"), 1024))
					}
					sent.Store(1)
				case strings.HasSuffix(r.URL.Path, "/exec/run/json"):
					running := sent.Load() == 1 && inspected.Add(1) == 1
					_ = json.NewEncoder(w).Encode(map[string]any{"Running": running, "ExitCode": 3})
				}
			})
			var out, errOut buffer
			got, err := e.Exec(t.Context(), handle(t, "abc"), &drivers.ExecOptions{
				Command: []string{"cat"}, Tty: tty,
				Stdin: io.NopCloser(strings.NewReader("hello\n")), Stdout: &out, Stderr: &errOut,
			})
			must.NoError(t, err)
			must.Eq(t, 3, got.ExitCode)
			must.Eq(t, "hello\n", <-input)
			must.Eq(t, size, out.Len())
			must.Eq(t, int32(2), inspected.Load())
			if !tty {
				must.Eq(t, "warning", errOut.String())
			}
		})
	}
}

func TestExecEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/start") {
			_ = json.NewEncoder(w).Encode(map[string]any{"Id": "run"})
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		must.NoError(t, err)
		_, _ = rw.WriteString("HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		_ = rw.Flush()
		cancel()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	})
	stdin, _ := io.Pipe()
	_, err := e.Exec(ctx, handle(t, "abc"), &drivers.ExecOptions{Stdin: stdin, Stdout: &buffer{}, Stderr: &buffer{}})
	must.ErrorIs(t, err, context.Canceled)

	_, err = e.Exec(t.Context(), handle(t, ""), &drivers.ExecOptions{})
	must.ErrorContains(t, err, "names no container")
	e, _ = daemon(t, nil)
	_, err = e.Exec(t.Context(), handle(t, "gone"), &drivers.ExecOptions{})
	must.ErrorIs(t, err, ErrGone)
}

type buffer struct{ bytes.Buffer }

func (b *buffer) Close() error { return nil }

func TestReapTouchesOnlyWhatItMay(t *testing.T) {
	now := time.Unix(10_000, 0)
	old, young := now.Add(-time.Hour).Unix(), now.Add(-time.Second).Unix()
	container := func(id string, created int64, name string, labels map[string]string) map[string]any {
		return map[string]any{"Id": id, "Created": created, "Names": []string{name}, "Labels": labels}
	}
	alloc := map[string]string{LabelAllocID: "a"}
	ours := map[string]string{LabelAllocID: "a", LabelNode: "node-1"}
	list := []map[string]any{
		container("ours", old, "/t-1", ours),
		container("tracked", old, "/t-2", ours),
		container("starting", old, "/t-2", map[string]string{LabelAllocID: "c", LabelNode: "node-1"}),
		container("young", young, "/t-3", ours),
		container("stock", old, "/t-4", alloc),
		container("elsewhere", old, "/t-5", map[string]string{LabelAllocID: "a", LabelNode: "node-2"}),
		container("pause", old, "/nomad_init_a", alloc),
		container("left", old, "/nomad_init_b", map[string]string{LabelAllocID: "b"}),
		container("fresh", young, "/nomad_init_b", map[string]string{LabelAllocID: "b"}),
		container("named", old, "/nomad_init_b", nil),
		container("private", old, "/db", nil),
	}
	for name, c := range map[string]struct {
		opts ReapOptions
		want []string
	}{
		"ebbtide":      {ReapOptions{NodeID: "node-1"}, []string{"ours", "left"}},
		"as docker":    {ReapOptions{NodeID: "node-1", All: true}, []string{"ours", "stock", "left"}},
		"unknown node": {ReapOptions{}, []string{"left"}},
		"dry run":      {ReapOptions{NodeID: "node-1", DryRun: true}, []string{"ours", "left"}},
	} {
		t.Run(name, func(t *testing.T) {
			e, calls := daemon(t, map[string]any{
				"/containers/json": list, "/containers/ours": "", "/containers/stock": "", "/containers/left": "",
			})
			c.opts.Grace = time.Minute
			c.opts.AllocEnded = func(alloc string) bool { return alloc == "b" }
			c.opts.Tracked = map[string]bool{"tracked": true, "c": true}
			got, err := e.Reap(t.Context(), c.opts, now)
			must.NoError(t, err)
			must.Eq(t, c.want, got)
			removed := 0
			for _, call := range *calls {
				if strings.HasPrefix(call, "DELETE") {
					removed++
				}
			}
			if c.opts.DryRun {
				must.Eq(t, 0, removed)
			} else {
				must.Eq(t, len(c.want), removed)
			}
		})
	}
}

func TestNewDriver(t *testing.T) {
	_, err := NewDriver(t.Context(), "podman", nil)
	must.ErrorContains(t, err, `engine: must be one of docker, exec, got "podman"`)
	_, err = NewDocker([]byte("\xc1"), time.Second)
	must.Error(t, err)
	must.False(t, errors.Is(err, ErrUnreachable))
}
