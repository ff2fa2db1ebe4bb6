// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
)

// What a suspended task has saved outlives its allocation, and is adopted once.
func TestSuspend(t *testing.T) {
	m := newMoving(t)
	cfg := m.held.handle.Config
	must.NoError(t, os.MkdirAll(dirsOf(cfg).Local, 0o755))
	must.ErrorContains(t, m.d.SignalTask(cfg.ID, SignalSuspend), `task "task" is not frozen with a checkpoint`)
	ch, err := m.d.WaitTask(t.Context(), cfg.ID)
	must.NoError(t, err)
	m.prepare(t)
	must.NoError(t, m.d.SignalTask(cfg.ID, SignalSuspend+" job vae is before it\n"))
	message(t, m.messages, "suspended, step unknown, saved in /alloc/data/ckpt-1: job vae is before it")
	m.waitKilled(t)
	m.inner.results <- &drivers.ExitResult{ExitCode: 137}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch), must.Sprint("Nomad must not restart it"))
	must.False(t, m.held.success(), must.Sprint("it has not succeeded"))
	must.True(t, remembered(t, m.held).Suspended)

	must.NoError(t, os.Rename(cfg.AllocDir, t.TempDir()+"/collected")) // as Nomad's client does
	next := atDir(cfg, filepath.Join(filepath.Dir(cfg.AllocDir), "next"))
	for _, dir := range []string{dirsOf(next).Local, filepath.Join(dirsOf(next).Alloc, "data")} {
		must.NoError(t, os.MkdirAll(dir, 0o755))
	}
	opts := &options.Task{Adopt: filepath.Base(cfg.AllocDir), Checkpoint: m.held.checkpoint}
	note, err := m.d.adopt(next, opts)
	must.NoError(t, err)
	must.Eq(t, "resumes from /alloc/data/ckpt-1, left by allocation "+opts.Adopt+" on this node", note)
	ckpt := filepath.Join(dirsOf(next).Alloc, "data/ckpt-1")
	must.NoError(t, os.WriteFile(ckpt, []byte("further"), 0o644))
	note, err = m.d.adopt(next, opts)
	must.NoError(t, err)
	must.Eq(t, "", note, must.Sprint("once"))
	data, err := os.ReadFile(ckpt)
	must.NoError(t, err)
	must.Eq(t, "further", string(data))
	kept, err := os.ReadDir(filepath.Join(filepath.Dir(cfg.AllocDir), keptName))
	must.NoError(t, err)
	must.Len(t, 1, kept) // the key of its records
}

func (m *moving) waitKilled(t *testing.T) {
	t.Helper()
	killed := func() bool { return m.frozen(t) == nil && m.fridge.is() == "killed" }
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(killed), wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond)))
}

// The other name of a file that is written in place changes with it, so what is kept of a task that
// runs on is dropped.
func TestSuspend_fails(t *testing.T) {
	m := newMoving(t)
	m.prepare(t) // without the task's own directory nothing can be kept
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalSuspend), "keeping the checkpoint")
	must.Eq(t, "frozen", m.fridge.is())
	must.DirNotExists(t, m.d.kept(m.held))
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	must.Eq(t, "runs", m.fridge.is())
	must.False(t, remembered(t, m.held).Suspended)
}

// A plugin that was restarted in between kills the task, and does not start it again.
func TestSuspend_resumed(t *testing.T) {
	m := newMoving(t)
	cfg := m.held.handle.Config
	m.fridge.state = "frozen"
	must.NoError(t, private.Update(cfg.AllocDir, cfg.Name, func(r *private.Record) {
		*r = private.Record{Suspended: true, Frozen: &private.Frozen{Run: cfg.ID, Cgroup: m.fridge.dir, State: status.MoveReady, Until: time.Now().Add(time.Hour)}}
	}))
	ch, err := m.d.WaitTask(t.Context(), cfg.ID)
	must.NoError(t, err)
	m.d.resumeMove(m.held)
	m.waitKilled(t)
	m.inner.results <- &drivers.ExitResult{ExitCode: 137}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))

	handle := m.d.succeeded(m.d.setup.Load(), cfg)
	must.NotNil(t, handle)
	ch, err = m.d.WaitTask(t.Context(), cfg.ID)
	must.NoError(t, err)
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
}

func TestDropExpired(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".ebbtide.key", "old.train", "new.train"} {
		must.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	now := time.Now()
	must.NoError(t, os.Chtimes(filepath.Join(dir, "new.train"), now, now.Add(time.Minute)))
	dropExpired(dir, now.Add(keptFor+time.Second))
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	must.NoError(t, err)
	must.SliceContainsAll(t, []string{filepath.Join(dir, "new.train"), filepath.Join(dir, ".ebbtide.key")}, left)
}
