// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"strconv"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/status"
)

// TestGPUTurns: of jobs that fill a card, one runs and the others yield, until it ends; without the
// plugins all run.
func TestGPUTurns(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t, fakeCard(t), "exec", gpuOptions{
		settings: map[string]string{"fsp_prefer": `"completion"`},
		env:      []string{"EBBTIDE_FAKE_SERIAL=1", "EBBTIDE_FAKE_KERNEL_US=250000"},
	})
	// A round is four seconds of the card: on a busy machine, too, they leave it no time between rounds.
	train := func(id string, rounds int) *api.Allocation {
		return n.start(t, n.workload(id, nil, "--steps", "1", "--bytes", strconv.Itoa(mib), "--windows", "16", "--count", strconv.Itoa(rounds)))
	}
	yields := func(s status.Status) bool {
		return s.GPU != nil && s.GPU.State == handoff.Yielding && s.Turn != nil && s.Turn.Yields
	}
	runs := func(s status.Status) bool {
		return s.GPU != nil && s.GPU.State == handoff.Running && s.Turn != nil && !s.Turn.Yields
	}
	long := train("long", 10_000)
	n.waitStatus(t, long, "train", "of known size on its card", func(s status.Status) bool {
		return s.Turn != nil && s.Turn.RemainingS > 1000 && s.Turn.Utilisation > 0.5
	})
	short := train("short", 25)
	st := n.waitStatus(t, long, "train", "yielding", yields)
	t.Log(st.Turn.Why)
	must.StrContains(t, st.Turn.Why, "waits, as others come first on its card")
	t.Log(n.waitStatus(t, short, "train", "running", runs).Turn.Why)

	// Without the device plugin all run; with the next one the driver's turns are in force again.
	kill := func(plugin string) {
		t.Helper()
		for _, pid := range n.agent.PluginPIDs(plugin) {
			must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		}
	}
	step := n.waitStatus(t, long, "train", "yielding", yields).Step
	kill("ebbtide-gpu")
	n.waitStatus(t, long, "train", "going on", func(s status.Status) bool { return s.Step > step })

	kill("ebbtide-driver")
	n.succeeds(t, short)
	n.waitStatus(t, long, "train", "running", runs)
	n.waitEvent(t, long, "train", "GPU: running again after ", " yielding")

	// A task that yields can be stopped.
	shorter := train("shorter", 100)
	n.waitStatus(t, long, "train", "yielding", yields)
	n.stop(t, "long")
	n.waitStatus(t, shorter, "train", "running", runs)
	n.stop(t, "shorter")
}
