// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestTwoNodes: two clients on one machine manage and count only their own tasks.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	shared := map[string]string{"models": t.TempDir()} // as on NFS
	address := freeAddress(t)                          // the same for both, by mistake
	settings := map[string]string{"metrics_address": quote(address)}
	first := newCluster(t, h, "exec", clusterOptions{settings: settings, agent: harness.AgentConfig{HostVolumes: shared}})
	second := newCluster(t, h, "exec", clusterOptions{settings: settings, agent: harness.AgentConfig{Join: first.agent, HostVolumes: shared}})
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

	log, err := second.agent.Log()
	must.NoError(t, err)
	must.Eq(t, 1, strings.Count(log, "metrics cannot be served"), must.Sprint("the second driver says once that it has no address, and works"))
	resp, err := http.Get("http://" + address + "/metrics")
	must.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must.NoError(t, err)
	for _, counted := range []string{"saves", "restores"} {
		must.RegexMatch(t, regexp.MustCompile(`\nebbtide_driver_checkpoint_`+counted+`_total{result="ok"} [1-9]`), string(body), must.Sprint("the first driver has counted"))
	}
}
