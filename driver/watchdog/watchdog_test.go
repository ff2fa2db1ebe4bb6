// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package watchdog

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
)

const (
	helperEnv = "EBBTIDE_WATCHDOG_HELPER"
	dirEnv    = "EBBTIDE_WATCHDOG_DIR"

	taskName = "train"

	run   = "alloc/train/1"
	lease = 3 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "":
		os.Exit(m.Run())
	case "task": // answers while not frozen
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "plugin": // starts a watchdog and is killed
		if err := Start(context.Background(), os.Getenv(dirEnv), taskName, run); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("started")
		time.Sleep(time.Hour)
	}
}

func helper(t *testing.T, kind, dir string) (cmd *exec.Cmd, stdin io.Writer, stdout io.Reader) {
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+kind, dirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	stdout, err = cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, stdin, stdout
}

type task struct {
	*testing.T
	cgroup *limits.Cgroup
	stdin  io.Writer
	stdout io.Reader
	dir    string // of the allocation
}

func newTask(t *testing.T) *task {
	t.Helper()
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to make cgroups")
	}
	const root = "/sys/fs/cgroup"
	mounts := []string{root}
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		mounts = []string{root + "/cpu", root + "/freezer"}
	}
	tk := &task{T: t, dir: filepath.Join(t.TempDir(), "alloc")}
	must.NoError(t, os.Mkdir(tk.dir, 0o755))
	group := fmt.Sprintf("ebbtide-watchdog-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, mount := range mounts {
		dir := filepath.Join(mount, group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("skipped: no cgroups: %v", err)
		}
		t.Cleanup(func() {
			must.Wait(t, eventually(func() bool { return unix.Rmdir(dir) == nil }))
		})
	}
	cmd, stdin, stdout := helper(t, "task", "")
	for _, mount := range mounts {
		must.NoError(t, os.WriteFile(filepath.Join(mount, group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	}
	var err error
	tk.cgroup, err = limits.FindFor(cmd.Process.Pid, group)
	must.NoError(t, err)
	t.Cleanup(func() { _ = tk.cgroup.Kill() })
	tk.stdin, tk.stdout = stdin, stdout
	tk.waitRunning()
	return tk
}

func eventually(f func() bool) *wait.Constraint {
	return wait.InitialSuccess(wait.BoolFunc(f), wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond))
}

func (t *task) waitRunning() {
	t.Helper()
	_, err := t.stdin.Write([]byte{'x'})
	must.NoError(t, err)
	_, err = io.ReadFull(t.stdout, make([]byte, 1))
	must.NoError(t, err)
}

func (t *task) recordFreeze(run string, until time.Time) {
	t.Helper()
	rec := private.Record{Frozen: &private.Frozen{Run: run, Cgroup: t.cgroup.FreezerDir(), Until: until}}
	must.NoError(t, private.Update(t.dir, taskName, func(r *private.Record) { *r = rec }))
}

func (t *task) freeze() {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.NoError(t, t.cgroup.Freeze(ctx))
}

func (t *task) frozen() bool {
	t.Helper()
	frozen, err := t.cgroup.Frozen()
	must.NoError(t, err)
	return frozen
}

// waitThawed waits until the task is thawed and fails if that is before its time.
func (t *task) waitThawed(until time.Time) {
	t.Helper()
	must.Wait(t, eventually(func() bool { return !t.frozen() }))
	must.False(t, time.Now().Before(until), must.Sprint("it was thawed within its lease"))
	if !until.IsZero() {
		t.Logf("thawed %v after the end of its lease", time.Since(until))
	}
	t.waitRunning()
}

func (t *task) record() string { return filepath.Join(t.dir, private.DirName, taskName+".record") }

func (t *task) watchdogs() (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must.NoError(t, err)
	for _, file := range files {
		line, _ := os.ReadFile(file)
		if bytes.HasSuffix(line, []byte("\x00"+arg+"\x00"+t.dir+"\x00"+taskName+"\x00"+run+"\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func (t *task) waitForEnd() {
	t.Helper()
	must.Wait(t, eventually(func() bool { return len(t.watchdogs()) == 0 }))
}

// The plugin's process group is killed: the task is thawed when its lease expires, also
// a renewed one, and with two watchdogs.
func TestWatchdog_pluginKilled(t *testing.T) {
	for name, extended := range map[string]time.Duration{"lease": 0, "extended lease": lease} {
		t.Run(name, func(t *testing.T) {
			tk := newTask(t)
			until := time.Now().Add(lease)
			tk.recordFreeze(run, until)
			plugin, _, stdout := helper(t, "plugin", tk.dir)
			_, err := io.ReadFull(stdout, make([]byte, len("started\n")))
			must.NoError(t, err)
			tk.freeze()
			must.Eq(t, 1, len(tk.watchdogs()))
			if extended > 0 {
				must.NoError(t, Start(t.Context(), tk.dir, taskName, run))
				until = until.Add(extended)
				tk.recordFreeze(run, until)
			}
			must.NoError(t, unix.Kill(-plugin.Process.Pid, unix.SIGKILL))
			_ = plugin.Wait()
			must.True(t, tk.frozen())
			tk.waitThawed(until)
			tk.waitForEnd()
		})
	}
}

// The plugin is killed between freezing the task and recording it.
func TestWatchdog_pluginKilledWhileFreezing(t *testing.T) {
	tk := newTask(t)
	rec := private.Record{Frozen: &private.Frozen{Run: run, Cgroup: tk.cgroup.FreezerDir(), State: status.MoveSaving, Until: time.Now().Add(time.Hour)}}
	must.NoError(t, private.Update(tk.dir, taskName, func(r *private.Record) { *r = rec }))
	plugin, _, stdout := helper(t, "plugin", tk.dir)
	_, err := io.ReadFull(stdout, make([]byte, len("started\n")))
	must.NoError(t, err)
	tk.freeze()
	must.NoError(t, unix.Kill(-plugin.Process.Pid, unix.SIGKILL))
	_ = plugin.Wait()
	tk.waitThawed(time.Time{})
	tk.waitForEnd()
}

// A watchdog ends, without thawing, once its freeze is released.
func TestWatchdog_released(t *testing.T) {
	for name, change := range map[string]func(*task){
		"released": func(t *task) {
			must.NoError(t, private.Update(t.dir, taskName, func(r *private.Record) { *r = private.Record{} }))
		},
		"another run":  func(t *task) { t.recordFreeze("alloc/train/2", time.Now()) },
		"disk removed": func(t *task) { must.NoError(t, os.RemoveAll(filepath.Join(t.dir, private.DirName))) },
	} {
		t.Run(name, func(t *testing.T) {
			tk := newTask(t)
			tk.recordFreeze(run, time.Now().Add(time.Hour))
			must.NoError(t, Start(t.Context(), tk.dir, taskName, run))
			must.Eq(t, 1, len(tk.watchdogs()))
			tk.freeze()
			change(tk)
			tk.waitForEnd()
			must.True(t, tk.frozen())
		})
	}
}

func TestWatchdog_unreadable(t *testing.T) {
	tk := newTask(t)
	until := time.Now().Add(lease)
	tk.recordFreeze(run, until)
	must.NoError(t, Start(t.Context(), tk.dir, taskName, run))
	tk.freeze()
	must.NoError(t, os.WriteFile(tk.record(), []byte("{"), 0o600))
	tk.waitThawed(until)
	tk.waitForEnd()
}

// A watchdog that does not start is an error: no task is frozen without one.
func TestWatchdog_doesNotStart(t *testing.T) {
	tk := &task{T: t, dir: t.TempDir()}
	must.ErrorContains(t, Start(t.Context(), tk.dir, taskName, run), "waiting for the watchdog")
	must.NoError(t, os.Mkdir(filepath.Join(tk.dir, private.DirName), 0o700))
	must.NoError(t, os.WriteFile(tk.record(), []byte("{"), 0o600))
	must.ErrorContains(t, Start(t.Context(), tk.dir, taskName, run), "waiting for the watchdog")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.ErrorIs(t, Start(ctx, tk.dir, taskName, run), context.Canceled)
	tk.waitForEnd()
}

// The watchdog has its own session and inherits only the three streams.
func TestWatchdog_isolated(t *testing.T) {
	tk := newTask(t)
	tk.recordFreeze(run, time.Now().Add(time.Hour))
	must.NoError(t, Start(t.Context(), tk.dir, taskName, run))
	pid := tk.watchdogs()[0]
	n, err := strconv.Atoi(pid)
	must.NoError(t, err)
	sid, err := unix.Getsid(n)
	must.NoError(t, err)
	must.Eq(t, n, sid)
	env, err := os.ReadFile("/proc/" + pid + "/environ")
	must.NoError(t, err)
	must.Eq(t, "", string(env))
	fds, err := filepath.Glob("/proc/" + pid + "/fd/*")
	must.NoError(t, err)
	for _, fd := range fds {
		target, _ := os.Readlink(fd)
		ours := target == "" || target == "/dev/null" || filepath.Base(fd) == "1" ||
			strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/sys/fs/cgroup/") // the Go runtime's
		must.True(t, ours || strings.HasPrefix(target, tk.dir), must.Sprintf("%s → %s", fd, target))
	}
	must.NoError(t, private.Update(tk.dir, taskName, func(r *private.Record) { *r = private.Record{} }))
	tk.waitForEnd()
}
