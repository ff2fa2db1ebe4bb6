// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

// Package e2e tests Ebbtide on real Nomad agents and Docker daemons; see README.md for how to
// run it.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// Deadlines are generous for loaded machines; passing tests wait for events only.
const (
	startDeadline = 5 * time.Minute // start of an agent, a daemon or a task
	stepDeadline  = 2 * time.Minute // any short step
)

// newHarness fails the test if it leaves processes, mounts or files behind.
func newHarness(t *testing.T) *harness.Harness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(harness.ErrNotRoot)
	}
	h, err := harness.New(harness.Options{Logf: t.Logf})
	must.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			var text strings.Builder
			h.WriteLogs(&text, 40)
			t.Log(text.String())
			if dir := os.Getenv("EBBTIDE_E2E_LOGS"); dir != "" {
				if err := h.CopyLogs(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-"))); err != nil {
					t.Log(err)
				}
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// cluster is an agent with the plugin, and a Docker daemon for that engine.
type cluster struct {
	h      *harness.Harness
	agent  *harness.Agent
	docker *harness.Docker
	engine string // "exec" or "docker"
	driver string // as named in jobs
	cni    bool   // supports group networks
}

type clusterOptions struct {
	settings   map[string]string // the plugin's options, as HCL literals
	driver     string            // "" for "ebbtide"; a stock driver needs no plugin
	docker     harness.DockerOptions
	daemon     *harness.Docker // shared with another cluster
	dangling   string          // docker's gc.dangling_containers
	dockerMore string          // more options for docker
	agent      harness.AgentConfig
	cni        bool // require support for group networks
}

func newCluster(t *testing.T, h *harness.Harness, engine string, opts clusterOptions) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startDeadline+10*time.Minute) // the first run builds
	defer cancel()
	c := &cluster{h: h, engine: engine, driver: opts.driver, docker: opts.daemon}
	if c.driver == "" {
		c.driver = "ebbtide"
	}
	if opts.cni {
		hcl, err := h.CNI(ctx)
		if err != nil {
			t.Log(err)
		}
		opts.agent.ClientHCL += hcl
		c.cni = err == nil
	}
	inner := ""
	if engine == "docker" {
		if c.docker == nil {
			var err error
			c.docker, err = h.StartDocker(ctx, opts.docker)
			if errors.Is(err, harness.ErrNoDocker) {
				t.Skip(err)
			}
			must.NoError(t, err)
			must.NoError(t, c.docker.ImportImages(ctx))
		}
		inner = c.docker.PluginConfig(opts.dangling, opts.dockerMore)
	}
	settings := map[string]string{"engine": quote(engine), "interval": `"2s"`}
	for k, v := range opts.settings {
		settings[k] = v
	}
	if opts.agent.PluginName == "" && c.driver == "ebbtide" {
		opts.agent.PluginName = "ebbtide-driver"
		opts.agent.Plugin = assignments(settings)
		if inner != "" {
			opts.agent.Plugin += "docker {\n" + inner + "\n}\n"
		}
	}
	var err error
	c.agent, err = h.StartAgent(ctx, opts.agent)
	must.NoError(t, err)
	_, err = c.agent.WaitDriver(ctx, c.driver, true)
	must.NoError(t, err)
	return c
}

// assignments formats HCL attributes in a fixed order.
func assignments(values map[string]string) string {
	var keys []string
	for k := range values {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s = %s\n", k, values[k])
	}
	return b.String()
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

type task struct {
	name    string // "" for "train"
	command string // "" for the trainer
	args    []string
	config  string // more HCL in config
	body    string // more HCL in the task
	env     map[string]string
	meta    map[string]string
	cpu     int // MHz; 0 for 100, negative if the body has a resources block
	memory  int // MiB; 0 for 64
}

type job struct {
	id    string
	body  string // more HCL in the job
	group string // more HCL in the group
	retry bool   // Nomad's default restart policy instead of none
	tasks []task
}

func (c *cluster) hcl(j job) string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %q {\n  type = \"batch\"\n%s\n  group \"g\" {\n", j.id, j.body)
	if !j.retry {
		b.WriteString("    restart {\n attempts = 0\n mode = \"fail\"\n }\n reschedule {\n attempts = 0\n unlimited = false\n }\n")
	}
	b.WriteString(j.group + "\n")
	for _, k := range j.tasks {
		if k.name == "" {
			k.name = "train"
		}
		if k.command == "" {
			k.command = "/bin/trainer"
		}
		if k.cpu == 0 {
			k.cpu = 100
		}
		if k.memory == 0 {
			k.memory = 64
		}
		image := ""
		if c.engine == "docker" {
			image = fmt.Sprintf("image = %q", harness.Image)
		}
		args, _ := json.Marshal(append([]string{}, k.args...))
		fmt.Fprintf(&b, "task %q {\n driver = %q\n config {\n %s\n command = %q\n args = %s\n %s\n }\n", k.name, c.driver, image, k.command, hclEscape(string(args)), k.config)
		if k.cpu > 0 {
			fmt.Fprintf(&b, "resources {\n cpu = %d\n memory = %d\n }\n", k.cpu, k.memory)
		}
		for block, values := range map[string]map[string]string{"env": k.env, "meta": k.meta} {
			if len(values) > 0 {
				quoted := make(map[string]string)
				for n, v := range values {
					quoted[n] = quote(v)
				}
				fmt.Fprintf(&b, "%s {\n%s}\n", block, assignments(quoted))
			}
		}
		b.WriteString(k.body + "\n}\n")
	}
	b.WriteString("  }\n}\n")
	return b.String()
}

// hclEscape prevents HCL from interpolating "${…}" in commands.
func hclEscape(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(s)
}

func shell(script string) task {
	return task{command: "/bin/sh", args: []string{"-c", script}}
}

// eligible sets a node's scheduling eligibility.
func (c *cluster) eligible(t *testing.T, on *cluster, yes bool) {
	t.Helper()
	eligible(t, c.agent, on.agent.NodeID(), yes)
}

// eligible sets a node's scheduling eligibility through an agent.
func eligible(t *testing.T, by *harness.Agent, node string, yes bool) {
	t.Helper()
	_, err := by.API.Nodes().ToggleEligibility(node, yes, nil)
	must.NoError(t, err)
}

// start registers a job and waits until it runs. The job is stopped when the test ends.
func (c *cluster) start(t *testing.T, j job) *api.Allocation {
	t.Helper()
	c.register(t, j)
	alloc, err := c.agent.WaitRunning(deadline(t, startDeadline), j.id)
	must.NoError(t, err)
	return alloc
}

// register registers a job, which is stopped when the test ends.
func (c *cluster) register(t *testing.T, j job) {
	t.Helper()
	_, err := c.agent.Run(deadline(t, stepDeadline), c.hcl(j))
	must.NoError(t, err)
	t.Cleanup(func() { c.stop(t, j.id) })
}

// finish registers a job and waits for its end.
func (c *cluster) finish(t *testing.T, j job) *api.Allocation {
	t.Helper()
	c.register(t, j)
	alloc, err := c.agent.WaitTerminal(deadline(t, startDeadline), j.id)
	must.NoError(t, err)
	return alloc
}

// stop is also used in clean-ups, after the test's context has ended.
func (c *cluster) stop(t *testing.T, jobID string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	if err := c.agent.StopJob(ctx, jobID); err != nil {
		t.Errorf("stopping %s: %v", jobID, err)
	}
}

// pid returns a task's main process on the host.
func (c *cluster) pid(t *testing.T, alloc *api.Allocation, task string) int {
	t.Helper()
	var pid int
	must.NoError(t, harness.Poll(deadline(t, stepDeadline), "the task has a process", func(ctx context.Context) (err error) {
		if c.engine == "docker" {
			pid, err = c.docker.PID(ctx, alloc.ID, task)
			return err
		}
		pids, err := harness.TaskPIDs(alloc.ID, task)
		if err == nil {
			pid = pids[0]
		}
		return err
	}))
	return pid
}

func kernel(t *testing.T, pid int) harness.Kernel {
	t.Helper()
	k, err := harness.ReadKernel(pid)
	must.NoError(t, err)
	return k
}

func (c *cluster) status(t *testing.T, alloc *api.Allocation, task string) (status.Status, error) {
	t.Helper()
	var st status.Status
	data, err := c.agent.Cat(deadline(t, stepDeadline), alloc, "alloc/data/ebbtide/"+task+".json")
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("%w: %.100q", err, data)
	}
	return st, nil
}

func (c *cluster) waitStatus(t *testing.T, alloc *api.Allocation, task, what string, want func(status.Status) bool) status.Status {
	t.Helper()
	var st status.Status
	must.NoError(t, harness.Poll(deadline(t, startDeadline), "the status of "+task+" is "+what, func(context.Context) (err error) {
		if st, err = c.status(t, alloc, task); err != nil {
			return err
		}
		if !want(st) {
			seen, err := json.Marshal(st)
			return errors.Join(fmt.Errorf("it is %s", seen), err)
		}
		return nil
	}))
	return st
}

// waitEvent waits for a task event containing each of the texts.
func (c *cluster) waitEvent(t *testing.T, alloc *api.Allocation, task string, texts ...string) *api.TaskEvent {
	t.Helper()
	ev, err := c.agent.WaitEvent(deadline(t, startDeadline), alloc.ID, task, texts[0])
	must.NoError(t, err)
	for _, text := range texts[1:] {
		must.StrContains(t, harness.EventText(ev), text)
	}
	return ev
}

func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	must.NoError(t, harness.Poll(deadline(t, startDeadline), what, func(context.Context) error { return check() }))
}
