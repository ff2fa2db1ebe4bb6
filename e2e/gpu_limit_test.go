// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

const (
	devicesCgroup = "/sys/fs/cgroup/devices"
	// injected is /dev/kmsg, which is not on Docker's list, and which root may open for writing.
	injected = "c 1:11"
)

// forgetfulRuntime creates a runtime that allows a device behind Docker's back when it creates a
// container, like the hook of NVIDIA's runtime, and that takes it away at an update: runc before
// 1.0.0 writes the list it knows, and systemd does so under every version of runc.
func forgetfulRuntime(t *testing.T, dir string) map[string]string {
	t.Helper()
	runc, err := harness.Look("runc")
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(dir, "nvidia-container-runtime")
	must.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `#!/bin/sh
file=
for arg; do
	case $arg in
	create) file=devices.allow ;;
	update) file=devices.deny ;;
	esac
done
%s "$@" || exit
[ -z "$file" ] || echo %q | tee %s/*/"$arg/$file"
`, runc, injected+" rwm", devicesCgroup), 0o755))
	return map[string]string{"nvidia": path}
}

// TestLimitKeepsGPU: setting a limit takes no device away that Docker does not know of.
func TestLimitKeepsGPU(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(devicesCgroup); err != nil {
		t.Skipf("the runtime needs the devices controller of cgroup v1: %v", err)
	}
	h := newHarness(t)
	c := newCluster(t, h, "docker", clusterOptions{docker: harness.DockerOptions{Runtimes: forgetfulRuntime(t, h.Dir)}})
	k := shell("mknod /dev/card c 1 11; while :; do sleep 1; done")
	k.config = `runtime = "nvidia"`
	alloc := c.start(t, job{id: "card", tasks: []task{k}})
	card := func() int {
		_, _, code, err := c.agent.Exec(deadline(t, stepDeadline), alloc, "train", false, nil, "/bin/sh", "-c", ": > /dev/card")
		must.NoError(t, err)
		return code
	}
	eventually(t, "the task has the card", func() error {
		if card() != 0 {
			return fmt.Errorf("it cannot be opened")
		}
		return nil
	})

	pid := c.pid(t, alloc, "train")
	k1 := kernel(t, pid)
	must.NoError(t, os.WriteFile(filepath.Join(k1.Path, "cpu.shares"), []byte("77"), 0))
	eventually(t, "the limit is set again", func() error {
		if now := kernel(t, pid); now.Shares != k1.Shares {
			return fmt.Errorf("it has %d shares instead of %d", now.Shares, k1.Shares)
		}
		return nil
	})
	must.Eq(t, 0, card(), must.Sprint("the limit took the card away"))

	// The runtime does what it should.
	_, err := c.docker.Client.ContainerUpdate(t.Context(), "train-"+alloc.ID, container.UpdateConfig{Resources: container.Resources{CPUShares: 77}})
	must.NoError(t, err)
	must.NotEq(t, 0, card())
}
