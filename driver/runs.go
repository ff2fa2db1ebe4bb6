// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
)

// What a run of a job took is kept on the node, beside the directories of all allocations,
// and is what is known of the next one before it says how long it will be.

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
		if ok && !strings.HasPrefix(strings.ToLower(key), metaPrefix) {
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

// recallRun tells a task what the last run of its kind took. It never fails.
func (d *Driver) recallRun(cfg *drivers.TaskConfig, opts *taskOptions) {
	if opts.Targets.QoE > 0 || cfg.AllocDir == "" {
		return
	}
	var err error
	if opts.Run, err = runKey(cfg); err == nil {
		d.runs.Lock()
		defer d.runs.Unlock()
		opts.Work.Earlier, err = history.Find(nodePrivate(cfg), opts.Run)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.logger.Warn("what an earlier run of the task took is not known", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}

// keepRun keeps what a task took whose last measurement is known, if it has ended as a
// success and not because Nomad stopped it. It waits until that is known.
func (d *Driver) keepRun(t *task, key history.Key, last measure.Measurement) {
	select {
	case <-t.settled:
	case <-d.ctx.Done():
		return
	}
	run := last.Work.Run(last.CPU)
	if t.result == nil || !t.result.Successful() || t.stopped && !t.succeeded.Load() || !(run.CPUS > 0) || key == (history.Key{}) {
		return
	}
	cfg := t.handle.Config
	d.runs.Lock()
	defer d.runs.Unlock()
	if err := history.Add(nodePrivate(cfg), key, run); err != nil {
		d.logger.Warn("what the task took is not kept for its next run", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}
