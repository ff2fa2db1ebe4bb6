// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metricsserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for _, text := range []string{"", "127.0.0.1:9464", "127.8.9.1:1", "[::1]:9464", "unix:/run/ebbtide/driver.sock", "unix:/" + strings.Repeat("a", 106)} {
		a, err := Parse(text)
		must.NoError(t, err)
		must.Eq(t, text, a.String())
		must.Eq(t, text == "", a == Address{})
	}
	for _, text := range []string{
		"9464", ":9464", "0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464", "localhost:9464", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536",
		"unix:", "unix:relative", "unix:/a/../b", "unix:@abstract", "unix:/" + strings.Repeat("a", 107), "/run/x.sock", "http://127.0.0.1:9464",
	} {
		_, err := Parse(text)
		must.ErrorContains(t, err, fmt.Sprintf("got %q", text))
		must.ErrorContains(t, err, "unix: with the absolute path of a socket")
	}
}

// log records log output.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// start serves at an address until the test ends or stop is called.
func start(t *testing.T, text string) (logged *log, stop func()) {
	t.Helper()
	a, err := Parse(text)
	must.NoError(t, err)
	logged = new(log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, a, Subsystem("test").NewRegistry().Registry, hclog.New(&hclog.LoggerOptions{Output: logged, Level: hclog.Info}))
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return logged, stop
}

func client(text string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			a, err := Parse(text)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, a.network, a.path)
		},
	}}
}

func get(text, path string) (status int, body string, err error) {
	resp, err := client(text).Get("http://metrics" + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for range 3000 {
		if err = check(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	must.NoError(t, err)
}

// scraped waits until the address serves metrics.
func scraped(t *testing.T, text string) {
	t.Helper()
	eventually(t, func() error {
		status, body, err := get(text, "/metrics")
		if err == nil && (status != http.StatusOK || !strings.Contains(body, "ebbtide_test_build_info{")) {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		return err
	})
}

// freePort returns an unused address.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestServe(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"tcp": freePort(t), "unix": unixPrefix + filepath.Join(t.TempDir(), "m.sock")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			logged, stop := start(t, text)
			scraped(t, text)
			_, body, err := get(text, "/metrics")
			must.NoError(t, err)
			for _, want := range []string{"\ngo_goroutines ", "\nprocess_open_fds ", "\npromhttp_metric_handler_errors_total{"} {
				must.StrContains(t, body, want)
			}
			status, _, err := get(text, "/")
			must.NoError(t, err)
			must.Eq(t, http.StatusNotFound, status)
			resp, err := client(text).Post("http://metrics/metrics", "text/plain", strings.NewReader("x"))
			must.NoError(t, err)
			must.NoError(t, resp.Body.Close())
			must.Eq(t, http.StatusMethodNotAllowed, resp.StatusCode)
			stop()
			_, _, err = get(text, "/metrics")
			must.Error(t, err)
			must.Eq(t, 0, logged.count("[WARN]"))
		})
	}
	Serve(t.Context(), Address{}, Subsystem("test").NewRegistry().Registry, hclog.NewNullLogger()) // disabled: it returns
}

// Of two processes with the same address the second logs the conflict once, and takes over when the
// first has ended, as after a restart of a plugin.
func TestServe_taken(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"tcp": freePort(t), "unix": unixPrefix + filepath.Join(t.TempDir(), "m.sock")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stop := start(t, text)
			scraped(t, text)
			second, _ := start(t, text)
			eventually(t, func() error {
				if second.count("metrics cannot be served") != 1 {
					return errors.New("nothing was said")
				}
				return nil
			})
			must.StrContains(t, second.text.String(), text)
			scraped(t, text) // the first still serves
			must.Eq(t, 0, second.count("metrics are served"))
			stop()
			scraped(t, text)
			must.Eq(t, 1, second.count("metrics are served"))
			must.Eq(t, 1, second.count("metrics cannot be served"))
		})
	}
}

func TestServe_socket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "later", "m.sock")
	logged, stop := start(t, unixPrefix+path)
	eventually(t, func() error {
		if logged.count("no such file or directory") != 1 {
			return errors.New("it was not said that there is no directory")
		}
		return nil
	})
	// A killed process leaves its socket.
	must.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must.NoError(t, err)
	must.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	must.NoError(t, unix.Close(fd))
	scraped(t, unixPrefix+path)
	info, err := os.Lstat(path)
	must.NoError(t, err)
	must.Zero(t, info.Mode().Perm()&^socketMode)
	stop()
	_, err = os.Lstat(path)
	must.ErrorIs(t, err, os.ErrNotExist)

	// A file that is not a socket is kept.
	must.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	logged, stop = start(t, unixPrefix+path)
	eventually(t, func() error {
		if logged.count("address already in use") != 1 {
			return errors.New("it was not said that there is a file")
		}
		return nil
	})
	stop()
	data, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, "precious", string(data))
}

// Connections without requests are bounded in number, and time out.
func TestServe_silent(t *testing.T) {
	t.Parallel()
	text := freePort(t)
	start(t, text)
	scraped(t, text)
	var silent []net.Conn
	for range 2 * maxConnections {
		c, err := net.Dial("tcp", text)
		must.NoError(t, err)
		defer c.Close()
		silent = append(silent, c)
	}
	scraped(t, text)
	_, err := silent[0].Read(make([]byte, 1))
	must.ErrorIs(t, err, io.EOF)
}
