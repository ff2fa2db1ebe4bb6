// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestGPUPark's card, and a job's memory: two do not fit.
const (
	parkRoomMiB = 256
	parkCardMiB = parkRoomMiB + reserveMiB
	hogMiB      = 192
)

// TestGPUPark parks jobs, and injects failures. Unless noted otherwise, a job of higher priority
// causes the parking, as turns take longer than a test and no job is idle.
func TestGPUPark(t *testing.T) {
	t.Parallel()
	card := fakeCard(t)
	node := func(t *testing.T, engine string, plugin map[string]string) gpuNode {
		return newGPUNode(t, card, engine, gpuOptions{memory: parkCardMiB, plugin: plugin})
	}
	for name, test := range map[string]func(*testing.T){
		"exec": func(t *testing.T) {
			n := node(t, "exec", nil)
			testParked(t, n)
			testParkedStopped(t, n)
			testParkedKilled(t, n)
			testManagedStays(t, n)
			testNoHostMemory(t, n)
		},
		"docker": func(t *testing.T) {
			n := node(t, "docker", nil)
			testParked(t, n)
			testParkedStopped(t, n)
			testNoHostMemory(t, n)
		},
		"idle": func(t *testing.T) {
			// Working jobs print every five seconds.
			testIdleParked(t, node(t, "exec", map[string]string{"idle": `"8s"`, "lazy_return": "true"}))
		},
		"restarts": func(t *testing.T) {
			n := node(t, "exec", nil)
			testLeavingPluginKilled(t, n)
			testParkedPluginKilled(t, n)
			testParkedAgentKilled(t, n)
		},
		"restarts, docker": func(t *testing.T) {
			n := node(t, "docker", nil)
			testParkedPluginKilled(t, n)
			testParkedAgentKilled(t, n)
		},
		"broken": func(t *testing.T) {
			n := node(t, "exec", nil)
			testRestoreFails(t, n)
			testParkedRestarted(t, n)
			testParkedCardLost(t, n)
		},
		"hard shares": func(t *testing.T) {
			n := node(t, "exec", map[string]string{"parking": "false", "over_share": `"deny"`})
			testHardShares(t, n)
			testCardLost(t, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// hog computes with size MiB of the card until it is ended, then verifies its data. Its host memory
// limit allows parking.
func (n gpuNode) hog(id string, priority, size int, args ...string) job {
	args = append([]string{
		"--steps", "1", "--bytes", strconv.Itoa(size * mib), "--count", "600", "--pause-ms", "200", "--until", n.ending(id),
	}, args...)
	j := n.workload(id, map[string]string{"ebbtide_priority": strconv.Itoa(priority)}, args...)
	return n.memory(j, "memory = 400")
}

// memory changes a job's host memory limit.
func (n gpuNode) memory(j job, limit string) job {
	j.tasks[0].body = memoryLimit.ReplaceAllString(j.tasks[0].body, limit)
	return j
}

var memoryLimit = regexp.MustCompile(`memory = \d+`)

// runs starts a job and waits until it computes.
func (n gpuNode) runs(t *testing.T, j job) *api.Allocation {
	t.Helper()
	alloc := n.start(t, j)
	n.computes(t, alloc)
	return alloc
}

func (n gpuNode) computes(t *testing.T, alloc *api.Allocation) {
	t.Helper()
	_, err := n.agent.WaitLog(deadline(t, stepDeadline), alloc, "train", "stdout", `{"round": 1,`)
	if err != nil {
		out, _ := n.agent.Logs(deadline(t, stepDeadline), alloc, "train", "stdout")
		said, _ := n.agent.Logs(deadline(t, stepDeadline), alloc, "train", "stderr")
		t.Log(out, said)
	}
	must.NoError(t, err)
}

// parked waits until the status shows the task as parked, and the cause.
func (n gpuNode) parked(t *testing.T, alloc, by *api.Allocation) {
	t.Helper()
	st := n.waitStatus(t, alloc, "train", "parked", func(st status.Status) bool {
		return st.GPU != nil && st.GPU.State == handoff.Parked && st.GPU.ParkedMiB() > 0
	})
	must.GreaterEq(t, hogMiB/2, int(st.GPU.ParkedMiB()))
	must.StrContains(t, st.GPU.Why, fmt.Sprintf("its GPU memory is in the host's memory, to make room for task \"train\" of allocation %s (job %q)", by.ID[:8], by.JobID))
}

func (n gpuNode) back(t *testing.T, alloc *api.Allocation) {
	t.Helper()
	st := n.waitStatus(t, alloc, "train", "back", func(st status.Status) bool { return st.GPU != nil && st.GPU.State == handoff.Running })
	must.Zero(t, st.GPU.ParkedMiB())
}

// pair parks a job in favour of another.
func (n gpuNode) pair(t *testing.T, victim, other string) (low, high *api.Allocation) {
	t.Helper()
	low = n.runs(t, n.hog(victim, 10, hogMiB))
	high = n.runs(t, n.hog(other, 90, hogMiB))
	n.parked(t, low, high)
	return low, high
}

// checkAllFree checks in the gate's ledger that all memory is free.
func (n gpuNode) checkAllFree(t *testing.T, id string) {
	t.Helper()
	// On a busy machine a short container's output may be lost.
	alloc := n.finish(t, n.workload(id, nil, "--mode", "fill", "--bytes", strconv.Itoa(mib), "--hold-ms", "1000"))
	must.Eq(t, parkRoomMiB-contextSize/mib, n.filled(t, alloc))
	n.succeeds(t, alloc)
}

// fail injects failures of CUDA or NVML calls (device/fake); "" for none.
func (n gpuNode) fail(t *testing.T, words string) {
	t.Helper()
	path := filepath.Join(n.dir, "state.fail")
	if words == "" {
		must.NoError(t, os.Remove(path))
		return
	}
	must.NoError(t, os.WriteFile(path, []byte(words), 0o644))
}

func (n gpuNode) killGPUPlugin(t *testing.T) {
	t.Helper()
	pids := n.agent.PluginPIDs("ebbtide-gpu")
	must.Len(t, 1, pids)
	must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	eventually(t, "there is another plugin", func() error {
		if now := n.agent.PluginPIDs("ebbtide-gpu"); len(now) != 1 || now[0] == pids[0] {
			return fmt.Errorf("its processes are %v", now)
		}
		return nil
	})
}

// testParked checks what users see of a parked job.
func testParked(t *testing.T, n gpuNode) {
	low, high := n.pair(t, "low", "high")
	n.waitEvent(t, low, "train", fmt.Sprintf("GPU: its GPU memory is in the host's memory, to make room for task \"train\" of allocation %s (job \"high\"); the task resumes automatically", high.ID[:8]))
	eventually(t, "Nomad shows what is parked", func() error {
		all, err := n.seats()
		if err != nil {
			return err
		}
		own, other := all[low.ID+".train"], all[high.ID+".train"]
		if own == nil || other == nil {
			return fmt.Errorf("there are %d containers", len(all))
		}
		parked, parks, held := *own.Attributes["Parked"].IntNumeratorVal, *own.Attributes["Parks"].IntNumeratorVal, *own.Attributes["Memory"].IntNumeratorVal
		if parked < hogMiB || parks != 1 || held != 0 {
			return fmt.Errorf("%d MiB are parked, for the %dth time, and %d are held", parked, parks, held)
		}
		if held := *other.Attributes["Memory"].IntNumeratorVal; held < hogMiB {
			return fmt.Errorf("the other one holds %d MiB", held)
		}
		return nil
	})
	// It does not compute while parked.
	out, err := n.agent.Logs(deadline(t, stepDeadline), low, "train", "stdout")
	must.NoError(t, err)
	n.end(t, "high")
	n.succeeds(t, high)
	n.back(t, low)
	if n.engine == "exec" { // takes another half minute
		n.waitEvent(t, low, "train", "GPU: running again after ", "parked")
	}
	_, err = n.agent.WaitLog(deadline(t, startDeadline), low, "train", "stdout", fmt.Sprintf(`{"round": %d,`, strings.Count(out, `{"round"`)+3))
	must.NoError(t, err)
	n.end(t, "low")
	n.succeeds(t, low)
}

// seats returns Nomad's statistics of the first card, by allocation and task.
func (n gpuNode) seats() (map[string]*api.StatObject, error) {
	stats, err := n.agent.API.Nodes().Stats(n.agent.NodeID(), nil)
	if err != nil {
		return nil, err
	}
	for _, card := range stats.DeviceStats {
		for _, s := range card.InstanceStats {
			return s.Stats.Nested, nil
		}
	}
	return nil, errors.New("there are no seats")
}

// testParkedStopped: a stopped parked job ends normally and frees its memory.
func testParkedStopped(t *testing.T, n gpuNode) {
	_, high := n.pair(t, "stopped", "stays")
	must.NoError(t, n.agent.StopJob(deadline(t, stepDeadline), "stopped"))
	n.end(t, "stays")
	n.succeeds(t, high)
	n.checkAllFree(t, "after-stop")
}

func testParkedKilled(t *testing.T, n gpuNode) {
	low, high := n.pair(t, "killed", "survives")
	must.NoError(t, unix.Kill(n.pid(t, low, "train"), unix.SIGKILL))
	low, err := n.agent.WaitAllocID(deadline(t, stepDeadline), low.ID, "ended", harness.Terminal)
	must.NoError(t, err)
	must.Eq(t, api.AllocClientStatusFailed, low.ClientStatus)
	n.end(t, "survives")
	n.succeeds(t, high)
	n.checkAllFree(t, "after-kill")
}

// testParkedRestarted: a restarted parked task waits for memory like any other.
func testParkedRestarted(t *testing.T, n gpuNode) {
	low, high := n.pair(t, "again", "goes-first")
	must.NoError(t, n.agent.RestartTask(deadline(t, stepDeadline), low, "train"))
	n.waitStatus(t, low, "train", "waiting", func(st status.Status) bool {
		return st.GPU != nil && st.GPU.State == handoff.Waiting
	})
	n.end(t, "goes-first")
	n.succeeds(t, high)
	eventually(t, "it computes again", func() error {
		out, err := n.agent.Logs(deadline(t, stepDeadline), low, "train", "stdout")
		if begun := strings.Count(out, `{"round": 1,`); err == nil && begun != 2 {
			err = fmt.Errorf("%d times", begun)
		}
		return err
	})
	n.end(t, "again")
	n.succeeds(t, low)
	n.checkAllFree(t, "after-restart")
}

// testParkedCardLost: a container stays parked while NVML fails.
func testParkedCardLost(t *testing.T, n gpuNode) {
	low, high := n.pair(t, "patient", "other")
	n.fail(t, "lost")
	n.health(t, "it has disappeared")
	n.end(t, "other")
	n.succeeds(t, high)
	st, err := n.status(t, low, "train")
	must.NoError(t, err)
	must.Eq(t, handoff.Parked, st.GPU.State)
	n.fail(t, "")
	n.health(t, "")
	n.back(t, low)
	n.end(t, "patient")
	n.succeeds(t, low)
	n.checkAllFree(t, "after-lost")
}

// testManagedStays: managed memory cannot be parked, so the other job is, despite its priority.
func testManagedStays(t *testing.T, n gpuNode) {
	const part = hogMiB / 2
	managed := n.runs(t, n.hog("managed", 5, part, "--alloc", "managed"))
	low := n.runs(t, n.hog("movable", 10, part))
	high := n.runs(t, n.hog("needs-half", 90, part))
	n.parked(t, low, high)
	st, err := n.status(t, managed, "train")
	must.NoError(t, err)
	must.Eq(t, handoff.Running, st.GPU.State)
	must.Zero(t, st.GPU.Parks)
	n.end(t, "managed", "movable", "needs-half")
	for _, alloc := range []*api.Allocation{managed, low, high} {
		n.succeeds(t, alloc)
	}
}

// testNoHostMemory: an event reports how much memory the limit of a job lacks for parking; with
// that much it is parked.
func testNoHostMemory(t *testing.T, n gpuNode) {
	conf, _, err := n.agent.API.Operator().SchedulerGetConfiguration(nil)
	must.NoError(t, err)
	conf.SchedulerConfig.MemoryOversubscriptionEnabled = true
	_, _, err = n.agent.API.Operator().SchedulerSetConfiguration(conf.SchedulerConfig, nil)
	must.NoError(t, err)

	low := n.runs(t, n.memory(n.hog("poor", 10, hogMiB), "memory = 100"))
	high := n.start(t, n.hog("waits", 90, hogMiB))
	ev := n.waitEvent(t, low, "train", "GPU: cannot park its memory; other requests may fail: ", "not enough host memory", "give the task a memory_max that is at least ")
	_, text, _ := strings.Cut(harness.EventText(ev), "at least ")
	text, _, _ = strings.Cut(text, " ")
	lacks, err := strconv.Atoi(text)
	must.NoError(t, err)
	st := n.waitStatus(t, high, "train", "waiting", func(st status.Status) bool { return st.GPU != nil && st.GPU.State == handoff.Waiting })
	must.Zero(t, st.GPU.Denied)
	n.end(t, "poor")
	n.succeeds(t, low)
	n.computes(t, high)
	n.end(t, "waits")
	n.succeeds(t, high)

	low = n.runs(t, n.memory(n.hog("rich", 10, hogMiB), fmt.Sprintf("memory = 100\n memory_max = %d", 100+lacks+8)))
	high = n.runs(t, n.hog("runs", 90, hogMiB))
	n.parked(t, low, high)
	n.end(t, "rich", "runs")
	n.succeeds(t, high)
	n.succeeds(t, low)
}

// testIdleParked: an idle job is parked for one of equal priority until it computes.
func testIdleParked(t *testing.T, n gpuNode) {
	idle := n.runs(t, n.memory(n.workload("idle", nil, "--steps", "1", "--bytes", strconv.Itoa(hogMiB*mib), "--count", "1", "--hold-ms", "30000"), "memory = 400"))
	busy := n.runs(t, n.hog("busy", 50, hogMiB))
	n.parked(t, idle, busy)
	n.end(t, "busy")
	n.succeeds(t, busy)
	n.succeeds(t, idle)
}

// testParkedPluginKilled: killing the plugin loses no state of a parked container, and its room is
// assigned once.
func testParkedPluginKilled(t *testing.T, n gpuNode) {
	low, high := n.pair(t, "away", "here")
	n.killGPUPlugin(t)
	// It fits next to one job, but not next to both.
	third := n.runs(t, n.hog("third", 50, parkRoomMiB-hogMiB-3*contextSize/mib))
	st := n.waitStatus(t, low, "train", "parked still", func(st status.Status) bool {
		return st.GPU != nil && st.GPU.State == handoff.Parked && st.GPU.ParkedMiB() > 0
	})
	must.GreaterEq(t, hogMiB, int(st.GPU.ParkedMiB()))
	n.end(t, "here")
	n.succeeds(t, high)
	n.end(t, "third")
	n.succeeds(t, third)
	n.back(t, low)
	n.end(t, "away")
	n.succeeds(t, low)
	n.checkAllFree(t, "after-plugin")
}

// testLeavingPluginKilled kills the plugin during parking: the next one resumes the container, then
// parks it.
func testLeavingPluginKilled(t *testing.T, n gpuNode) {
	low := n.runs(t, n.hog("leaving", 10, hogMiB))
	n.fail(t, "lock")
	high := n.start(t, n.hog("wants", 90, hogMiB))
	eventually(t, "it is on the way", func() error {
		data, err := os.ReadFile(filepath.Join(n.dir, "gate.state"))
		if err != nil {
			return err
		}
		var s struct {
			Processes []struct {
				Container struct{ Alloc string }
				Parking   bool
			}
		}
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		for _, p := range s.Processes {
			if p.Parking {
				return nil
			}
		}
		return fmt.Errorf("%.300s", data)
	})
	n.killGPUPlugin(t)
	n.fail(t, "")
	n.computes(t, high)
	n.parked(t, low, high)
	n.end(t, "wants")
	n.succeeds(t, high)
	n.back(t, low)
	n.end(t, "leaving")
	n.succeeds(t, low)
	n.checkAllFree(t, "after-leaving")
}

// testParkedAgentKilled kills the agent and its plugins with a parked container.
func testParkedAgentKilled(t *testing.T, n gpuNode) {
	low, high := n.pair(t, "before", "beside")
	must.NoError(t, n.agent.Kill(deadline(t, stepDeadline)))
	must.NoError(t, n.agent.Restart(deadline(t, startDeadline)))
	_, err := n.agent.WaitDriver(deadline(t, startDeadline), n.driver, true)
	must.NoError(t, err)
	n.end(t, "beside")
	n.succeeds(t, high)
	n.back(t, low)
	n.end(t, "before")
	n.succeeds(t, low)
	n.checkAllFree(t, "after-agent")
}

// testRestoreFails: if CUDA cannot restore a process, only its job fails and is restarted.
func testRestoreFails(t *testing.T, n gpuNode) {
	const small = 32
	other := n.runs(t, n.hog("bystander", 50, small))
	j := n.hog("unlucky", 10, hogMiB)
	j.retry = true
	j.group += "restart {\n attempts = 1\n delay = \"1s\"\n mode = \"fail\"\n}\n"
	low := n.runs(t, j)
	high := n.runs(t, n.hog("lucky", 90, hogMiB))
	n.parked(t, low, high)
	n.fail(t, "restore")
	n.end(t, "lucky")
	n.succeeds(t, high)
	n.waitEvent(t, low, "train", "GPU: its GPU memory could not be restored")
	n.waitEvent(t, low, "train", "Exit Code: 137")
	n.fail(t, "")
	n.end(t, "unlucky", "bystander")
	n.succeeds(t, low)
	low, _, err := n.agent.API.Allocations().Info(low.ID, nil)
	must.NoError(t, err)
	must.Eq(t, 1, int(low.TaskStates["train"].Restarts))
	n.succeeds(t, other)
	log, err := n.agent.Log()
	must.NoError(t, err)
	must.StrContains(t, log, "its memory is lost")
	n.checkAllFree(t, "after-loss")
}

// testHardShares: with hard shares, requests beyond the share are denied immediately.
func testHardShares(t *testing.T, n gpuNode) {
	for name, want := range map[string]string{"parking": "false", "over_share": "deny", "shared": "true"} {
		must.Eq(t, want, n.attribute(t, name))
	}
	long := n.runs(t, n.hog("holds", 50, 16))
	fills := n.finish(t, n.workload("fills", nil, "--mode", "fill", "--bytes", strconv.Itoa(mib), "--hold-ms", "1000"))
	must.Eq(t, parkRoomMiB/2-contextSize/mib, n.filled(t, fills))
	n.succeeds(t, fills)
	st, err := n.status(t, long, "train")
	must.NoError(t, err)
	must.Zero(t, st.GPU.Parks)
	n.end(t, "holds")
	n.succeeds(t, long)
}

func (n gpuNode) attribute(t *testing.T, name string) string {
	t.Helper()
	node, err := n.agent.Node(t.Context())
	must.NoError(t, err)
	cards := seatedCards(node)
	must.Len(t, 1, cards)
	a := cards[0].Attributes[name]
	must.NotNil(t, a, must.Sprint(name))
	return a.String()
}

// testCardLost: a card that disappears or is switched to MIG gets no new jobs; running ones
// continue.
func testCardLost(t *testing.T, n gpuNode) {
	runs := n.runs(t, n.hog("stays-on", 50, 16))
	for word, why := range map[string]string{"lost": "it has disappeared", "mig": "it is divided by MIG: its parts are for NVIDIA's own plugin"} {
		n.fail(t, word)
		n.health(t, why)
		late := n.hog("late-"+word, 50, 16)
		n.register(t, late)
		n.notPlaced(t, late.id)
		out, err := n.agent.Logs(deadline(t, stepDeadline), runs, "train", "stdout")
		must.NoError(t, err)
		_, err = n.agent.WaitLog(deadline(t, startDeadline), runs, "train", "stdout", fmt.Sprintf(`{"round": %d,`, strings.Count(out, `{"round"`)+3))
		must.NoError(t, err, must.Sprint("the one that is there continues"))
		n.fail(t, "")
		n.health(t, "")
		alloc, err := n.agent.WaitRunning(deadline(t, startDeadline), late.id)
		must.NoError(t, err)
		n.computes(t, alloc)
		n.end(t, late.id)
		n.succeeds(t, alloc)
	}
	log, err := n.agent.Log()
	must.NoError(t, err)
	for _, why := range []string{"it has disappeared", "it is divided by MIG"} {
		must.Eq(t, 1, strings.Count(log, why), must.Sprintf("%q is said once", why))
	}
	must.Eq(t, 2, strings.Count(log, "a card can be used again"))
	n.end(t, "stays-on")
	n.succeeds(t, runs)
}

// notPlaced waits until Nomad finds no place for a job.
func (n gpuNode) notPlaced(t *testing.T, id string) {
	t.Helper()
	eventually(t, "it is not placed", func() error {
		evals, _, err := n.agent.API.Jobs().Evaluations(id, nil)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == "blocked" }) {
			return fmt.Errorf("its evaluations are %+v", evals)
		}
		return nil
	})
}

// health waits until all seats are unhealthy for the reason, or healthy if it is "".
func (n gpuNode) health(t *testing.T, why string) {
	t.Helper()
	eventually(t, "Nomad knows how the card is", func() error {
		node, err := n.agent.Node(t.Context())
		if err != nil {
			return err
		}
		for _, card := range seatedCards(node) {
			for _, s := range card.Instances {
				if s.Healthy != (why == "") || s.HealthDescription != why {
					return fmt.Errorf("seat %s: healthy %v, %q", s.ID, s.Healthy, s.HealthDescription)
				}
			}
		}
		return nil
	})
}
