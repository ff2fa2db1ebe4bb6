// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

func countEvents(t *testing.T, c *cluster, alloc *api.Allocation, task, text string) int {
	t.Helper()
	now, _, err := c.agent.API.Allocations().Info(alloc.ID, nil)
	must.NoError(t, err)
	n := 0
	for _, ev := range harness.Events(now, task) {
		if strings.Contains(ev, text) {
			n++
		}
	}
	return n
}

// testUnreadableLogs replaces a task's log with a FIFO, which blocks open (root ignores
// permissions).
func testUnreadableLogs(t *testing.T, c *cluster) {
	alloc := c.start(t, job{id: "unreadable", tasks: []task{{args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-wait", "20ms", "-every", "1"}}}})
	pid := c.pid(t, alloc, "train")
	c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool { return s.Reports > 20 })
	log := filepath.Join(c.agent.AllocDir(alloc.ID), "alloc", "logs", "train.stdout.0")
	must.NoError(t, os.Rename(log, log+".away"))
	must.NoError(t, unix.Mkfifo(log, 0o644))

	c.waitEvent(t, alloc, "train", "cannot read its progress from its output")
	// The loop does not block: another task is measured.
	other := c.start(t, job{id: "other", tasks: []task{{args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-wait", "20ms", "-every", "1"}}}})
	c.waitStatus(t, other, "train", "measured", func(s status.Status) bool { return s.Reports > 20 })

	must.NoError(t, os.Remove(log))
	must.NoError(t, os.Rename(log+".away", log))
	st, err := c.status(t, alloc, "train")
	must.NoError(t, err)
	c.waitStatus(t, alloc, "train", "measured again", func(s status.Status) bool { return s.Reports > st.Reports })
	must.True(t, harness.Alive(pid))
	must.Eq(t, 1, countEvents(t, c, alloc, "train", "cannot read its progress from its output"))
}

// testDockerHangs suspends the daemon, which accepts connections without responding. Tasks keep
// running under their limits, and recovery is automatic.
func testDockerHangs(t *testing.T, c *cluster) {
	p := startPair(t, c)
	must.NoError(t, c.docker.Hang())
	defer c.docker.Resume()
	// Output passes through the daemon, so only CPU use is measured.
	c.waitStatus(t, p.grow, "train", "measured although Docker hangs", func(s status.Status) bool { return s.CPUSeconds > p.before.CPUSeconds+3 })
	must.True(t, harness.Alive(p.growPID))
	must.True(t, harness.Alive(p.flatPID))
	// A limit changed by hand is corrected.
	k := kernel(t, p.flatPID)
	must.NoError(t, os.WriteFile(filepath.Join(k.Path, "cpu.shares"), []byte("399"), 0))
	eventually(t, "the limit is in force again", func() error {
		if k := kernel(t, p.flatPID); k.Shares > 300 {
			return fmt.Errorf("it has %d shares", k.Shares)
		}
		return nil
	})
	must.NoError(t, c.docker.Resume())
	p.goesOn(t)
}

// testDockerRestarts restarts the daemon cleanly and after a crash, with live-restore: containers
// and tasks keep running.
func testDockerRestarts(t *testing.T, c *cluster) {
	p := startPair(t, c)
	for _, end := range []struct {
		name string
		end  func() error
	}{
		{"stopped", func() error { return c.docker.Down(deadline(t, stepDeadline)) }},
		{"killed", func() error { return c.docker.Kill(deadline(t, stepDeadline)) }},
	} {
		t.Log("docker is " + end.name)
		must.NoError(t, end.end())
		must.True(t, harness.Alive(p.flatPID))
		st, err := c.status(t, p.grow, "train")
		must.NoError(t, err)
		must.NoError(t, c.docker.Up(deadline(t, startDeadline)))
		c.waitStatus(t, p.grow, "train", "read on", func(s status.Status) bool { return s.Step > st.Step+20 })
		c.waitEvent(t, p.flat, "train", "connection to Docker was lost", "not interrupted")
		p.untouched(t)
		out, _, code, err := c.agent.Exec(deadline(t, stepDeadline), p.flat, "train", false, nil, "/bin/echo", "hello")
		must.NoError(t, err)
		must.Eq(t, 0, code)
		must.Eq(t, "hello\n", out)
	}
	_, err := c.agent.WaitDriver(deadline(t, startDeadline), c.driver, true)
	must.NoError(t, err)
	p.goesOn(t)
}

// TestDiskFull fills the disk of the allocation directories.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const size = 64 << 20
	small := filepath.Join(h.Dir, "small")
	must.NoError(t, os.MkdirAll(small, 0o755))
	must.NoError(t, unix.Mount("tmpfs", small, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", size)))
	c := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{ClientHCL: fmt.Sprintf("alloc_dir = %q", small)}})

	// The task prints nothing by then: Nomad's log collector fails on a full disk, and further
	// output raises SIGPIPE under any driver.
	k := shell(`for i in $(seq 30); do echo step=$i loss=$((1000 / i)); sleep 0.1; done; while :; do :; done`)
	k.body = "logs {\n max_files = 1\n max_file_size = 5\n}"
	alloc := c.start(t, job{id: "full", group: "ephemeral_disk {\n size = 20\n}", tasks: []task{k}})
	pid := c.pid(t, alloc, "train")
	before := c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool { return s.Reports == 30 })

	filler := filepath.Join(small, "filler")
	f, err := os.Create(filler)
	must.NoError(t, err)
	defer f.Close()
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = f.Write(block)
	}
	must.ErrorIs(t, err, unix.ENOSPC)

	c.waitEvent(t, alloc, "train", "cannot write status files")
	must.True(t, harness.Alive(pid))
	must.NoError(t, os.Remove(filler))
	must.NoError(t, f.Close())
	c.waitStatus(t, alloc, "train", "written again", func(s status.Status) bool { return s.CPUSeconds > before.CPUSeconds && s.Updated.After(before.Updated) })
	must.True(t, harness.Alive(pid))
	must.Eq(t, pid, c.pid(t, alloc, "train"))
	must.Eq(t, 1, countEvents(t, c, alloc, "train", "cannot write status files"))
}
