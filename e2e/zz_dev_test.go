//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

func TestDev(t *testing.T) {
	engine := os.Getenv("DEV_ENGINE")
	if engine == "" {
		engine = "exec"
	}
	opts := clusterOptions{cni: true, docker: harness.DockerOptions{LiveRestore: true}}
	c := newCluster(t, newHarness(t), engine, opts)
	switch os.Getenv("DEV") {
	case "exit":
		testExitCodes(t, c)
	case "group":
		testGroupNetwork(t, c)
	case "both":
		testAgentKilled(t, c, true)
	}
	_ = harness.Alive
}
