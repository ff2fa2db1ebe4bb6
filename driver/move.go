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
	"github.com/ebbtide/ebbtide/driver/watchdog"
)

// How a task is prepared to be moved to another node. Nomad passes any name of a signal
// to a driver, so that `nomad alloc signal` and the shim can ask for it:
//
//	            EBBTIDE_CHECKPOINT            saved                 stopped
//	  (runs) ─────────────────────► saving ─────────► ready ─────────────────► (ended)
//	     ▲                            │               │  ▲ │
//	     ├── not saved in time ◄──────┘               │  └─┘ EBBTIDE_CHECKPOINT:
//	     └── EBBTIDE_RELEASE, or the lease has ended ◄┘    or EBBTIDE_RENEW: the lease
//	                                                       begins anew
//
//	saving  The task has what Nomad gave it of the CPU, and was sent its signal.
//	ready   What it saved is there and does not change any more; the task is frozen, for
//	        the lease at most. So it cannot end by itself while Nomad is told to move
//	        it, which would run it a second time. Stopping it kills it without thawing.
//
// EBBTIDE_FREEZE freezes a task that goes on where it is: it asks nothing of the task, and
// keeps it from ending while Nomad is told of a new version of its job.
//
// That a task may be frozen is recorded before it is asked to save, and a watchdog is
// started: whatever becomes of this process, the task is thawed at the end of the lease.
// A plugin that comes back takes the freeze over, or thaws the task if it was still saving.
const (
	// SignalCheckpoint asks the driver to prepare a task's move.
	SignalCheckpoint = "EBBTIDE_CHECKPOINT"
	// SignalFreeze freezes a task briefly. It returns once the task is frozen.
	SignalFreeze = "EBBTIDE_FREEZE"
	// SignalRenew begins the lease of a frozen task anew. It is an error if the task is not
	// frozen: it has run since, and has to save again.
	SignalRenew = "EBBTIDE_RENEW"
	// SignalRelease thaws a task, or calls the preparation of its move off.
	SignalRelease = "EBBTIDE_RELEASE"
)

// move is the preparation of one task's move.
type move struct {
	// freezing is held while the task is frozen or thawed, with its record. It is taken
	// before mu.
	freezing sync.Mutex

	mu    sync.Mutex
	state string             // "", status.MoveSaving or status.MoveReady
	stop  context.CancelFunc // ends the context of this preparation
	over  chan struct{}      // closed when state is "" again

	// While it is ready.
	cgroup freezer // nil: the task has saved and ended
	lease  *time.Timer
	shown  status.Move

	thawed time.Time // the end of the last freeze
}

// freezer is what a move needs of a task's cgroup (limits.Cgroup).
type freezer interface {
	Freeze(context.Context) error
	Thaw() error
	Kill() error
	FreezerDir() string
}

// begin begins a preparation. Its context ends with it. The caller holds mu.
func (m *move) begin(parent context.Context, shown status.Move) (ctx context.Context) {
	ctx, m.stop = context.WithCancel(parent)
	m.state, m.over = status.MoveSaving, make(chan struct{})
	m.cgroup, m.lease, m.shown = nil, nil, shown
	return ctx
}

// end ends the preparation, if there is one, and returns what it was. The caller holds mu.
func (m *move) end() (was string) {
	was, m.state = m.state, ""
	if m.lease != nil {
		m.lease.Stop()
	}
	if was == status.MoveReady && m.cgroup != nil {
		m.thawed = time.Now()
	}
	if was != "" {
		m.stop()
		close(m.over)
	}
	return was
}

// callOff ends the preparation, if there is one, and returns it as it was. Unless was is
// "" the caller thaws or kills the task, and unlocks freezing then.
func (m *move) callOff() (was string, cg freezer, shown status.Move) {
	m.mu.Lock()
	if m.state == "" {
		m.mu.Unlock()
		return "", nil, status.Move{}
	}
	m.stop() // a freeze under way is given up
	m.mu.Unlock()
	m.freezing.Lock()
	m.mu.Lock()
	defer m.mu.Unlock()
	cg, shown = m.cgroup, m.shown
	if was = m.end(); was == "" {
		m.freezing.Unlock()
	}
	return was, cg, shown
}

// thawing says whether the last freeze is still being ended. The caller holds mu.
func (m *move) thawing() bool {
	if !m.freezing.TryLock() {
		return true
	}
	m.freezing.Unlock()
	return false
}

const (
	// freezeWithin bounds how long the kernel may take to freeze a task, and a watchdog
	// to start.
	freezeWithin = 5 * time.Second
	// endsWithin is how long a process may take to end after it has saved, if it was sent
	// a signal for which processes end. One that is alive after it has ignored that.
	endsWithin = 10 * time.Second
)

// errCalledOff means that a preparation has ended while it was still going on.
var errCalledOff = errors.New("it was called off")

// prepareMove asks a task to save its state. It returns at once; events and the status
// show the result.
func (d *Driver) prepareMove(t *task) error {
	cfg := t.handle.Config
	if err := mayFreeze(t); err != nil {
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
			return fmt.Errorf("ebbtide: task %q is frozen briefly: ask again", cfg.Name)
		}
		return d.extendLease(t)
	}
	if m.thawing() {
		return fmt.Errorf("ebbtide: task %q is still being thawed: ask again", cfg.Name)
	}
	files, err := checkpoint.Open(*t.checkpoint, dirsOf(cfg))
	if err != nil {
		return fmt.Errorf("ebbtide: %w", err)
	}
	before, err := files.Scan()
	if err != nil {
		return errors.Join(fmt.Errorf("ebbtide: %w", err), files.Close())
	}
	ctx := m.begin(t.setup.ctx, status.Move{})
	go func() {
		defer files.Close()
		d.save(ctx, t, files, before)
	}()
	return nil
}

// mayFreeze returns why a task cannot be frozen.
func mayFreeze(t *task) error {
	switch name := t.handle.Config.Name; {
	case t.checkpoint == nil:
		return fmt.Errorf("ebbtide: task %q says nothing about how it saves its state: set checkpoint { path = … } in its config", name)
	case t.stopping.Load() || t.succeeded.Load():
		return fmt.Errorf("ebbtide: task %q is ending", name)
	}
	return nil
}

// freezeBriefly freezes a task that stays where it is. One that is ready to be moved is
// frozen already.
func (d *Driver) freezeBriefly(t *task) error {
	if err := mayFreeze(t); err != nil {
		return err
	}
	m := &t.move
	m.mu.Lock()
	switch {
	case m.state == status.MoveReady:
		defer m.mu.Unlock()
		return d.extendLease(t)
	case m.state == status.MoveSaving || m.thawing():
		m.mu.Unlock()
		return fmt.Errorf("ebbtide: task %q is about to be frozen or thawed: ask again", t.handle.Config.Name)
	}
	shown := status.Move{State: status.MoveFrozen, Step: status.Unknown()}
	ctx := m.begin(t.setup.ctx, shown)
	m.mu.Unlock()
	cg, err := d.findFreezer(t)
	if err == nil {
		err = d.guard(ctx, t, cg, shown, t.checkpoint.Lease)
	}
	if err == nil {
		err = d.freeze(ctx, t, cg, shown)
	}
	if err == nil {
		return nil
	}
	d.giveUp(ctx, t)
	return fmt.Errorf("ebbtide: %w", err)
}

// renewFreeze begins the lease of a frozen task anew.
func (d *Driver) renewFreeze(t *task) error {
	m := &t.move
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != status.MoveReady {
		return fmt.Errorf("ebbtide: task %q is not frozen", t.handle.Config.Name)
	}
	return d.extendLease(t)
}

// save prepares a task to be moved. If that fails, the task runs on.
func (d *Driver) save(ctx context.Context, t *task, files *checkpoint.Files, before checkpoint.State) {
	cfg := t.handle.Config
	t.setup.controller.Moving(cfg.ID, saving())
	err := d.saveAndFreeze(ctx, t, files, before)
	if err == nil || !d.giveUp(ctx, t) {
		return
	}
	t.setup.controller.Moving(cfg.ID, status.Move{State: status.MoveFailed, Step: status.Unknown(), Why: err.Error()})
	d.say(t, fmt.Sprintf("not ready to be moved, and runs on: %v", err), nil)
}

// saving is what is shown of a task while it saves.
func saving() status.Move { return status.Move{State: status.MoveSaving, Step: status.Unknown()} }

// giveUp ends a preparation that has failed. It returns false if another one ended it
// before: that one has thawed the task and said why.
func (d *Driver) giveUp(ctx context.Context, t *task) bool {
	m := &t.move
	m.freezing.Lock()
	defer m.freezing.Unlock()
	m.mu.Lock()
	if ctx.Err() != nil {
		m.mu.Unlock()
		return false
	}
	m.end()
	m.mu.Unlock()
	d.erase(t)
	return true
}

// saveAndFreeze asks a task to save, waits for the checkpoint and freezes the task at once:
// steps that it does between the two it does twice. So all that takes time comes before.
func (d *Driver) saveAndFreeze(ctx context.Context, t *task, files *checkpoint.Files, before checkpoint.State) error {
	cfg, c := t.handle.Config, *t.checkpoint
	step := d.lastStep(ctx, t)
	cg, err := d.findFreezer(t)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err := d.guard(ctx, t, cg, saving(), c.Timeout+freezeWithin+c.Lease); err != nil {
		return err
	}
	if err := t.instance().SignalTask(cfg.ID, c.Signal); err != nil {
		return fmt.Errorf("sending %s: %w", c.Signal, err)
	}
	saved, err := files.Wait(within, before)
	if err != nil {
		return fmt.Errorf("%s was sent and waited for %v: %w", c.Signal, c.Timeout, err)
	}
	if c.Ends() && d.ends(within, t) {
		cg = nil
	}
	return d.freeze(ctx, t, cg, status.Move{State: status.MoveReady, Path: saved.Path, Bytes: saved.Bytes, Step: status.Number(step)})
}

// guard records that a task is going to be frozen, for some time at most, and starts a
// watchdog that thaws it then. Without either the task must not be frozen.
func (d *Driver) guard(ctx context.Context, t *task, cg freezer, shown status.Move, most time.Duration) error {
	t.move.freezing.Lock()
	defer t.move.freezing.Unlock()
	if ctx.Err() != nil {
		return errCalledOff
	}
	shown.Until = time.Now().Add(most)
	if err := d.record(t, cg, shown); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, freezeWithin)
	defer cancel()
	return watchdog.Start(ctx, t.handle.Config.AllocDir, t.handle.Config.Name, t.handle.Config.ID)
}

// ends waits for a task to end that was asked to, and returns whether it has.
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

// lastStep is the last one that a task has reported. A control loop that does not answer
// delays nothing.
func (d *Driver) lastStep(ctx context.Context, t *task) float64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return t.setup.controller.Step(ctx, t.handle.Config.ID)
}

// freeze freezes the task, for the lease at most. Without a cgroup it has ended.
func (d *Driver) freeze(ctx context.Context, t *task, cg freezer, shown status.Move) error {
	m := &t.move
	m.freezing.Lock()
	defer m.freezing.Unlock()
	if ctx.Err() != nil {
		return errCalledOff
	}
	if cg != nil {
		within, cancel := context.WithTimeout(ctx, freezeWithin)
		defer cancel()
		if err := cg.Freeze(within); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	if ctx.Err() != nil {
		err = errCalledOff
	} else if shown.Until = time.Now().Add(t.checkpoint.Lease); cg != nil {
		err = d.record(t, cg, shown)
	}
	if err != nil {
		if cg != nil {
			err = errors.Join(err, cg.Thaw())
		}
		return err
	}
	d.ready(t, cg, shown)
	if shown.State == status.MoveFrozen {
		return nil
	}
	d.say(t, fmt.Sprintf("checkpoint saved: %s, %d bytes, %s; the task is frozen until %s, to be moved",
		shown.Path, shown.Bytes, stepText(shown.Step), shown.Until.UTC().Format(time.RFC3339)), map[string]string{
		"path": shown.Path, "bytes": strconv.FormatInt(shown.Bytes, 10),
		"step": fmt.Sprint(float64(shown.Step)), "until": shown.Until.UTC().Format(time.RFC3339Nano),
	})
	return nil
}

// ready begins the lease. The caller holds mu.
func (d *Driver) ready(t *task, cg freezer, shown status.Move) {
	m := &t.move
	m.state, m.cgroup, m.shown = status.MoveReady, cg, shown
	m.lease = time.AfterFunc(time.Until(shown.Until), func() { d.releaseMove(t, "no move came within its lease") })
	t.setup.controller.Moving(t.handle.Config.ID, shown)
}

// extendLease begins the lease of a task that is ready anew, unless it has ended: then the
// watchdog may have thawed the task. The caller holds mu.
func (d *Driver) extendLease(t *task) error {
	m := &t.move
	shown := m.shown
	shown.Until = time.Now().Add(t.checkpoint.Lease)
	ended := fmt.Errorf("ebbtide: the lease of task %q has just ended: ask again", t.handle.Config.Name)
	if !m.lease.Stop() {
		return ended
	}
	var err error
	if m.cgroup != nil {
		err = d.record(t, m.cgroup, shown)
	}
	if err == nil && !time.Now().Before(m.shown.Until) {
		err = ended
	}
	if err == nil {
		m.shown = shown
		t.setup.controller.Moving(t.handle.Config.ID, shown)
	}
	m.lease.Reset(time.Until(m.shown.Until))
	return err
}

// releaseMove thaws a task, or calls the preparation of its move off. It is no error if
// there is none.
func (d *Driver) releaseMove(t *task, why string) {
	m := &t.move
	was, cg, shown := m.callOff()
	if was == "" {
		return
	}
	t.setup.controller.Moving(t.handle.Config.ID, status.Move{Step: status.Unknown()})
	if was == status.MoveReady && cg != nil {
		d.thaw(t, cg)
	} else {
		d.erase(t)
	}
	m.freezing.Unlock()
	if shown.State != status.MoveFrozen {
		d.say(t, "runs on: "+why, nil)
	}
}

// mayEnd says whether the task ends for the signal that makes it save, if it does not
// handle it.
func (t *task) mayEnd() bool { return t.checkpoint != nil && t.checkpoint.Ends() }

// thaw thaws a frozen task. It retries on errors, since nothing else in this process would.
func (d *Driver) thaw(t *task, cg freezer) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 30*time.Second) {
		err := cg.Thaw()
		if err == nil {
			break
		}
		d.logger.Error("cannot thaw the task; trying again", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
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

// endFrozen kills the processes of a frozen task that is to be stopped: they would handle
// no signal. They do not run before.
func (d *Driver) endFrozen(t *task) {
	was, cg, shown := t.move.callOff()
	if was == "" {
		return
	}
	defer t.move.freezing.Unlock()
	if was == status.MoveReady {
		if shown.Path != "" {
			d.leave(t, shown.Path)
		}
		if cg != nil {
			if err := cg.Kill(); err != nil {
				d.logger.Warn("killing a frozen task", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
			}
		}
	}
	d.erase(t)
}

// erase takes back what was recorded: a task is not frozen, and will not be.
func (d *Driver) erase(t *task) {
	if err := d.remember(t, nil); err != nil {
		d.logger.Warn("the task is not frozen, but still recorded as such", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
	}
}

// afterMove delays the result of a task that has saved and ended: Nomad would take it for
// complete. If no move comes, it has failed, and Nomad starts it again. So has one that was
// slow to end, was frozen meanwhile and ends now that it is thawed. The result of one that
// ended just when it was frozen briefly is told when it is released.
func (d *Driver) afterMove(t *task, res *drivers.ExitResult) *drivers.ExitResult {
	m := &t.move
	m.mu.Lock()
	late := m.state == "" && t.mayEnd() && time.Since(m.thawed) < endsWithin
	if m.state == "" && !late || t.stopping.Load() || t.succeeded.Load() {
		m.mu.Unlock()
		return res
	}
	briefly := m.shown.State == status.MoveFrozen
	if !briefly && !t.mayEnd() { // it has ended by itself
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
	if briefly || t.stopping.Load() || t.succeeded.Load() {
		return res
	}
	code := res.ExitCode
	if code == 0 {
		code = 1
	}
	return &drivers.ExitResult{ExitCode: code, Err: errors.New("it was asked to save its state to be moved, has ended, and was not moved: it goes on here")}
}

// resumeMove takes over what an earlier process had begun.
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
	log := d.logger.With("task", cfg.Name, "alloc_id", cfg.AllocID)
	cg, err := d.findFreezer(t)
	if err != nil {
		log.Warn("the freeze of a task cannot be taken over; it is thawed", "error", err)
		d.thawRemains(cfg)
		return
	}
	// The one of the earlier process may have ended with it.
	ctx, cancel := context.WithTimeout(t.setup.ctx, freezeWithin)
	defer cancel()
	if err := watchdog.Start(ctx, cfg.AllocDir, cfg.Name, cfg.ID); err != nil {
		log.Warn("a task is frozen without a watchdog", "error", err)
	}
	t.move.mu.Lock()
	defer t.move.mu.Unlock()
	shown := status.Move{State: f.State, Path: f.Path, Bytes: f.Bytes, Step: f.Step, Until: f.Until}
	t.move.begin(t.setup.ctx, shown)
	d.ready(t, cg, shown)
}

// thawRemains thaws what an earlier process has frozen of this task.
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
		d.logger.Debug("the task is still recorded as frozen", "task", cfg.Name, "error", err)
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

// record records how far a task is prepared.
func (d *Driver) record(t *task, cg freezer, m status.Move) error {
	return d.remember(t, &private.Frozen{
		Run: t.handle.Config.ID, Cgroup: cg.FreezerDir(), State: m.State, Until: m.Until, Path: m.Path, Bytes: m.Bytes, Step: m.Step,
	})
}

// remember records that a task is frozen, or (nil) that it is not any more.
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
