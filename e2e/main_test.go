// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"flag"
	"os"
	"testing"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Parallel tests mostly wait for Nomad. Twelve kept two cores busy, and requests took minutes.
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// TestExec and TestDocker run the tests that share an agent. They compute, so they are not
// parallel.

func TestExec(t *testing.T)   { testEngine(t, "exec") }
func TestDocker(t *testing.T) { testEngine(t, "docker") }

func testEngine(t *testing.T, engine string) {
	c := newCluster(t, newHarness(t), engine, lifecycleOptions(t))
	t.Run("attributes", func(t *testing.T) { testAttributes(t, c) })
	t.Run("lifecycle", func(t *testing.T) { testLifecycle(t, c) })
	t.Run("bad jobspecs", func(t *testing.T) { testBadJobspecs(t, c) })
	t.Run("nothing is left of ended tasks", func(t *testing.T) { testNothingLeft(t, c) })
	t.Run("lone task", func(t *testing.T) { testLone(t, c) })
	t.Run("competing tasks", func(t *testing.T) { testCompeting(t, c) })
	t.Run("targets", func(t *testing.T) { testTargets(t, c) })
	t.Run("nothing is left at the end", func(t *testing.T) { testNothingLeft(t, c) })
}

// TestRecovery kills and stops the plugin, the agent and Docker under running tasks.
func TestRecovery(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"exec", "docker"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, newHarness(t), engine, clusterOptions{
				docker:   harness.DockerOptions{LiveRestore: true},
				settings: map[string]string{"policy": `"flowcon"`, "docker_timeout": `"2s"`},
			})
			t.Run("plugin killed", func(t *testing.T) { testPluginKilled(t, c) })
			t.Run("agent killed", func(t *testing.T) { testAgentKilled(t, c, false) })
			t.Run("agent and plugin killed", func(t *testing.T) { testAgentKilled(t, c, true) })
			t.Run("logs that cannot be read", func(t *testing.T) { testUnreadableLogs(t, c) })
			if engine == "docker" {
				t.Run("docker hangs", func(t *testing.T) { testDockerHangs(t, c) })
				t.Run("docker restarts", func(t *testing.T) { testDockerRestarts(t, c) })
			}
			t.Run("nothing is left at the end", func(t *testing.T) { testNothingLeft(t, c) })
		})
	}
}
