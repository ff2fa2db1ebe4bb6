// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// moveTests send the signals of a move directly.
func moveTests() map[string]func(*testing.T, *cluster) {
	return map[string]func(*testing.T, *cluster){
		"called off":     testMoveCalledOff,
		"stopped":        testMoveStopped,
		"lease ends":     testMoveLeaseEnds,
		"does not save":  testMoveDoesNotSave,
		"saves and ends": testMoveSavesAndEnds,
	}
}

// The save handler writes its step to a temporary file, then renames it.
const saveScript = `trap 'echo $n > $d/tmp; mv $d/tmp $d/ckpt-$n' USR1
`

func movable(script, lease string, more ...string) task {
	k := shell(preamble + script + patient)
	k.config = fmt.Sprintf("checkpoint {\n path = \"${NOMAD_ALLOC_DIR}/data/ckpt-*\"\n lease = %q\n %s\n}", lease, strings.Join(more, "\n"))
	return k
}

func (g goal) signal(t *testing.T, name string) {
	t.Helper()
	must.NoError(t, g.c.agent.Signal(deadline(t, stepDeadline), g.alloc, "train", name))
}

// ready prepares a task for a move.
func (g goal) ready(t *testing.T) status.Status {
	t.Helper()
	g.reporting(t)
	g.signal(t, "EBBTIDE_CHECKPOINT")
	g.c.waitEvent(t, g.alloc, "train", "checkpoint saved: /alloc/data/ckpt-", "or later; the task is frozen until ")
	return g.c.waitStatus(t, g.alloc, "train", "ready to be moved", func(s status.Status) bool { return s.Move.State == "ready" })
}

// runsOn waits until a task reports again.
func (g goal) runsOn(t *testing.T, why string, reports int64) {
	t.Helper()
	g.c.waitEvent(t, g.alloc, "train", "keeps running: "+why)
	g.c.waitStatus(t, g.alloc, "train", "running on", func(s status.Status) bool { return s.Move.State == "" && s.Reports > reports })
	must.Eq(t, []string{"start"}, g.lines(t, "starts"))
}

func testMoveCalledOff(t *testing.T, c *cluster) {
	g := startGoal(t, c, "move-off", movable(saveScript, "10m"))
	st := g.ready(t)
	must.Positive(t, st.Move.Bytes)
	must.Positive(t, st.Move.Step)
	saved := strings.TrimPrefix(st.Move.Path, "/alloc/data/")
	step := g.lines(t, saved)
	must.Len(t, 1, step)
	must.Eq(t, "ckpt-"+step[0], saved)

	// It uses no CPU; meanwhile, earlier output is read.
	used := kernel(t, c.pid(t, g.alloc, "train")).CPU
	time.Sleep(time.Second)
	must.Eq(t, used, kernel(t, c.pid(t, g.alloc, "train")).CPU)
	st, err := c.status(t, g.alloc, "train")
	must.NoError(t, err)
	g.signal(t, "EBBTIDE_RELEASE")
	g.runsOn(t, "the move was cancelled", st.Reports)
	g.signal(t, "EBBTIDE_RELEASE") // repeating it is no error
}

// A stopped frozen task is killed without thawing.
func testMoveStopped(t *testing.T, c *cluster) {
	g := startGoal(t, c, "move-stopped", movable(saveScript+saves, "10m"))
	g.ready(t)
	pid := c.pid(t, g.alloc, "train")
	c.stop(t, "move-stopped")
	ended(t, pid)
	must.SliceEmpty(t, g.lines(t, "signals"), must.Sprint("it did not run on"))
}

func testMoveLeaseEnds(t *testing.T, c *cluster) {
	g := startGoal(t, c, "move-lease", movable(saveScript, "8s"))
	st := g.ready(t)
	g.runsOn(t, "no move within the lease", st.Reports)
}

func testMoveDoesNotSave(t *testing.T, c *cluster) {
	g := startGoal(t, c, "move-unsaved", movable("", "10m", `timeout = "1s"`))
	g.reporting(t)
	g.signal(t, "EBBTIDE_CHECKPOINT")
	c.waitEvent(t, g.alloc, "train", "cannot be moved, keeps running: no checkpoint within 1s of SIGUSR1: no file matches /alloc/data/ckpt-*")
	st := c.waitStatus(t, g.alloc, "train", "failed to save", func(s status.Status) bool { return s.Move.State == "failed" })
	must.StrContains(t, st.Move.Why, "no file matches")
	must.Eq(t, []string{"USR1"}, g.lines(t, "signals"))

	plain := startGoal(t, c, "move-undeclared", shell(preamble+saves+patient))
	plain.reporting(t)
	err := c.agent.Signal(deadline(t, stepDeadline), plain.alloc, "train", "EBBTIDE_CHECKPOINT")
	must.ErrorContains(t, err, "set checkpoint { path")
	must.SliceEmpty(t, plain.lines(t, "signals"), must.Sprint("Nomad's exec driver would have sent SIGINT"))
}

// testMoveSavesAndEnds: a trainer that exits after saving is restarted if there is no move.
func testMoveSavesAndEnds(t *testing.T, c *cluster) {
	g := startGoal(t, c, "move-ends", movable("trap 'echo $n > $d/tmp; mv $d/tmp $d/ckpt-$n; exit 0' TERM\n", "2s", `signal = "SIGTERM"`))
	g.reporting(t)
	g.signal(t, "EBBTIDE_CHECKPOINT")
	c.waitEvent(t, g.alloc, "train", "checkpoint saved: ")
	c.waitEvent(t, g.alloc, "train", "was not moved: it restarts here")
	eventually(t, "it is started again", func() error {
		if starts := g.lines(t, "starts"); len(starts) != 2 {
			return fmt.Errorf("it was started %d times", len(starts))
		}
		return nil
	})
}

// testMovePluginKilled: after a kill with frozen tasks, the next plugin thaws them at the end of
// their lease, or stops them.
func testMovePluginKilled(t *testing.T, c *cluster) {
	g := startGoal(t, c, "move-killed", movable(saveScript, "8s"))
	stopped := startGoal(t, c, "move-killed-stopped", movable(saveScript, "10m"))
	stopped.ready(t)
	st := g.ready(t)
	pid := c.pid(t, stopped.alloc, "train")
	pids := c.agent.PluginPIDs("ebbtide-driver")
	must.Len(t, 1, pids)
	must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	eventually(t, "the plugin is back", func() error {
		if now := c.agent.PluginPIDs("ebbtide-driver"); len(now) != 1 || now[0] == pids[0] {
			return fmt.Errorf("its processes are %v", now)
		}
		return nil
	})
	g.runsOn(t, "no move within the lease", st.Reports)
	must.True(t, harness.Alive(pid))
	c.waitStatus(t, stopped.alloc, "train", "still ready", func(s status.Status) bool { return s.Move.State == "ready" })
	c.stop(t, "move-killed-stopped")
	ended(t, pid)
}
