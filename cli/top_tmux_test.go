// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/top/fake"
)

func builtCommand(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ebbtide")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/ebbtide/ebbtide/cmd/ebbtide")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return path
}

// pane is a pane of a private tmux server, of 80 × 24.
type pane struct {
	t      *testing.T
	socket string
}

func newPane(t *testing.T, env ...string) *pane {
	t.Helper()
	// A socket's path is limited to 107 bytes, and t.TempDir contains the test's name.
	dir, err := os.MkdirTemp("", "top")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &pane{t, filepath.Join(dir, "tmux")}
	args := []string{"-f", "/dev/null", "-u", "new-session", "-d", "-x", "80", "-y", "24", "env"}
	args = append(append(args, env...), "PS1=$ ", "sh")
	p.tmux(args...)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", p.socket, "kill-server").Run() })
	p.shows("$")
	return p
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", p.socket}, args...)...)
	cmd.Env = append(os.Environ(), "TMUX=")
	out, err := cmd.CombinedOutput()
	must.NoError(p.t, err, must.Sprintf("%v: %s", args, out))
	return string(out)
}

// types sends keys by tmux's names.
func (p *pane) types(keys ...string) {
	p.t.Helper()
	p.tmux(append([]string{"send-keys"}, keys...)...)
}

func (p *pane) shows(texts ...string) (shown string) {
	p.t.Helper()
	return p.until(strings.Join(texts, " and "), func(shown string) bool {
		for _, text := range texts {
			if !strings.Contains(shown, text) {
				return false
			}
		}
		return true
	})
}

func (p *pane) until(what string, ok func(string) bool) (shown string) {
	p.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if shown = p.tmux("capture-pane", "-p"); ok(shown) {
			return shown
		}
	}
	p.t.Fatalf("the pane does not come to show %s, but:\n%s", what, shown)
	return ""
}

func topCluster() *fake.Cluster {
	c := fake.New()
	c.Node("aa11", "one")
	c.Node("bb22", "two")
	mlp := c.Task("aa11", "ml", "mlp", func(s *status.Status) { fake.Seat(s, handoff.Running, 300, 0) })
	c.Task("aa11", "ml", "vae", func(s *status.Status) {
		s.Category, s.Fair.Late, s.Rule, s.Why = "CL", true, "fsp.late", "its twin has ended"
		fake.Seat(s, handoff.Parked, 0, 408)
	})
	c.Task("bb22", "vision", "evil", func(s *status.Status) { s.Metric = "\x1b[31mred\x07" })
	c.Claims = []move.Record{{ID: "4f02", Namespace: "ml", Job: "mlp", Alloc: mlp, Source: "aa11", Target: "bb22", Phase: "wait", Owner: "ebbtide shim on n1, process 4711"}}
	return c
}

func TestTop_tmux(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed: what ebbtide top shows in a terminal is not tested")
	}
	if testing.Short() {
		t.Skip("builds the command and starts a terminal")
	}
	command := builtCommand(t)
	begin := func(t *testing.T) (cluster *fake.Cluster, start string) {
		cluster = topCluster()
		nomad := httptest.NewServer(cluster)
		t.Cleanup(nomad.Close)
		return cluster, command + " top -interval 1s -address " + nomad.URL
	}
	const told = `; echo "status $?"`

	t.Run("keys", func(t *testing.T) {
		_, start := begin(t)
		p := newPane(t, "LANG=C.UTF-8", "LC_ALL=")
		p.types(start+told, "Enter")
		shown := p.shows("2 nodes", "1 late", "saved", "[Tasks]", "mlp", "1200/5000", "fsp.late", "q quit")
		t.Log(shown)
		must.StrContains(t, shown, "0.3125 ?[31mred?")
		for _, line := range strings.Split(shown, "\n") {
			must.LessEq(t, 80, len([]rune(line)))
		}
		p.until("a curve of mlp", func(shown string) bool { return strings.Contains(shown, "▁") })

		p.types("j")
		p.shows("> vae")
		p.types("Enter")
		shown = p.shows("ml/vae", "its twin has ended (fsp.late)", "loss = 0.3125", "holds 0 of a share of 408 MiB", "█")
		t.Log(shown)
		p.types("Down", "Down", "Down", "Down", "Down", "Down", "Down", "Down", "Down")
		p.shows("ebbtide: converged: loss = 0.31")
		p.types("Escape")
		p.shows("> vae", "mlp")

		p.types("/", "vis")
		p.until("vision's task only", func(shown string) bool {
			return strings.Contains(shown, "filter: vis_") && !strings.Contains(shown, "mlp")
		})
		p.types("Enter")
		p.shows("> evil")
		p.types("Escape")
		p.shows("mlp", "evil")
		p.types("n")
		p.until("namespace ml", func(shown string) bool {
			return strings.Contains(shown, "namespace: ml") && !strings.Contains(shown, "evil")
		})
		p.types("n", "n")
		p.shows("namespace: *", "evil")
		p.types("s")
		p.shows("sort: node")

		p.types("g")
		p.shows("[Nodes]", "POOL", "SAVED", "one", "two")
		p.types("g")
		t.Log(p.shows("[GPUs]", "NVIDIA A2 GPU-5a1f", "parked", "408"))
		p.types("g")
		p.shows("[Moves]", "wait", "ebbtide shim on n1")
		p.types("?")
		p.shows("Keys", "CPU used and limit")
		p.types("Escape")
		p.shows("[Moves]")
		p.types("1")
		p.shows("[Tasks]")

		// The previous screen is restored, and the shell echoes.
		p.types("q")
		shown = p.shows("status 0", "top -interval 1s")
		must.StrNotContains(t, shown, "[Tasks]")
		p.types("echo resto''red", "Enter")
		p.shows("restored")
	})

	t.Run("a task ends, a node hangs, Nomad is gone", func(t *testing.T) {
		cluster, start := begin(t)
		p := newPane(t, "LANG=C.UTF-8", "LC_ALL=")
		p.types(start+told, "Enter")
		p.shows("mlp", "evil")
		cluster.Lock()
		cluster.Hanging["bb22"] = true
		cluster.Unlock()
		p.until("a stale task", func(shown string) bool {
			return strings.Contains(shown, "(1 stale)") && strings.Contains(shown, "evil stale")
		})
		cluster.Lock()
		clear(cluster.Hanging)
		gone := cluster.Allocs
		cluster.Allocs = gone[1:]
		cluster.Unlock()
		p.until("no mlp", func(shown string) bool { return !strings.Contains(shown, "mlp") && strings.Contains(shown, "vae") })
		cluster.Lock()
		cluster.Allocs, cluster.Down = gone, true
		cluster.Unlock()
		p.shows("! showing the listing of", "vae")
		p.types("C-c")
		p.shows("status 0")
	})

	t.Run("no colours, no UTF-8", func(t *testing.T) {
		_, start := begin(t)
		p := newPane(t, "LANG=C", "LC_ALL=", "NO_COLOR=1")
		p.types(start+told, "Enter")
		p.shows("> mlp", "fsp.late", "0.3125 ?[31mr", "#%*+=")
		escaped := p.tmux("capture-pane", "-p", "-e")
		must.StrNotContains(t, escaped, "\x1b[31m")
		for _, r := range escaped {
			must.Less(t, 0x80, int(r))
		}
		p.types("q")
		p.shows("status 0")
	})

	t.Run("a dumb terminal", func(t *testing.T) {
		_, start := begin(t)
		p := newPane(t, "LANG=C.UTF-8", "LC_ALL=", "TERM=dumb")
		p.types(start+told, "Enter")
		p.shows("fsp.late", "status 0")
	})

	t.Run("it is ended by a signal", func(t *testing.T) {
		_, start := begin(t)
		p := newPane(t, "LANG=C.UTF-8", "LC_ALL=")
		pid := filepath.Join(t.TempDir(), "pid")
		p.types(fmt.Sprintf("sh -c 'echo $$ >%s; exec %s'", pid, start)+told, "Enter")
		p.shows("mlp")
		text, err := os.ReadFile(pid)
		must.NoError(t, err)
		must.NoError(t, exec.Command("kill", strings.TrimSpace(string(text))).Run())
		must.StrNotContains(t, p.shows("status 0"), "[Tasks]")
		p.types("echo resto''red", "Enter")
		p.shows("restored")
	})
}
