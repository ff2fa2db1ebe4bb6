// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/move"
)

// TestPrivate: tasks cannot read or write the private directory, jobs that mount it are rejected,
// and Nomad's file API serves it.
func TestPrivate(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"exec", "docker"} {
		t.Run(engine, func(t *testing.T) { testPrivate(t, newCluster(t, newHarness(t), engine, clusterOptions{})) })
	}
}

// reaches tries all paths from a task's directories to the private one.
const reaches = `
for d in / /.. /alloc/.. /local/.. /secrets/.. "$NOMAD_ALLOC_DIR/.." "$NOMAD_TASK_DIR/.." "$NOMAD_SECRETS_DIR/.."; do
  [ -e "$d/.ebbtide" ] && echo "sees $d"
  echo forged >"$d/.ebbtide/train.status.json" && echo "writes $d"
done 2>/dev/null
echo tried`

func testPrivate(t *testing.T, c *cluster) {
	alloc := c.start(t, job{id: "kept", tasks: []task{growing("train")}})
	c.waitStatus(t, alloc, "train", "reported", func(s status.Status) bool { return s.Reports > 0 })
	client := move.API{Client: c.agent.API}
	kept := func() status.Status {
		st, err := client.Status(deadline(t, stepDeadline), alloc, "train")
		must.NoError(t, err)
		must.Eq(t, alloc.ID, st.Alloc)
		return st
	}
	must.Positive(t, kept().Reports)
	tasks, err := client.StatusFiles(deadline(t, stepDeadline), alloc)
	must.NoError(t, err)
	must.Eq(t, []string{"train"}, tasks)
	_, err = client.Status(deadline(t, stepDeadline), alloc, "other")
	must.ErrorContains(t, err, "no such file or directory")
	_, err = client.PrivateFile(deadline(t, stepDeadline), alloc, "other", 10)
	must.ErrorIs(t, err, os.ErrNotExist)

	out, errOut, code, err := c.agent.Exec(deadline(t, stepDeadline), alloc, "train", false, nil, "/bin/sh", "-c", reaches)
	must.NoError(t, err)
	must.Eq(t, 0, code)
	must.Eq(t, "tried\n", out, must.Sprint(errOut))
	dir := filepath.Join(c.agent.AllocDir(alloc.ID), private.DirName)
	for name, mode := range map[string]os.FileMode{".": 0o700, private.StatusName("train"): 0o600} {
		st, err := os.Stat(filepath.Join(dir, name))
		must.NoError(t, err)
		must.Eq(t, mode, st.Mode().Perm())
	}

	// A node has a snapshot after its first decision.
	cli, err := c.h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	snapshot := func(args ...string) (string, error) {
		out, err := exec.CommandContext(deadline(t, stepDeadline), cli, append([]string{"snapshot", "-address", c.agent.Addr, "-compact"}, args...)...).CombinedOutput()
		return string(out), err
	}
	node, _, err := c.agent.API.Nodes().Info(alloc.NodeID, nil)
	must.NoError(t, err)
	for _, args := range [][]string{nil, {"-node", node.Name}, {"-node", node.ID[:8]}, {"-alloc", alloc.ID[:8]}} {
		text, err := snapshot(args...)
		must.NoError(t, err, must.Sprint(text))
		var object map[string]any
		must.NoError(t, json.Unmarshal([]byte(text), &object), must.Sprint(text))
		must.MapContainsKey(t, object, "now_s")
	}

	refused := func(id string, k task, want string) {
		t.Helper()
		k.command, k.args = "/bin/sh", []string{"-c", "sleep 1000"}
		got := c.finish(t, job{id: id, tasks: []task{k}})
		must.Eq(t, api.AllocClientStatusFailed, got.ClientStatus)
		for name, ts := range got.TaskStates {
			events := strings.Join(harness.Events(got, name), "\n")
			must.StrContains(t, events, want)
			for _, ev := range ts.Events {
				must.NotEq(t, api.TaskStarted, ev.Type, must.Sprint(events))
			}
		}
	}
	for i, name := range []string{private.DirName, "."} {
		refused(fmt.Sprintf("name-%d", i), task{name: name}, "a task cannot have this name")
	}
	if c.engine == "docker" {
		for i, source := range []string{"..", path.Join("..", private.DirName)} {
			refused(fmt.Sprintf("volume-%d", i), task{config: fmt.Sprintf("volumes = [%q]", source+":/x")}, "would expose the allocation's private directory")
		}
	}
	must.Eq(t, alloc.ID, kept().Alloc)

	// A template rendered through a symlink can write there; the forged files are ignored.
	link := shell("ln -s / $NOMAD_ALLOC_DIR/data/link")
	link.name, link.body = "link", "lifecycle {\n hook = \"prestart\"\n}"
	train := growing("train")
	train.body = `template {
  data        = "{\"objective\":{\"state\":\"objective\",\"metric\":\"loss\"}}"
  destination = "$${NOMAD_ALLOC_DIR}/data/link/.ebbtide/train.record"
}`
	c.register(t, job{id: "forged", tasks: []task{link, train}})
	var forged *api.Allocation
	eventually(t, "the task has a status", func() error {
		stubs, err := c.agent.Allocs(deadline(t, stepDeadline), "forged")
		if err != nil || len(stubs) == 0 {
			return fmt.Errorf("allocations: %d, %v", len(stubs), err)
		}
		if forged, _, err = c.agent.API.Allocations().Info(stubs[0].ID, nil); err != nil {
			return err
		}
		_, err = client.Status(deadline(t, stepDeadline), forged, "train")
		return err
	})
	forged, err = c.agent.WaitAllocID(deadline(t, startDeadline), forged.ID, "running", func(a *api.Allocation) bool {
		train := a.TaskStates["train"]
		return train != nil && train.State == "running"
	})
	must.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(c.agent.AllocDir(forged.ID), private.DirName, "train.record"))
	must.NoError(t, err)
	must.StrContains(t, string(data), "objective")
	must.StrNotContains(t, strings.Join(harness.Events(forged, "train"), "\n"), "reached its objective")
}
