// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Preparation of a task's move to another node. Nomad passes any signal name to a driver, so
// `nomad alloc signal` and the shim can request it:
//
//	            EBBTIDE_CHECKPOINT            saved                 stopped
//	  (runs) ─────────────────────► saving ─────────► ready ─────────────────► (ended)
//	     ▲                            │               │  ▲ │
//	     ├── not saved in time ◄──────┘               │  └─┘ EBBTIDE_CHECKPOINT
//	     └── EBBTIDE_RELEASE, or the lease expires ◄──┘    or EBBTIDE_RENEW:
//	                                                       renews the lease
//
//	saving  The task has Nomad's limits and has been signalled, unless it saves by itself.
//	ready   Its checkpoint is complete and the task is frozen, for the lease at most:
//	        it must not end while Nomad moves it, which would run it twice.
//	        Stopping it kills it without thawing.
//
// EBBTIDE_FREEZE freezes a task without a move, so that it cannot end while its job gets a new
// version.
//
// The freeze is recorded and a watchdog started before the task is signalled, so the task is thawed
// when the lease expires even if this process dies. A restarted plugin continues the freeze, or
// thaws a task that was still saving.
const (
	// SignalCheckpoint prepares a task's move.
	SignalCheckpoint = "EBBTIDE_CHECKPOINT"
	// SignalFreeze freezes a task briefly. Sending it returns once the task is frozen.
	SignalFreeze = "EBBTIDE_FREEZE"
	// SignalRenew renews the lease of a frozen task. It fails if the task is not frozen: the task
	// has run since and must save again.
	SignalRenew = "EBBTIDE_RENEW"
	// SignalRelease thaws a task, or cancels the preparation of its move.
	SignalRelease = "EBBTIDE_RELEASE"
)

// move is the preparation of one task's move.
type move struct {
	// freezing is held while the task and its record change between frozen and thawed. It is locked
	// before mu.
	freezing sync.Mutex

	mu    sync.Mutex
	state string             // "", status.MoveSaving or status.MoveReady
	stop  context.CancelFunc // cancels this preparation
	over  chan struct{}      // closed when the preparation ends

	// Set in state ready.
	cgroup freezer // nil: the task has saved and ended
	lease  *time.Timer
	shown  status.Move

	thawed time.Time // end of the last freeze
}

// freezer is the part of limits.Cgroup that a move needs.
type freezer interface {
	Freeze(context.Context) error
	Thaw() error
	Kill() error
	FreezerDir() string
}

// begin starts a preparation and returns its context. The caller holds mu.
func (m *move) begin(parent context.Context, shown status.Move) (ctx context.Context) {
	ctx, m.stop = context.WithCancel(parent)
	m.state, m.over = status.MoveSaving, make(chan struct{})
	m.cgroup, m.lease, m.shown = nil, nil, shown
	return ctx
}

// end ends the preparation, if any, and returns its state. The caller holds mu.
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

// cancel ends the preparation, if any, and returns its state. Unless was is "", the caller must
// thaw or kill the task, then unlock freezing.
func (m *move) cancel() (was string, cg freezer, shown status.Move) {
	m.mu.Lock()
	if m.state == "" {
		m.mu.Unlock()
		return "", nil, status.Move{}
	}
	m.stop() // abort a freeze in progress
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

// thawing reports whether the last freeze is still being undone. The caller holds mu.
func (m *move) thawing() bool {
	if !m.freezing.TryLock() {
		return true
	}
	m.freezing.Unlock()
	return false
}

const (
	// freezeWithin bounds the time to freeze a task, and to start a watchdog.
	freezeWithin = 5 * time.Second
	// endsWithin is the time a process gets to exit after it has saved, if its signal usually
	// terminates processes. One that still runs then has ignored the signal.
	endsWithin = 10 * time.Second
)

var errCancelled = errors.New("the move was cancelled")

// prepareMove has a task save its state. It does not wait; events and the status report the
// result.
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
			return fmt.Errorf("ebbtide: task %q is frozen briefly: try again", cfg.Name)
		}
		return d.extendLease(t)
	}
	if m.thawing() {
		return fmt.Errorf("ebbtide: task %q is still being thawed: try again", cfg.Name)
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

func mayFreeze(t *task) error {
	switch name := t.handle.Config.Name; {
	case t.checkpoint == nil:
		return fmt.Errorf("ebbtide: task %q has no checkpoint block: set checkpoint { path = … } in its config", name)
	case t.stopping.Load() || t.succeeded.Load():
		return fmt.Errorf("ebbtide: task %q is ending", name)
	}
	return nil
}

// freezeBriefly freezes a task without a move. A task that is ready to move is already frozen.
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
		return fmt.Errorf("ebbtide: task %q is being frozen or thawed: try again", t.handle.Config.Name)
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
	d.abort(ctx, t)
	return fmt.Errorf("ebbtide: %w", err)
}

func (d *Driver) renewFreeze(t *task) error {
	m := &t.move
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != status.MoveReady {
		return fmt.Errorf("ebbtide: task %q is not frozen", t.handle.Config.Name)
	}
	return d.extendLease(t)
}

func (d *Driver) save(ctx context.Context, t *task, files *checkpoint.Files, before checkpoint.State) {
	cfg := t.handle.Config
	t.setup.controller.Moving(cfg.ID, saving())
	err := d.saveAndFreeze(ctx, t, files, before)
	if err == nil {
		d.metrics.Saves.Count(nil)
		return
	}
	if !d.abort(ctx, t) {
		return
	}
	d.metrics.Saves.Count(err)
	t.setup.controller.Moving(cfg.ID, status.Move{State: status.MoveFailed, Step: status.Unknown(), Why: err.Error()})
	d.say(t, "move-failed", fmt.Sprintf("cannot be moved, keeps running: %v", err), nil)
}

func saving() status.Move { return status.Move{State: status.MoveSaving, Step: status.Unknown()} }

// abort ends a failed preparation. It returns false if the preparation was ended concurrently,
// which has thawed the task and reported why.
func (d *Driver) abort(ctx context.Context, t *task) bool {
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

// saveAndFreeze asks a task to save, unless it does so by itself, waits for the checkpoint and
// freezes the task immediately, because steps in between are repeated. Slow operations therefore come first.
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
	awaited := fmt.Sprintf("within %v", c.Timeout)
	if c.Asked() {
		if err := t.instance().SignalTask(cfg.ID, c.Signal); err != nil {
			return fmt.Errorf("sending %s: %w", c.Signal, err)
		}
		awaited += " of " + c.Signal
	}
	saved, err := files.Wait(within, before)
	if err != nil {
		return fmt.Errorf("no checkpoint %s: %w", awaited, err)
	}
	if c.Ends() && d.ends(within, t) {
		cg = nil
	}
	return d.freeze(ctx, t, cg, status.Move{State: status.MoveReady, Path: saved.Path, Bytes: saved.Bytes, Step: status.Number(step)})
}

// guard records the coming freeze and starts a watchdog that thaws the task after most. The task
// must not be frozen without both.
func (d *Driver) guard(ctx context.Context, t *task, cg freezer, shown status.Move, most time.Duration) error {
	t.move.freezing.Lock()
	defer t.move.freezing.Unlock()
	if ctx.Err() != nil {
		return errCancelled
	}
	shown.Until = time.Now().Add(most)
	if err := d.recordMove(t, cg, shown); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, freezeWithin)
	defer cancel()
	return watchdog.Start(ctx, t.handle.Config.AllocDir, t.handle.Config.Name, t.handle.Config.ID)
}

// ends reports whether a task exits within endsWithin of its signal.
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

// lastStep returns the task's last reported step. It does not wait for a stuck control loop.
func (d *Driver) lastStep(ctx context.Context, t *task) float64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return t.setup.controller.Step(ctx, t.handle.Config.ID)
}

// freeze freezes the task for its lease. If cg is nil, the task has exited.
func (d *Driver) freeze(ctx context.Context, t *task, cg freezer, shown status.Move) error {
	m := &t.move
	m.freezing.Lock()
	defer m.freezing.Unlock()
	if ctx.Err() != nil {
		return errCancelled
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
		err = errCancelled
	} else if shown.Until = time.Now().Add(t.checkpoint.Lease); cg != nil {
		err = d.recordMove(t, cg, shown)
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
	d.say(t, "checkpoint", fmt.Sprintf("checkpoint saved: %s, %d bytes, %s; the task is frozen until %s, to be moved",
		shown.Path, shown.Bytes, stepText(shown.Step), shown.Until.UTC().Format(time.RFC3339)), map[string]string{
		"path": shown.Path, "bytes": strconv.FormatInt(shown.Bytes, 10),
		"step": fmt.Sprint(float64(shown.Step)), "until": shown.Until.UTC().Format(time.RFC3339Nano),
	})
	return nil
}

// ready starts the lease. The caller holds mu.
func (d *Driver) ready(t *task, cg freezer, shown status.Move) {
	m := &t.move
	m.state, m.cgroup, m.shown = status.MoveReady, cg, shown
	m.lease = time.AfterFunc(time.Until(shown.Until), func() { d.releaseMove(t, "no move within the lease") })
	t.setup.controller.Moving(t.handle.Config.ID, shown)
}

// extendLease renews the lease of a ready task, unless it has expired and the watchdog
// may have thawed the task. The caller holds mu.
func (d *Driver) extendLease(t *task) error {
	m := &t.move
	shown := m.shown
	shown.Until = time.Now().Add(t.checkpoint.Lease)
	ended := fmt.Errorf("ebbtide: the lease of task %q has just expired: try again", t.handle.Config.Name)
	if !m.lease.Stop() {
		return ended
	}
	var err error
	if m.cgroup != nil {
		err = d.recordMove(t, m.cgroup, shown)
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

// releaseMove thaws a task, or cancels the preparation of its move, if there is one.
func (d *Driver) releaseMove(t *task, why string) {
	if t.suspended.Load() {
		return // being killed
	}
	m := &t.move
	was, cg, shown := m.cancel()
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
		d.say(t, "released", "keeps running: "+why, nil)
	}
}

func (t *task) mayEnd() bool { return t.checkpoint != nil && t.checkpoint.Ends() }

// thaw thaws a frozen task. It retries, because nothing else in this process would.
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

// endFrozen kills a frozen task that is being stopped: it could not handle a signal. It returns false
// if the task is not frozen.
func (d *Driver) endFrozen(t *task) bool {
	was, cg, shown := t.move.cancel()
	if was == "" {
		return false
	}
	defer t.move.freezing.Unlock()
	if was == status.MoveReady {
		if shown.Path != "" {
			d.recordLeft(t, shown.Path)
		}
		if cg != nil {
			if err := cg.Kill(); err != nil {
				d.logger.Warn("cannot kill a frozen task", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
			}
		}
	}
	d.erase(t)
	return was == status.MoveReady
}

func (d *Driver) erase(t *task) {
	if err := d.recordFreeze(t, nil); err != nil {
		d.logger.Warn("the task is not frozen, but still recorded as such", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
	}
}

// afterMove delays the result of a task that has saved and exited, which Nomad would consider
// complete. If it is not moved, the task has failed and Nomad restarts it; so has a task that was
// frozen before it could exit, and exits once thawed. The result of a briefly frozen task is
// returned on release.
func (d *Driver) afterMove(t *task, res *drivers.ExitResult) *drivers.ExitResult {
	m := &t.move
	m.mu.Lock()
	late := m.state == "" && t.mayEnd() && time.Since(m.thawed) < endsWithin
	if m.state == "" && !late || t.stopping.Load() || t.succeeded.Load() || t.suspended.Load() {
		m.mu.Unlock()
		return res
	}
	briefly := m.shown.State == status.MoveFrozen
	if !briefly && !t.mayEnd() { // not because of its signal
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
	if briefly || t.stopping.Load() || t.succeeded.Load() || t.suspended.Load() {
		return res
	}
	code := res.ExitCode
	if code == 0 {
		code = 1
	}
	return &drivers.ExitResult{ExitCode: code, Err: errors.New("the task exited after saving its state, and was not moved: it restarts here")}
}

func (d *Driver) resumeMove(t *task) {
	cfg := t.handle.Config
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err == nil && rec.Suspended {
		t.suspended.Store(true)
		t.setup.controller.Moving(cfg.ID, status.Move{State: status.MoveSuspended, Step: status.Unknown()})
		cg, _ := d.findFreezer(t)
		go d.killSuspended(t, cg)
		return
	}
	if err != nil || rec.Frozen == nil || rec.Frozen.Run != cfg.ID {
		return
	}
	f := rec.Frozen
	if f.State == status.MoveSaving { // a freeze may have followed
		d.thawStale(cfg)
		why := "the plugin restarted while the task saved its state"
		t.setup.controller.Moving(cfg.ID, status.Move{State: status.MoveFailed, Step: status.Unknown(), Why: why})
		d.say(t, "move-failed", "cannot be moved, keeps running: "+why, nil)
		return
	}
	log := d.logger.With("task", cfg.Name, "alloc_id", cfg.AllocID)
	cg, err := d.findFreezer(t)
	if err != nil {
		log.Warn("cannot take over the freeze of a task; thawing it", "error", err)
		d.thawStale(cfg)
		return
	}
	// The previous process's watchdog may have ended with it.
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

func (d *Driver) thawStale(cfg *drivers.TaskConfig) {
	rec, err := private.Load(cfg.AllocDir, cfg.Name)
	if err != nil || rec.Frozen == nil {
		return
	}
	if err := limits.Thaw(rec.Frozen.Cgroup); err != nil {
		d.logger.Warn("cannot thaw the task's earlier processes", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
	if err := private.Update(cfg.AllocDir, cfg.Name, func(r *private.Record) { r.Frozen = nil }); err != nil {
		d.logger.Debug("the task is still recorded as frozen", "task", cfg.Name, "error", err)
	}
}

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

func (d *Driver) recordMove(t *task, cg freezer, m status.Move) error {
	return d.recordFreeze(t, &private.Frozen{
		Run: t.handle.Config.ID, Cgroup: cg.FreezerDir(), State: m.State, Until: m.Until, Path: m.Path, Bytes: m.Bytes, Step: m.Step,
	})
}

// recordFreeze records that a task is frozen, or with nil that it is not.
func (d *Driver) recordFreeze(t *task, f *private.Frozen) error {
	cfg := t.handle.Config
	return private.Update(cfg.AllocDir, cfg.Name, func(r *private.Record) { r.Frozen = f })
}

// say sends an event about a task immediately. kind is one of publish.Kinds; further annotations
// are for tools, and may be nil.
func (d *Driver) say(t *task, kind, message string, more map[string]string) {
	cfg := t.handle.Config
	annotations := map[string]string{publish.Annotation: kind}
	maps.Copy(annotations, more)
	d.emit(publish.Event{TaskID: cfg.ID, AllocID: cfg.AllocID, TaskName: cfg.Name, Message: message, Annotations: annotations})
}

func stepText(step status.Number) string {
	if math.IsNaN(float64(step)) {
		return "step unknown"
	}
	return fmt.Sprintf("step %.0f or later", float64(step))
}
