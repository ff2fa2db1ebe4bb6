// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

const mib = 1 << 20

// TestGPU has two jobs share a card that stands for a real one: NVIDIA's two libraries are
// fakes, and the plugin, the gate, the preload library, Nomad and the containers are not.
func TestGPU(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the paths of libraries are those of amd64")
	}
	h := newHarness(t)
	dir := filepath.Join(h.Dir, "gpu")
	shared := filepath.Join(dir, "cards")
	must.NoError(t, os.MkdirAll(shared, 0o777))
	must.NoError(t, os.Chmod(shared, 0o777))
	if err := fake.Build(dir); errors.Is(err, fake.ErrNoCompiler) {
		t.Skip(err)
	} else {
		must.NoError(t, err)
	}
	state := filepath.Join(shared, "state")
	must.NoError(t, os.WriteFile(state, nil, 0o666))
	must.NoError(t, os.Chmod(state, 0o666))
	plugin, err := h.Tools.GPU(deadline(t, startDeadline))
	must.NoError(t, err)
	loader, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
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
		HostVolumes: map[string]string{"cards": shared},
		Chroot: map[string]string{
			filepath.Join(dir, "workload"):          "/bin/workload",
			filepath.Join(dir, "libcuda.so.1"):      "/lib/x86_64-linux-gnu/libcuda.so.1",
			"/lib/x86_64-linux-gnu/libc.so.6":       "/lib/x86_64-linux-gnu/libc.so.6",
			loader:                                  "/lib64/ld-linux-x86-64.so.2",
			"/lib/x86_64-linux-gnu/libdl.so.2":      "/lib/x86_64-linux-gnu/libdl.so.2",
			"/lib/x86_64-linux-gnu/libpthread.so.0": "/lib/x86_64-linux-gnu/libpthread.so.0",
		},
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

	// One has the card to itself, and holds little of it; the other one takes what it gets.
	seat := func(id string, args ...string) job {
		k := task{command: "/bin/workload", args: args, env: map[string]string{"EBBTIDE_FAKE_GPU": "/cards/state", "EBBTIDE_FAKE_GPUS": "2"}, cpu: -1}
		k.body = fmt.Sprintf("volume_mount {\n volume = \"cards\"\n destination = \"/cards\"\n}\nresources {\n cpu = 100\n memory = 64\n device \"nvidia/share/%s\" {\n count = 1\n }\n}", card)
		return job{id: id, group: "volume \"cards\" {\n type = \"host\"\n source = \"cards\"\n}", tasks: []task{k}}
	}
	first := c.start(t, seat("first", "--mode", "train", "--bytes", fmt.Sprint(16*mib), "--steps", "3", "--hold-ms", "600000"))
	var step struct{ Memory uint64 }
	said(t, c, first, `"step": 3`, &step)
	must.Eq(t, 960*mib, step.Memory, must.Sprint("alone it may have all but the reserve"))
	second := c.start(t, seat("second", "--mode", "fill", "--bytes", fmt.Sprint(16*mib), "--hold-ms", "600000"))
	var got struct {
		Got, Memory uint64
		Code        int
	}
	said(t, c, second, `"got"`, &got)
	must.Eq(t, 2, got.Code, must.Sprint("out of memory, as CUDA says it"))
	must.Eq(t, 480*mib, got.Memory)
	must.Between(t, 400*mib, got.Got, 480*mib)

	limits := func() map[string]int64 {
		all := make(map[string]int64)
		stats, err := c.agent.API.Nodes().Stats(c.agent.NodeID(), nil)
		must.NoError(t, err)
		for _, g := range stats.DeviceStats {
			for _, s := range g.InstanceStats {
				for name, nested := range s.Stats.Nested {
					all[name] = *nested.Attributes["Memory"].IntDenominatorVal
				}
			}
		}
		return all
	}
	share := func(alloc *api.Allocation, want map[string]int64) {
		eventually(t, "Nomad shows what each may have", func() error {
			if now := limits(); fmt.Sprint(now) != fmt.Sprint(want) {
				return fmt.Errorf("it shows %v", now)
			}
			return nil
		})
	}
	share(first, map[string]int64{first.ID + ".train": 480, second.ID + ".train": 480})
	c.stop(t, "second")
	share(first, map[string]int64{first.ID + ".train": 960})
}

// said waits until a task has printed a line, and reads it.
func said(t *testing.T, c *cluster, alloc *api.Allocation, what string, into any) {
	t.Helper()
	must.NoError(t, harness.Poll(deadline(t, startDeadline), "the task says "+what, func(ctx context.Context) error {
		out, err := c.agent.Logs(ctx, alloc, "train", "stdout")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, what) {
				return json.Unmarshal([]byte(line), into)
			}
		}
		return fmt.Errorf("it says %q", out)
	}))
}
