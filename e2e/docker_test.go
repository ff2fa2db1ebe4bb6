// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

func dockerWithImages(t *testing.T, h *harness.Harness) *harness.Docker {
	t.Helper()
	d, err := h.StartDocker(deadline(t, startDeadline), harness.DockerOptions{})
	if err != nil {
		t.Skip(err)
	}
	must.NoError(t, d.ImportImages(deadline(t, startDeadline)))
	return d
}

// TestDockerName installs the plugin under the stock driver's name with the stock
// configuration: jobs need no change.
func TestDockerName(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := dockerWithImages(t, h)
	c := newCluster(t, h, "docker", clusterOptions{
		driver: "docker", daemon: d,
		agent: harness.AgentConfig{PluginName: "docker", Plugin: d.PluginConfig(reapSoon, "ebbtide {\n interval = \"2s\"\n}")},
	})
	node, err := c.agent.Node(t.Context())
	must.NoError(t, err)
	must.Eq(t, "1", node.Attributes["driver.docker"])
	must.NotEq(t, "", node.Attributes["driver.docker.version"])
	must.Eq(t, "docker", node.Attributes["driver.docker.ebbtide.engine"])
	must.Nil(t, node.Drivers["ebbtide"])

	// A job for the stock driver, and one with Ebbtide's block.
	plain := c.start(t, job{id: "plain", tasks: []task{{args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-wait", "20ms", "-every", "1"}}}})
	k := shell("n=0; while :; do n=$((n+1)); echo at $n; sleep 0.2; done")
	k.config = "progress {\n pattern = \"at (?P<value>[0-9]+)\"\n goal = \"max\"\n}"
	ours := c.start(t, job{id: "ours", tasks: []task{k}})
	for _, alloc := range []*api.Allocation{plain, ours} {
		c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool { return s.Reports > 10 && s.Growth.Known() })
	}

	// The driver removes untracked containers of Nomad's.
	lost := runContainer(t, d, map[string]string{engine.LabelAllocID: "11111111-2222-3333-4444-555555555555"})
	waitContainer(t, d, lost, false)
	for _, alloc := range []*api.Allocation{plain, ours} {
		list, err := d.Containers(t.Context(), alloc.ID)
		must.NoError(t, err)
		must.Len(t, 1, list)
		must.Eq(t, "running", string(list[0].State))
	}
	// A container that is not Nomad's.
	foreign := runContainer(t, d, nil)
	second := runContainer(t, d, map[string]string{engine.LabelAllocID: "11111111-2222-3333-4444-555555555555"})
	waitContainer(t, d, second, false)
	waitContainer(t, d, foreign, true)
}

// reapSoon speeds up Ebbtide's reaper, whose grace may be shorter than a task's start; the stock
// driver's minimum is a minute.
const reapSoon = "period = \"200ms\"\ncreation_grace = \"1s\""

func stockDocker(d *harness.Docker, dangling string) string {
	return "plugin \"docker\" {\n config {\n" + d.PluginConfig(dangling, "") + "\n}\n}\n"
}

// TestReaperOurs: next to the stock driver on one daemon, Ebbtide's reaper removes only Ebbtide's
// containers.
func TestReaperOurs(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := dockerWithImages(t, h)
	c := newCluster(t, h, "docker", clusterOptions{
		daemon: d, dangling: reapSoon,
		agent: harness.AgentConfig{HCL: stockDocker(d, "enabled = false")},
	})
	ours := c.start(t, job{id: "ours", tasks: []task{shell("sleep 1000")}})
	theirs := *c
	theirs.driver = "docker"
	stockAlloc := theirs.start(t, job{id: "stock", tasks: []task{shell("sleep 1000")}})
	list, err := d.Containers(t.Context(), ours.ID)
	must.NoError(t, err)
	must.Len(t, 1, list)
	must.Eq(t, c.agent.NodeID(), list[0].Labels[engine.LabelNode])

	// Untracked containers of this node, another node and the stock driver.
	const alloc = "11111111-2222-3333-4444-555555555555"
	other := runContainer(t, d, map[string]string{engine.LabelAllocID: alloc, engine.LabelNode: "99999999-2222-3333-4444-555555555555"})
	dangling := runContainer(t, d, map[string]string{engine.LabelAllocID: alloc})
	// Once two of them have been removed in sequence, two rounds have passed.
	for range 2 {
		lost := runContainer(t, d, map[string]string{engine.LabelAllocID: alloc, engine.LabelNode: c.agent.NodeID()})
		waitContainer(t, d, lost, false)
	}
	waitContainer(t, d, other, true)
	waitContainer(t, d, dangling, true)
	for _, id := range []string{ours.ID, stockAlloc.ID} {
		list, err := d.Containers(t.Context(), id)
		must.NoError(t, err)
		must.Len(t, 1, list)
		must.Eq(t, "running", string(list[0].State))
	}
}

// TestReaperStock: the stock reaper removes Ebbtide's container, and an event names cause and
// setting. It takes a minute, the reaper's minimum.
func TestReaperStock(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := dockerWithImages(t, h)
	c := newCluster(t, h, "docker", clusterOptions{
		daemon: d,
		agent:  harness.AgentConfig{HCL: stockDocker(d, "enabled = true\nperiod = \"1s\"\ncreation_grace = \"1m\"")},
	})
	c.register(t, job{id: "victim", tasks: []task{shell("sleep 1000")}})
	alloc, err := c.agent.WaitTerminal(deadline(t, 2*startDeadline), "victim")
	must.NoError(t, err)
	must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
	c.waitEvent(t, alloc, "train", "removed from outside", "dangling_containers", `plugin "docker"`)
}

func runContainer(t *testing.T, d *harness.Docker, labels map[string]string) string {
	t.Helper()
	ctx := deadline(t, stepDeadline)
	c, err := d.Client.ContainerCreate(ctx, &container.Config{Image: harness.Image, Cmd: []string{"/bin/sleep", "1000"}, Labels: labels},
		&container.HostConfig{NetworkMode: "none"}, nil, nil, "")
	must.NoError(t, err)
	must.NoError(t, d.Client.ContainerStart(ctx, c.ID, container.StartOptions{}))
	return c.ID
}

// waitContainer waits until a container has been removed, or checks that it runs.
func waitContainer(t *testing.T, d *harness.Docker, id string, runs bool) {
	t.Helper()
	if runs {
		x, err := d.Client.ContainerInspect(t.Context(), id)
		must.NoError(t, err)
		must.True(t, x.State.Running)
		return
	}
	must.NoError(t, harness.Poll(deadline(t, startDeadline), "the container is gone", func(ctx context.Context) error {
		list, err := d.Containers(ctx, "")
		if err != nil {
			return err
		}
		for _, x := range list {
			if x.ID == id {
				return fmt.Errorf("it is %s", x.Status)
			}
		}
		return nil
	}))
}
