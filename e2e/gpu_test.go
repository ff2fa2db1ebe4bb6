// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// What the card of these tests has, and the part of it that the gate gives to nobody.
const (
	mib         = 1 << 20
	cardMiB     = 1024
	reserveMiB  = 64
	contextSize = 8 * mib // what the card takes for a process
)

// TestGPU has jobs on a card that stands for a real one: NVIDIA's libraries are fakes, and the
// plugin, the gate, the preload library, Nomad and the containers are not.
func TestGPU(t *testing.T) {
	t.Parallel()
	card := fakeCard(t)
	runc, noRunc := harness.Look("runc")
	nvidia := harness.DockerOptions{Runtimes: map[string]string{"nvidia": runc}}
	for name, test := range map[string]func(*testing.T){
		"exec": func(t *testing.T) {
			n := newGPUNode(t, card, "exec", gpuOptions{})
			testShared(t, n)
			testSeat(t, n)
			testWishTooLarge(t, n)
			testGPUPluginKilled(t, n)
			testSeatAfterAgent(t, n)
		},
		"docker": func(t *testing.T) {
			if noRunc != nil {
				t.Skip(noRunc)
			}
			n := newGPUNode(t, card, "docker", gpuOptions{cluster: clusterOptions{docker: nvidia}})
			testShared(t, n)
			testGPUPluginKilled(t, n)
		},
		"stock docker": func(t *testing.T) {
			if noRunc != nil {
				t.Skip(noRunc)
			}
			testShared(t, newGPUNode(t, card, "docker", gpuOptions{
				plugin:  map[string]string{"mounts": `"device"`},
				cluster: clusterOptions{driver: "docker", docker: nvidia},
			}))
		},
		"no runtime": func(t *testing.T) {
			n := newGPUNode(t, card, "docker", gpuOptions{})
			alloc := n.finish(t, n.workload("lost", nil, "--steps", "1"))
			must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
			n.waitEvent(t, alloc, "train", `requested docker runtime "nvidia" was not found`, "install the NVIDIA container toolkit", `inject = "devices"`)
		},
		"no library": func(t *testing.T) {
			n := newGPUNode(t, card, "exec", gpuOptions{plugin: map[string]string{"preload": `"/nowhere/libebbtide-cuda.so"`}})
			// Its own limit and its neighbours' do not count: it has the card as it is.
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

// fakeCard builds what stands for a card and its software, with the C library that they need:
// the tasks' root directory has none.
func fakeCard(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := fake.Build(dir); errors.Is(err, fake.ErrNoCompiler) {
		t.Skip(err)
	} else {
		must.NoError(t, err)
	}
	// "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", "\t/lib64/ld-linux-x86-64.so.2 (0x…)"
	library := regexp.MustCompile(`(?m)^\t(?:(\S+) => )?(/\S+) \(`)
	out, err := exec.Command("ldd", filepath.Join(dir, "workload")).Output()
	must.NoError(t, err)
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		name := m[1]
		if name == "" {
			name = "ld.so"
		}
		data, err := os.ReadFile(m[2])
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o755))
	}
	return dir
}

// gpuOptions say what differs from the usual node with a card.
type gpuOptions struct {
	plugin  map[string]string // options of the device plugin, as HCL literals
	memory  int               // MiB of the card; 0 = cardMiB
	cluster clusterOptions
}

// gpuNode is a node with one card.
type gpuNode struct {
	*cluster
	dir string // with the libraries, the card's state and the gate; /opt/fake in tasks
}

func newGPUNode(t *testing.T, card, engine string, opts gpuOptions) gpuNode {
	t.Helper()
	h := newHarness(t)
	dir := filepath.Join(h.Dir, "gpu")
	must.NoError(t, os.CopyFS(dir, os.DirFS(card)))
	state := filepath.Join(dir, "state")
	must.NoError(t, os.WriteFile(state, nil, 0o666))
	must.NoError(t, os.Chmod(state, 0o666)) // tasks of the exec engine are nobody's
	if opts.memory == 0 {
		opts.memory = cardMiB
	}
	plugin, err := h.Tools.GPU(deadline(t, startDeadline))
	must.NoError(t, err)
	config := map[string]string{
		"library": quote(filepath.Join(dir, "libnvidia-ml.so.1")), "preload": quote(filepath.Join(dir, "libebbtide-cuda.so")),
		"gate": quote(filepath.Join(dir, "gate")), "reserve_mib": strconv.Itoa(reserveMiB), "fingerprint_period": `"1s"`,
	}
	for k, v := range opts.plugin {
		config[k] = v
	}
	o := opts.cluster
	o.agent.Plugins = map[string]string{"ebbtide-gpu": plugin}
	o.agent.Env = []string{
		"EBBTIDE_FAKE_GPU=" + state, "EBBTIDE_FAKE_MEMORY=" + strconv.Itoa(opts.memory*mib), "EBBTIDE_FAKE_CONTEXT=" + strconv.Itoa(contextSize),
	}
	o.agent.HCL = "plugin \"ebbtide-gpu\" {\n config {\n" + assignments(config) + "}\n}\n"
	o.agent.HostVolumes = map[string]string{"fake": dir}
	if o.driver == "docker" {
		d, err := h.StartDocker(deadline(t, startDeadline), o.docker)
		if errors.Is(err, harness.ErrNoDocker) {
			t.Skip(err)
		}
		must.NoError(t, err)
		must.NoError(t, d.ImportImages(deadline(t, startDeadline)))
		o.daemon = d
		o.agent.HCL += stockDocker(d, "enabled = false")
	}
	n := gpuNode{newCluster(t, h, engine, o), dir}
	eventually(t, "the card is there", func() error {
		node, err := n.agent.Node(t.Context())
		if err != nil {
			return err
		}
		if all := len(node.NodeResources.Devices); all != 1 {
			return fmt.Errorf("there are %d", all)
		}
		d := node.NodeResources.Devices[0]
		must.Eq(t, "nvidia/share", d.Vendor+"/"+d.Type)
		must.Eq(t, int64(opts.memory), *d.Attributes["memory"].IntVal)
		return nil
	})
	return n
}

// seat is a job with a seat on the card and the fakes in a volume.
func (n gpuNode) seat(id string, k task, meta map[string]string) job {
	k.cpu, k.meta = -1, meta
	k.body += "resources {\n cpu = 50\n memory = 96\n device \"nvidia/share\" {\n count = 1\n }\n}\n"
	j := job{id: id}
	if n.driver == "docker" {
		// A volume would be lost for the mounts of the device.
		k.config += fmt.Sprintf("volumes = [%q]\n", n.dir+":/opt/fake")
	} else {
		j.group = "volume \"fake\" {\n type = \"host\"\n source = \"fake\"\n}\n"
		k.body += "volume_mount {\n volume = \"fake\"\n destination = \"/opt/fake\"\n}\n"
	}
	j.tasks = []task{k}
	return j
}

// workload is a job that uses the card as a training job does (device/fake/src/workload.c).
func (n gpuNode) workload(id string, meta map[string]string, args ...string) job {
	return n.seat(id, task{
		command: "/opt/fake/ld.so", args: append([]string{"/opt/fake/workload"}, args...),
		env: map[string]string{"LD_LIBRARY_PATH": "/opt/fake", "EBBTIDE_FAKE_GPU": "/opt/fake/state", "EBBTIDE_GATE_CONTEXT": strconv.Itoa(contextSize)},
	}, meta)
}

// long has a workload of half a minute at most, which says all the while how much memory it
// is told of. It checks at its end that its memory holds what it has computed.
func (n gpuNode) long(id string) job {
	return n.workload(id, nil, "--steps", "30", "--bytes", strconv.Itoa(4*mib), "--pause-ms", "400")
}

// told waits until a task is told of so much memory, in MiB.
func (n gpuNode) told(t *testing.T, alloc *api.Allocation, size int) {
	t.Helper()
	_, err := n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", fmt.Sprintf(`"memory": %d}`, size*mib))
	must.NoError(t, err)
}

// succeeds waits for the end of a workload: all that it had computed was right.
func (n gpuNode) succeeds(t *testing.T, alloc *api.Allocation) {
	t.Helper()
	alloc, err := n.agent.WaitAllocID(deadline(t, startDeadline), alloc.ID, "ended", harness.Terminal)
	must.NoError(t, err)
	out, err := n.agent.Logs(deadline(t, stepDeadline), alloc, "train", "stdout")
	must.NoError(t, err)
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus, must.Sprint(out))
	must.NotNil(t, harness.FindEvent(alloc, "train", "Exit Code: 0"), must.Sprint(harness.Events(alloc, "train")))
	must.StrContains(t, out, `{"done": true}`)
}

// filled is how much a workload of mode fill has got, in MiB.
func (n gpuNode) filled(t *testing.T, alloc *api.Allocation) int {
	t.Helper()
	out, err := n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", `"code": 2`)
	must.NoError(t, err)
	m := regexp.MustCompile(`"got": (\d+)`).FindStringSubmatch(out)
	must.Len(t, 2, m)
	bytes, err := strconv.Atoi(m[1])
	must.NoError(t, err)
	return bytes / mib
}

// statistics are what Nomad shows of the containers on the card, by allocation and task.
func (n gpuNode) statistics() (map[string]*api.StatObject, error) {
	stats, err := n.agent.API.Nodes().Stats(n.agent.NodeID(), nil)
	if err != nil {
		return nil, err
	}
	if all := len(stats.DeviceStats); all != 1 {
		return nil, fmt.Errorf("there are statistics of %d cards", all)
	}
	for _, seat := range stats.DeviceStats[0].InstanceStats {
		if total := *seat.Summary.IntDenominatorVal; total != cardMiB {
			return nil, fmt.Errorf("the card has %d MiB", total)
		}
		return seat.Stats.Nested, nil
	}
	return nil, errors.New("there are no seats")
}

// shows waits until Nomad shows that tasks hold memory of the card, of so much that they may.
func (n gpuNode) shows(t *testing.T, size int, allocs ...*api.Allocation) {
	t.Helper()
	eventually(t, "Nomad shows what the tasks hold", func() error {
		all, err := n.statistics()
		if err != nil {
			return err
		}
		for _, alloc := range allocs {
			own := all[alloc.ID+".train"]
			if own == nil {
				return fmt.Errorf("allocation %s is not among %d", alloc.ID, len(all))
			}
			held, may := *own.Attributes["Memory"].IntNumeratorVal, *own.Attributes["Memory"].IntDenominatorVal
			if held < 1 || held > may || may != int64(size) {
				return fmt.Errorf("it holds %d of %d MiB", held, may)
			}
		}
		return nil
	})
}

// testShared has two jobs share the card, and a third that wants little and takes what it gets.
func testShared(t *testing.T, n gpuNode) {
	half := (cardMiB - reserveMiB) / 2
	a, b := n.start(t, n.long("a")), n.start(t, n.long("b"))
	n.told(t, a, half)
	n.told(t, b, half)
	n.shows(t, half, a, b)

	const wish = 100
	c := n.start(t, n.workload("c", map[string]string{"ebbtide_gpu_memory": strconv.Itoa(wish)}, "--mode", "fill", "--bytes", strconv.Itoa(mib), "--hold-ms", "1000"))
	must.Eq(t, wish-contextSize/mib, n.filled(t, c))
	for _, alloc := range []*api.Allocation{a, b, c} {
		n.succeeds(t, alloc)
	}
}

// testSeat looks at what a task is given, beside its volume and what it loads itself.
func testSeat(t *testing.T, n gpuNode) {
	k := shell("env; ls /opt/fake; test -S $EBBTIDE_GATE && test -f /usr/lib/ebbtide/libebbtide-cuda.so && ! touch /run/ebbtide/x && echo all is there")
	k.env = map[string]string{"LD_PRELOAD": "/opt/theirs.so", "EBBTIDE_GPU_SEAT": `{"preload":"/etc/shadow","gate":"/root"}`}
	alloc := n.finish(t, n.seat("seat", k, nil))
	out, err := n.agent.WaitLog(deadline(t, stepDeadline), alloc, "train", "stdout", "all is there")
	must.NoError(t, err)
	for _, want := range []string{
		"NVIDIA_VISIBLE_DEVICES=GPU-", "LD_PRELOAD=/usr/lib/ebbtide/libebbtide-cuda.so:/opt/theirs.so\n", "EBBTIDE_GATE_WAIT_MS=3600000\n", "\nworkload\n",
	} {
		must.StrContains(t, out, want)
	}
	must.StrNotContains(t, out, "EBBTIDE_GPU_SEAT")
	n.waitEvent(t, alloc, "train", `set inject = "devices"`)
}

// testWishTooLarge refuses what no moment could fulfil, before anything starts.
func testWishTooLarge(t *testing.T, n gpuNode) {
	alloc := n.finish(t, n.seat("greedy", shell("echo started"), map[string]string{"ebbtide_gpu_memory": "99999"}))
	must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
	must.NotNil(t, harness.FindEvent(alloc, "train", "meta.ebbtide_gpu_memory: must be at most 1024, the card's memory in MiB, got 99999"), must.Sprint(harness.Events(alloc, "train")))
	must.Nil(t, harness.FindEvent(alloc, "train", "Exit Code"))
}

// testGPUPluginKilled kills the device plugin: jobs go on and come back to the gate, and others
// can come.
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
	n.told(t, a, (cardMiB-reserveMiB)/2)
	n.succeeds(t, a)
	n.succeeds(t, b)
}

// testSeatAfterAgent restarts a task after the agent: Nomad has forgotten the device's mounts.
func testSeatAfterAgent(t *testing.T, n gpuNode) {
	alloc := n.start(t, n.seat("again", shell("test -S $EBBTIDE_GATE && test -f $LD_PRELOAD && test -f /opt/fake/workload && echo all is there; sleep 600"), nil))
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

// testNoCard has the plugin on a machine without a card.
func testNoCard(t *testing.T) {
	h := newHarness(t)
	plugin, err := h.Tools.GPU(deadline(t, startDeadline))
	must.NoError(t, err)
	c := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{
		Plugins: map[string]string{"ebbtide-gpu": plugin},
		HCL: fmt.Sprintf("plugin \"ebbtide-gpu\" {\n config {\n library = \"/nowhere/libnvidia-ml.so.1\"\n gate = %q\n fingerprint_period = \"1s\"\n }\n}\n",
			filepath.Join(h.Dir, "gate")),
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
	// Wishes that nobody can fulfil do no harm.
	k := shell("echo here")
	k.meta = map[string]string{"ebbtide_gpu_memory": "64"}
	alloc := c.finish(t, job{id: "plain", tasks: []task{k}})
	c.waitEvent(t, alloc, "train", "GPU: without effect: meta.ebbtide_gpu_memory; the task has no seat")
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus)
	node, err := c.agent.Node(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, node.NodeResources.Devices)
	must.Eq(t, pids, c.agent.PluginPIDs("ebbtide-gpu"), must.Sprint("it is well, and was not started again"))
	log, err := c.agent.Log()
	must.NoError(t, err)
	must.Eq(t, 1, strings.Count(log, "there are no cards to be shared"), must.Sprint("it is said once"))
}
