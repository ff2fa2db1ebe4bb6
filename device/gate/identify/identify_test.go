// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package identify

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
)

const (
	alloc = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
	other = "11111111-2222-3333-4444-555555555555"
)

var (
	container = strings.Repeat("0123456789abcdef", 4)
	env       = "NOMAD_ALLOC_ID=" + alloc + "\x00NOMAD_TASK_NAME=train\x00NOMAD_JOB_ID=bert\x00NOMAD_GROUP_NAME=g\x00" +
		"NOMAD_NAMESPACE=research\x00NOMAD_META_ebbtide_priority=70\x00NOMAD_META_EBBTIDE_PRIORITY=70\x00"
)

func mountinfo(alloc, task string) string {
	return fmt.Sprintf("1 0 0:50 / / rw - overlay overlay rw\n"+
		"2 1 8:1 /opt/nomad/data/alloc/%[1]s/alloc /alloc rw,relatime - ext4 /dev/sda1 rw\n"+
		"3 1 8:1 /opt/nomad/data/alloc/%[1]s/%[2]s/local /local rw,relatime - ext4 /dev/sda1 rw\n", alloc, task)
}

func fake(t *testing.T, cgroup, mounts, environ string) Finder {
	dir := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(dir, "7"), 0o700))
	for name, text := range map[string]string{
		"stat":   "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 0\n",
		"cgroup": cgroup, "mountinfo": mounts, "environ": environ,
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "7", name), []byte(text), 0o600))
	}
	return Finder{Proc: dir}
}

func TestProcess(t *testing.T) {
	full := Container{
		Alloc: alloc, Task: "train", Job: "bert", Group: "g", Namespace: "research",
		Meta: map[string]string{"ebbtide_priority": "70"},
	}
	for name, tc := range map[string]struct{ cgroup, mounts, id string }{
		"exec on v1":           {"4:memory:/nomad/" + alloc + ".train\n0::/\n", "", alloc + ".train"},
		"exec on v2":           {"0::/nomad.slice/share.slice/" + alloc + ".train.scope\n", "", alloc + ".train"},
		"docker, cgroupfs":     {"4:memory:/docker/" + container + "\n", mountinfo(alloc, "train"), container},
		"docker, systemd":      {"0::/system.slice/docker-" + container + ".scope\n", mountinfo(alloc, "train"), container},
		"docker, no mounts":    {"0::/system.slice/docker-" + container + ".scope\n", "", container},
		"podman":               {"0::/machine.slice/libpod-" + container + ".scope/container\n", "", container},
		"a cgroup made inside": {"0::/docker/" + container + "/" + other + ".train.scope\n", "", container},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := fake(t, tc.cgroup, tc.mounts, env).Process(7)
			must.NoError(t, err)
			want := full
			want.ID = tc.id
			must.Eq(t, Process{PID: 7, Start: 4711, Container: want}, p)
		})
	}
}

// The driver's identity of a task takes precedence over its processes' claims. Without one there
// are only the claims.
func TestProcess_identity(t *testing.T) {
	is := handoff.Identity{Job: "vae", Group: "h", Namespace: "ml", Meta: map[string]string{"ebbtide_priority": "10"}, Cards: []string{"GPU-1"}}
	tasks := t.TempDir()
	must.NoError(t, handoff.WriteIdentity(handoff.IdentityPath(tasks, alloc, "train"), is))
	find := func(cgroup, mounts string) Container {
		f := fake(t, cgroup, mounts, env)
		f.Tasks = tasks
		p, err := f.Process(7)
		must.NoError(t, err)
		return p.Container
	}
	want := Container{Alloc: alloc, Task: "train", Job: "vae", Group: "h", Namespace: "ml", Meta: is.Meta, Cards: is.Cards}
	for id, c := range map[string]Container{
		alloc + ".train": find("4:memory:/nomad/"+alloc+".train\n0::/\n", ""),
		container:        find("4:memory:/docker/"+container+"\n", mountinfo(alloc, "train")),
	} {
		want.ID = id
		must.Eq(t, want, c)
	}
	c := find("4:memory:/docker/"+container+"\n", "")
	must.Eq(t, "bert", c.Job)
	must.Nil(t, c.Cards)
	must.NoError(t, handoff.RemoveIdentity(handoff.IdentityPath(tasks, alloc, "train")))
	must.NoError(t, handoff.RemoveIdentity(handoff.IdentityPath(tasks, alloc, "train")))
	must.Eq(t, "bert", find("4:memory:/nomad/"+alloc+".train\n0::/\n", "").Job)
}

func TestProcess_bounded(t *testing.T) {
	long := "NOMAD_ALLOC_ID=" + alloc + "\x00NOMAD_TASK_NAME=train\x00NOMAD_JOB_ID=" + strings.Repeat("x", 5000) + "\x00"
	for i := range 1000 {
		long += fmt.Sprintf("NOMAD_META_ebbtide_%d=1\x00NOMAD_META_ebbtide_long%d=%s\x00", i, i, strings.Repeat("y", 2000))
	}
	p, err := fake(t, "0::/docker/"+container+"\n", "", long).Process(7)
	must.NoError(t, err)
	must.Eq(t, "", p.Container.Job)
	must.MapLen(t, maxMeta, p.Container.Meta)
	must.Eq(t, "1", p.Container.Meta["ebbtide_0"])
}

func TestProcess_rejects(t *testing.T) {
	docker := "0::/docker/" + container + "\n"
	for name, tc := range map[string]struct {
		cgroup, mounts, env string
		want                error
	}{
		"on the host":                 {"0::/user.slice/session-1.scope\n", "", env, ErrStranger},
		"no cgroup at all":            {"", "", env, ErrStranger},
		"not Nomad's":                 {docker, "", "PATH=/bin\x00", ErrStranger},
		"another allocation's":        {"0::/nomad/" + other + ".train\n", "", env, ErrContradiction},
		"another task's":              {"0::/nomad/" + alloc + ".serve\n", "", env, ErrContradiction},
		"another's, by the mounts":    {docker, mountinfo(other, "train"), env, ErrContradiction},
		"a task's, by the mounts":     {docker, mountinfo(alloc, "serve"), env, ErrContradiction},
		"two cgroups":                 {"1:cpu:/docker/" + container + "\n2:memory:/nomad/" + alloc + ".train\n", "", env, ErrContradiction},
		"exec, mounts of another one": {"0::/nomad/" + alloc + ".train\n", mountinfo(other, "train"), env, ErrContradiction},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := fake(t, tc.cgroup, tc.mounts, tc.env).Process(7)
			must.ErrorIs(t, err, tc.want)
		})
	}
	_, err := Finder{Proc: t.TempDir()}.Process(7)
	must.ErrorIs(t, err, ErrGone)
}

// The kernel identifies the client; it turns out that this test is in no container.
func TestIdentify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	must.NoError(t, err)
	defer l.Close()
	client, err := net.Dial("unix", path)
	must.NoError(t, err)
	defer client.Close()
	conn, err := l.Accept()
	must.NoError(t, err)
	defer conn.Close()

	_, _, err = Finder{}.Identify(conn.(*net.UnixConn), nil)
	must.ErrorIs(t, err, ErrStranger)
	must.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))

	cred, handle, err := open(conn.(*net.UnixConn))
	must.NoError(t, err)
	defer handle.Close()
	must.Eq(t, os.Getpid(), int(cred.Pid))
	must.False(t, handle.ended())
}

// The test binary connects from a cgroup like those of Nomad's exec driver.
func TestMain(m *testing.M) {
	if path := os.Getenv("PEER_TEST_SOCKET"); path != "" {
		_, _ = fmt.Scanln() // until it is in its cgroup
		if conn, err := net.Dial("unix", path); err == nil {
			_, _ = conn.Read(make([]byte, 1))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestIdentify_cgroup(t *testing.T) {
	var cgroup string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(root, alloc+".train.scope")
		if os.Mkdir(dir, 0o755) == nil {
			cgroup = dir
			break
		}
	}
	if cgroup == "" {
		t.Skip("no cgroup can be made here: that needs root")
	}
	// Poll until the kernel has seen the process's exit.
	defer func() {
		for range 1000 {
			if os.Remove(cgroup) == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Errorf("the cgroup %s is left", cgroup)
	}()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	must.NoError(t, err)
	defer l.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(strings.Split(strings.TrimSuffix(env, "\x00"), "\x00"), "PEER_TEST_SOCKET="+path)
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	must.NoError(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	_, err = fmt.Fprintln(in)
	must.NoError(t, err)
	conn, err := l.Accept()
	must.NoError(t, err)
	defer conn.Close()

	var admitted string
	p, h, err := Finder{}.Identify(conn.(*net.UnixConn), func(id string) error { admitted = id; return nil })
	must.NoError(t, err)
	defer h.Close()
	must.Eq(t, cmd.Process.Pid, p.PID)
	must.Eq(t, alloc+".train", p.Container.ID)
	must.Eq(t, admitted, p.Container.ID)
	must.Eq(t, "bert", p.Container.Job)
	must.NoError(t, cmd.Process.Kill())
	must.NoError(t, h.Wait())
}

func TestHandle(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
	start, err := Finder{}.Start(cmd.Process.Pid)
	must.NoError(t, err)
	h, err := Finder{}.Open(cmd.Process.Pid, start)
	must.NoError(t, err)
	defer h.Close()
	closed, err := Finder{}.Open(cmd.Process.Pid, start)
	must.NoError(t, err)
	_, err = Finder{}.Open(cmd.Process.Pid, start+1)
	must.ErrorIs(t, err, ErrGone, must.Sprint("another process with that pid"))

	gone, given := make(chan error, 1), make(chan error, 1)
	go func() { gone <- h.Wait() }()
	go func() { given <- closed.Wait() }()
	closed.Close()
	must.Error(t, <-given)
	select {
	case err := <-gone:
		t.Fatal("it runs:", err)
	default:
	}
	must.NoError(t, h.Kill())
	must.NoError(t, <-gone)
	must.True(t, h.ended()) // a zombie
	must.Error(t, cmd.Wait())
	must.NoError(t, h.Kill(), must.Sprint("it has ended"))
	_, err = Finder{}.Open(cmd.Process.Pid, start)
	must.ErrorIs(t, err, ErrGone)
}

// Two runs of a job have the same arguments: those of the container's first process, less what
// differs between allocations.
func TestProcess_arguments(t *testing.T) {
	docker := "0::/system.slice/docker-" + container + ".scope\n"
	write := func(f Finder, pid int, parent int, cgroup, cmdline string) {
		dir := filepath.Join(f.Proc, strconv.Itoa(pid))
		must.NoError(t, os.MkdirAll(dir, 0o700))
		for name, text := range map[string]string{
			"stat":   fmt.Sprintf("%d (a) S %d 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 0\n", pid, parent),
			"cgroup": cgroup, "cmdline": cmdline,
		} {
			must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
	arguments := func(worker, first, outside string) string {
		t.Helper()
		f := fake(t, docker, "", env)
		write(f, 7, 6, docker, worker)
		write(f, 6, 5, docker, first)
		write(f, 5, 4, "0::/system.slice/containerd.service\n", outside)
		p, err := f.Process(7)
		must.NoError(t, err)
		return p.Container.Arguments
	}
	is := arguments("worker\x000\x00", "train\x00--token=secret\x00", "shim\x00")
	must.Eq(t, 32, len(is))
	must.StrNotContains(t, is, "secret")
	must.Eq(t, is, arguments("worker\x001\x00", "train\x00--token=secret\x00", "another shim\x00"))
	must.NotEq(t, is, arguments("worker\x000\x00", "train\x00--token=other\x00", "shim\x00"))
	must.NotEq(t, is, arguments("worker\x000\x00", "train\x00--token=secret\x00x\x00", "shim\x00"))
	must.Eq(t, arguments("", "train\x00/alloc/x\x00", ""), arguments("", "train\x00/alloc/"+alloc+"x\x00", ""))
	must.Eq(t, "", arguments("worker\x00", "", "shim\x00"), must.Sprint("a zombie has none"))

	// A loop of parents, impossible on a host, ends.
	f := fake(t, docker, "", env)
	write(f, 7, 6, docker, "a\x00")
	write(f, 6, 7, docker, "a\x00")
	_, err := f.Process(7)
	must.NoError(t, err)
}

func FuzzContainer(f *testing.F) {
	f.Add("0::/docker/"+container+"\n", mountinfo(alloc, "train"), []byte(env))
	f.Add("4:memory:/nomad/"+alloc+".train\n", "", []byte("=\x00=\x00"))
	f.Fuzz(func(t *testing.T, cgroups, mounts string, environ []byte) {
		c, err := fromCgroups(cgroups)
		if err != nil {
			return
		}
		id, a := c.ID, c.Alloc
		if c.merge(fromMounts(mounts)) != nil || c.merge(fromEnviron(environ)) != nil {
			return
		}
		must.Eq(t, id, c.ID)
		must.True(t, a == "" || a == c.Alloc)
	})
}
