// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestExecInspect(t *testing.T) {
	e := NewExec()
	h := drivers.NewTaskHandle(1)
	h.Config = &drivers.TaskConfig{Name: "train", AllocID: "alloc"}
	must.NoError(t, h.SetDriverState(map[string]any{"Pid": os.Getpid()}))
	st, err := e.Inspect(t.Context(), h)
	must.NoError(t, err)
	must.Eq(t, State{Running: true, PID: os.Getpid()}, st)
	must.NoError(t, h.SetDriverState(map[string]any{"Pid": 0}))
	_, err = e.Inspect(t.Context(), h)
	must.ErrorIs(t, err, ErrGone)
	name, err := e.CgroupName(h)
	must.NoError(t, err)
	must.Eq(t, "alloc.train", name)
}

// TestExecFence needs root and a writable cgroup hierarchy.
func TestExecFence(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "train", AllocID: "ebbtide-fence-" + strconv.Itoa(os.Getpid())}
	dir := execCgroup(cfg)
	if dir == "" || os.Geteuid() != 0 {
		t.Skip("needs root and cgroups")
	}
	e := NewExec()
	note, err := e.Prepare(t.Context(), cfg)
	must.NoError(t, err)
	must.Eq(t, "", note, must.Sprint("no cgroup, no earlier copy"))

	parentWasThere := exists(filepath.Dir(dir))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("cannot make a cgroup: %v", err)
	}
	t.Cleanup(func() {
		_ = os.Remove(dir)
		if !parentWasThere {
			_ = os.Remove(filepath.Dir(dir))
		}
	})
	earlier := exec.Command("sleep", "1000")
	must.NoError(t, earlier.Start())
	t.Cleanup(func() { _ = earlier.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- earlier.Wait() }()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(earlier.Process.Pid)), 0o644))

	note, err = e.Prepare(t.Context(), cfg)
	must.NoError(t, err)
	must.StrContains(t, note, "earlier copy")
	<-ended
	must.ErrorIs(t, unix.Kill(earlier.Process.Pid, 0), unix.ESRCH)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
