// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

// Each job of TestGPUGate needs a quarter of the card.
const (
	gateSteps   = 4
	gateStepMiB = 16
	gateJobs    = 4 // this many fit
	gateCardMiB = gateJobs*(gateSteps*gateStepMiB+contextSize/mib) + reserveMiB
)

// TestGPUGate: there are more jobs than fit; without the gate the fifth fails, with it all succeed
// with intact memory.
func TestGPUGate(t *testing.T) {
	t.Parallel()
	card := fakeCard(t)
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		// A card that is not shared has no reserve.
		n := newGPUNode(t, card, "exec", gpuOptions{memory: gateCardMiB - reserveMiB})
		n.device = ""
		for i := range gateJobs {
			alloc := n.start(t, n.gateJob("fits-"+strconv.Itoa(i), "--hold-ms", "3600000"))
			_, err := n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", fmt.Sprintf(`"step": %d,`, gateSteps))
			must.NoError(t, err)
		}
		alloc := n.finish(t, n.gateJob("fifth"))
		must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
		must.NotNil(t, harness.FindEvent(alloc, "train", "Exit Code: 2"), must.Sprint(harness.Events(alloc, "train")))
	})
	for _, jobs := range []int{7, 20} {
		t.Run(fmt.Sprintf("%d jobs", jobs), func(t *testing.T) {
			t.Parallel()
			n := newGPUNode(t, card, "exec", gpuOptions{memory: gateCardMiB, plugin: map[string]string{"seats_per_gpu": strconv.Itoa(jobs), "turn": `"1s"`}})
			// None ends before all have had their memory, so some must be parked.
			j := n.gateJob("many", "--count", "1000", "--pause-ms", "400", "--until", n.ending("many"))
			j.group += fmt.Sprintf("count = %d\n", jobs)
			n.register(t, j)
			all := n.placed(t, "many", jobs)
			for _, alloc := range all {
				_, err := n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", `"round": 1,`)
				must.NoError(t, err)
			}
			n.end(t, "many")
			for _, alloc := range all {
				n.succeeds(t, alloc)
			}
		})
	}
	t.Run("deadlock", func(t *testing.T) {
		t.Parallel()
		testDeadlock(t, newGPUNode(t, card, "exec", gpuOptions{memory: 240 + reserveMiB, plugin: map[string]string{"parking": "false", "over_share": `"wait"`}}))
	})
}

// testDeadlock: of two jobs that grow step by step to most of the card, one is denied memory and fails:
// it cannot be parked.
func testDeadlock(t *testing.T, n gpuNode) {
	j := n.workload("growing", nil, "--steps", "11", "--bytes", strconv.Itoa(16*mib), "--count", "2", "--pause-ms", "700", "--after", n.ending("growing"))
	j.group += "count = 2\n"
	n.register(t, j)
	both := n.placed(t, j.id, 2)
	for _, alloc := range both {
		_, err := n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", `"step": 1,`)
		must.NoError(t, err)
	}
	n.end(t, j.id) // both have taken their first step
	failed := 0
	for _, alloc := range both {
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
}

// placed returns the allocations of a job, once all are placed.
func (n gpuNode) placed(t *testing.T, id string, count int) (all []*api.Allocation) {
	t.Helper()
	var stubs []*api.AllocationListStub
	eventually(t, "all are placed", func() error {
		var err error
		if stubs, err = n.agent.Allocs(deadline(t, stepDeadline), id); err == nil && len(stubs) != count {
			err = fmt.Errorf("%d are", len(stubs))
		}
		return err
	})
	for _, s := range stubs {
		alloc, _, err := n.agent.API.Allocations().Info(s.ID, nil)
		must.NoError(t, err)
		all = append(all, alloc)
	}
	return all
}

// gateJob takes its memory in steps, so several start before the card is full.
func (n gpuNode) gateJob(id string, args ...string) job {
	return n.workload(id, nil, append([]string{"--steps", strconv.Itoa(gateSteps), "--bytes", strconv.Itoa(gateStepMiB * mib)}, args...)...)
}
