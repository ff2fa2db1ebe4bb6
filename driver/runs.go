// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
)

// What a run of a job took is kept on the node, beside the directories of all allocations,
// and is what is known of the next one before it says how long it will be. An event says it
// to the shim, which tells the node of the next run with a signal (history.Signal).

// runKey says which runs are like that of a task: those with the same image, command,
// arguments and meta, apart from ours.
func runKey(cfg *drivers.TaskConfig) (history.Key, error) {
	var config struct {
		Image   string   `codec:"image"`
		Command string   `codec:"command"`
		Args    []string `codec:"args"`
	}
	if err := cfg.DecodeDriverConfig(&config); err != nil {
		return history.Key{}, err
	}
	with := append([]string{config.Image, config.Command}, config.Args...)
	for _, name := range sortedKeys(cfg.Env) {
		key, ok := strings.CutPrefix(name, taskenv.MetaPrefix)
		if _, ours := options.Key(key); ok && !ours {
			with = append(with, key+"="+cfg.Env[name])
		}
	}
	return history.Key{
		Namespace: cfg.Namespace, Job: history.Job(cmp.Or(cfg.ParentJobID, cfg.JobID)), Group: cfg.TaskGroupName, Task: cfg.Name,
		Arguments: history.Arguments(with...),
	}, nil
}

// nodePrivate is the node's own private directory.
func nodePrivate(cfg *drivers.TaskConfig) private.Dir {
	return private.Open(filepath.Dir(cfg.AllocDir))
}

// recallRun finds what the last run of a task's kind took on this node. It never fails.
func (d *Driver) recallRun(cfg *drivers.TaskConfig, opts *options.Task) {
	if opts.Run == (history.Key{}) {
		return
	}
	d.runs.Lock()
	defer d.runs.Unlock()
	var err error
	if opts.Work.Earlier, err = history.Find(nodePrivate(cfg), opts.Run); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.logger.Warn("what an earlier run of the task took is not known", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}

// tellRun takes over what the last run of a running task's kind took on another node.
func (d *Driver) tellRun(t *task, text string) error {
	run, err := t.run.Parse(text)
	switch {
	case t.run == (history.Key{}) || errors.Is(err, history.ErrOther):
		return nil // says nothing of this task
	case err != nil:
		return fmt.Errorf("ebbtide: signal %s: %w", history.Signal, err)
	}
	t.setup.controller.Earlier(t.handle.Config.ID, run)
	return d.addRun(t, run)
}

// keepRun keeps what a task took whose last measurement is known. It waits until it is
// known how the task has ended.
func (d *Driver) keepRun(t *task, last measure.Measurement) {
	select {
	case <-t.settled:
	case <-d.ctx.Done():
		return
	}
	run := last.Work.Run(last.CPU)
	if !t.whole(run) {
		return
	}
	if err := d.addRun(t, run); err != nil {
		d.logger.Warn("what the task took is not kept for its next run", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
	}
}

// leastSaid is what a run must have taken to be told to the shim: the event delays the end
// of the task by a moment (farewell), and what is over soon gains nothing.
const leastSaid = 5 // CPU-seconds

// sayRun tells what a task took that has ended, and the shim so, which tells other nodes.
func (d *Driver) sayRun(t *task, run remaining.Run) (said bool) {
	if !t.whole(run) || run.CPUS < leastSaid {
		return false
	}
	message := fmt.Sprintf("it took %.4g CPU-seconds", run.CPUS)
	if run.Steps > 0 {
		message += fmt.Sprintf(" for %.6g steps", run.Steps)
	}
	d.say(t, "size", message+"; its next run will be expected to take as long", map[string]string{history.Annotation: t.run.Text(run)})
	return true
}

// whole says whether a task has ended as a success, and not because Nomad stopped it, so
// that what it took says something of its next run.
func (t *task) whole(run remaining.Run) bool {
	return t.run != (history.Key{}) && t.result != nil && t.result.Successful() && (!t.stopped || t.succeeded.Load()) && run.CPUS > 0
}

func (d *Driver) addRun(t *task, run remaining.Run) error {
	d.runs.Lock()
	defer d.runs.Unlock()
	return history.Add(nodePrivate(t.handle.Config), t.run, run)
}
