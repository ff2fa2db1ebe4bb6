// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

// Suspension of a task: it ends with what it has saved, and its job waits for another allocation that
// resumes from it (adopt).
//
// Nomad must neither restart nor reschedule the task, so it gets exit code 0, as at an objective. It
// does not take the job for complete, because the job has a newer version by then, which waits. This
// order survives the failure of any process:
//
//  1. The task has saved and is frozen (move.go).
//  2. The checkpoint is kept: Nomad's client deletes the directory of an ended allocation whenever
//     it wants the room. A second name outside takes no room of its own. Until 3 the task may run on.
//  3. The suspension is recorded where the task cannot write.
//  4. The task is killed without being thawed, and exit code 0 is reported because of the record.
//
// A plugin or agent restarted between 3 and 4 continues at 4.

// SignalSuspend suspends a task that is ready to move; a reason may follow. Sending it returns once
// that is certain; it fails if the task is not frozen.
const SignalSuspend = "EBBTIDE_SUSPEND"

// keptName is the directory, beside the allocations', of what is kept: one per allocation and task.
const keptName = ".ebbtide.kept"

// keptFor is how long a checkpoint is kept if no task resumes from it, because its job was removed.
const keptFor = 30 * 24 * time.Hour

func keptDir(allocs, alloc, task string) string {
	return filepath.Join(allocs, keptName, alloc+"."+task)
}

func (d *Driver) suspend(t *task, why string) error {
	if why == "" || !taskfs.Printable(why) {
		why = "it was asked to"
	}
	m := &t.move
	if err := d.recordSuspended(t); err != nil {
		return fmt.Errorf("ebbtide: %w", err)
	}
	was, cg, shown := m.cancel()
	if was == "" {
		return nil // Nomad stops it
	}
	shown.State = status.MoveSuspended
	t.setup.controller.Moving(t.handle.Config.ID, shown)
	d.say(t, "suspended", fmt.Sprintf("suspended, %s, saved in %s: %s", stepText(shown.Step), shown.Path, why), nil)
	go func() {
		defer m.freezing.Unlock()
		d.killSuspended(t, cg)
	}()
	return nil
}

// recordSuspended does steps 2 and 3.
func (d *Driver) recordSuspended(t *task) error {
	cfg := t.handle.Config
	m := &t.move
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != status.MoveReady || m.shown.Path == "" || !m.lease.Stop() {
		return fmt.Errorf("task %q is not frozen with a checkpoint", cfg.Name)
	}
	err := d.keep(t, m.shown.Path)
	if err == nil && !time.Now().Before(m.shown.Until) {
		err = errors.New("the lease has ended, and the task may have run since")
	}
	if err == nil {
		err = private.Update(cfg.AllocDir, cfg.Name, func(r *private.Record) { r.Left, r.Suspended = leaves(cfg, m.shown.Path), true })
	}
	if err != nil {
		m.lease.Reset(time.Until(m.shown.Until))
		return errors.Join(err, os.RemoveAll(d.kept(t)))
	}
	t.suspended.Store(true)
	return nil
}

// killSuspended does step 4. It retries, because nothing else in this process would.
func (d *Driver) killSuspended(t *task, cg freezer) {
	if cg != nil && cg.Kill() == nil {
		d.erase(t)
		return
	}
	d.stopUntilSettled(t, 0, "SIGKILL")
}

// keep keeps a task's checkpoint for a task that resumes from it. A shared one needs nothing.
func (d *Driver) keep(t *task, saved string) error {
	if t.checkpoint.Shared {
		return nil
	}
	cfg := t.handle.Config
	dir := d.kept(t)
	dropExpired(filepath.Dir(dir), time.Now())
	err := os.RemoveAll(dir)
	dirs := dirsOf(atDir(cfg, dir))
	for _, dir := range []string{dirs.Local, dirs.Alloc} {
		err = errors.Join(err, os.MkdirAll(dir, 0o700))
	}
	if err == nil {
		err = checkpoint.Link(dirsOf(cfg), dirs)
	}
	if err == nil {
		err = private.Update(dir, cfg.Name, func(r *private.Record) { r.Left = leaves(cfg, saved) })
	}
	if err != nil {
		return fmt.Errorf("keeping the checkpoint: %w", err)
	}
	return nil
}

// kept is the directory of what is kept of a task.
func (d *Driver) kept(t *task) string {
	cfg := t.handle.Config
	return keptDir(filepath.Dir(cfg.AllocDir), filepath.Base(cfg.AllocDir), cfg.Name)
}

// dropExpired removes what was kept longer than keptFor. Errors leave it for the next time.
func dropExpired(dir string, now time.Time) {
	kept, _ := os.ReadDir(dir)
	for _, k := range kept {
		if info, err := k.Info(); err == nil && !strings.HasPrefix(k.Name(), ".") && now.Sub(info.ModTime()) > keptFor {
			_ = os.RemoveAll(filepath.Join(dir, k.Name()))
		}
	}
}
