// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/target"
)

func ending(t *testing.T) (d *Driver, first *fakeDriver, held *task, messages <-chan string) {
	d, first, _, messages = waiting(t, found{State: engine.State{Running: true, PID: 1}})
	first.stopped = make(chan string, 10)
	first.signals = make(chan string, 10)
	held, err := d.task("alloc/task/1")
	must.NoError(t, err)
	held.handle.Config.AllocDir = t.TempDir()
	return d, first, held, messages
}

var objective = target.Reached{State: policy.Objective, Metric: "loss", Value: 0.1, Target: 0.1, Step: new(float64), Time: time.Unix(1, 0).UTC()}

func remembered(t *testing.T, held *task) private.Record {
	rec, err := private.Load(held.handle.Config.AllocDir, "task")
	must.NoError(t, err)
	return rec
}

func TestObjectiveIsASuccessWhateverTheExitCode(t *testing.T) {
	d, first, held, _ := ending(t)
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	d.targetReached(held, options.Actions{StopSignal: "SIGINT", Grace: 7 * time.Second}, objective)
	must.Eq(t, "SIGINT 7s", <-first.stopped)
	must.Eq(t, &objective, remembered(t, held).Objective)
	first.results <- &drivers.ExitResult{ExitCode: 143, OOMKilled: true, Err: errors.New("exit 143")}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
}

func TestAcceptableSendsItsSignal(t *testing.T) {
	d, first, held, messages := ending(t)
	at := objective
	at.State = policy.Acceptable
	d.targetReached(held, options.Actions{Signal: "SIGUSR1"}, at)
	must.Eq(t, "SIGUSR1", <-first.signals)
	rec := remembered(t, held)
	must.Eq(t, &at, rec.Acceptable)
	must.Eq(t, "alloc/task/1", rec.Run)
	must.Nil(t, rec.Objective)
	must.Eq(t, policy.Acceptable, d.resumeTargets(held, &options.Task{}))
	held.handle.Config.ID = "alloc/task/2"
	must.Eq(t, policy.InTraining, d.resumeTargets(held, &options.Task{}), must.Sprint("restarted, it may be far from it"))

	first.refuse = errors.New("no such process")
	d.targetReached(held, options.Actions{Signal: "SIGUSR1"}, at)
	message(t, messages, "cannot send SIGUSR1")
	must.Eq(t, 0, len(first.stopped))
}

// A record that cannot be read stays: it may hold the checkpoint of a move.
func TestTargetKeepsAnUnreadableRecord(t *testing.T) {
	d, first, held, _ := ending(t)
	dir := held.handle.Config.AllocDir
	must.NoError(t, private.Update(dir, "task", func(r *private.Record) { r.Left = &private.Left{Path: "/local/checkpoint"} }))
	path := filepath.Join(dir, private.DirName, "task.record")
	sealed, err := os.ReadFile(path)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, sealed[1:], 0o600))
	d.targetReached(held, options.Actions{Grace: time.Second}, objective)
	must.Eq(t, " 1s", <-first.stopped, must.Sprint("the target is acted on"))
	now, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, sealed[1:], now)
}

// If the plugin or the agent dies after writing the record, the next one continues.
func TestObjectiveIsResumed(t *testing.T) {
	d, first, held, _ := ending(t)
	must.NoError(t, private.Update(held.handle.Config.AllocDir, "task", func(r *private.Record) { *r = private.Record{Objective: &objective} }))
	must.Eq(t, policy.Objective, d.resumeTargets(held, &options.Task{Act: options.Actions{Grace: time.Second}}))
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	must.Eq(t, " 1s", <-first.stopped)
	first.results <- &drivers.ExitResult{ExitCode: 1}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
}

func TestStopIsTriedAgain(t *testing.T) {
	d, first, held, _ := ending(t)
	first.refuse = errors.New("the daemon does not answer")
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.finish(held, options.Actions{})
	}()
	<-first.stopped
	<-first.stopped
	first.results <- &drivers.ExitResult{ExitCode: 137, Err: errors.New("killed")}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
	<-done
}

func TestFinishedTaskIsNotStartedAgain(t *testing.T) {
	d, first, held, messages := ending(t)
	dir := held.handle.Config.AllocDir
	must.NoError(t, private.Update(dir, "task", func(r *private.Record) { *r = private.Record{Objective: &objective} }))

	cfg := &drivers.TaskConfig{ID: "alloc/task/2", Name: "task", AllocID: "alloc", AllocDir: dir}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(map[string]any{}))
	handle, _, err := d.StartTask(cfg)
	must.NoError(t, err)
	must.Eq(t, cfg, handle.Config)
	message(t, messages, "not restarted: it has reached its objective, loss = 0.1")
	checkFinished(t, d, "alloc/task/2")

	first.refuse = errors.New("container is gone")
	lost := &drivers.TaskConfig{ID: "alloc/task/3", Name: "task", AllocID: "alloc", AllocDir: dir}
	must.NoError(t, lost.EncodeConcreteDriverConfig(map[string]any{}))
	must.NoError(t, d.RecoverTask(&drivers.TaskHandle{Config: lost}))
	checkFinished(t, d, "alloc/task/3")

	other := &drivers.TaskConfig{ID: "alloc/other/1", Name: "other", AllocID: "alloc", AllocDir: dir}
	must.NoError(t, other.EncodeConcreteDriverConfig(map[string]any{}))
	must.ErrorContains(t, d.RecoverTask(&drivers.TaskHandle{Config: other}), "container is gone")
}

func checkFinished(t *testing.T, d *Driver, id string) {
	t.Helper()
	ch, err := d.WaitTask(t.Context(), id)
	must.NoError(t, err)
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
	st, err := d.InspectTask(id)
	must.NoError(t, err)
	must.Eq(t, drivers.TaskStateExited, st.State)
	_, err = d.TaskStats(t.Context(), id, time.Second)
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
	_, err = d.ExecTask(id, []string{"x"}, time.Second)
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
	must.ErrorIs(t, d.SignalTask(id, "SIGHUP"), drivers.ErrTaskNotFound)
	must.NoError(t, d.StopTask(id, 0, ""))
	must.NoError(t, d.DestroyTask(id, true))
}

// On a full disk only the record is lost.
func TestObjectiveWithoutARecord(t *testing.T) {
	d, first, held, _ := ending(t)
	must.NoError(t, os.WriteFile(filepath.Join(held.handle.Config.AllocDir, ".ebbtide"), nil, 0o600))
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	d.targetReached(held, options.Actions{Grace: time.Second}, objective)
	<-first.stopped
	first.results <- &drivers.ExitResult{ExitCode: 143}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
	must.Eq(t, policy.InTraining, d.resumeTargets(held, &options.Task{}))
}

// A task named like the private directory is not started.
func TestStartTask_name(t *testing.T) {
	d, _, _, _ := waiting(t, found{err: engine.ErrGone})
	for _, name := range []string{".", "..", ".ebbtide"} {
		cfg := taskConfig(t, nil, nil)
		cfg.Name = name
		_, _, err := d.StartTask(cfg)
		must.ErrorContains(t, err, "a task cannot have this name")
	}
}
