// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/engine"
)

// The last save. Nomad stops a task for a preemption, a drain, an update or a user, and the steps
// since its last checkpoint would be lost. So it is asked to save first, within its kill_timeout.

const (
	// shortestStop is the least kill_timeout in which a task can save.
	shortestStop = 3 * time.Second
	// afterExit is how long a checkpoint of a process that has exited is looked for: it is complete.
	afterExit = 4 * checkpoint.Stable
)

// ordinaryStop is the part of a kill_timeout that a save leaves, for the task's own handling of its
// kill_signal. The docker driver rounds down to seconds, and kills at once with none.
func ordinaryStop(timeout time.Duration) time.Duration {
	return min(max(timeout/4, 1500*time.Millisecond), 5*time.Second)
}

// savesFirst reports whether a task that is to be stopped is asked to save.
func (t *task) savesFirst(timeout time.Duration, killSignal string) bool {
	c := t.checkpoint
	if c == nil || !c.Asked() || timeout < shortestStop || t.succeeded.Load() {
		return false
	}
	select {
	case <-t.settled:
		return false
	default:
	}
	byDefault := "SIGTERM"
	if t.setup.engine.Name() == engine.Exec {
		byDefault = "SIGINT"
	}
	return !strings.EqualFold(c.Signal, cmp.Or(killSignal, byDefault)) // which the task gets anyway
}

// saveFirst asks a task to save before it is stopped. It returns what is left of its kill_timeout.
func (d *Driver) saveFirst(t *task, timeout time.Duration) (left time.Duration) {
	ends := time.Now().Add(timeout)
	within := timeout - ordinaryStop(timeout)
	ctx, cancel := context.WithTimeout(d.ctx, within)
	defer cancel()
	type result struct {
		saved checkpoint.Saved
		err   error
	}
	done := make(chan result, 1)
	go func() { // neither the engine nor the file system may delay the stop
		saved, err := d.lastSave(ctx, t)
		done <- result{saved, err}
	}()
	var res result
	exited := false
	select {
	case res = <-done:
	case <-ctx.Done():
		res.err = ctx.Err()
	case <-t.settled:
		exited = true
		select {
		case res = <-done:
		case <-time.After(afterExit):
			res.err = errors.New("it has exited")
		case <-ctx.Done():
			res.err = ctx.Err()
		}
	}
	text := fmt.Sprintf("saved %s, %d bytes, before the stop", res.saved.Path, res.saved.Bytes)
	if errors.Is(res.err, context.DeadlineExceeded) {
		res.err = fmt.Errorf("none within %v of %s", within, t.checkpoint.Signal)
	}
	if res.err != nil {
		text = fmt.Sprintf("stopped without a new checkpoint: %v", res.err)
	}
	d.say(t, "stop", text, nil)
	if exited {
		time.Sleep(eventTravels)
	}
	return max(time.Until(ends), time.Second)
}

// lastSave asks a task to save, and waits for the checkpoint.
func (d *Driver) lastSave(ctx context.Context, t *task) (checkpoint.Saved, error) {
	cfg, c := t.handle.Config, *t.checkpoint
	files, err := checkpoint.Open(c, dirsOf(cfg))
	if err != nil {
		return checkpoint.Saved{}, err
	}
	defer files.Close()
	before, err := files.Scan()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return checkpoint.Saved{}, err
	}
	t.setup.controller.Moving(cfg.ID, saving())
	if err := t.instance().SignalTask(cfg.ID, c.Signal); err != nil {
		return checkpoint.Saved{}, fmt.Errorf("sending %s: %w", c.Signal, err)
	}
	return files.Wait(ctx, before)
}
