// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/engine"
)

// grace is the time that the decorated driver was given to stop the task.
func (m *moving) grace(t *testing.T) time.Duration {
	t.Helper()
	_, text, _ := strings.Cut(<-m.inner.stopped, " ")
	d, err := time.ParseDuration(text)
	must.NoError(t, err)
	return d
}

func TestStop_saves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMoving(t)
		go m.save(t)
		begun := time.Now()
		must.NoError(t, m.d.StopTask("alloc/task/1", 30*time.Second, "SIGTERM"))
		message(t, m.messages, "saved /alloc/data/ckpt-1, 3 bytes, before the stop")
		took := time.Since(begun)
		must.Less(t, time.Second, took)
		must.Eq(t, 30*time.Second-took, m.grace(t), must.Sprint("what is left of kill_timeout"))
		must.NoError(t, m.d.StopTask("alloc/task/1", 30*time.Second, "SIGTERM"), must.Sprint("again, as Docker did not answer"))
		must.Eq(t, 30*time.Second, m.grace(t))
		must.Eq(t, 0, len(m.inner.signals))
	})
}

// A task that does not save is stopped within its kill_timeout nevertheless, whatever does not answer.
func TestStop_doesNotSave(t *testing.T) {
	for timeout, c := range map[time.Duration]struct {
		left time.Duration
		want string
	}{
		3 * time.Second:  {1500 * time.Millisecond, "none within 1.5s of SIGUSR1"},
		5 * time.Second:  {1500 * time.Millisecond, "none within 3.5s of SIGUSR1"},
		10 * time.Second: {2500 * time.Millisecond, "none within 7.5s of SIGUSR1"},
		time.Minute:      {5 * time.Second, "none within 55s of SIGUSR1"},
	} {
		for _, hangs := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				m := newMoving(t)
				must.NoError(t, os.WriteFile(filepath.Join(m.data, "ckpt-0"), []byte("an earlier one"), 0o644))
				if hangs {
					m.inner.signals = make(chan string)
				}
				begun := time.Now()
				must.NoError(t, m.d.StopTask("alloc/task/1", timeout, "SIGTERM"))
				must.Eq(t, timeout-c.left, time.Since(begun))
				must.Eq(t, c.left, m.grace(t))
				message(t, m.messages, "stopped without a new checkpoint: "+c.want)
				must.Eq(t, "SIGUSR1", <-m.inner.signals)
			})
		}
	}
}

func TestStop_cannotBeSignalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMoving(t)
		m.inner.refuse = errors.New("no such process")
		must.ErrorIs(t, m.d.StopTask("alloc/task/1", 30*time.Second, "SIGTERM"), m.inner.refuse)
		must.Eq(t, 30*time.Second, m.grace(t))
		message(t, m.messages, "stopped without a new checkpoint: sending SIGUSR1: no such process")
	})
}

// A trainer may exit once it has saved, or because it does not know the signal.
func TestStop_exits(t *testing.T) {
	for name, saves := range map[string]bool{"saved /alloc/data/ckpt-1": true, "stopped without a new checkpoint: it has exited": false} {
		synctest.Test(t, func(t *testing.T) {
			m := newMoving(t)
			ch, err := m.d.WaitTask(t.Context(), "alloc/task/1")
			must.NoError(t, err)
			go func() {
				if saves {
					m.save(t)
				} else {
					<-m.inner.signals // a task that has ended before is not asked at all
				}
				m.inner.results <- &drivers.ExitResult{ExitCode: 3}
			}()
			begun := time.Now()
			must.NoError(t, m.d.StopTask("alloc/task/1", 30*time.Second, "SIGTERM"))
			must.GreaterEq(t, checkpoint.Stable+eventTravels, time.Since(begun), must.Sprint("Nomad rejects events of an ended task"))
			must.Greater(t, 25*time.Second, m.grace(t))
			message(t, m.messages, name)
			must.Eq(t, 3, result(t, ch).ExitCode)
		})
	}
}

// These tasks are stopped as without a checkpoint block.
func TestStop_notAsked(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*moving)
		timeout time.Duration
		signal  string
	}{
		"no checkpoint block": {func(m *moving) { m.held.checkpoint = nil }, time.Minute, "SIGTERM"},
		"saves by itself":     {func(m *moving) { m.held.checkpoint.Signal = checkpoint.NoSignal }, time.Minute, "SIGTERM"},
		"same signal":         {func(m *moving) { m.held.checkpoint.Signal = "SIGINT" }, time.Minute, "sigint"},
		"Docker's default":    {func(m *moving) { m.held.checkpoint.Signal = "SIGTERM" }, time.Minute, ""},
		"no time":             {func(*moving) {}, 2 * time.Second, "SIGTERM"},
		"at its objective":    {func(m *moving) { m.held.succeeded.Store(true) }, time.Minute, "SIGTERM"},
		"has ended":           {func(m *moving) { close(m.held.settled) }, time.Minute, "SIGTERM"},
		"frozen": {func(m *moving) {
			if err := m.d.SignalTask("alloc/task/1", SignalFreeze); err != nil {
				panic(err)
			}
		}, time.Minute, "SIGTERM"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			c.change(m)
			must.NoError(t, m.d.StopTask("alloc/task/1", c.timeout, c.signal))
			must.Eq(t, c.signal+" "+c.timeout.String(), <-m.inner.stopped)
			must.Eq(t, 0, len(m.inner.signals))
		})
	}
	exec := &task{setup: &setup{engine: engine.NewExec()}, checkpoint: &checkpoint.Config{Signal: "SIGINT"}}
	must.False(t, exec.savesFirst(time.Minute, ""))
	must.True(t, exec.savesFirst(time.Minute, "SIGTERM"))
}
