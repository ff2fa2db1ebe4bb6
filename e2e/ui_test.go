// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/top/fake"
)

// browser runs the tests in JavaScript.
type browser struct {
	dir string // directory of the tests in JavaScript
	env []string
	cli string
}

// newBrowser installs the tests' packages; without Chromium or npm the test is skipped.
func newBrowser(t *testing.T, h *harness.Harness) *browser {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skipf("the page is not tested: %v (Debian's package chromium)", err)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skipf("the page is not tested: %v (Debian's package npm)", err)
	}
	b := &browser{dir: filepath.Join(h.Tools.Root, "e2e", "ui")}
	if b.cli, err = h.Tools.CLI(deadline(t, startDeadline)); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(deadline(t, startDeadline), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = b.dir
	out, err := install.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	b.env = append(os.Environ(), "EBBTIDE_CHROMIUM="+chromium, "EBBTIDE_UI_OUT="+t.TempDir())
	return b
}

// set passes a variable to the tests.
func (b *browser) set(name, value string) { b.env = append(b.env, name+"="+value) }

// serve serves a cluster's page until the test ends, and returns its URL.
func (b *browser) serve(t *testing.T, nomad string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, b.cli, append([]string{"ui", "-address", nomad, "-listen", "127.0.0.1:0"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGINT}
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = []string{"HOME=" + t.TempDir()} // no token
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		must.Eq(t, 0, cmd.ProcessState.ExitCode())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	at := strings.Index(line, "http")
	must.GreaterEq(t, 0, at, must.Sprint(line))
	return strings.TrimSpace(line[at:])
}

func (b *browser) run(t *testing.T, spec string) {
	t.Helper()
	cmd := exec.CommandContext(deadline(t, 20*time.Minute), "node", "node_modules/@playwright/test/cli.js", "test", spec)
	cmd.Dir, cmd.Env = b.dir, b.env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it closes its browser
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGINT}
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	must.NoError(t, err)
}

// madeUp serves a fake cluster.
func madeUp(t *testing.T, c *fake.Cluster) string {
	nomad := httptest.NewServer(c)
	t.Cleanup(nomad.Close)
	return nomad.URL
}

// certificate returns options with a self-signed certificate.
func certificate(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	out, err := exec.CommandContext(t.Context(), "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
		"-subj", "/CN=page", "-days", "1", "-keyout", key, "-out", cert).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return []string{"-tls-cert", cert, "-tls-key", key}
}

// reachable serves the page on all interfaces and returns its local address.
func (b *browser) reachable(t *testing.T, nomad string) string {
	t.Helper()
	url := b.serve(t, nomad, append([]string{"-listen", "0.0.0.0:0"}, certificate(t)...)...)
	_, port, _ := strings.Cut(strings.TrimPrefix(url, "https://["), "]:")
	if port == "" {
		_, port, _ = strings.Cut(strings.TrimPrefix(url, "https://"), ":")
	}
	return "https://127.0.0.1:" + port
}

// TestUI tests the page in a browser: contents, refused requests, accessibility, and speed with
// many tasks.
func TestUI(t *testing.T) {
	b := newBrowser(t, newHarness(t))
	b.set("EBBTIDE_UI", b.serve(t, madeUp(t, fake.Example(60))))
	empty := fake.New()
	empty.Variables["report"] = api.VariableItems{"json": `{"queue_off":"the queue is disabled by the shim's configuration"}`}
	b.set("EBBTIDE_UI_EMPTY", b.serve(t, madeUp(t, empty)))
	down := fake.New()
	down.Down = true
	b.set("EBBTIDE_UI_DOWN", b.serve(t, madeUp(t, down)))
	secured := fake.Example(8)
	secured.Tokens = map[string]bool{"right": true}
	b.set("EBBTIDE_UI_TOKEN", b.reachable(t, madeUp(t, secured)))
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintln(w, "<!doctype html><title>Foreign</title>")
	}))
	t.Cleanup(foreign.Close)
	b.set("EBBTIDE_FOREIGN", foreign.URL)
	large := b.serve(t, madeUp(t, fake.Example(10_000)))
	b.set("EBBTIDE_UI_LARGE", large)
	watch(t, large) // reading this many tasks takes minutes
	t.Run("page", func(t *testing.T) { b.run(t, "page.spec.js") })
	t.Run("scale", func(t *testing.T) { b.run(t, "scale.spec.js") })
}

// watch keeps a page open until the test ends.
func watch(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"api/events", nil)
	must.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	must.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, response.Body) // ends with ctx
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = response.Body.Close()
	})
	must.Eq(t, http.StatusOK, response.StatusCode)
}

// TestUINomad tests the page with a real task and with tokens, and the task in Nomad's own UI. That
// UI requests pictures without a token, so it belongs to an agent without ACLs.
func TestUINomad(t *testing.T) {
	h := newHarness(t)
	b := newBrowser(t, h)
	c := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{ACL: true}})
	long := c.start(t, job{id: "long", tasks: []task{epochs(1e6)}})
	c.waitStatus(t, long, "train", "of known size", func(s status.Status) bool { return s.Fair.RemainingCPUS.Known() })
	short := c.start(t, job{id: "short", tasks: []task{epochs(400)}})
	c.waitEvent(t, short, "train", "ended after ", "with its fair share it would have taken ")

	open := newCluster(t, h, "exec", clusterOptions{})
	shown := open.start(t, job{id: "long", tasks: []task{epochs(1e6)}})
	ended := open.start(t, job{id: "short", tasks: []task{epochs(400)}})
	open.waitEvent(t, ended, "train", "ended after ", "with its fair share it would have taken ")

	b.set("EBBTIDE_UI_REAL", b.reachable(t, c.agent.Addr))
	b.set("EBBTIDE_NOMAD_UI", open.agent.Addr)
	token, err := c.agent.Token(deadline(t, stepDeadline), "viewer", `node { policy = "read" }
namespace "*" {
  capabilities = ["list-jobs", "read-job", "read-fs"]
  variables { path "ebbtide/shim*" { capabilities = ["read", "list"] } }
}`, 0)
	must.NoError(t, err)
	b.set("EBBTIDE_TOKEN", token)
	nothing, err := c.agent.Token(deadline(t, stepDeadline), "nothing", `namespace "default" { capabilities = ["read-job"] }`, 0)
	must.NoError(t, err)
	b.set("EBBTIDE_TOKEN_NONE", nothing)
	c.startIn(t, "other", job{id: "elsewhere", tasks: []task{epochs(1e6)}})
	one, err := c.agent.Token(deadline(t, stepDeadline), "one", `node { policy = "read" }
namespace "other" { capabilities = ["list-jobs", "read-job", "read-fs"] }`, 0)
	must.NoError(t, err)
	b.set("EBBTIDE_TOKEN_ONE", one)
	b.set("EBBTIDE_ALLOC_DENIED", long.ID)
	for _, format := range []string{"-once", "-json"} {
		eventually(t, "the token's tasks are shown by top "+format, func() error {
			top := exec.CommandContext(deadline(t, stepDeadline), b.cli, "top", format)
			top.Env = c.agent.Environ(one)
			out, err := top.Output()
			if err != nil || !strings.Contains(string(out), "elsewhere") || strings.Contains(string(out), "long") {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	b.set("EBBTIDE_ALLOC", shown.ID)
	b.set("EBBTIDE_ALLOC_ENDED", ended.ID)
	b.run(t, "nomad.spec.js")
}

// startIn starts a job in a new namespace.
func (c *cluster) startIn(t *testing.T, namespace string, j job) {
	t.Helper()
	_, err := c.agent.API.Namespaces().Register(&api.Namespace{Name: namespace}, nil)
	must.NoError(t, err)
	j.body += fmt.Sprintf("  namespace = %q\n", namespace)
	_, err = c.agent.Run(deadline(t, stepDeadline), c.hcl(j))
	must.NoError(t, err)
	t.Cleanup(func() {
		_, _, err := c.agent.API.Jobs().Deregister(j.id, true, &api.WriteOptions{Namespace: namespace})
		must.NoError(t, err)
	})
}
