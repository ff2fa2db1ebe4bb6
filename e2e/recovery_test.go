// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// pair is a growing and a flat task with settled limits.
type pair struct {
	c          *cluster
	grow, flat *api.Allocation
	growPID    int
	flatPID    int
	limited    harness.Kernel // of the flat task
	before     status.Status  // of the flat task
	history    int            // rows of the flat task
}

func startPair(t *testing.T, c *cluster) *pair {
	t.Helper()
	p := &pair{c: c}
	p.flat = c.start(t, job{id: "flat", tasks: []task{flat("train")}})
	c.waitStatus(t, p.flat, "train", "converged", settled("train", "CL"))
	p.grow = c.start(t, job{id: "growing", tasks: []task{growing("train")}})
	p.growPID, p.flatPID = c.pid(t, p.grow, "train"), c.pid(t, p.flat, "train")
	c.waitStatus(t, p.grow, "train", "measured", func(s status.Status) bool { return s.Growth > 0 })
	p.before = c.waitStatus(t, p.flat, "train", "limited", func(s status.Status) bool {
		return s.Category == "CL" && s.Limit.InForce.Shares < 300
	})
	p.limited = kernel(t, p.flatPID)
	p.history = p.rows(t)
	return p
}

func (p *pair) rows(t *testing.T) int {
	t.Helper()
	data, err := p.c.agent.Cat(deadline(t, stepDeadline), p.flat, "alloc/data/ebbtide/train.csv")
	must.NoError(t, err)
	return bytes.Count(data, []byte("\n"))
}

// untouched checks that the tasks kept running.
func (p *pair) untouched(t *testing.T) {
	t.Helper()
	for alloc, pid := range map[*api.Allocation]int{p.grow: p.growPID, p.flat: p.flatPID} {
		must.True(t, harness.Alive(pid), must.Sprintf("process %d of %s", pid, alloc.JobID))
		must.Eq(t, pid, p.c.pid(t, alloc, "train"))
		now, _, err := p.c.agent.API.Allocations().Info(alloc.ID, nil)
		must.NoError(t, err)
		must.Eq(t, 0, now.TaskStates["train"].Restarts)
		must.Eq(t, "running", now.TaskStates["train"].State)
		if p.c.docker != nil {
			list, err := p.c.docker.Containers(t.Context(), alloc.ID)
			must.NoError(t, err)
			must.Len(t, 1, list, must.Sprint("containers of one task"))
		} else {
			cgroups, err := harness.TaskPIDs(alloc.ID, "train")
			must.NoError(t, err)
			must.Eq(t, pid, cgroups[0])
		}
	}
}

// limitsKept checks, until a condition holds, that the flat task stays limited, apart from small
// changes.
func (p *pair) limitsKept(t *testing.T, what string, until func() error) {
	t.Helper()
	eventually(t, what, func() error {
		k := kernel(t, p.flatPID)
		must.Less(t, 300, k.Shares, must.Sprintf("shares of the converged task while waiting until %s", what))
		return until()
	})
}

// goesOn checks that the loop has kept its state and works.
func (p *pair) goesOn(t *testing.T) {
	t.Helper()
	var st status.Status
	p.limitsKept(t, "the status of the flat task moves on", func() (err error) {
		if st, err = p.c.status(t, p.flat, "train"); err != nil {
			return err
		}
		if st.Step <= p.before.Step || st.Reports <= p.before.Reports {
			return fmt.Errorf("step %v, %d reports; before: %v, %d", st.Step, st.Reports, p.before.Step, p.before.Reports)
		}
		return nil
	})
	must.Eq(t, "CL", st.Category)
	must.True(t, st.Since.Equal(p.before.Since), must.Sprintf("converged since %v, before: %v", st.Since, p.before.Since))
	must.GreaterEq(t, p.before.CPUSeconds, st.CPUSeconds)
	p.limitsKept(t, "the history continues", func() error {
		if n := p.rows(t); n <= p.history {
			return fmt.Errorf("it has %d rows, before: %d", n, p.history)
		}
		return nil
	})
	// Without the growing task the limit is released.
	p.untouched(t)
	p.c.stop(t, "growing")
	must.False(t, harness.Alive(p.growPID))
	eventually(t, "the limit is lifted when the growing task has left", func() error {
		if k := kernel(t, p.flatPID); k.Shares != 400 {
			return fmt.Errorf("it has %d shares", k.Shares)
		}
		return nil
	})
	p.c.stop(t, "flat")
	must.False(t, harness.Alive(p.flatPID))
}

func testPluginKilled(t *testing.T, c *cluster) {
	p := startPair(t, c)
	pids := c.agent.PluginPIDs("ebbtide-driver")
	must.Len(t, 1, pids)
	must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	killed := time.Now()
	p.limitsKept(t, "the plugin is back", func() error {
		now := c.agent.PluginPIDs("ebbtide-driver")
		if len(now) != 1 || now[0] == pids[0] {
			return fmt.Errorf("its processes are %v", now)
		}
		return nil
	})
	t.Logf("the plugin is back after %v", time.Since(killed).Round(time.Millisecond))
	p.goesOn(t)
}

func testAgentKilled(t *testing.T, c *cluster, withPlugin bool) {
	p := startPair(t, c)
	pids := c.agent.PluginPIDs("ebbtide-driver")
	must.Len(t, 1, pids)
	must.NoError(t, c.agent.Process().Signal(unix.SIGSTOP)) // to delay the plugin's restart
	if withPlugin {
		must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	}
	must.NoError(t, c.agent.Kill(deadline(t, stepDeadline)))
	must.True(t, harness.Alive(p.growPID))
	must.True(t, harness.Alive(p.flatPID))
	must.NoError(t, c.agent.Restart(deadline(t, startDeadline)))
	_, err := c.agent.WaitDriver(deadline(t, startDeadline), c.driver, true)
	must.NoError(t, err)
	p.limitsKept(t, "there is one plugin", func() error {
		if now := c.agent.PluginPIDs("ebbtide-driver"); len(now) != 1 {
			return fmt.Errorf("its processes are %v", now)
		}
		return nil
	})
	p.goesOn(t)
	log, err := c.agent.Log()
	must.NoError(t, err)
	must.False(t, strings.Contains(log, "panic:"))
}
