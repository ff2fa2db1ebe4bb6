//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

func TestDev(t *testing.T) {
	opts := clusterOptions{cni: true}
	if os.Getenv("DEV_STOCK") != "" {
		opts.driver = "exec"
	}
	c := newCluster(t, newHarness(t), "exec", opts)
	switch os.Getenv("DEV") {
	case "exec":
		testExecSessions(t, c)
	case "group":
		testGroupNetwork(t, c)
	}
	_ = harness.Alive
}
