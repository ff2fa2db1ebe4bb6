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
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/profile"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestGPU fakes NVIDIA's libraries only; plugin, gate, preload library, Nomad and containers are
// real.
func TestGPU(t *testing.T) {
	t.Parallel()
	card := fakeCard(t)
	for name, test := range map[string]func(*testing.T){
		"exec": func(t *testing.T) {
			n := newGPUNode(t, card, "exec", gpuOptions{})
			testShared(t, n)
			testSeat(t, n)
			testForged(t, n)
			testCleared(t, n)
			testWishTooLarge(t, n)
		},
		"docker": func(t *testing.T) {
			n := newGPUNode(t, card, "docker", gpuOptions{})
			testShared(t, n)
			testSeat(t, n)
			testForged(t, n)
			testCleared(t, n)
		},
		"seats": func(t *testing.T) {
			testSeats(t, newGPUNode(t, card, "exec", gpuOptions{plugin: map[string]string{"division": `"seats"`}}))
		},
		"fair share": func(t *testing.T) {
			testFairShare(t, newGPUNode(t, card, "exec", gpuOptions{plugin: map[string]string{"preset": `"adaptive-fair-share"`, "parking": "false"}}))
		},
		"stock docker": func(t *testing.T) {
			testShared(t, newGPUNode(t, card, "docker", gpuOptions{driver: "docker", plugin: map[string]string{"mounts": `"device"`}}))
		},
		"restarts": func(t *testing.T) {
			n := newGPUNode(t, card, "exec", gpuOptions{})
			testGPUPluginKilled(t, n)
			testSeatAfterAgent(t, n)
		},
		"restarts, docker": func(t *testing.T) {
			n := newGPUNode(t, card, "docker", gpuOptions{})
			testGPUPluginKilled(t, n)
			testSeatAfterAgent(t, n)
		},
		"no runtime": func(t *testing.T) {
			n := newGPUNode(t, card, "docker", gpuOptions{noRuntime: true})
			alloc := n.finish(t, n.workload("lost", nil, "--steps", "1"))
			must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
			n.waitEvent(t, alloc, "train", `requested docker runtime "nvidia" was not found`, "install the NVIDIA container toolkit", `inject = "devices"`)
		},
		"no library": func(t *testing.T) {
			n := newGPUNode(t, card, "exec", gpuOptions{cards: 2, plugin: map[string]string{"preload": `"/nowhere/libebbtide-cuda.so"`, "seats_per_gpu": "1"}})
			// Each card is a device group, which jobs can request.
			n.device += "/" + n.groups[1]
			// The card is not shared: limits do not apply.
			alloc := n.finish(t, n.workload("alone", map[string]string{"ebbtide_gpu_memory": "64"}, "--mode", "fill", "--bytes", strconv.Itoa(mib)))
			n.waitEvent(t, alloc, "train", "GPU: the job runs without a share of the memory: the preload library cannot be read: stat /nowhere/libebbtide-cuda.so")
			must.Eq(t, cardMiB-contextSize/mib, n.filled(t, alloc))
		},
		"no card": testNoCard,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// TestGPUSpread: concurrent jobs spread over four cards, and later ones use cards that were
// freed.
func TestGPUSpread(t *testing.T) {
	t.Parallel()
	const cards = 4
	n := newGPUNode(t, fakeCard(t), "exec", gpuOptions{cards: cards})
	var jobs []job
	for i := range 2 * cards {
		jobs = append(jobs, n.seat(fmt.Sprint("spread-", i), shell("sleep 1000"), nil))
	}
	for _, j := range jobs {
		n.register(t, j)
	}
	on := make(map[string][]string) // jobs by card
	for _, j := range jobs {
		alloc, err := n.agent.WaitRunning(deadline(t, startDeadline), j.id)
		must.NoError(t, err)
		device := alloc.AllocatedResources.Tasks["train"].Devices[0]
		on[device.Name] = append(on[device.Name], j.id)
	}
	must.MapLen(t, cards, on)
	for card, ids := range on {
		must.Len(t, 2, ids, must.Sprint(card, on))
	}
	// Else a card that is full by the update may be free by the one before.
	n.waitOffered(t, 3)
	for card, ids := range on {
		n.stop(t, ids[0])
		n.waitOffered(t, 2)
		next := n.start(t, n.seat("next", shell("sleep 1000"), nil))
		must.Eq(t, card, next.AllocatedResources.Tasks["train"].Devices[0].Name)
		return
	}
}

// TestGPUWhole: a job has both cards, as jobs for NVIDIA's own plugin ask for them; until its end
// no other task has a seat.
func TestGPUWhole(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t, fakeCard(t), "exec", gpuOptions{cards: 2})
	n.device = "nvidia/gpu"
	both := n.seat("both", shell("env; echo that is all; sleep 1000"), nil)
	both.tasks[0].body = strings.Replace(both.tasks[0].body, "count = 1", "count = 2", 1)
	alloc := n.start(t, both)
	out, err := n.agent.WaitLog(deadline(t, stepDeadline), alloc, "train", "stdout", "that is all")
	must.NoError(t, err)
	must.RegexMatch(t, regexp.MustCompile(`(?m)^NVIDIA_VISIBLE_DEVICES=GPU-[0-9a-f-]+,GPU-[0-9a-f-]+$`), out)
	must.StrNotContains(t, out, "EBBTIDE_GATE")
	n.health(t, "a container has the whole card")
	n.device = "nvidia/share"
	n.register(t, n.seat("seat", shell("sleep 1000"), nil))
	n.notPlaced(t, "seat")
	n.stop(t, "both")
	_, err = n.agent.WaitRunning(deadline(t, startDeadline), "seat")
	must.NoError(t, err)
}

// waitOffered waits until the scheduler knows up to how many containers the cards offer seats.
// Nomad's client sends a change after five to ten seconds; until then jobs are placed by the last.
func (n gpuNode) waitOffered(t *testing.T, containers int64) {
	t.Helper()
	eventually(t, "the scheduler knows which seats are offered", func() error {
		node, err := n.agent.Node(t.Context())
		if err != nil {
			return err
		}
		for _, d := range seatedCards(node) {
			if got := *d.Attributes["offered"].IntVal; got != containers {
				return fmt.Errorf("card %s offers seats up to %d containers", d.Name, got)
			}
		}
		return nil
	})
}

// testShared has two jobs share the card, with a third that gets the rest.
func testShared(t *testing.T, n gpuNode) {
	half := (cardMiB - reserveMiB) / 2
	a, b := n.start(t, n.long("a")), n.start(t, n.long("b"))
	n.waitSees(t, a, half)
	n.waitSees(t, b, half)
	n.shows(t, half, a, b)

	const wish = 100
	c := n.start(t, n.workload("c", map[string]string{"ebbtide_gpu_memory": strconv.Itoa(wish)}, "--mode", "fill", "--bytes", strconv.Itoa(mib), "--hold-ms", "1000"))
	must.Eq(t, wish-contextSize/mib, n.filled(t, c))
	n.end(t, "a", "b")
	for _, alloc := range []*api.Allocation{a, b, c} {
		n.succeeds(t, alloc)
	}
}

// testSeats: by seats, a task sees a quarter of the card, alone and beside others.
func testSeats(t *testing.T, n gpuNode) {
	const quarter, wish = (cardMiB - reserveMiB) / 4, 500
	alone := n.start(t, n.long("alone"))
	n.shows(t, quarter, alone)
	large := n.long("large")
	large.tasks[0].meta = map[string]string{"ebbtide_gpu_memory": strconv.Itoa(wish)}
	other := n.start(t, large)
	n.shows(t, wish, other)
	n.end(t, "large")
	n.succeeds(t, other)
	n.end(t, "alone")
	n.succeeds(t, alone)
	out, err := n.agent.Logs(deadline(t, stepDeadline), alone, "train", "stdout")
	must.NoError(t, err)
	sizes := regexp.MustCompile(`"memory": (\d+)`).FindAllStringSubmatch(out, -1)
	must.SliceNotEmpty(t, sizes)
	for _, size := range sizes {
		must.Eq(t, strconv.Itoa(quarter*mib), size[1])
	}
}

// testForged: a process claims a larger request than its job's.
func testForged(t *testing.T, n gpuNode) {
	const wish = 100
	j := n.workload("forged", map[string]string{"ebbtide_gpu_memory": strconv.Itoa(wish)})
	k := &j.tasks[0]
	k.args = []string{"-c", fmt.Sprintf("NOMAD_META_ebbtide_gpu_memory=500 exec %s %s --mode fill --bytes %d --hold-ms 2000", k.command, k.args[0], mib)}
	k.command = "/bin/sh"
	alloc := n.finish(t, j)
	must.Eq(t, wish-contextSize/mib, n.filled(t, alloc))
}

// testCleared: a program that clears its environment is still limited to its share.
func testCleared(t *testing.T, n gpuNode) {
	const wish = 100
	j := n.workload("cleared", map[string]string{"ebbtide_gpu_memory": strconv.Itoa(wish)})
	k := &j.tasks[0]
	k.args = []string{"-c", fmt.Sprintf("exec env -i %s %s %s --mode fill --bytes %d --hold-ms 2000", strings.Join(cardEnvironment(n.base()), " "), k.command, k.args[0], mib)}
	k.command = "/bin/sh"
	alloc := n.finish(t, j)
	must.Eq(t, wish-contextSize/mib, n.filled(t, alloc))
}

// testSeat checks the environment and mounts injected in addition to the task's own.
func testSeat(t *testing.T, n gpuNode) {
	k := shell("env; ls /opt/fake; test -S $EBBTIDE_GATE && test -f /usr/lib/ebbtide/libebbtide-cuda.so && ! touch /run/ebbtide/x && echo all is there && sleep 2")
	k.env = map[string]string{"LD_PRELOAD": "/opt/theirs.so", "EBBTIDE_GPU_HANDOFF": `{"preload":"/etc/shadow","gate":"/root"}`}
	alloc := n.finish(t, n.seat("seat", k, nil))
	out, err := n.agent.WaitLog(deadline(t, stepDeadline), alloc, "train", "stdout", "all is there")
	must.NoError(t, err)
	for _, want := range []string{
		"NVIDIA_VISIBLE_DEVICES=GPU-", "\nLD_PRELOAD=/opt/theirs.so\n", "EBBTIDE_GATE_WAIT_MS=3600000\n", "\nworkload\n",
	} {
		must.StrContains(t, out, want)
	}
	must.StrNotContains(t, out, "EBBTIDE_GPU_HANDOFF")
	if n.engine == "exec" {
		n.waitEvent(t, alloc, "train", `set inject = "devices"`)
	}
}

// testWishTooLarge: impossible requests are rejected before the start.
func testWishTooLarge(t *testing.T, n gpuNode) {
	alloc := n.finish(t, n.seat("greedy", shell("echo started"), map[string]string{"ebbtide_gpu_memory": "99999"}))
	must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
	must.NotNil(t, harness.FindEvent(alloc, "train", "meta.ebbtide_gpu_memory: must be at most 1024, the card's memory in MiB, got 99999"), must.Sprint(harness.Events(alloc, "train")))
	must.Nil(t, harness.FindEvent(alloc, "train", "Exit Code"))
}

// testGPUPluginKilled: jobs survive the device plugin and reconnect, and new ones can start.
func testGPUPluginKilled(t *testing.T, n gpuNode) {
	a := n.start(t, n.long("survivor"))
	n.shows(t, cardMiB-reserveMiB, a)
	pids := n.agent.PluginPIDs("ebbtide-gpu")
	must.Len(t, 1, pids)
	must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	b := n.start(t, n.long("newcomer"))
	now := n.agent.PluginPIDs("ebbtide-gpu")
	must.Len(t, 1, now)
	must.NotEq(t, pids[0], now[0])
	n.shows(t, (cardMiB-reserveMiB)/2, a, b)
	n.waitSees(t, a, (cardMiB-reserveMiB)/2)
	n.end(t, "survivor", "newcomer")
	n.succeeds(t, a)
	n.succeeds(t, b)
}

// testSeatAfterAgent restarts a task after the agent, which has lost the device's mounts.
func testSeatAfterAgent(t *testing.T, n gpuNode) {
	alloc := n.start(t, n.seat("again", shell("test -S $EBBTIDE_GATE && test -f /usr/lib/ebbtide/libebbtide-cuda.so && test -f /opt/fake/workload && echo all is there; sleep 600"), nil))
	_, err := n.agent.WaitLog(deadline(t, stepDeadline), alloc, "train", "stdout", "all is there\n")
	must.NoError(t, err)
	must.NoError(t, n.agent.Kill(deadline(t, stepDeadline)))
	must.NoError(t, n.agent.Restart(deadline(t, startDeadline)))
	_, err = n.agent.WaitDriver(deadline(t, startDeadline), n.driver, true)
	must.NoError(t, err)
	must.NoError(t, n.agent.RestartTask(deadline(t, stepDeadline), alloc, "train"))
	_, err = n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", "all is there\nall is there\n")
	must.NoError(t, err)
}

// testNoCard runs the plugin on a machine without a card.
func testNoCard(t *testing.T) {
	h := newHarness(t)
	plugin, err := h.Tools.GPU(deadline(t, startDeadline))
	must.NoError(t, err)
	c := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{
		Plugins: map[string]string{"ebbtide-gpu": plugin},
		HCL: fmt.Sprintf("plugin \"ebbtide-gpu\" {\n config {\n library = \"/nowhere/libnvidia-ml.so.1\"\n gate = %q\n state_dir = %q\n fingerprint_period = \"1s\"\n }\n}\n",
			filepath.Join(h.Dir, "gate"), filepath.Join(h.Dir, "learned")),
	}})
	var pids []int
	eventually(t, "the plugin says that there is nothing", func() error {
		if pids = c.agent.PluginPIDs("ebbtide-gpu"); len(pids) != 1 {
			return fmt.Errorf("its processes are %v", pids)
		}
		log, err := c.agent.Log()
		if err == nil && !strings.Contains(log, "there are no cards to be shared") {
			err = errors.New("it has said nothing")
		}
		return err
	})
	// Impossible requests are harmless.
	k := shell("echo here")
	k.meta = map[string]string{"ebbtide_gpu_memory": "64"}
	alloc := c.finish(t, job{id: "plain", tasks: []task{k}})
	c.waitEvent(t, alloc, "train", "GPU: ignored: meta.ebbtide_gpu_memory; the task has no shared seat")
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus)
	node, err := c.agent.Node(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, node.NodeResources.Devices)
	must.Eq(t, pids, c.agent.PluginPIDs("ebbtide-gpu"), must.Sprint("it is well, and was not started again"))
	log, err := c.agent.Log()
	must.NoError(t, err)
	must.Eq(t, 1, strings.Count(log, "there are no cards to be shared"), must.Sprint("it is said once"))
}

// testFairShare: the paper's preset gives equal shares to jobs of which nothing is known; once five
// runs are measured, more to the group whose application and input are larger.
func testFairShare(t *testing.T, n gpuNode) {
	const room = cardMiB - reserveMiB
	share := func(id, input string, low, high int) *api.Allocation {
		j := n.long(id)
		j.tasks[0].meta = map[string]string{"ebbtide_gpu_input": input}
		before := make(map[string]bool)
		old, err := n.agent.Allocs(deadline(t, stepDeadline), id)
		must.NoError(t, err)
		for _, s := range old {
			before[s.ID] = true
		}
		n.register(t, j)
		var alloc *api.Allocation
		eventually(t, id+" runs", func() error {
			stubs, err := n.agent.Allocs(deadline(t, stepDeadline), id)
			if err != nil {
				return err
			}
			for _, s := range stubs {
				if !before[s.ID] && s.ClientStatus == api.AllocClientStatusRunning {
					alloc = &api.Allocation{ID: s.ID, JobID: id}
					return nil
				}
			}
			return errors.New("it does not")
		})
		n.waitStatus(t, alloc, "train", "its share", func(st status.Status) bool {
			return st.GPU != nil && len(st.GPU.Cards) == 1 && int(st.GPU.Cards[0].ShareMiB) >= low && int(st.GPU.Cards[0].ShareMiB) <= high
		})
		return alloc
	}
	first := share("unknown", "7", room, room)
	n.end(t, "unknown")
	n.succeeds(t, first)
	for id, size := range map[string]int{"big": 150, "small": 60} {
		j := n.workload(id, nil, "--steps", "1", "--bytes", strconv.Itoa(size*mib), "--count", "1", "--hold-ms", "3000")
		j.group += "count = 2\n"
		n.register(t, j)
	}
	eventually(t, "five runs are measured", func() error {
		files, err := filepath.Glob(filepath.Join(n.dir, "learned", "profiles", "*.json"))
		if err != nil {
			return err
		}
		runs := 0
		for _, path := range files {
			var p profile.Profile
			if b, err := os.ReadFile(path); err != nil || json.Unmarshal(b, &p) != nil {
				return fmt.Errorf("%s is unreadable: %w", path, err)
			}
			runs += p.Measured
		}
		if runs != 5 {
			return fmt.Errorf("%d are", runs)
		}
		return nil
	})
	// Of the jobs each has a half, of the applications two thirds and a third, likewise of the inputs; the
	// user is the same: (1/2 + 2/3 + 2/3 + 1) to (1/2 + 1/3 + 1/3 + 1).
	big := share("big", "20", room, room)
	small := share("small", "10", room*13/30-1, room*13/30+1)
	n.waitStatus(t, big, "train", "more than its half", func(st status.Status) bool {
		got := int(st.GPU.Cards[0].ShareMiB)
		return got >= room*17/30-1 && got <= room*17/30+1
	})
	n.end(t, "big", "small")
	n.succeeds(t, big)
	n.succeeds(t, small)
}
