// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestTwoNodes: two clients on one machine manage and count their own tasks only.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	shared := map[string]string{"models": t.TempDir()}
	first := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{HostVolumes: shared}})
	second := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{Join: first.agent, HostVolumes: shared}})
	must.NotEq(t, first.agent.NodeID(), second.agent.NodeID())

	k := task{args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-wait", "20ms", "-every", "1"}}
	on := func(c *cluster, id string) *api.Allocation {
		return c.start(t, job{id: id, tasks: []task{k}, body: "constraint {\n attribute = \"${node.unique.name}\"\n value = \"" + c.agent.Name + "\"\n}"})
	}
	for _, c := range []*cluster{first, second} {
		alloc := on(c, "on-"+c.agent.Name)
		must.Eq(t, c.agent.NodeID(), alloc.NodeID)
		c.waitStatus(t, alloc, "train", "alone on its node", func(s status.Status) bool { return s.Reports > 10 && s.Node.Tasks == 1 })
	}
	t.Run("moved", func(t *testing.T) { testMoveBetweenNodes(t, first, second) })
	t.Run("moved with a shared volume", func(t *testing.T) { testMoveShared(t, first, second) })
	t.Run("not moved", func(t *testing.T) { testMoveRefused(t, first, second) })
}
