// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// machine is an overlay of this Debian system, for installing packages.
type machine struct{ root string }

func newMachine(t *testing.T) machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(harness.ErrNotRoot)
	}
	dir := t.TempDir()
	mount := func(source, target, kind string, flags uintptr, options string) {
		t.Helper()
		must.NoError(t, os.MkdirAll(target, 0o755))
		if err := unix.Mount(source, target, kind, flags, options); err != nil {
			t.Skipf("mounting %s: %v", target, err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				t.Errorf("unmounting %s: %v", target, err)
			}
		})
	}
	memory, root := filepath.Join(dir, "memory"), filepath.Join(dir, "root")
	mount("ebbtide", memory, "tmpfs", 0, "mode=755")
	upper, work := filepath.Join(memory, "upper"), filepath.Join(memory, "work")
	must.NoError(t, os.Mkdir(upper, 0o755))
	must.NoError(t, os.Mkdir(work, 0o755))
	mount("ebbtide", root, "overlay", 0, fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", upper, work))
	mount("/dev", filepath.Join(root, "dev"), "", unix.MS_BIND, "")
	mount("proc", filepath.Join(root, "proc"), "proc", 0, "")
	return machine{root}
}

func (m machine) path(name string) string { return filepath.Join(m.root, name) }

func (m machine) run(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.Command("/usr/bin/env", argv...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", "HOME=/root"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root}
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%q: %s", argv, out))
	return string(out)
}

// install installs a package with its documentation.
func (m machine) install(t *testing.T, deb string) string {
	t.Helper()
	data, err := os.ReadFile(deb)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(m.path("tmp/ebbtide.deb"), data, 0o644))
	return m.run(t, "dpkg", "--path-include=/usr/share/*", "--install", "/tmp/ebbtide.deb")
}

// here runs the installed command on the host, where the agent runs.
func (m machine) here(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	cmd := exec.Command(m.path("usr/bin/ebbtide"), args...)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// plugins returns the installed driver's processes, including those of replaced files.
func (m machine) plugins(t *testing.T) (pids []string) {
	t.Helper()
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	must.NoError(t, err)
	for _, link := range exes {
		exe, err := os.Readlink(link)
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != m.path("opt/nomad/plugins/ebbtide-driver") {
			continue
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if err == nil && strings.Count(string(line), "\x00") == 1 {
			pids = append(pids, filepath.Base(filepath.Dir(link)))
		}
	}
	return pids
}

// TestPackage follows the documentation: plain Nomad, package, setup, restart, upgrade with a
// running job, removal.
func TestPackage(t *testing.T) {
	before, after := os.Getenv("EBBTIDE_DEB_BEFORE"), os.Getenv("EBBTIDE_DEB")
	if before == "" || after == "" {
		t.Skip("it needs two versions of the Debian package: make test-release builds them")
	}
	m := newMachine(t)
	if _, err := os.Stat(m.path("usr/bin/ebbtide")); err == nil {
		t.Skip("Ebbtide is installed here already")
	}
	h := newHarness(t)
	configs := m.path("etc/nomad.d")
	must.NoError(t, os.MkdirAll(configs, 0o755))
	agent, err := h.StartAgent(deadline(t, startDeadline), harness.AgentConfig{ConfigDir: configs})
	must.NoError(t, err)
	restart := func() {
		t.Helper()
		must.NoError(t, agent.Stop(deadline(t, stepDeadline)))
		must.NoError(t, agent.Restart(deadline(t, startDeadline)))
	}
	c := &cluster{h: h, agent: agent, engine: "exec", driver: "ebbtide"}

	// Installing does not change Nomad's configuration, and prints the next step.
	must.StrContains(t, m.install(t, before), "ebbtide setup ")
	version := func() string { return m.run(t, "dpkg-query", "-W", "-f", "${Version}", "ebbtide") }
	versionBefore := version()
	must.StrContains(t, m.run(t, "ebbtide", "version"), "ebbtide "+semantic(versionBefore))
	files := strings.Fields(m.run(t, "dpkg", "-L", "ebbtide"))
	must.SliceContainsSubset(t, files, []string{"/opt/nomad/plugins/ebbtide-gpu", "/usr/lib/ebbtide/libebbtide-cuda.so",
		"/usr/lib/systemd/system/ebbtide-shim.service", "/usr/share/doc/ebbtide/copyright", "/usr/share/doc/ebbtide/jobspecs/exec.hcl"})
	for _, name := range files {
		_, err := os.Stat(m.path(name))
		must.NoError(t, err)
	}
	must.Eq(t, "", m.run(t, "dpkg", "--verify", "ebbtide"))
	must.StrContains(t, m.run(t, "bash", "-c", ". /usr/share/bash-completion/completions/ebbtide && complete -p ebbtide"), "-F _ebbtide")
	if _, err := os.Stat(m.path("usr/bin/man")); err == nil {
		must.StrContains(t, m.run(t, "sh", "-c", "MANWIDTH=120 man ebbtide-shim-pause | col -b"), "ebbtide shim pause")
	}
	if _, err := os.Stat(m.path("usr/bin/systemd-analyze")); err == nil {
		must.Eq(t, "", m.run(t, "systemd-analyze", "verify", "/usr/lib/systemd/system/ebbtide-shim.service"))
	}

	setup := []string{"setup", "-config", configs, "-plugins", m.path("opt/nomad/plugins"), "-engine", "exec"}
	out, err := m.here(t, setup...)
	must.ErrorContains(t, err, "exit status 2") // no terminal
	must.StrContains(t, out, `+plugin "ebbtide-driver" {`)
	out, err = m.here(t, append(setup, "-yes")...)
	must.NoError(t, err, must.Sprint(out))
	restart()
	_, err = agent.WaitDriver(deadline(t, startDeadline), "ebbtide", true)
	must.NoError(t, err)
	doctor := func() {
		t.Helper()
		out, err := m.here(t, "doctor", "-config", configs)
		must.NoError(t, err, must.Sprint(out))
		must.StrContains(t, out, " 0 warn, 0 fail, ")
		must.StrContains(t, out, "version "+semantic(version()))
	}
	doctor()

	alloc := c.start(t, job{id: "package", tasks: []task{shell(`i=0; while :; do i=$((i+1)); echo "step=$i loss=$((10000/i))"; sleep 0.2; done`)}})
	pid := c.pid(t, alloc, "train")
	plugins := m.plugins(t)
	must.Len(t, 1, plugins)
	conffile := m.path("etc/ebbtide/shim.hcl")
	data, err := os.ReadFile(conffile)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(conffile, append(data, "dry_run = true\n"...), 0o644))
	must.StrContains(t, m.install(t, after), "Nomad runs the old plugins until it is restarted")
	must.NotEq(t, versionBefore, version())
	now, err := os.ReadFile(conffile)
	must.NoError(t, err)
	must.StrHasSuffix(t, "dry_run = true\n", string(now))
	must.True(t, harness.Alive(pid))
	must.Eq(t, plugins, m.plugins(t))
	// The old plugin keeps running; it executes the new file for other commands.
	short := c.finish(t, job{id: "package-short", tasks: []task{shell("echo step=1 loss=1")}})
	must.Eq(t, api.AllocClientStatusComplete, short.ClientStatus)

	out, err = m.here(t, setup...)
	must.NoError(t, err, must.Sprint(out))
	must.StrContains(t, out, "is up to date")
	restart()
	_, err = agent.WaitDriver(deadline(t, startDeadline), "ebbtide", true)
	must.NoError(t, err)
	must.True(t, harness.Alive(pid))
	from := c.waitStatus(t, alloc, "train", "with a step", func(st status.Status) bool { return st.Step > 0 })
	c.waitStatus(t, alloc, "train", "further", func(st status.Status) bool { return st.Step > from.Step })
	must.Eq(t, pid, c.pid(t, alloc, "train"))
	doctor()

	// After the documented removal, the restarted agent runs without it.
	c.stop(t, "package")
	m.run(t, "dpkg", "--remove", "ebbtide")
	restart()
	must.NoError(t, harness.Poll(deadline(t, startDeadline), "the node has registered without the driver", func(ctx context.Context) error {
		node, err := agent.Node(ctx)
		if err == nil && node.Drivers["ebbtide"] != nil && node.Drivers["ebbtide"].Healthy {
			err = errors.New("it has it")
		}
		return err
	}))
	m.run(t, "dpkg", "--purge", "ebbtide")
	for _, name := range append(files, "/etc/nomad.d/ebbtide.hcl", "/opt/nomad/plugins") {
		if !strings.Contains(strings.TrimPrefix(name, "/opt/nomad"), "ebbtide") && !strings.HasPrefix(name, "/opt/nomad/plugins") {
			continue // shared directories
		}
		_, err := os.Lstat(m.path(name))
		must.ErrorIs(t, err, os.ErrNotExist, must.Sprint(name))
	}
}

// semantic returns the program version of a Debian package's version.
func semantic(deb string) string {
	v, _, _ := strings.Cut(deb, "-")
	return strings.Replace(v, "~", "-", 1)
}
