// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/status"
)

// How a task is prepared to be moved to another node. Nomad hands any name of a signal
// to a driver, so that `nomad alloc signal` and the shim can ask for it:
//
//	            EBBTIDE_CHECKPOINT            saved                 stopped
//	  (runs) ─────────────────────► saving ─────────► ready ─────────────────► (ended)
//	     ▲                            │               │  ▲ │
//	     ├── not saved in time ◄──────┘               │  └─┘ EBBTIDE_CHECKPOINT:
//	     └── EBBTIDE_RELEASE, or the lease has ended ◄┘        the lease begins anew
//
//	saving  The task has what Nomad gave it of the CPU, and was sent its signal.
//	ready   What it saved is there and does not change any more; the task stands still,
//	        for the lease at most. So it cannot end by itself while Nomad is told to
//	        move it, which would run it a second time. Who stops it ends it where it
//	        stands.
//
// EBBTIDE_FREEZE freezes a task that goes on where it is: it asks nothing of the task, and
// keeps it from ending while Nomad is told of a new version of its job.
//
// That a task may be frozen is written down before it is asked to save: a plugin that
// comes back thaws it when the lease has ended, or at once if it had not got so far.
const (
	// SignalCheckpoint asks the driver to prepare a task's move.
	SignalCheckpoint = "EBBTIDE_CHECKPOINT"
	// SignalFreeze lets a task stand still for a moment. It does when the signal has been sent.
	SignalFreeze = "EBBTIDE_FREEZE"
	// SignalRelease lets a task run on that was prepared, or held.
	SignalRelease = "EBBTIDE_RELEASE"
)

// move is the preparation of one task's move.
type move struct {
	mu    sync.Mutex
	state string             // "", status.MoveSaving or status.MoveReady
	stop  context.CancelFunc // while it is saved
	over  chan struct{}      // closed when state is "" again

	// While it is ready.
	cgroup freezer // nil: the task has saved and ended
	lease  *time.Timer
	shown  status.Move

	released time.Time // when a task runs on that was asked to end and stood still
}

// freezer is what a move needs of a task's cgroup (limits.Cgroup).
type freezer interface {
	Freeze(context.Context) error
	Thaw() error
	Kill() error
	FreezerDir() string
}

// begin begins a preparation. The caller holds the lock.
func (m *move) begin(stop context.CancelFunc, shown status.Move) {
	m.state, m.stop, m.over = status.MoveSaving, stop, make(chan struct{})
	m.cgroup, m.lease, m.shown = nil, nil, shown
}

// end ends the preparation, if there is one, and returns what it was. The caller holds
// the lock.
func (m *move) end() (was string) {
	was, m.state = m.state, ""
	if m.lease != nil {
		m.lease.Stop()
	}
	if was != "" {
		m.stop()
		close(m.over)
	}
	return was
}

const (
	// freezeWithin bounds how long the kernel may take to freeze a task.
	freezeWithin = 5 * time.Second
	// endsWithin is how long a process may take to end after it has saved, if it was sent
	// a signal for which processes end. Where it runs on it has ignored that.
	endsWithin = 10 * time.Second
)

// prepareMove asks a task to save its state. It returns at once; events and the status
// say what comes of it.
func (d *Driver) prepareMove(t *task) error {
	cfg := t.handle.Config
	if err := canStandStill(t); err != nil {
		return err
	}
	m := &t.move
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.state {
	case status.MoveSaving:
		return nil
	case status.MoveReady:
		if m.shown.State == status.MoveFrozen {
			return fmt.Errorf("ebbtide: task %q stands still for a moment: ask again", cfg.Name)
		}
		return d.extendLease(t)
	}
	files, err := checkpoint.Open(*t.checkpoint, dirsOf(cfg))
	if err != nil {
		return fmt.Errorf("ebbtide: %w", err)
	}
	before, err := files.Look()
	if err != nil {
		return errors.Join(fmt.Errorf("ebbtide: %w", err), files.Close())
	}
	ctx, stop := context.WithTimeout(t.setup.ctx, t.checkpoint.Timeout)
	m.begin(stop, status.Move{})
	go func() {
		defer files.Close()
		d.save(ctx, t, files, before)
	}()
	return nil
}

// canStandStill says why a task can not be frozen.
func canStandStill(t *task) error {
	switch name := t.handle.Config.Name; {
	case t.checkpoint == nil:
		return fmt.Errorf("ebbtide: task %q says nothing about how it saves its state: set checkpoint { path = … } in its config", name)
	case t.stopping.Load() || t.succeeded.Load():
		return fmt.Errorf("ebbtide: task %q is ending", name)
	}
	return nil
}

// hold lets a task stand still for a moment. One that is ready to be moved does so already.
func (d *Driver) hold(t *task) error {
	if err := canStandStill(t); err != nil {
		return err
	}
	m := &t.move
	m.mu.Lock()
	if m.state == status.MoveSaving {
		m.mu.Unlock()
		return fmt.Errorf("ebbtide: task %q is about to stand still", t.handle.Config.Name)
	}
	if m.state == status.MoveReady {
		defer m.mu.Unlock()
		return d.extendLease(t)
	}
	shown := status.Move{State: status.MoveFrozen, Step: status.Unknown()}
	m.begin(func() {}, shown)
	m.mu.Unlock()
	ready := false
	cg, err := d.findFreezer(t)
	if err == nil {
		err = d.write(t, cg, shown)
	}
	if err == nil {
		ready, err = d.freeze(t, cg, shown)
	}
	if ready {
		return nil
	}
	m.mu.Lock()
	m.end()
	m.mu.Unlock()
	if err = errors.Join(err, d.remember(t, nil)); err != nil {
		return fmt.Errorf("ebbtide: %w", err)
	}
	return fmt.Errorf("ebbtide: task %q is ending", t.handle.Config.Name)
}

// save brings a task to where it can be moved, or lets it run on.
func (d *Driver) save(ctx context.Context, t *task, files *checkpoint.Files, before checkpoint.State) {
	cfg, unknown := t.handle.Config, status.Unknown()
	t.setup.controller.Moving(cfg.ID, status.Move{State: status.MoveSaving, Step: unknown})
	ready, err := d.saveAndFreeze(ctx, t, files, before)
	if ready {
		return
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return // it was stopped or called off meanwhile; another one may have begun
	}
	t.move.mu.Lock()
	t.move.end()
	t.move.mu.Unlock()
	d.erase(t)
	t.setup.controller.Moving(cfg.ID, status.Move{State: status.MoveFailed, Step: unknown, Why: err.Error()})
	d.say(t, fmt.Sprintf("not ready to be moved, and runs on: %v", err), nil)
}

// saveAndFreeze asks a task to save, waits for what it saves and freezes it at once: what
// it does between the two it does twice. So all that takes time comes before.
func (d *Driver) saveAndFreeze(ctx context.Context, t *task, files *checkpoint.Files, before checkpoint.State) (ready bool, err error) {
	cfg, c := t.handle.Config, *t.checkpoint
	step := d.lastStep(ctx, t)
	cg, err := d.findFreezer(t)
	if err != nil {
		return false, err
	}
	t.move.mu.Lock()
	if err = ctx.Err(); err == nil {
		err = d.write(t, cg, status.Move{State: status.MoveSaving, Step: status.Unknown()})
	}
	t.move.mu.Unlock()
	if err != nil {
		return false, err // a later process would not know that it is to be thawed
	}
	var saved checkpoint.Saved
	if err = t.instance().SignalTask(cfg.ID, c.Signal); err != nil {
		err = fmt.Errorf("sending %s: %w", c.Signal, err)
	} else if saved, err = files.Wait(ctx, before); err != nil {
		err = fmt.Errorf("%s was sent and waited for %v: %w", c.Signal, c.Timeout, err)
	}
	if err != nil {
		return false, err
	}
	if c.Ends() && d.ends(ctx, t) {
		cg = nil
	}
	return d.freeze(t, cg, status.Move{State: status.MoveReady, Path: saved.Path, Bytes: saved.Bytes, Step: status.Number(step)})
}

// ends waits for a task to end that was asked to, and says whether it has.
func (d *Driver) ends(ctx context.Context, t *task) bool {
	ctx, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	for {
		if _, err := d.findFreezer(t); errors.Is(err, engine.ErrGone) {
			return true
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
}

// lastStep is the last one that a task has reported. A loop that does not answer holds
// nothing up.
func (d *Driver) lastStep(ctx context.Context, t *task) float64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return t.setup.controller.Step(ctx, t.handle.Config.ID)
}

// freeze stops the task where it is, for the lease at most. Without a cgroup it has ended.
func (d *Driver) freeze(t *task, cg freezer, shown status.Move) (ready bool, err error) {
	if cg != nil {
		ctx, cancel := context.WithTimeout(t.setup.ctx, freezeWithin)
		defer cancel()
		if err := cg.Freeze(ctx); err != nil {
			return false, err
		}
	}
	t.move.mu.Lock()
	defer t.move.mu.Unlock()
	stopped := t.move.state != status.MoveSaving // or called off meanwhile
	shown.Until = time.Now().Add(t.checkpoint.Lease)
	if cg != nil && !stopped {
		err = d.write(t, cg, shown)
	}
	if stopped || err != nil {
		if cg != nil {
			err = errors.Join(err, cg.Thaw())
		}
		return false, err
	}
	d.ready(t, cg, shown)
	if shown.State == status.MoveFrozen {
		return true, nil
	}
	d.say(t, fmt.Sprintf("checkpoint saved: %s, %d bytes, %s; the task stands still until %s, to be moved",
		shown.Path, shown.Bytes, stepText(shown.Step), shown.Until.UTC().Format(time.RFC3339)), map[string]string{
		"path": shown.Path, "bytes": strconv.FormatInt(shown.Bytes, 10),
		"step": fmt.Sprint(float64(shown.Step)), "until": shown.Until.UTC().Format(time.RFC3339Nano),
	})
	return true, nil
}

// ready begins the lease. The caller holds the lock of the move.
func (d *Driver) ready(t *task, cg freezer, shown status.Move) {
	m := &t.move
	m.state, m.cgroup, m.shown = status.MoveReady, cg, shown
	m.lease = time.AfterFunc(time.Until(shown.Until), func() { d.releaseMove(t, "no move came within its lease") })
	t.setup.controller.Moving(t.handle.Config.ID, shown)
}

// extendLease begins the lease of a task that is ready anew. The caller holds the lock
// of the move.
func (d *Driver) extendLease(t *task) error {
	m := &t.move
	m.shown.Until = time.Now().Add(t.checkpoint.Lease)
	if m.cgroup != nil {
		if err := d.write(t, m.cgroup, m.shown); err != nil {
			return err
		}
	}
	m.lease.Reset(t.checkpoint.Lease)
	t.setup.controller.Moving(t.handle.Config.ID, m.shown)
	return nil
}

// releaseMove lets a task run on. It is no error if it does already.
func (d *Driver) releaseMove(t *task, why string) {
	t.move.mu.Lock()
	cg, held := t.move.cgroup, t.move.shown.State == status.MoveFrozen
	was := t.move.end()
	if was == status.MoveReady && cg != nil && t.checkpoint.Ends() {
		t.move.released = time.Now()
	}
	t.move.mu.Unlock()
	if was == "" {
		return
	}
	t.setup.controller.Moving(t.handle.Config.ID, status.Move{Step: status.Unknown()})
	if was == status.MoveReady && cg != nil {
		d.thaw(t, cg)
	} else {
		d.erase(t)
	}
	if held {
		return
	}
	d.say(t, "runs on: "+why, nil)
}

// thaw lets a frozen task run on. What fails is tried again: nothing else would.
func (d *Driver) thaw(t *task, cg freezer) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 30*time.Second) {
		err := cg.Thaw()
		if err == nil || errors.Is(err, limits.ErrGone) {
			break
		}
		d.logger.Error("cannot let the task run on; trying again", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
		select {
		case <-time.After(wait):
		case <-t.settled:
			return
		case <-d.ctx.Done():
			return
		}
	}
	d.erase(t)
}

// endFrozen ends the processes of a task that is frozen, which is to be stopped: they
// would take no signal. They do not run on before.
func (d *Driver) endFrozen(t *task) {
	t.move.mu.Lock()
	cg, saved := t.move.cgroup, t.move.shown.Path
	was := t.move.end()
	t.move.mu.Unlock()
	if was == "" {
		return
	}
	if saved != "" && was == status.MoveReady {
		d.leave(t, saved)
	}
	if was == status.MoveReady && cg != nil {
		if err := cg.Kill(); err != nil {
			d.logger.Warn("ending a frozen task", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
		}
	}
	d.erase(t)
}

// erase takes back what write wrote: a task is not frozen, and will not be.
func (d *Driver) erase(t *task) {
	if err := d.remember(t, nil); err != nil {
		d.logger.Warn("the task is not frozen, but still written down as such", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
	}
}

// afterMove holds the result of a task back that has saved and ended: Nomad would take
// it for complete. If no move comes, it has failed, and Nomad starts it again. So has one
// that was slow to end, stood still meanwhile and ends now that it runs on. The result of
// one that ended in the moment in which it was held is told when it is released.
func (d *Driver) afterMove(t *task, res *drivers.ExitResult) *drivers.ExitResult {
	m := &t.move
	m.mu.Lock()
	late := m.state == "" && time.Since(m.released) < endsWithin
	if m.state == "" && !late || t.stopping.Load() || t.succeeded.Load() {
		m.mu.Unlock()
		return res
	}
	held := m.shown.State == status.MoveFrozen
	if !held && !t.checkpoint.Ends() { // it has ended by itself
		m.end()
		m.mu.Unlock()
		return res
	}
	over := m.over
	m.mu.Unlock()
	select {
	case <-over:
	case <-d.ctx.Done():
	}
	if held || t.stopping.Load() || t.succeeded.Load() {
		return res
	}
	code := res.ExitCode
	if code == 0 {
		code = 1
	}
	return &drivers.ExitResult{ExitCode: code, Err: errors.New("it was asked to save its state to be moved, has ended, and was not moved: it goes on here")}
}

// resumeMove goes on with what an earlier process had begun.
func (d *Driver) resumeMove(t *task) {
	cfg := t.handle.Config
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err != nil || rec.Frozen == nil || rec.Frozen.Run != cfg.ID {
		return
	}
	f := rec.Frozen
	if f.State == status.MoveSaving { // it may have been frozen a moment ago
		d.thawRemains(cfg)
		why := "the plugin was started anew while the task saved its state"
		t.setup.controller.Moving(cfg.ID, status.Move{State: status.MoveFailed, Step: status.Unknown(), Why: why})
		d.say(t, "not ready to be moved, and runs on: "+why, nil)
		return
	}
	cg, err := d.findFreezer(t)
	if err != nil || t.checkpoint == nil {
		d.logger.Warn("a task was frozen to be moved; it runs on", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
		d.thawRemains(cfg)
		return
	}
	t.move.mu.Lock()
	defer t.move.mu.Unlock()
	shown := status.Move{State: f.State, Path: f.Path, Bytes: f.Bytes, Step: f.Step, Until: f.Until}
	t.move.begin(func() {}, shown)
	d.ready(t, cg, shown)
}

// thawRemains lets what an earlier process has frozen of this task run on, or take the
// signal that ends it.
func (d *Driver) thawRemains(cfg *drivers.TaskConfig) {
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err != nil || rec.Frozen == nil {
		return
	}
	if err := limits.Thaw(rec.Frozen.Cgroup); err != nil {
		d.logger.Warn("thawing what is left of the task", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
	rec.Frozen = nil
	if err := rec.Save(cfg.AllocDir, cfg.Name); err != nil {
		d.logger.Debug("the task is still written down as frozen", "task", cfg.Name, "error", err)
	}
}

// freezerOf finds the cgroup of a task's processes.
func (d *Driver) freezerOf(t *task) (freezer, error) {
	ctx, cancel := context.WithTimeout(t.setup.ctx, freezeWithin)
	defer cancel()
	st, err := t.setup.engine.Inspect(ctx, t.handle)
	if err != nil {
		return nil, err
	}
	if !st.Running || st.PID == 0 {
		return nil, engine.ErrGone
	}
	id, err := t.setup.engine.CgroupName(t.handle)
	if err != nil {
		return nil, err
	}
	cg, err := limits.FindFor(st.PID, id)
	if errors.Is(err, limits.ErrGone) {
		return nil, engine.ErrGone
	}
	if err != nil {
		return nil, err
	}
	return cg, nil
}

// write writes down how far a task is prepared.
func (d *Driver) write(t *task, cg freezer, m status.Move) error {
	return d.remember(t, &private.Frozen{
		Run: t.handle.Config.ID, Cgroup: cg.FreezerDir(), State: m.State, Until: m.Until, Path: m.Path, Bytes: m.Bytes, Step: m.Step,
	})
}

// remember writes down that a task is frozen, or (nil) that it is not any more.
func (d *Driver) remember(t *task, f *private.Frozen) error {
	return d.change(t, func(r *private.Record) { r.Frozen = f })
}

// change changes what is remembered of a task.
func (d *Driver) change(t *task, what func(*private.Record)) error {
	cfg := t.handle.Config
	t.records.Lock()
	defer t.records.Unlock()
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err != nil {
		return err
	}
	what(&rec)
	return rec.Save(cfg.AllocDir, cfg.Name)
}

// say sends an event about a task.
func (d *Driver) say(t *task, message string, annotations map[string]string) {
	cfg := t.handle.Config
	d.emit(publish.Event{TaskID: cfg.ID, AllocID: cfg.AllocID, TaskName: cfg.Name, Message: message, Annotations: annotations})
}

// stepText says at which step a checkpoint is.
func stepText(step status.Number) string {
	if math.IsNaN(float64(step)) {
		return "step unknown"
	}
	return fmt.Sprintf("step %.0f or later", float64(step))
}
