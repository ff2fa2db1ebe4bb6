// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/internal/version"
)

func lifecycleOptions(t *testing.T) clusterOptions {
	t.Helper()
	devices := t.TempDir()
	must.NoError(t, os.Chmod(devices, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(devices, "card0"), []byte("a device\n"), 0o644))
	opts := clusterOptions{
		cni:      true,
		settings: map[string]string{"policy": `"flowcon"`, "no_progress_after": `"3s"`, "docker_timeout": `"2s"`},
		agent:    harness.AgentConfig{HostVolumes: map[string]string{"data": volumeDir(t)}},
	}
	root, err := harness.FindRoot()
	must.NoError(t, err)
	tools := harness.NewTools(root, t.Logf)
	plugin, err := tools.DevicePlugin(t.Context())
	must.NoError(t, err)
	opts.agent.Plugins = map[string]string{"nomad-device-example": plugin}
	opts.agent.HCL = fmt.Sprintf("plugin \"nomad-device-example\" {\n config {\n dir = %q\n list_period = \"1s\"\n }\n}\n", devices)
	return opts
}

// volumeDir is writable by all users.
func volumeDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.Chmod(dir, 0o777))
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		st, err := os.Stat(p)
		must.NoError(t, err)
		must.NoError(t, os.Chmod(p, st.Mode().Perm()|0o055))
	}
	return dir
}

func testAttributes(t *testing.T, c *cluster) {
	node, err := c.agent.Node(deadline(t, stepDeadline))
	must.NoError(t, err)
	info, _ := debug.ReadBuildInfo()
	for name, want := range map[string]string{
		"driver.ebbtide":               "1",
		"driver.ebbtide.engine":        c.engine,
		"driver.ebbtide.policy":        "flowcon",
		"driver.ebbtide.mode":          "weight",
		"driver.ebbtide.estimator":     "robust",
		"driver.ebbtide.version":       version.Version,
		"driver.ebbtide.nomad_version": version.Nomad(info),
		"driver.ebbtide.pool_cores":    "",
	} {
		got, ok := node.Attributes[name]
		must.True(t, ok, must.Sprintf("the node has no attribute %q", name))
		if want != "" {
			must.Eq(t, want, got, must.Sprint(name))
		}
	}
}

func testLifecycle(t *testing.T, c *cluster) {
	for name, test := range map[string]func(*testing.T, *cluster){
		"start, logs, stats and files": testStart,
		"environment and template":     testEnvironment,
		"exec":                         testExecSessions,
		"signal":                       testSignal,
		"stop":                         testStop,
		"stop of a deaf task":          testStopDeaf,
		"restart in place":             testRestart,
		"restart after a failure":      testRestartFailed,
		"exit codes":                   testExitCodes,
		"out of memory":                testOutOfMemory,
		"host volume":                  testHostVolume,
		"ports":                        testPorts,
		"group network":                testGroupNetwork,
		"device":                       testDevice,
		"rotated logs":                 testRotatedLogs,
		"no progress":                  testNoProgress,
		"diverged":                     testDiverged,
		"dispatch":                     testDispatch,
		"dynamic block in config":      testDynamicConfig,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// testStart checks everything Nomad shows of a real training run.
func testStart(t *testing.T, c *cluster) {
	ctx := deadline(t, startDeadline)
	alloc := c.start(t, job{id: "start", tasks: []task{{args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-style", "huggingface", "-wait", "5ms"}}}})
	_, err := c.agent.WaitLog(ctx, alloc, "train", "stdout", "'loss'")
	must.NoError(t, err)

	must.NoError(t, harness.Poll(ctx, "the task has CPU and memory stats", func(ctx context.Context) error {
		stats, err := c.agent.Stats(ctx, alloc)
		if err != nil {
			return err
		}
		u := stats.Tasks["train"]
		if u == nil || u.ResourceUsage == nil || u.ResourceUsage.CpuStats == nil || u.ResourceUsage.CpuStats.TotalTicks <= 0 {
			return fmt.Errorf("no CPU: %+v", u)
		}
		if m := u.ResourceUsage.MemoryStats; m == nil || m.RSS+m.Usage == 0 {
			return fmt.Errorf("no memory: %+v", m)
		}
		return nil
	}))

	st := c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool { return s.Reports > 20 && s.Growth.Known() && s.Use > 0 })
	must.Eq(t, status.Schema, st.Schema)
	must.Eq(t, version.Version, st.Version)
	must.Eq(t, "train", st.Task)
	must.Eq(t, alloc.ID, st.Alloc)
	must.Eq(t, "start", st.Job)
	must.Eq(t, c.engine, st.Engine)
	must.Eq(t, "flowcon", st.Policy)
	must.Eq(t, "loss", st.Metric)
	must.Eq(t, "min", st.Goal)
	must.Positive(t, float64(st.Value))
	must.Positive(t, float64(st.CPUSeconds))
	must.Positive(t, float64(st.Node.PoolCores))
	must.Positive(t, st.Node.Tasks)
	must.NotEq(t, "", st.Rule)
	must.NotEq(t, "", st.Why)

	files, _, err := c.agent.API.AllocFS().List(alloc, "alloc/data/ebbtide", nil)
	must.NoError(t, err)
	for _, f := range files {
		must.Eq(t, "-rw-r--r--", f.FileMode, must.Sprint(f.Name))
	}
	must.NoError(t, harness.Poll(ctx, "the history has rows", func(ctx context.Context) error {
		data, err := c.agent.Cat(ctx, alloc, "alloc/data/ebbtide/train.csv")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		if len(lines) < 3 {
			return fmt.Errorf("it has %d lines", len(lines))
		}
		must.StrHasPrefix(t, "time,cpu_s,", lines[0])
		return nil
	}))
	must.NoError(t, harness.Poll(ctx, "the picture is one", func(ctx context.Context) error {
		data, err := c.agent.Cat(ctx, alloc, "alloc/data/ebbtide/train.png")
		if err != nil {
			return err
		}
		img, err := png.Decode(bytes.NewReader(data))
		if err != nil {
			return err
		}
		must.GreaterEq(t, 400, img.Bounds().Dx())
		must.GreaterEq(t, 300, img.Bounds().Dy())
		return nil
	}))
}

func testEnvironment(t *testing.T, c *cluster) {
	k := shell(`env; echo "template: $FROM_TEMPLATE"; cat local/file; sleep 1000`)
	k.env = map[string]string{"MINE": "yes"}
	k.meta = map[string]string{"ebbtide_goal": "min", "other": "thing"}
	k.body = `
template {
  data        = "FROM_TEMPLATE={{ env \"NOMAD_TASK_NAME\" }}"
  destination = "local/env"
  env         = true
}
template {
  data        = "rendered for {{ env \"NOMAD_ALLOC_ID\" }}\n"
  destination = "local/file"
}`
	if c.engine == "docker" {
		k.config = `work_dir = "/"`
	}
	alloc := c.start(t, job{id: "environment", tasks: []task{k}})
	out, err := c.agent.WaitLog(deadline(t, startDeadline), alloc, "train", "stdout", "rendered for "+alloc.ID)
	must.NoError(t, err)
	for _, want := range []string{
		"MINE=yes", "NOMAD_TASK_NAME=train", "NOMAD_META_other=thing", "NOMAD_META_ebbtide_goal=min",
		"template: train", "PYTHONUNBUFFERED=1", "NOMAD_ALLOC_ID=" + alloc.ID,
	} {
		must.StrContains(t, out, want)
	}
}

func testExecSessions(t *testing.T, c *cluster) {
	ctx := deadline(t, startDeadline)
	alloc := c.start(t, job{id: "exec", tasks: []task{shell("sleep 1000")}})

	out, errOut, code, err := c.agent.Exec(ctx, alloc, "train", false, nil, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
	must.NoError(t, err)
	must.Eq(t, "out\n", out)
	must.Eq(t, "err\n", errOut)
	must.Eq(t, 3, code)

	// A stream larger than any buffer, in both directions.
	in := strings.Repeat("0123456789abcde\n", 1<<15)
	out, _, code, err = c.agent.Exec(ctx, alloc, "train", false, strings.NewReader(in), "/bin/sh", "-c", "dd bs=4096 count=128 iflag=fullblock 2>/dev/null")
	must.NoError(t, err)
	must.Eq(t, 0, code)
	must.Eq(t, len(in), len(out))
	must.True(t, in == out)

	out, _, code, err = c.agent.Exec(ctx, alloc, "train", true, nil, "/bin/sh", "-c", "tty; echo done")
	must.NoError(t, err)
	must.Eq(t, 0, code)
	must.StrContains(t, out, "done")
	must.StrContains(t, out, "/dev/")

	// A missing command is an error, and the task keeps running. (Nomad 1.11.2's exec executor
	// hangs, and with it the task's stop.)
	if c.engine == "exec" {
		return
	}
	_, _, code, err = c.agent.Exec(ctx, alloc, "train", false, nil, "/no/such/command")
	must.True(t, err != nil || code != 0)
	again, _, err := c.agent.API.Allocations().Info(alloc.ID, nil)
	must.NoError(t, err)
	must.Eq(t, "running", again.TaskStates["train"].State)
}

func testSignal(t *testing.T, c *cluster) {
	ctx := deadline(t, startDeadline)
	alloc := c.start(t, job{id: "signal", tasks: []task{shell(`trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.1; done`)}})
	_, err := c.agent.WaitLog(ctx, alloc, "train", "stdout", "ready")
	must.NoError(t, err)
	must.NoError(t, c.agent.Signal(ctx, alloc, "train", "SIGUSR1"))
	_, err = c.agent.WaitLog(ctx, alloc, "train", "stdout", "got USR1")
	must.NoError(t, err)
}

func testStop(t *testing.T, c *cluster) {
	ctx := deadline(t, startDeadline)
	// To a file: Nomad's docker driver loses final output (hashicorp/nomad#6931).
	k := shell(`trap 'echo saved >$NOMAD_ALLOC_DIR/saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done`)
	k.body = "kill_signal = \"SIGTERM\"\nkill_timeout = \"60s\""
	alloc := c.start(t, job{id: "stop", tasks: []task{k}})
	_, err := c.agent.WaitLog(ctx, alloc, "train", "stdout", "ready")
	must.NoError(t, err)
	_, err = c.agent.API.Allocations().Stop(alloc, nil)
	must.NoError(t, err)
	alloc, err = c.agent.WaitAllocID(ctx, alloc.ID, "ended", harness.Terminal)
	must.NoError(t, err)
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus)
	saved, err := c.agent.API.AllocFS().Cat(alloc, "alloc/saved", (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	out, err := io.ReadAll(saved)
	must.NoError(t, errors.Join(err, saved.Close()))
	must.EqOp(t, "saved\n", string(out))
}

func testStopDeaf(t *testing.T, c *cluster) {
	ctx := deadline(t, startDeadline)
	k := shell(`trap '' TERM INT; echo ready; while :; do sleep 0.1; done`)
	k.body = "kill_signal = \"SIGTERM\"\nkill_timeout = \"1s\""
	alloc := c.start(t, job{id: "deaf", tasks: []task{k}})
	_, err := c.agent.WaitLog(ctx, alloc, "train", "stdout", "ready")
	must.NoError(t, err)
	pid := c.pid(t, alloc, "train")
	_, err = c.agent.API.Allocations().Stop(alloc, nil)
	must.NoError(t, err)
	alloc, err = c.agent.WaitAllocID(ctx, alloc.ID, "ended", harness.Terminal)
	must.NoError(t, err)
	must.False(t, harness.Alive(pid))
	must.NotNil(t, harness.FindEvent(alloc, "train", "Exit Code: 137"), must.Sprint(harness.Events(alloc, "train")))
}

func testRestart(t *testing.T, c *cluster) {
	ctx := deadline(t, startDeadline)
	alloc := c.start(t, job{id: "restart", tasks: []task{{args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-wait", "20ms", "-every", "1"}}}})
	c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool { return s.Reports > 20 })
	pid := c.pid(t, alloc, "train")
	must.NoError(t, c.agent.RestartTask(ctx, alloc, "train"))
	alloc, err := c.agent.WaitAllocID(ctx, alloc.ID, "restarted", func(a *api.Allocation) bool {
		ts := a.TaskStates["train"]
		return ts != nil && ts.State == "running" && ts.Restarts == 1
	})
	must.NoError(t, err)
	must.False(t, harness.Alive(pid))
	must.NotEq(t, pid, c.pid(t, alloc, "train"))
	// It is measured like a new task, and its history is appended to the same file.
	c.waitStatus(t, alloc, "train", "measured from the start", func(s status.Status) bool { return s.Reports > 5 && s.Step < 100000 && s.CPUSeconds > 0 })
}

func testRestartFailed(t *testing.T, c *cluster) {
	alloc := c.finish(t, job{id: "restart-failed", retry: true,
		group: "restart {\n attempts = 1\n delay = \"0s\"\n interval = \"10m\"\n mode = \"fail\"\n }\n reschedule {\n attempts = 0\n unlimited = false\n }",
		tasks: []task{shell("exit 4")}})
	must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
	must.Eq(t, 1, alloc.TaskStates["train"].Restarts)
}

func testExitCodes(t *testing.T, c *cluster) {
	alloc := c.finish(t, job{id: "exit-7", tasks: []task{shell("echo step=1 loss=2; exit 7")}})
	must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
	must.NotNil(t, harness.FindEvent(alloc, "train", "Exit Code: 7"), must.Sprint(harness.Events(alloc, "train")))

	alloc = c.finish(t, job{id: "exit-0", tasks: []task{{args: []string{"-model", "logreg", "-steps", "60", "-threads", "1", "-wait", "20ms", "-every", "1"}}}})
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus, must.Sprint(harness.Events(alloc, "train")))
	// An ended task's files remain, with its last figures.
	c.waitStatus(t, alloc, "train", "at its last step", func(s status.Status) bool { return s.Step == 60 && s.Reports == 60 })
}

func testOutOfMemory(t *testing.T, c *cluster) {
	killed := ""
	// Docker hears of the kernel's kill by an event, which may come after the container's exit: then it
	// tells Nomad of the exit code only.
	for try := 0; killed != "true" && try < 4; try++ {
		k := shell(`x=0123456789abcdef; while :; do x="$x$x"; done`)
		k.memory = 24
		alloc := c.finish(t, job{id: fmt.Sprint("oom-", try), tasks: []task{k}})
		must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
		for _, ev := range alloc.TaskStates["train"].Events {
			if ev.Type == api.TaskTerminated {
				killed = ev.Details["oom_killed"]
			}
		}
		must.True(t, killed == "true" || c.engine == "docker", must.Sprint(harness.Events(alloc, "train")))
		must.StrNotContains(t, fmt.Sprint(harness.Events(alloc, "train")), "with its fair share", must.Sprint("a failure saves no time"))
	}
	must.Eq(t, "true", killed)
}

func testHostVolume(t *testing.T, c *cluster) {
	k := shell("echo written by $NOMAD_ALLOC_ID > /volume/$NOMAD_JOB_ID")
	k.body = "volume_mount {\n volume = \"v\"\n destination = \"/volume\"\n}"
	alloc := c.finish(t, job{id: "volume", group: "volume \"v\" {\n type = \"host\"\n source = \"data\"\n}", tasks: []task{k}})
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus, must.Sprint(harness.Events(alloc, "train")))
	data, err := os.ReadFile(filepath.Join(c.agent.HostVolume("data"), "volume"))
	must.NoError(t, err)
	must.StrContains(t, string(data), alloc.ID)
}

// testPorts connects to a task through a dynamic port, mapped on a bridge or on the host.
func testPorts(t *testing.T, c *cluster) {
	k := shell("echo hello from $NOMAD_ALLOC_ID > local/index.html; exec busybox httpd -f -p 127.0.0.1:$NOMAD_PORT_http -h local")
	port := "port \"http\" {}"
	if c.engine == "docker" {
		if c.docker.Bridge == "" {
			t.Skip("no bridge here")
		}
		k = shell("echo hello from $NOMAD_ALLOC_ID > /local/index.html; exec busybox httpd -f -p 8080 -h /local")
		k.config = `ports = ["http"]`
		port = "port \"http\" {\n to = 8080\n}"
	}
	alloc := c.start(t, job{id: "ports", group: "network {\n " + port + "\n}", tasks: []task{k}})
	alloc, _, err := c.agent.API.Allocations().Info(alloc.ID, nil)
	must.NoError(t, err)
	must.Len(t, 1, alloc.AllocatedResources.Shared.Ports)
	p := alloc.AllocatedResources.Shared.Ports[0]
	must.Eq(t, "127.0.0.1", p.HostIP)
	client := &http.Client{Timeout: 5 * time.Second}
	eventually(t, "the task answers", func() error {
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/index.html", p.Value))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(body), alloc.ID) {
			err = fmt.Errorf("it says %s: %s", resp.Status, body)
		}
		return err
	})
}

// testGroupNetwork: two tasks share a network namespace.
func testGroupNetwork(t *testing.T, c *cluster) {
	if !c.cni {
		t.Skip(harness.ErrNoCNI)
	}
	server := shell("readlink /proc/self/ns/net; while :; do echo it works | nc -l -p 9999; done")
	server.name = "server"
	client := shell("readlink /proc/self/ns/net; until nc 127.0.0.1 9999 < /dev/null | grep works; do sleep 0.1; done; sleep 1000")
	client.name = "client"
	alloc := c.start(t, job{id: "group", group: "network {\n mode = \"cni/" + harness.CNINetwork + "\"\n}", tasks: []task{server, client}})
	ctx := deadline(t, startDeadline)
	fromClient, err := c.agent.WaitLog(ctx, alloc, "client", "stdout", "works")
	must.NoError(t, err)
	fromServer, err := c.agent.WaitLog(ctx, alloc, "server", "stdout", "net:")
	must.NoError(t, err)
	ns, _, _ := strings.Cut(fromServer, "\n")
	must.StrHasPrefix(t, ns, fromClient)
	host, err := os.Readlink("/proc/self/ns/net")
	must.NoError(t, err)
	must.NotEq(t, host, ns)
}

func testDevice(t *testing.T, c *cluster) {
	k := shell("cat /tmp/task-mounts/card0")
	k.body = "resources {\n cpu = 100\n memory = 64\n device \"nomad/file/mock\" {\n count = 1\n }\n}"
	if c.engine == "docker" {
		k.args[1] += "; ls /dev/mine && echo found"
		k.config = "devices = [{ host_path = \"/dev/null\", container_path = \"/dev/mine\", cgroup_permissions = \"rw\" }]"
	}
	eventually(t, "the node has the device", func() error {
		node, err := c.agent.Node(t.Context())
		if err == nil && len(node.NodeResources.Devices) == 0 {
			err = fmt.Errorf("it has none")
		}
		return err
	})
	k.cpu = -1                  // the body has the resources
	k.args[1] += "; sleep 1000" // a short container may lose its log: hashicorp/nomad#6931
	alloc := c.start(t, job{id: "device", tasks: []task{k}})
	says := []string{"a device"}
	if c.engine == "docker" {
		says = append(says, "found")
	}
	for _, text := range says {
		_, err := c.agent.WaitLog(deadline(t, stepDeadline), alloc, "train", "stdout", text)
		must.NoError(t, err)
	}
}

// testRotatedLogs reads progress across log rotations.
func testRotatedLogs(t *testing.T, c *cluster) {
	k := shell(`awk 'BEGIN { for (n = 1; n <= 40000; n++) { printf "step=%d total=40000 loss=%.5f %0100d\n", n, 9000 / n, 0 } fflush() }'; sleep 1000`)
	k.body = "logs {\n max_files = 2\n max_file_size = 1\n}"
	if c.engine == "docker" {
		// Docker's own log, by default 2 MiB, must not rotate too: Nomad's files could lack its end
		// on a busy machine.
		k.config = "logging {\n type = \"json-file\"\n config {\n max-size = \"64m\"\n }\n}"
	}
	alloc := c.start(t, job{id: "rotated", body: "", group: "ephemeral_disk {\n size = 20\n}", tasks: []task{k}})
	c.waitStatus(t, alloc, "train", "at its last step", func(s status.Status) bool { return s.Step == 40000 })
}

func testNoProgress(t *testing.T, c *cluster) {
	alloc := c.start(t, job{id: "no-progress", tasks: []task{shell("while :; do echo nothing to see here; sleep 0.2; done")}})
	c.waitEvent(t, alloc, "train", "ebbtide progress", "fair share")
	silenced := shell("while :; do echo loss=1; sleep 0.2; done")
	silenced.body = "logs {\n disabled = true\n }"
	alloc = c.start(t, job{id: "no-output", tasks: []task{silenced}})
	c.waitEvent(t, alloc, "train", "logs { disabled = true }")
}

// testDispatch runs a parameterized job to its objective, without any of its optional keys.
func testDispatch(t *testing.T, c *cluster) {
	const required = `"ebbtide_objective", "ebbtide_metric"`
	var optional []string
	for _, key := range options.MetaKeys() {
		if !strings.Contains(required, key) {
			optional = append(optional, quote(key))
		}
	}
	k := shell("for i in 9 8 7 6 5 4 3; do echo loss=0.$i; sleep 0.3; done; while :; do sleep 0.3; done")
	k.config = "target {\n stop_signal = \"SIGKILL\"\n }"
	j := job{id: "template", tasks: []task{k},
		body: "parameterized {\n meta_required = [" + required + "]\n meta_optional = [" + strings.Join(optional, ", ") + "]\n }"}
	must.StrContains(t, c.validate(t, c.hcl(j), 0), "0 errors, ")
	c.register(t, j)
	child, _, err := c.agent.API.Jobs().Dispatch(j.id, map[string]string{"ebbtide_objective": "0.5", "ebbtide_metric": "loss"}, nil, "", nil)
	must.NoError(t, err)
	t.Cleanup(func() { c.stop(t, child.DispatchedJobID) })
	alloc, err := c.agent.WaitTerminal(deadline(t, startDeadline), child.DispatchedJobID)
	must.NoError(t, err)
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus, must.Sprint(harness.Events(alloc, "train")))
	c.waitEvent(t, alloc, "train", "objective target ")
}

// Nomad does not expand a dynamic block in config, as ebbtide validate says. The agent's parser
// decides on fields that the linked one does not know.
func testDynamicConfig(t *testing.T, c *cluster) {
	k := shell("echo loss=1")
	k.config = "dynamic \"progress\" {\n for_each = [\"loss\"]\n content {\n metric = progress.value\n }\n }"
	j := job{id: "dynamic", tasks: []task{k}}
	must.StrContains(t, c.validate(t, c.hcl(j), 1), "error: dynamic/g/train: dynamic: Nomad does not expand")
	alloc := c.finish(t, j)
	must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
	c.waitEvent(t, alloc, "train", "dynamic")

	unknown := c.hcl(job{id: "unknown", body: "max_walk_duration = \"1h\"", tasks: []task{shell("echo loss=1")}})
	must.StrContains(t, c.validate(t, unknown, 1), `error: Unsupported argument; An argument named "max_walk_duration" is not expected here.`)
}

// validate runs ebbtide validate with the agent and returns its output.
func (c *cluster) validate(t *testing.T, hcl string, status int) string {
	t.Helper()
	cli, err := c.h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	cmd := exec.CommandContext(deadline(t, stepDeadline), cli, "validate", "-address", c.agent.Addr, "-")
	cmd.Stdin = strings.NewReader(hcl)
	out, _ := cmd.CombinedOutput()
	must.Eq(t, status, cmd.ProcessState.ExitCode(), must.Sprint(string(out)))
	return string(out)
}

func testDiverged(t *testing.T, c *cluster) {
	alloc := c.start(t, job{id: "diverged", tasks: []task{shell("for i in 9 8 7 6 5; do echo loss=$i; sleep 0.3; done; while :; do echo loss=nan; sleep 0.3; done")}})
	c.waitEvent(t, alloc, "train", "diverged")
	c.waitStatus(t, alloc, "train", "diverged", func(s status.Status) bool { return s.Diverged && s.Category == "CL" })
}

// testNothingLeft checks that ended tasks leave nothing behind.
func testNothingLeft(t *testing.T, c *cluster) {
	eventually(t, "nothing is left of ended tasks", func() error {
		cgroups, err := harness.TaskCgroups(c.agent)
		if err != nil {
			return err
		}
		if len(cgroups) > 0 {
			return fmt.Errorf("cgroups %v", cgroups)
		}
		if c.docker != nil {
			list, err := c.docker.Containers(t.Context(), "")
			if err != nil {
				return err
			}
			for _, x := range list {
				return fmt.Errorf("container %v is %s", x.Names, x.Status)
			}
		}
		return nil
	})
}
