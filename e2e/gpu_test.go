// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestGPU has a job on a card that stands for a real one: NVIDIA's library is a fake, and
// the plugin, the gate, the preload library, Nomad and the container are not.
func TestGPU(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	dir := filepath.Join(h.Dir, "gpu")
	must.NoError(t, os.MkdirAll(dir, 0o755))
	if err := fake.Build(dir); errors.Is(err, fake.ErrNoCompiler) {
		t.Skip(err)
	} else {
		must.NoError(t, err)
	}
	state := filepath.Join(dir, "state")
	plugin, err := h.Tools.GPU(deadline(t, startDeadline))
	must.NoError(t, err)
	c := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{
		Plugins: map[string]string{"ebbtide-gpu": plugin},
		Env:     []string{"EBBTIDE_FAKE_GPU=" + state, "EBBTIDE_FAKE_GPUS=2"},
		HCL: fmt.Sprintf(`plugin "ebbtide-gpu" {
  config {
    library            = %q
    preload            = %q
    gate               = %q
    seats_per_gpu      = 2
    reserve_mib        = 64
    fingerprint_period = "1s"
  }
}`, filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "libebbtide-cuda.so"), filepath.Join(dir, "gate")),
	}})

	// Two cards, each a group with two seats.
	var card string
	eventually(t, "the cards are there", func() error {
		node, err := c.agent.Node(t.Context())
		if err != nil {
			return err
		}
		if n := len(node.NodeResources.Devices); n != 2 {
			return fmt.Errorf("there are %d", n)
		}
		d := node.NodeResources.Devices[0]
		must.Eq(t, "nvidia/share", d.Vendor+"/"+d.Type)
		must.Len(t, 2, d.Instances)
		must.Eq(t, 1024, *d.Attributes["memory"].IntVal)
		card = d.Name
		return nil
	})

	// A seat is the card, the gate and the library.
	k := shell("echo $NVIDIA_VISIBLE_DEVICES $LD_PRELOAD; test -S $EBBTIDE_GATE && test -f $LD_PRELOAD && echo both are there; sleep 600")
	k.cpu = -1
	k.body = fmt.Sprintf("resources {\n cpu = 100\n memory = 64\n device \"nvidia/share/%s\" {\n count = 1\n }\n}", card)
	alloc := c.start(t, job{id: "seat", tasks: []task{k}})
	out, err := c.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", "both are there")
	must.NoError(t, err)
	must.StrHasPrefix(t, "GPU-", out)
	must.StrContains(t, out, " /usr/lib/ebbtide/libebbtide-cuda.so\n")

	eventually(t, "Nomad shows the card's memory", func() error {
		stats, err := c.agent.API.Nodes().Stats(c.agent.NodeID(), nil)
		if err != nil {
			return err
		}
		if n := len(stats.DeviceStats); n != 2 {
			return fmt.Errorf("there are statistics of %d cards", n)
		}
		for _, g := range stats.DeviceStats {
			must.MapLen(t, 2, g.InstanceStats)
			for _, s := range g.InstanceStats {
				must.Eq(t, 1024, *s.Summary.IntDenominatorVal)
			}
		}
		return nil
	})
}
