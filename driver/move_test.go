// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
)

type fakeFreezer struct {
	mu       sync.Mutex
	state    string // "runs", "frozen", "killed"
	dir      string
	refuse   error
	freezing func(context.Context) // called by Freeze
}

func (f *fakeFreezer) to(state string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse == nil && f.state != "killed" {
		f.state = state
	}
	return f.refuse
}

func (f *fakeFreezer) fails(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = err
}

func (f *fakeFreezer) is() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *fakeFreezer) Freeze(ctx context.Context) error {
	if f.freezing != nil {
		f.freezing(ctx)
	}
	return f.to("frozen")
}
func (f *fakeFreezer) Thaw() error        { return f.to("runs") }
func (f *fakeFreezer) Kill() error        { return f.to("killed") }
func (f *fakeFreezer) FreezerDir() string { return f.dir }

type moving struct {
	d        *Driver
	inner    *fakeDriver
	held     *task
	messages <-chan string
	fridge   *fakeFreezer
	data     string // NOMAD_ALLOC_DIR/data
}

func newMoving(t *testing.T) *moving {
	d, first, held, messages := ending(t)
	m := &moving{d: d, inner: first, held: held, messages: messages, fridge: &fakeFreezer{state: "runs", dir: t.TempDir()}}
	m.data = filepath.Join(held.handle.Config.AllocDir, "alloc", "data")
	must.NoError(t, os.MkdirAll(m.data, 0o755))
	held.checkpoint = &checkpoint.Config{Path: "/alloc/data/ckpt-*", Signal: "SIGUSR1", Timeout: time.Minute, Lease: time.Minute}
	d.findFreezer = func(*task) (freezer, error) { return m.fridge, nil }
	go d.setup.Load().controller.Run(t.Context())
	return m
}

func (m *moving) save(t *testing.T) {
	t.Helper()
	must.Eq(t, m.held.checkpoint.Signal, <-m.inner.signals)
	must.NoError(t, os.WriteFile(filepath.Join(m.data, "ckpt-1"), []byte("abc"), 0o644))
}

func (m *moving) prepare(t *testing.T) {
	t.Helper()
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	m.save(t)
	message(t, m.messages, "checkpoint saved: /alloc/data/ckpt-1, 3 bytes, step unknown; the task is frozen until ")
}

func (m *moving) frozen(t *testing.T) *private.Frozen {
	t.Helper()
	return remembered(t, m.held).Frozen
}

func TestMove_cancelled(t *testing.T) {
	m := newMoving(t)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease), must.Sprint("nothing to release is no error"))
	m.prepare(t)
	must.Eq(t, "frozen", m.fridge.is())
	f := *m.frozen(t)
	f.Step = 0 // unknown
	must.Eq(t, private.Frozen{Run: "alloc/task/1", Cgroup: m.fridge.dir, State: status.MoveReady, Until: f.Until, Path: "/alloc/data/ckpt-1", Bytes: 3}, f)

	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint), must.Sprint("once more: the lease is restarted"))
	must.True(t, m.frozen(t).Until.After(f.Until))
	must.Eq(t, 0, len(m.inner.signals))

	f = *m.frozen(t)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRenew))
	must.True(t, m.frozen(t).Until.After(f.Until))

	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	message(t, m.messages, "keeps running: the move was cancelled")
	must.Eq(t, "runs", m.fridge.is())
	must.Nil(t, m.frozen(t))
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalRenew), `task "task" is not frozen`)
	must.Eq(t, "runs", m.fridge.is())

	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	must.Eq(t, "SIGUSR1", <-m.inner.signals)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint), must.Sprint("twice is once"))
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	message(t, m.messages, "keeps running: the move was cancelled")
	must.Eq(t, 0, len(m.inner.signals))
	must.Eq(t, "runs", m.fridge.is())
}

func TestMove_leaseEnds(t *testing.T) {
	m := newMoving(t)
	m.held.checkpoint.Lease = time.Second
	m.prepare(t)
	message(t, m.messages, "keeps running: no move within the lease")
	must.Eq(t, "runs", m.fridge.is())
	must.Nil(t, m.frozen(t))

	// If the lease expires during a renewal, the watchdog may already have thawed the task.
	m.held.checkpoint.Lease = time.Hour
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalFreeze))
	m.held.move.mu.Lock()
	m.held.move.shown.Until = time.Now()
	m.held.move.mu.Unlock()
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalFreeze), "has just expired")
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return m.fridge.is() == "runs" && m.frozen(t) == nil })))
}

// The watchdog thaws the task when its lease expires, even without this process.
func TestMove_watched(t *testing.T) {
	for _, signal := range []string{SignalCheckpoint, SignalFreeze} {
		t.Run(signal, func(t *testing.T) {
			m := newMoving(t)
			file := filepath.Join(m.fridge.dir, "cgroup.freeze")
			must.NoError(t, os.WriteFile(file, []byte("1"), 0o600))
			m.held.checkpoint.Lease = 2 * time.Second
			must.NoError(t, m.d.SignalTask("alloc/task/1", signal))
			if signal == SignalCheckpoint {
				m.save(t)
				message(t, m.messages, "checkpoint saved")
			}
			m.held.move.mu.Lock()
			must.True(t, m.held.move.lease.Stop())
			until := m.held.move.shown.Until
			m.held.move.mu.Unlock()
			must.Wait(t, wait.InitialSuccess(wait.Timeout(30*time.Second), wait.Gap(10*time.Millisecond), wait.BoolFunc(func() bool {
				text, err := os.ReadFile(file)
				must.NoError(t, err)
				return string(text) == "0"
			})))
			must.False(t, time.Now().Before(until))
			must.NotNil(t, m.frozen(t), must.Sprint("the plugin that comes back is to know"))
		})
	}
}

func TestMove_fails(t *testing.T) {
	m := newMoving(t)
	m.held.checkpoint.Timeout = time.Second
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	message(t, m.messages, "cannot be moved, keeps running: no checkpoint within 1s of SIGUSR1: no file matches /alloc/data/ckpt-*")
	must.Eq(t, "runs", m.fridge.is())
	<-m.inner.signals

	m.inner.refuse = errors.New("no such process")
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	message(t, m.messages, "sending SIGUSR1: no such process")
	<-m.inner.signals
	m.inner.refuse = nil

	m.held.checkpoint.Timeout = time.Minute
	m.fridge.refuse = errors.New("no freezer here")
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	m.save(t)
	message(t, m.messages, "no freezer here")
	must.Nil(t, m.frozen(t))
	m.fridge.refuse = nil

	// The task is not signalled without a record: nothing would thaw it.
	must.NoError(t, os.RemoveAll(filepath.Join(m.held.handle.Config.AllocDir, ".ebbtide")))
	must.NoError(t, os.WriteFile(filepath.Join(m.held.handle.Config.AllocDir, ".ebbtide"), nil, 0o600))
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	message(t, m.messages, "cannot be moved, keeps running")
	must.Eq(t, "runs", m.fridge.is())
	must.Eq(t, 0, len(m.inner.signals))
}

// A task that saves by itself is asked for nothing. What it has saved before does not count.
func TestMove_unasked(t *testing.T) {
	m := newMoving(t)
	m.held.checkpoint.Signal, m.held.checkpoint.Timeout = checkpoint.NoSignal, time.Second
	must.NoError(t, os.WriteFile(filepath.Join(m.data, "ckpt-0"), []byte("ab"), 0o644))
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	message(t, m.messages, "cannot be moved, keeps running: no checkpoint within 1s: none of the 1 files that match /alloc/data/ckpt-* is new")
	must.Eq(t, "runs", m.fridge.is())

	m.held.checkpoint.Timeout = 24 * time.Hour
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	must.NoError(t, os.WriteFile(filepath.Join(m.data, "ckpt-1"), []byte("abc"), 0o644))
	message(t, m.messages, "checkpoint saved: /alloc/data/ckpt-1, 3 bytes")
	must.Eq(t, "frozen", m.fridge.is())
	must.Eq(t, 0, len(m.inner.signals))
}

// A move is cancelled while the kernel freezes the task, after the timeout for saving.
// The next preparation is unaffected.
func TestMove_cancelledWhileFreezing(t *testing.T) {
	m := newMoving(t)
	m.held.checkpoint.Timeout = 2 * time.Second
	over := time.Now().Add(m.held.checkpoint.Timeout + 100*time.Millisecond)
	freezing := make(chan struct{})
	var once sync.Once
	m.fridge.freezing = func(ctx context.Context) {
		once.Do(func() {
			close(freezing)
			<-ctx.Done() // and is frozen nevertheless
		})
	}
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	m.save(t)
	<-freezing
	time.Sleep(time.Until(over))
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	message(t, m.messages, "keeps running: the move was cancelled")
	must.Eq(t, "runs", m.fridge.is())
	must.Nil(t, m.frozen(t))
	m.held.checkpoint.Timeout = time.Minute
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	must.Eq(t, "SIGUSR1", <-m.inner.signals)
	must.NoError(t, os.WriteFile(filepath.Join(m.data, "ckpt-2"), []byte("abcd"), 0o644))
	message(t, m.messages, "checkpoint saved: /alloc/data/ckpt-2, 4 bytes")
	must.Eq(t, "frozen", m.fridge.is())
}

// A plugin that no longer accepts the task's options continues its freeze.
func TestMove_recoveredWithoutOptions(t *testing.T) {
	for name, options := range map[string]string{
		"no longer valid": `{"Progress":{"Preset":"gone"},"Checkpoint":{"Path":"/alloc/data/ckpt-*","Signal":"SIGTERM"}}`,
		"not readable":    `[]`,
	} {
		for _, called := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				m := newMoving(t)
				m.d.setup.Load().engine = &fakeEngine{finds: []found{{State: engine.State{Running: true, PID: 1}}}}
				cfg := *m.held.handle.Config
				cfg.Env = map[string]string{optionsEnv: options}
				m.d.forget(m.held)
				m.fridge.state = "frozen"
				until := time.Minute
				if !called {
					until = time.Second
				}
				must.NoError(t, m.d.recordFreeze(m.held, &private.Frozen{Run: cfg.ID, Cgroup: m.fridge.dir, State: status.MoveReady,
					Until: time.Now().Add(until), Path: "/alloc/data/ckpt-1", Bytes: 3, Step: status.Unknown()}))
				must.NoError(t, m.d.RecoverTask(&drivers.TaskHandle{Config: &cfg}))
				must.Eq(t, "frozen", m.fridge.is())
				if called {
					must.NoError(t, m.d.SignalTask(cfg.ID, SignalRelease))
				}
				message(t, m.messages, "keeps running: ")
				must.Eq(t, "runs", m.fridge.is())
				must.Nil(t, m.frozen(t))
			})
		}
	}
}

func TestMove_frozenBriefly(t *testing.T) {
	m := newMoving(t)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalFreeze))
	must.Eq(t, "frozen", m.fridge.is())
	must.NotNil(t, m.frozen(t))
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalFreeze), must.Sprint("once more: the lease is restarted"))
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint), "is frozen briefly: try again")
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	must.Eq(t, "runs", m.fridge.is())
	must.Nil(t, m.frozen(t))

	m.fridge.refuse = errors.New("no freezer here")
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalFreeze), "no freezer here")
	m.fridge.refuse = nil
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalFreeze), "is being frozen or thawed")
	m.save(t)
	message(t, m.messages, "checkpoint saved")
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalFreeze), must.Sprint("it does already"))
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	message(t, m.messages, "keeps running: the move was cancelled")
	must.Eq(t, 0, len(m.inner.signals))
}

// The exit of a process during a brief freeze is reported on release, whatever its checkpoint
// signal. A process that has exited cannot be frozen.
func TestMove_frozenBrieflyEnds(t *testing.T) {
	m := newMoving(t)
	m.held.checkpoint.Signal = "SIGTERM"
	ch, err := m.d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalFreeze))
	m.inner.results <- &drivers.ExitResult{}
	select {
	case <-ch:
		t.Fatal("Nomad is told of its end while it is frozen")
	case <-time.After(50 * time.Millisecond):
	}
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))

	m = newMoving(t)
	m.held.checkpoint.Signal = "SIGTERM"
	m.d.findFreezer = func(*task) (freezer, error) { return nil, engine.ErrGone }
	must.ErrorIs(t, m.d.SignalTask("alloc/task/1", SignalFreeze), engine.ErrGone)
}

func TestMove_notThawed(t *testing.T) {
	m := newMoving(t)
	m.prepare(t)
	m.fridge.fails(errors.New("no freezer here"))
	released := make(chan error)
	go func() { released <- m.d.SignalTask("alloc/task/1", SignalRelease) }()
	must.Wait(t, wait.InitialSuccess(wait.Timeout(30*time.Second), wait.BoolFunc(func() bool {
		m.held.move.mu.Lock()
		defer m.held.move.mu.Unlock()
		return m.held.move.state == ""
	})))
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint), "is still being thawed")
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalFreeze), "is being frozen or thawed")
	must.NoError(t, m.d.StopTask("alloc/task/1", time.Second, "SIGTERM"))
	must.NotNil(t, m.frozen(t))
	m.fridge.fails(nil)
	must.NoError(t, <-released)
	must.Nil(t, m.frozen(t))
}

func TestMove_refused(t *testing.T) {
	m := newMoving(t)
	m.held.stopping.Store(true)
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint), `task "task" is ending`)
	m.held.checkpoint = nil
	must.ErrorContains(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint), "set checkpoint { path = … } in its config")
	must.ErrorIs(t, m.d.SignalTask("unknown", SignalCheckpoint), drivers.ErrTaskNotFound)
	must.Eq(t, 0, len(m.inner.signals))
}

// Stopping a frozen task kills it without thawing.
func TestMove_stopped(t *testing.T) {
	m := newMoving(t)
	ch, err := m.d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	m.prepare(t)
	must.NoError(t, m.d.StopTask("alloc/task/1", time.Second, "SIGTERM"))
	must.Eq(t, "killed", m.fridge.is())
	must.Eq(t, "SIGTERM 1s", <-m.inner.stopped)
	must.Nil(t, m.frozen(t))
	cfg := m.held.handle.Config
	must.Eq(t, &private.Left{Namespace: cfg.Namespace, Job: cfg.JobID, Group: cfg.TaskGroupName, Path: "/alloc/data/ckpt-1"}, remembered(t, m.held).Left)
	want := &drivers.ExitResult{ExitCode: 137}
	m.inner.results <- want
	must.Eq(t, want, result(t, ch))
}

func TestMove_stoppedWhileSaving(t *testing.T) {
	m := newMoving(t)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	<-m.inner.signals
	must.NoError(t, m.d.StopTask("alloc/task/1", time.Second, "SIGTERM"))
	must.Eq(t, "SIGTERM 1s", <-m.inner.stopped)
	must.Eq(t, "runs", m.fridge.is())
}

func TestMove_objective(t *testing.T) {
	m := newMoving(t)
	m.prepare(t)
	m.d.targetReached(m.held, options.Actions{Grace: 3 * time.Second}, objective)
	must.Eq(t, " 3s", <-m.inner.stopped)
	must.Eq(t, "runs", m.fridge.is())
	rec := remembered(t, m.held)
	must.NotNil(t, rec.Objective)
	must.Nil(t, rec.Frozen)
}

// A trainer that saves and exits is not complete: without a move it restarts here.
func TestMove_savesAndExits(t *testing.T) {
	for _, moved := range []bool{false, true} {
		m := newMoving(t)
		m.held.checkpoint.Signal, m.held.checkpoint.Lease = "SIGTERM", time.Second
		looks := 0
		m.d.findFreezer = func(*task) (freezer, error) {
			if looks++; looks > 2 { // it takes a while
				return nil, engine.ErrGone
			}
			return m.fridge, nil
		}
		ch, err := m.d.WaitTask(t.Context(), "alloc/task/1")
		must.NoError(t, err)
		must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
		m.save(t)
		m.inner.results <- &drivers.ExitResult{}
		message(t, m.messages, "checkpoint saved")
		if moved {
			must.NoError(t, m.d.StopTask("alloc/task/1", 0, ""))
			must.Eq(t, &drivers.ExitResult{}, result(t, ch))
			continue
		}
		res := result(t, ch)
		must.Eq(t, 1, res.ExitCode)
		must.ErrorContains(t, res.Err, "was not moved: it restarts here")
	}
}

// A task frozen before it could exit is not complete either: without a move it exits when thawed.
func TestMove_exitsLate(t *testing.T) {
	m := newMoving(t)
	m.held.checkpoint.Signal, m.held.checkpoint.Lease = "SIGTERM", time.Second
	ch, err := m.d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	ctx := m.held.move.begin(t.Context(), status.Move{})
	must.NoError(t, m.d.freeze(ctx, m.held, m.fridge, status.Move{State: status.MoveReady, Path: "/alloc/data/ckpt-1"}))
	message(t, m.messages, "checkpoint saved")
	message(t, m.messages, "keeps running: no move within the lease")
	m.inner.results <- &drivers.ExitResult{}
	res := result(t, ch)
	must.Eq(t, 1, res.ExitCode)
	must.ErrorContains(t, res.Err, "was not moved: it restarts here")
}

// The result of a task that exits without a signal is unchanged.
func TestMove_endsByItself(t *testing.T) {
	m := newMoving(t)
	ch, err := m.d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalCheckpoint))
	<-m.inner.signals
	m.inner.results <- &drivers.ExitResult{}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
}

// If the plugin dies while a task is frozen, the next one continues the freeze, or thaws.
func TestMove_resumed(t *testing.T) {
	for name, c := range map[string]struct {
		until time.Duration
		want  string
	}{
		"the lease holds": {time.Second, "no move within the lease"},
		"it has ended":    {-time.Second, "no move within the lease"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.fridge.state = "frozen"
			until := time.Now().Add(c.until)
			must.NoError(t, m.d.recordFreeze(m.held, &private.Frozen{Run: "alloc/task/1", Cgroup: m.fridge.dir, State: status.MoveReady, Until: until, Path: "/alloc/data/ckpt-1", Bytes: 3, Step: status.Unknown()}))
			m.d.resumeMove(m.held)
			message(t, m.messages, c.want)
			must.Eq(t, "runs", m.fridge.is())
			must.Nil(t, m.frozen(t))
		})
	}

	saving := newMoving(t)
	must.NoError(t, saving.d.recordFreeze(saving.held, &private.Frozen{Run: "alloc/task/1", Cgroup: saving.fridge.dir, State: status.MoveSaving, Step: status.Unknown()}))
	saving.d.resumeMove(saving.held)
	message(t, saving.messages, "cannot be moved, keeps running: the plugin restarted while the task saved its state")
	must.Nil(t, saving.frozen(t))

	m := newMoving(t)
	must.NoError(t, m.d.recordFreeze(m.held, &private.Frozen{Run: "alloc/task/1", Cgroup: m.fridge.dir, State: status.MoveFrozen, Until: time.Now().Add(time.Minute)}))
	m.d.resumeMove(m.held)
	must.Eq(t, status.MoveFrozen, m.held.move.shown.State)
	must.NoError(t, m.d.SignalTask("alloc/task/1", SignalRelease))
	must.Eq(t, "runs", m.fridge.is())

	m = newMoving(t)
	must.NoError(t, m.d.recordFreeze(m.held, &private.Frozen{Run: "alloc/task/0", Cgroup: m.fridge.dir}))
	m.d.resumeMove(m.held)
	must.NotNil(t, m.frozen(t))
	m.d.thawStale(m.held.handle.Config)
	must.Nil(t, m.frozen(t))
}
