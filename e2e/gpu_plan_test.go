// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// The paper's LAMMPS job on 12 GiB holds 1.7 GB, and 8.3 GB in its last seconds; here a fiftieth of
// that, and shorter.
const (
	planRoomMiB = 240
	lammpsBase  = 34
	lammpsPeak  = 166
)

// TestGPUPlan runs two instances of a job whose peaks collide, on a card without parking.
func TestGPUPlan(t *testing.T) {
	t.Parallel()
	card := fakeCard(t)
	node := func(t *testing.T, planning string) gpuNode {
		return newGPUNode(t, card, "exec", gpuOptions{memory: planRoomMiB + reserveMiB, plugin: map[string]string{
			"parking": "false", "over_share": `"wait"`, "planning": planning,
		}})
	}
	t.Run("planned", func(t *testing.T) {
		t.Parallel()
		n := node(t, "true")
		testPlanned(t, n, n.lammps())
		testPlanned(t, n, n.growing())
	})
	t.Run("not planned", func(t *testing.T) {
		t.Parallel()
		n := node(t, "false")
		testPeaksWait(t, n)
		testGrowthFails(t, n)
	})
}

// lammps has a late peak; two peaks do not fit.
func (n gpuNode) lammps() job {
	const steps = 8
	return n.workload("lammps", nil, "--steps", strconv.Itoa(steps), "--bytes", strconv.Itoa(lammpsBase*mib/steps),
		"--peak", strconv.Itoa((lammpsPeak-lammpsBase)*mib), "--count", "8", "--pause-ms", "500", "--after", n.ending("lammps"))
}

// growing ends with most of the card: two instances deadlock.
func (n gpuNode) growing() job {
	return n.workload("growing", nil, "--steps", "11", "--bytes", strconv.Itoa(16*mib), "--count", "2", "--pause-ms", "700", "--after", n.ending("growing"))
}

// runTwice starts two instances, which wait after their first steps until n.end: however late one
// starts, their peaks collide.
func (n gpuNode) runTwice(t *testing.T, j job) []*api.Allocation {
	t.Helper()
	j.group += "count = 2\n"
	n.register(t, j)
	var out []*api.Allocation
	eventually(t, "both are placed", func() error {
		stubs, err := n.agent.Allocs(deadline(t, stepDeadline), j.id)
		if err == nil && len(stubs) != 2 {
			err = fmt.Errorf("%d are", len(stubs))
		}
		if err != nil {
			return err
		}
		out = nil
		for _, s := range stubs {
			out = append(out, &api.Allocation{ID: s.ID, JobID: j.id})
		}
		return nil
	})
	return out
}

// collide runs two instances, from when both have taken their first step.
func (n gpuNode) collide(t *testing.T, j job) []*api.Allocation {
	t.Helper()
	both := n.runTwice(t, j)
	for _, alloc := range both {
		_, err := n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", `"step": 1,`)
		must.NoError(t, err)
	}
	n.end(t, j.id)
	return both
}

// testPlanned profiles a job, then runs it twice: one instance is paused before the collision,
// and both succeed.
func testPlanned(t *testing.T, n gpuNode, j job) {
	n.end(t, j.id)
	n.succeeds(t, n.finish(t, j))
	must.NoError(t, n.agent.StopJob(deadline(t, stepDeadline), j.id)) // else Nomad would not run it again
	must.NoError(t, os.Remove(filepath.Join(n.dir, "end-"+j.id)))
	both := n.runTwice(t, j)
	var paused *api.Allocation
	eventually(t, "one is paused", func() error {
		for i, alloc := range both {
			st, err := n.status(t, alloc, "train")
			if err == nil && st.GPU != nil && st.GPU.State == handoff.Paused {
				must.Eq(t, "its GPU memory is predicted to rise beyond the free memory", st.GPU.Why)
				paused = both[i]
				return nil
			}
		}
		return errors.New("none is")
	})
	n.waitEvent(t, paused, "train", "GPU: its GPU memory is predicted to rise beyond the free memory; the task resumes automatically")
	n.end(t, j.id)
	for _, alloc := range both {
		n.succeeds(t, alloc)
	}
	log, err := n.agent.Log()
	must.NoError(t, err)
	must.StrContains(t, log, "rule=gpu.plan.pause")
	must.StrContains(t, log, "a container is resumed: ")
}

// testPeaksWait: of two unplanned late peaks, one waits, holding its memory, until the other job
// has ended.
func testPeaksWait(t *testing.T, n gpuNode) {
	var longest float64
	for _, alloc := range n.collide(t, n.lammps()) {
		n.succeeds(t, alloc)
		out, err := n.agent.Logs(deadline(t, stepDeadline), alloc, "train", "stdout")
		must.NoError(t, err)
		for _, m := range regexp.MustCompile(`"took": ([0-9.]+)`).FindAllStringSubmatch(out, -1) {
			took, err := strconv.ParseFloat(m[1], 64)
			must.NoError(t, err)
			longest = max(longest, took)
		}
	}
	must.Greater(t, 1, longest, must.Sprint("seconds that a step took"))
	n.neverPaused(t)
}

// testGrowthFails: two jobs that grow step by step deadlock, and one is denied and fails.
func testGrowthFails(t *testing.T, n gpuNode) {
	failed := 0
	for _, alloc := range n.collide(t, n.growing()) {
		alloc, err := n.agent.WaitAllocID(deadline(t, startDeadline), alloc.ID, "ended", harness.Terminal)
		must.NoError(t, err)
		if alloc.ClientStatus != api.AllocClientStatusFailed {
			n.succeeds(t, alloc)
			continue
		}
		failed++
		must.NotNil(t, harness.FindEvent(alloc, "train", "Exit Code: 2"), must.Sprint(harness.Events(alloc, "train")))
		out, err := n.agent.Logs(deadline(t, stepDeadline), alloc, "train", "stdout")
		must.NoError(t, err)
		must.StrContains(t, out, `{"error": 2, "call": "take"}`)
	}
	must.Eq(t, 1, failed)
	n.neverPaused(t)
}

func (n gpuNode) neverPaused(t *testing.T) {
	t.Helper()
	log, err := n.agent.Log()
	must.NoError(t, err)
	must.StrNotContains(t, log, "gpu.plan.")
}
