// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// The card's memory, and the gate's reserve.
const (
	mib         = 1 << 20
	cardMiB     = 1024
	reserveMiB  = 64
	contextSize = 8 * mib // the card's memory per process
)

// fakeCard builds the fake card's libraries and copies the C library, which the tasks' chroot
// lacks.
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

// gpuOptions change the default node.
type gpuOptions struct {
	plugin    map[string]string // the device plugin's options, as HCL literals
	settings  map[string]string // the driver's, likewise
	memory    int               // MiB per card; 0 for cardMiB
	cards     int               // 0 for 1
	noRuntime bool              // Docker lacks NVIDIA's runtime
	driver    string            // "" for "ebbtide"
	env       []string          // more of the fake card's
}

// gpuNode is a node with one card.
type gpuNode struct {
	*cluster
	dir string // has the libraries, the card's state and the gate
	// groups are the cards' names, device is what jobs request. Jobs without a request also see the
	// card's file.
	groups []string
	device string
}

// The node's directory inside tasks: in a volume, or mounted by the fake runtime.
const (
	volumePath  = "/opt/fake"
	runtimePath = "/usr/local/nvidia"
)

// nvidiaRuntime creates a fake of NVIDIA's container runtime, which injects the driver's libraries
// and calls runc.
func nvidiaRuntime(t *testing.T, dir string) map[string]string {
	t.Helper()
	runc, err := harness.Look("runc")
	if err != nil {
		t.Skip(err)
	}
	mount := fmt.Sprintf(`{"destination":%q,"type":"bind","source":%q,"options":["rbind","rw"]},`, runtimePath, dir)
	var env string
	for _, kv := range cardEnvironment(runtimePath) {
		env += quote(kv) + ","
	}
	path := filepath.Join(dir, "nvidia-container-runtime")
	must.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `#!/bin/sh
last=
for arg; do
	if [ "$last" = --bundle ] && grep -q NVIDIA_VISIBLE_DEVICES "$arg/config.json"; then
		sed -i -e 's#"mounts":\[#&%s#' -e 's#"env":\[#&%s#' "$arg/config.json"
	fi
	last=$arg
done
exec %s "$@"
`, mount, env, runc), 0o755))
	return map[string]string{"nvidia": path}
}

// cardEnvironment locates the libraries and the card's state.
func cardEnvironment(dir string) []string {
	return []string{"LD_LIBRARY_PATH=" + dir, "EBBTIDE_FAKE_GPU=" + dir + "/state", "EBBTIDE_GATE_CONTEXT=" + strconv.Itoa(contextSize), "EBBTIDE_GATE_LOG=1"}
}

func newGPUNode(t *testing.T, card, engine string, opts gpuOptions) gpuNode {
	t.Helper()
	h := newHarness(t)
	dir := filepath.Join(h.Dir, "gpu")
	must.NoError(t, os.CopyFS(dir, os.DirFS(card)))
	state := filepath.Join(dir, "state")
	must.NoError(t, os.WriteFile(state, nil, 0o666))
	must.NoError(t, os.Chmod(state, 0o666)) // for the exec engine's tasks, which run unprivileged
	if opts.memory == 0 {
		opts.memory = cardMiB
	}
	opts.cards = max(opts.cards, 1)
	plugin, err := h.Tools.GPU(deadline(t, startDeadline))
	must.NoError(t, err)
	config := map[string]string{
		"library": quote(filepath.Join(dir, "libnvidia-ml.so.1")), "preload": quote(filepath.Join(dir, "libebbtide-cuda.so")),
		"cuda_library": quote(filepath.Join(dir, "libcuda.so.1")), "state_dir": quote(filepath.Join(dir, "learned")),
		"parking":  "true",       // nothing was ever tested on the fake card's model
		"division": `"adaptive"`, // a task alone sees the card, others make it smaller
		"gate":     quote(filepath.Join(dir, "gate")), "reserve_mib": strconv.Itoa(reserveMiB), "fingerprint_period": `"1s"`,
	}
	for k, v := range opts.plugin {
		config[k] = v
	}
	o := clusterOptions{driver: opts.driver, settings: opts.settings}
	if engine == "docker" && !opts.noRuntime {
		o.docker.Runtimes = nvidiaRuntime(t, dir)
	}
	o.agent.Plugins = map[string]string{"ebbtide-gpu": plugin}
	o.agent.Env = []string{
		"EBBTIDE_FAKE_GPU=" + state, "EBBTIDE_FAKE_MEMORY=" + strconv.Itoa(opts.memory*mib), "EBBTIDE_FAKE_CONTEXT=" + strconv.Itoa(contextSize),
		"EBBTIDE_FAKE_GPUS=" + strconv.Itoa(opts.cards),
	}
	o.agent.Env = append(o.agent.Env, opts.env...)
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
	n := gpuNode{cluster: newCluster(t, h, engine, o), dir: dir, device: "nvidia/share"}
	eventually(t, "the cards are there", func() error {
		node, err := n.agent.Node(t.Context())
		if err != nil {
			return err
		}
		cards := seatedCards(node)
		if all := len(cards); all != opts.cards {
			return fmt.Errorf("there are %d", all)
		}
		for _, d := range cards {
			must.Eq(t, "nvidia/share", d.Vendor+"/"+d.Type)
			must.Eq(t, int64(opts.memory), *d.Attributes["memory"].IntVal)
			must.Len(t, int(*d.Attributes["seats"].IntVal), d.Instances)
			n.groups = append(n.groups, d.Name)
		}
		return nil
	})
	return n
}

// seatedCards returns the node's cards with seats.
func seatedCards(node *api.Node) []*api.NodeDeviceResource {
	return slices.DeleteFunc(slices.Clone(node.NodeResources.Devices), func(d *api.NodeDeviceResource) bool { return d.Type != "share" })
}

// seat returns a job with a seat on the card, and a volume.
func (n gpuNode) seat(id string, k task, meta map[string]string) job {
	k.cpu, k.meta = -1, meta
	// PID 1 of a namespace ignores signals without a handler.
	k.body += "kill_timeout = \"1s\"\n"
	// Parked memory counts as the task's: 72 MiB for a job of TestGPUGate, plus 64.
	device := ""
	if n.device != "" {
		device = fmt.Sprintf(" device %q {\n count = 1\n }\n", n.device)
	}
	k.body += "resources {\n cpu = 50\n memory = 200\n" + device + "}\n"
	j := job{id: id}
	if n.driver == "ebbtide" { // ignored by other drivers
		j.group = "volume \"fake\" {\n type = \"host\"\n source = \"fake\"\n}\n"
		k.body += fmt.Sprintf("volume_mount {\n volume = \"fake\"\n destination = %q\n}\n", volumePath)
	}
	j.tasks = []task{k}
	return j
}

// workload returns a job that uses the card as a training job does (device/fake/src/workload.c).
func (n gpuNode) workload(id string, meta map[string]string, args ...string) job {
	base := n.base()
	k := task{command: base + "/ld.so", args: append([]string{base + "/workload"}, args...), env: make(map[string]string)}
	for _, kv := range cardEnvironment(base) {
		name, value, _ := strings.Cut(kv, "=")
		k.env[name] = value
	}
	return n.seat(id, k, meta)
}

// base returns the node's directory inside tasks.
func (n gpuNode) base() string {
	if n.engine == "exec" {
		return volumePath
	}
	return runtimePath
}

// long runs a workload of minutes that keeps printing the memory size it sees, and verifies its
// data at its end.
func (n gpuNode) long(id string) job {
	return n.workload(id, nil, "--steps", "1000", "--bytes", strconv.Itoa(mib/16), "--pause-ms", "400", "--until", n.ending(id))
}

// ending returns the file that ends a workload when created, as the task sees it.
func (n gpuNode) ending(id string) string { return filepath.Join(n.base(), "end-"+id) }

func (n gpuNode) end(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		must.NoError(t, os.WriteFile(filepath.Join(n.dir, "end-"+id), nil, 0o644))
	}
}

// waitSees waits until a task sees a memory size, in MiB.
func (n gpuNode) waitSees(t *testing.T, alloc *api.Allocation, size int) {
	t.Helper()
	_, err := n.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", fmt.Sprintf(`"memory": %d}`, size*mib))
	must.NoError(t, err)
}

// succeeds waits for a workload's end and checks its results.
func (n gpuNode) succeeds(t *testing.T, alloc *api.Allocation) {
	t.Helper()
	alloc, err := n.agent.WaitAllocID(deadline(t, startDeadline), alloc.ID, "ended", harness.Terminal)
	must.NoError(t, err)
	if alloc.ClientStatus != api.AllocClientStatusComplete {
		for _, stream := range []string{"stdout", "stderr"} {
			said, err := n.agent.Logs(deadline(t, stepDeadline), alloc, "train", stream)
			t.Log(stream, said, err)
		}
	}
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus)
	must.NotNil(t, harness.FindEvent(alloc, "train", "Exit Code: 0"), must.Sprint(harness.Events(alloc, "train")))
	// Nomad's log collector may not have written the last line yet.
	_, err = n.agent.WaitLog(deadline(t, stepDeadline), alloc, "train", "stdout", `{"done": true}`)
	must.NoError(t, err)
}

// filled returns the memory that a fill workload got, in MiB.
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

// standIn creates an image whose command is the workload.
func (n gpuNode) standIn(t *testing.T, ref, command string, args ...string) {
	t.Helper()
	ctx := deadline(t, stepDeadline)
	script := fmt.Appendf(nil, "#!/bin/sh\nexec %[1]s/ld.so %[1]s/workload %[2]s\n", runtimePath, strings.Join(args, " "))
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	must.NoError(t, w.WriteHeader(&tar.Header{Name: command, Mode: 0o755, Size: int64(len(script))}))
	_, err := w.Write(script)
	must.NoError(t, err)
	must.NoError(t, w.Close())
	c, err := n.docker.Client.ContainerCreate(ctx, &container.Config{Image: harness.Image, Cmd: []string{command}}, nil, nil, nil, "")
	must.NoError(t, err)
	must.NoError(t, n.docker.Client.CopyToContainer(ctx, c.ID, "/bin", &data, container.CopyToContainerOptions{}))
	_, err = n.docker.Client.ContainerCommit(ctx, c.ID, container.CommitOptions{Reference: ref})
	must.NoError(t, err)
	must.NoError(t, n.docker.Client.ContainerRemove(ctx, c.ID, container.RemoveOptions{}))
}

// statistics returns Nomad's device statistics by allocation and task.
func (n gpuNode) statistics() (map[string]*api.StatObject, error) {
	stats, err := n.agent.API.Nodes().Stats(n.agent.NodeID(), nil)
	if err != nil {
		return nil, err
	}
	cards := slices.DeleteFunc(stats.DeviceStats, func(d *api.DeviceGroupStats) bool { return d.Type != "share" })
	if all := len(cards); all != 1 {
		return nil, fmt.Errorf("there are statistics of %d cards", all)
	}
	for _, seat := range cards[0].InstanceStats {
		if total := *seat.Summary.IntDenominatorVal; total != cardMiB {
			return nil, fmt.Errorf("the card has %d MiB", total)
		}
		return seat.Stats.Nested, nil
	}
	return nil, errors.New("there are no seats")
}

// shows waits until Nomad shows the tasks' use of the card, out of size.
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
